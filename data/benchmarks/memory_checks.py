"""compute-sanitizer over the cases of every kernel, on a GPU: reads and writes outside of memory, and races.

    python data/benchmarks/memory_checks.py                       all kernels, memcheck and racecheck
    python data/benchmarks/memory_checks.py --kernels question_attention --tools memcheck

leaves memory-checks.json, a row of a kernel and tool as it ends; rows that are not made again stay.
"""

import argparse
from pathlib import Path
from typing import Any

import torch

from workbench.experiments import bench, memory_checks, results
from workbench.experiments.record import device_name, versions

OUT = Path(__file__).with_name("memory-checks.json")


def main() -> None:
    """Check, and write as it goes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", nargs="+", default=bench.names(), choices=bench.names())
    parser.add_argument("--tools", nargs="+", default=list(memory_checks.TOOLS), choices=memory_checks.TOOLS)
    parser.add_argument("--jobs", type=int, default=8, help="processes at a time")
    parser.add_argument("--seconds", type=float, default=600, help="of one process, at most")
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    kept: dict[str, Any] = {
        "command": "python data/benchmarks/memory_checks.py",
        "device": device_name(torch.device("cuda")),
    }
    kept |= {"versions": versions(), "rows": []}
    before = results.read_json(given.out)["rows"] if given.out.is_file() else []
    again = {(tool, name) for tool in given.tools for name in given.kernels}
    kept["rows"] = [row for row in before if (row["tool"], row["name"]) not in again]
    for row in memory_checks.of_kernels(given.kernels, given.tools, given.jobs, given.seconds):
        kept["rows"].append(row)
        results.write_json(given.out, kept)
        print({key: value for key, value in row.items() if key != "output"}, *row["output"], sep="\n", flush=True)


if __name__ == "__main__":
    main()

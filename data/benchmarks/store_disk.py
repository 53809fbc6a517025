"""How fast verified blocks come from disk and memory, beside a raw read of the same bytes; needs no GPU.

    python data/benchmarks/store_disk.py                     about a minute, 1.1 GB of files in a temporary folder
    python data/benchmarks/store_disk.py --folder /mnt/nvme  on the disk that is asked about

Writes store-disk.json: for blocks of three models, one to a file and sixteen to a file, reads with the files in the
page cache and dropped from it, writes with and without fsync, and look-ups in memory. Every round times the raw read
and the hits in turn; shares are within a round. Run it on a machine that does nothing else.
"""

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

import torch

from workbench.experiments.record import device_name, version_of, versions
from workbench.experiments.results import write_json
from workbench.experiments.store_speed import SHAPES, measured
from workbench.store.checksums import crc32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="where files are written; without it, a temporary folder")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--models", nargs="*", default=[shape.model for shape in SHAPES])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    args = parser.parse_args()
    shapes = [shape for shape in SHAPES if shape.model in args.models]
    rows = []
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        for row in measured(Path(folder), shapes, args.rounds):
            rows.append(row)
            print(", ".join(f"{n} {v:.3g}" if isinstance(v, float) else f"{v}" for n, v in row.items()), flush=True)
    facts: dict[str, Any] = {
        "command": "python data/benchmarks/store_disk.py",
        "device": device_name(torch.device("cpu")),
    }
    facts |= {"load": os.getloadavg()[0], "cores": os.cpu_count()}  # of other work beside this one
    facts |= {"checksum": f"CRC-32 of {crc32.__module__}", "isal": version_of("isal"), "versions": versions()}
    write_json(args.out / "store-disk.json", facts | {"rounds": args.rounds, "rows": rows})


if __name__ == "__main__":
    main()

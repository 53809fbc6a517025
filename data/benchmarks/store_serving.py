"""Throughput, time to first token and idle share of 200 questions at once over stored blocks, in one run.

    python data/benchmarks/store_serving.py --device cpu      writes data/benchmarks/store-serving-DEVICE.json
    python data/benchmarks/store_serving.py --device cuda     Llama-3.1-8B's shape, random weights, in about 10 minutes

What is measured, and beside what, stands in `serving_runs`. The file is written after each run.
"""

import argparse
import shutil
import sys
import tempfile
from dataclasses import asdict, fields, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from serving_load import GPU, Load
from serving_runs import runs
from stored_corpus import StoredCorpus

from workbench import models
from workbench.experiments.bench import whole_model
from workbench.experiments.record import device_name, versions
from workbench.experiments.results import write_json


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--model", default="lab-full", help="on a CPU")
    parser.add_argument("--threads", type=int, default=2, help="of the engine, on a CPU")
    parser.add_argument(
        "--seconds", type=float, default=150, help="runs that would begin later are skipped, baselines asked less"
    )
    parser.add_argument(
        "--folder", default=None, help="where the blocks of the cold runs lie; without it, a temporary one"
    )
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    for field in fields(Load):
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=type(field.default), default=None)
    return parser.parse_args()


def main() -> None:
    args, begin = arguments(), perf_counter()
    given = {f.name: getattr(args, f.name) for f in fields(Load) if getattr(args, f.name) is not None}
    load = replace(GPU if args.device == "cuda" else Load(), **given)
    torch.set_num_threads(args.threads if args.device == "cpu" else 1)  # there, loaders and readers are the threads
    model = whole_model.build() if args.device == "cuda" else models.load(args.model, "cpu").model
    folder = Path(tempfile.mkdtemp(prefix="store-serving-", dir=args.folder))
    facts: dict[str, Any] = {"command": " ".join(["python", "data/benchmarks/store_serving.py", *sys.argv[1:]])}
    facts |= {"model": "Llama-3.1-8B's shape, random weights" if args.device == "cuda" else args.model}
    facts |= {"device": device_name(model.device), "versions": versions(), "load": asdict(load), "runs": []}
    out = args.out / f"store-serving-{args.device}.json"
    try:
        bench = StoredCorpus(model, load, folder / "blocks")
        bench.encode()
        facts |= {"corpus_bytes": load.blocks * bench.kv_bytes, "ready_s": perf_counter() - begin}
        facts["copy"] = bench.copy_rates()
        print(f"ready after {facts['ready_s']:.0f} s; into pages {facts['copy']}", flush=True)
        for row in runs(bench, args.seconds - (perf_counter() - begin)):
            facts["runs"].append(row)
            write_json(out, facts | {"seconds": perf_counter() - begin})
            print(spoken(row), flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def spoken(row: dict[str, Any]) -> str:
    """Return one run as a line."""
    name = f"{row['run']:14} {row.get('state', ''):5} {row.get('mode', ''):8} ratio {row.get('ratio', 0):.2f}"
    if "ttft" not in row:
        about = {key: row[key] for key in ("raw", "resident", "folder") if key in row}
        return f"{name}  {row.get('skipped') or row.get('problem') or format(row['seconds'], '.1f') + ' s'}  {about}"
    ttft = row["ttft"]
    times = f"TTFT {ttft.get('p50', 0):7.3f} s (p95 {ttft.get('p95', 0):7.3f})  {row['per_second']:7.2f} a second"
    return f"{name}  {times}  idle {row['idle']:.0%}  reused {row['reused']:.0%}  {row.get('problem', '')}"


if __name__ == "__main__":
    main()

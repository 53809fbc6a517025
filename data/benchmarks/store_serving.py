"""Throughput, time to first token and idle share of 200 questions at once over stored blocks, in one run.

    python data/benchmarks/store_serving.py --device cpu      writes counts of experiment "serving"
    python data/benchmarks/store_serving.py --device cuda     Llama-3.1-8B's shape, random weights, in about 10 minutes

What is measured, and beside what, stands in `serving_runs`. Rows are written after each run.
"""

import argparse
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from serving_load import GPU, Load
from serving_runs import runs
from stored_corpus import StoredCorpus

from workbench import models
from workbench.experiments.bench.models import whole_model
from workbench.experiments.trials.record import device_name, versions
from workbench.results import Writer, this_run
from workbench.results.reader import FOLDER

GPU_MODEL = "Llama-3.1-8B's shape, random weights"
NUMBERS = (
    *("per_second", "idle", "reused", "together", "seconds", "failed", "bytes", "resident"),
    *("pages_gbps", "copy_gbps", "share"),
)


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
    parser.add_argument("--out", type=Path, default=FOLDER)
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
    origin: dict[str, Any] = {
        "model": GPU_MODEL if args.device == "cuda" else args.model,
        "seed": load.seed,
        "versions": versions(),
    }
    origin |= {"device": device_name(model.device), **this_run()}
    setting = {name: value for name, value in asdict(load).items() if name not in ("seed", "ratio")}
    try:
        with Writer(args.out, f"serving@{args.device}", **origin) as out:
            bench = StoredCorpus(model, load, folder / "blocks")
            bench.encode()
            copied = bench.copy_rates()
            print(f"ready after {perf_counter() - begin:.0f} s; into pages {copied}", flush=True)
            out.counts(counts({"run": "copies into pages", **copied}, setting))
            for row in runs(bench, args.seconds - (perf_counter() - begin)):
                out.counts(counts(row, setting))
                print(spoken(row), flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def counts(row: Mapping[str, Any], setting: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a row of `results.Count` a number of a run; a run that was skipped has none."""
    numbers = {name: value for name in NUMBERS if (value := row.get(name)) is not None}
    numbers |= {f"ttft_{end}": 1e3 * row["ttft"][end] for end in ("p50", "p95") if row.get("ttft")}
    numbers |= {"ttft_ms": 1e3 * row["ttft"]["mean"]} if row.get("ttft") else {}
    numbers |= {f"bytes_{tier}": size for tier, size in row.get("loaded", {}).items()}
    numbers |= {"gbs": row["raw"]["gbps"]} if "raw" in row else {}
    about = {"method": row["run"], "kind": row.get("state", ""), "ratio": row.get("ratio"), "n": row.get("questions")}
    about["setting"] = {**setting, **({"scheduler": row["mode"]} if "mode" in row else {})}
    return [{**about, "measure": name, "value": float(value)} for name, value in numbers.items()]


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

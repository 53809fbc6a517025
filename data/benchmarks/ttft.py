"""Time to the first token over cached blocks, against full prefill and against stock transformers, in one run.

    python data/benchmarks/ttft.py --threads 2                  writes data/benchmarks/ttft-cpu-lab_full.json
    python data/benchmarks/ttft.py --threads 2 --model smollm2 --lengths 256 512 1024 1550

The methods are those of `workbench.experiments.latency.ttft`; they run interleaved, so that a busy machine slows all
alike.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import torch

from workbench import data, models
from workbench.experiments.latency.ttft import METHODS, by_length, prompt_of_length
from workbench.experiments.results import write_json
from workbench.experiments.trials.record import device_name, versions


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="lab-full")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--lengths", type=int, nargs="+", default=[256, 512, 1024, 2048])
    parser.add_argument("--question", type=int, default=50, help="tokens of the question")
    parser.add_argument("--ratio", type=float, default=0.15, help="share of the document tokens that is recomputed")
    parser.add_argument("--repeats", type=int, default=21)
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    model, tokenizer, layout = models.load(args.model, args.device)
    samples = data.load("lab", 8)
    facts: dict[str, Any] = {"command": " ".join(["python", "data/benchmarks/ttft.py", *sys.argv[1:]])}
    facts |= {name: getattr(args, name) for name in ("model", "question", "ratio", "threads")}
    facts |= {"device": device_name(model.device), "versions": versions(), "rows": []}
    for length in args.lengths:
        prompt = prompt_of_length(length, samples, tokenizer, layout, args.question)
        rows = by_length(model, [prompt], args.repeats, args.ratio, args.methods)
        facts["rows"] += rows
        block = next((row["p50"] for row in rows if row["way"] == "block"), None)
        for row in rows:
            faster = f"block is {row['p50'] / block:.1f} times as fast" if block else ""
            print(f"{length:>6}  {row['way']:14} {row['p50'] * 1e3:8.1f} ms  {faster}", flush=True)
    name = Path(args.model).name.replace("-", "_")
    write_json(Path(__file__).with_name(f"ttft-{args.device}-{name}.json"), facts)


if __name__ == "__main__":
    main()

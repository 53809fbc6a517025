"""Time to the first token over cached blocks, against full prefill and against stock transformers, in one run.

    python data/benchmarks/ttft.py --threads 2
    python data/benchmarks/ttft.py --threads 2 --model smollm2 --lengths 256 512 1024 1550

Writes timings of experiment "ttft" into a results folder. The methods are those of
`workbench.experiments.latency.ttft`; they run interleaved, so that a busy machine slows all alike.
"""

import argparse
from pathlib import Path

import torch

from workbench import data, models
from workbench.experiments.latency.ttft import METHODS, by_length, prompt_of_length, timings
from workbench.experiments.trials.record import device_name, versions
from workbench.results import Writer, this_run
from workbench.results.reader import FOLDER


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
    parser.add_argument("--out", type=Path, default=FOLDER, help="results folder")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    model, tokenizer, layout = models.load(args.model, args.device)
    samples = data.load("lab", 8)
    origin = {"model": args.model, "device": device_name(model.device), "versions": versions(), **this_run()}
    with Writer(args.out, f"ttft@{args.device}-{Path(args.model).name}", **origin) as out:
        for length in args.lengths:
            prompt = prompt_of_length(length, samples, tokenizer, layout, args.question)
            records = by_length(model, [prompt], args.repeats, args.ratio, args.methods)
            rows = timings(records, args.question)
            out.timings(row | {"ratio": args.ratio if row["candidate"] == "recompute" else None} for row in rows)
            block = next((row["ms"] for row in rows if row["candidate"] == "block"), None)
            for row in rows:
                faster = f"block is {row['ms'] / block:.1f} times as fast" if block else ""
                print(f"{length:>6}  {row['candidate']:14} {row['ms']:8.1f} ms  {faster}", flush=True)


if __name__ == "__main__":
    main()

"""Time to the first token over cached blocks, against full prefill and against stock transformers, in one run.

    python data/benchmarks/ttft.py --threads 2
    python data/benchmarks/ttft.py --threads 2 --model smollm2 --lengths 256 512 1024 1550

Writes timings of experiment "ttft" into a results folder. The methods are those of
`workbench.experiments.latency.ttft`; they run interleaved, so that a busy machine slows all alike.
"""

from script import name_of, options, writer

from workbench import data, models
from workbench.experiments.latency.ttft import METHODS, by_length, prompt_of_length, timings


def main() -> None:
    defaults = {"device": "cpu", "threads": 2, "lengths": [256, 512, 1024, 2048], "question": 50, "ratio": 0.15}
    args = options(__doc__, model="lab-full", **defaults, repeats=21, methods=list(METHODS))
    model, tokenizer, layout = models.load(args.model, args.device)
    samples = data.load("lab", 8)
    with writer(args, f"ttft@{args.device}-{name_of(args.model)}", model.device, model=args.model) as out:
        for length in args.lengths:
            prompt = prompt_of_length(length, samples, tokenizer, layout, args.question)
            records = by_length(model, [prompt], args.repeats, args.ratio, args.methods)
            rows = timings(records, args.question)
            out.timings(row | {"ratio": args.ratio if row["candidate"] == "recompute" else None} for row in rows)
            for row in rows:
                print(f"{length:>6}  {row['candidate']:14} {row['ms']:8.1f} ms", flush=True)


if __name__ == "__main__":
    main()

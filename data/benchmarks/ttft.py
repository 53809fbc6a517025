"""Time to first token over cached blocks, against full prefill and stock transformers, in one run.

    python data/benchmarks/ttft.py --threads 2
    python data/benchmarks/ttft.py --threads 2 --model smollm2 --lengths 256 512 1024 1550
    python data/benchmarks/ttft.py --threads 2 --tiers --repeats 15

Writes timings of experiment "ttft" into a results folder. The methods are those of
`workbench.experiments.latency.ttft`; they run interleaved, so that a busy machine slows all alike. `--tiers`: timings
of experiment "tiers" by storage tier (FusionRAG, figure 19): full attention, and reuse from memory and from disk, with
nothing and 15% recomputed.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from script import name_of, options, writer

from workbench import data, models
from workbench.core.blocks import Prompt
from workbench.experiments.latency import ttft
from workbench.models.loading import Loaded


def over_tiers(loaded: Loaded, prompt: Prompt, args: Any) -> list[dict[str, Any]]:
    """Time full attention and reuse from memory and from disk."""
    with tempfile.TemporaryDirectory() as folder:
        return ttft.over_tiers(loaded, [prompt], Path(folder) / "blocks", args.repeats)


def over_methods(loaded: Loaded, prompt: Prompt, args: Any) -> Iterator[dict[str, Any]]:
    """Time every method."""
    records = ttft.by_length(loaded.model, [prompt], args.repeats, args.ratio, args.methods)
    for row in ttft.timings(records, args.question):
        yield row | {"ratio": args.ratio if row["candidate"] == "recompute" else None}


def main() -> None:
    """Measure and write one length at a time."""
    defaults = {"device": "cpu", "threads": 2, "lengths": [256, 512, 1024, 2048], "question": 50, "ratio": 0.15}
    more = {"repeats": 21, "methods": list(ttft.METHODS), "tiers": False}
    args = options(__doc__, model="lab-full", **defaults, **more)
    loaded, samples, name = models.load(args.model, args.device), data.load("lab", 8), name_of(args.model)
    part, timed = (f"tiers@{name}", over_tiers) if args.tiers else (f"ttft@{args.device}-{name}", over_methods)
    origin = {"model": args.model} | ({"data": "lab", "seed": 0} if args.tiers else {})
    with writer(args, part, loaded.model.device, **origin) as out:
        for length in args.lengths:
            prompt = ttft.prompt_of_length(length, samples, loaded.tokenizer, loaded.layout, args.question)
            rows = list(timed(loaded, prompt, args))
            out.timings(rows)
            for row in rows:
                print(f"{length:>6}  {row['candidate']:14} {row['ms']:8.1f} ms", flush=True)


if __name__ == "__main__":
    main()

"""Time to first token by stage: assembly, selection, attention, the rest.

    python data/benchmarks/stages.py --device cuda            Llama-3.1-8B's shape, random weights, 32K tokens
    python data/benchmarks/stages.py --model lab-full --length 1024 --block 64 --out /tmp

Writes counts of experiment "stages" into a results folder: full attention, cached blocks, cached blocks with a share
recomputed, and a sparse method at several values of its threshold, each with its density. The host
synchronises between stages, so sums exceed the time to first token.
"""

from typing import Any

import torch
from script import options, prompt_of, writer

from workbench import models
from workbench.experiments.latency.ttft import filled_store
from workbench.methods import sparse
from workbench.methods.modes.full import Full
from workbench.methods.modes.reuse import Reuse
from workbench.methods.select.query_guided import QueryGuided
from workbench.metrics.stages import stages

LLAMA = "Llama-3.1-8B shape"


def main() -> None:
    shape = {"length": 32768, "block": 512, "question": 50, "ratio": 0.15}
    choice = {"sparse": "bfla(block=256, tile=128, flat=64)", "threshold": [0.1, 0.3, 0.5, 0.9]}
    args = options(__doc__, model=LLAMA, device="cpu", **shape, **choice, repeats=5)
    if args.model == LLAMA:
        from workbench.experiments.bench.models.whole_model import build  # imports kernels, which need Triton

        model = build()
    else:
        model = models.load(args.model, args.device).model
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(model.config.vocab_size, (args.length,), generator=draw)
    prompt = prompt_of(ids, args.block, args.question)
    store, method = filled_store(model, prompt.context), sparse.from_spec(args.sparse)
    methods: dict[str, Full | Reuse] = {"full attention": Full(), "cached blocks": Reuse()}
    methods[f"blocks, {args.ratio:.0%} recomputed"] = Reuse(select=QueryGuided(), ratio=args.ratio)
    methods |= {f"{args.sparse} at {value:g}": Full(sparse=method.with_threshold(value)) for value in args.threshold}
    origin = {"model": args.model, "dtype": str(model.dtype).removeprefix("torch."), "n": args.repeats}
    with writer(args, f"stages@{'gpu' if model.device.type == 'cuda' else 'cpu'}", model.device, **origin) as out:
        for name, timed in methods.items():
            split = stages(model, prompt, timed, store, args.repeats)
            about: dict[str, Any] = {"setting": {"length": args.length, "question": args.question, "way": name}}
            about["method"] = f"{name}, {split.density:.0%} kept" if getattr(timed, "sparse", None) else name
            counted = [{"measure": stage, "value": value, "unit": "s"} for stage, value in split.seconds.items()]
            out.counts(about | row for row in [*counted, {"measure": "density", "value": split.density}])
            print(name, {stage: round(seconds, 4) for stage, seconds in split.seconds.items()}, flush=True)


if __name__ == "__main__":
    main()

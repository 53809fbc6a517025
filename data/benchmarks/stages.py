"""Where the time to the first token goes: putting blocks in place, choosing, attention, the rest.

    python data/benchmarks/stages.py --device cuda            Llama-3.1-8B's shape, random weights, 32K tokens
    python data/benchmarks/stages.py --model lab-full --length 1024 --block 64 --out /tmp

Writes counts of experiment "stages" into a results folder: full attention, cached blocks, cached blocks with a share
recomputed, and a sparse method at several values of its threshold, each with the density that it keeps. The host waits
at every border between stages, so sums are more than the time to first token.
"""

import argparse
from pathlib import Path

import torch

from workbench import models
from workbench.core.blocks import Block, Prompt
from workbench.experiments.latency.ttft import filled
from workbench.experiments.trials.record import device_name, versions
from workbench.methods import sparse
from workbench.methods.modes.full import Full
from workbench.methods.modes.reuse import Reuse
from workbench.methods.select.query_guided import QueryGuided
from workbench.metrics.latency import stages
from workbench.results import Writer, this_run
from workbench.results.reader import FOLDER

LLAMA = "Llama-3.1-8B shape"


def prompt_of(vocabulary: int, length: int, block: int, question: int) -> Prompt:
    """Make a prompt of random tokens in blocks, and a question."""
    draw = torch.Generator().manual_seed(0)
    tokens = torch.randint(vocabulary, (length,), generator=draw)
    parts = [*tokens[: length - question].split(block), tokens[length - question :]]
    return Prompt(tuple(Block(tuple(part.tolist())) for part in parts))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=LLAMA)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--length", type=int, default=32768)
    parser.add_argument("--block", type=int, default=512, help="tokens of a cached block")
    parser.add_argument("--question", type=int, default=50)
    parser.add_argument("--ratio", type=float, default=0.15, help="share of the document tokens that is recomputed")
    parser.add_argument("--sparse", default="bfla(block=256, tile=128, flat=64)")
    parser.add_argument("--threshold", type=float, nargs="*", default=[0.1, 0.3, 0.5, 0.9])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=FOLDER, help="results folder")
    args = parser.parse_args()
    if args.model == LLAMA:
        from workbench.experiments.bench.models.whole_model import build  # loads the kernels, which need Triton

        model = build()
    else:
        model = models.load(args.model, args.device).model
    prompt = prompt_of(model.config.vocab_size, args.length, args.block, args.question)
    store, method = filled(model, prompt.context), sparse.named(args.sparse)
    methods: dict[str, Full | Reuse] = {"full attention": Full(), "cached blocks": Reuse()}
    methods[f"blocks, {args.ratio:.0%} recomputed"] = Reuse(select=QueryGuided(), ratio=args.ratio)
    methods |= {f"{args.sparse} at {value:g}": Full(sparse=method.with_threshold(value)) for value in args.threshold}
    origin = {"model": args.model, "device": device_name(model.device), "versions": versions(), **this_run()}
    origin |= {"dtype": str(model.dtype).removeprefix("torch."), "n": args.repeats}
    with Writer(args.out, f"stages@{'gpu' if model.device.type == 'cuda' else 'cpu'}") as out:
        for name, timed in methods.items():
            split = stages(model, prompt, timed, store, args.repeats)
            about = origin | {"setting": {"length": args.length, "question": args.question, "way": name}}
            sparse_one = isinstance(timed, Full) and bool(timed.sparse)
            about["method"] = f"{name}, {split.density:.0%} kept" if sparse_one else name
            counted = [{"measure": stage, "value": value, "unit": "s"} for stage, value in split.seconds.items()]
            out.counts(about | row for row in [*counted, {"measure": "density", "value": split.density}])
            spent = ", ".join(f"{stage} {seconds * 1e3:.1f}" for stage, seconds in split.seconds.items())
            print(f"{name:44} {spent} ms, density {split.density:.0%}", flush=True)


if __name__ == "__main__":
    main()

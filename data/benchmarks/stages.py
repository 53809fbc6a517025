"""Where the time to the first token goes: putting blocks in place, choosing, attention, the rest.

    python data/benchmarks/stages.py --device cuda            Llama-3.1-8B's shape, random weights, 32K tokens
    python data/benchmarks/stages.py --model lab-full --length 1024 --block 64 --out /tmp

Writes stages.json: full attention, cached blocks, cached blocks with a share recomputed, and a sparse method at
several values of its threshold, each with the density that it keeps. The host waits at every border between stages, so
sums are more than the time to first token.
"""

import argparse
import shlex
import sys
from pathlib import Path
from typing import Any

import torch

from workbench import models
from workbench.core.blocks import Block, Prompt
from workbench.experiments.latency.ttft import filled
from workbench.experiments.results import write_json
from workbench.experiments.trials.record import device_name, versions
from workbench.methods import sparse
from workbench.methods.modes.full import Full
from workbench.methods.modes.reuse import Reuse
from workbench.methods.select.query_guided import QueryGuided
from workbench.metrics.latency import stages

LLAMA = "Llama-3.1-8B shape"


def prompt_of(vocabulary: int, length: int, block: int, question: int) -> Prompt:
    """Make a prompt of random tokens in blocks, and a question."""
    draw = torch.Generator().manual_seed(0)
    tokens = torch.randint(vocabulary, (length,), generator=draw)
    parts = [*tokens[: length - question].split(block), tokens[length - question :]]
    return Prompt(tuple(Block(tuple(part.tolist())) for part in parts))


def without(words: list[str], option: str) -> list[str]:
    """Return a command line without one option, which names a folder of this machine."""
    at = words.index(option) if option in words else len(words)
    return words[:at] + words[at + 2 :]


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
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
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
    command = shlex.join(["python", "data/benchmarks/stages.py", *without(sys.argv[1:], "--out")])
    facts: dict[str, Any] = {"command": command, "model": args.model, "device": device_name(model.device)}
    facts |= {"dtype": str(model.dtype).removeprefix("torch."), "length": args.length, "question": args.question}
    facts |= {"repeats": args.repeats, "versions": versions(), "rows": []}
    for name, timed in methods.items():
        split = stages(model, prompt, timed, store, args.repeats)
        row = {"way": name, "sparse": isinstance(timed, Full) and bool(timed.sparse), "density": split.density}
        facts["rows"].append(row | split.seconds)
        spent = ", ".join(f"{stage} {seconds * 1e3:.1f}" for stage, seconds in split.seconds.items())
        print(f"{name:44} {spent} ms, density {split.density:.0%}", flush=True)
    write_json(args.out / "stages.json", facts)


if __name__ == "__main__":
    main()

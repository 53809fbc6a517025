"""Where the time to the first token goes: putting blocks in place, choosing, attention, the rest.

    python data/benchmarks/stages.py --device cuda            Llama-3.1-8B's shape, random weights, 32K tokens
    python data/benchmarks/stages.py --model lab-full --length 1024 --block 64 --out /tmp

Writes stages.json: full attention, cached blocks, cached blocks with a share computed again, and a sparse method at
several values of its dial, each with the density that it keeps. The host waits at every border between stages, so sums
are more than the time to first token.
"""

import argparse
import json
import shlex
import sys
from pathlib import Path
from typing import Any

import torch

from workbench import models
from workbench.core.blocks import Block, Prompt
from workbench.experiments.record import device_name, versions, write
from workbench.experiments.ttft import filled
from workbench.methods import sparse
from workbench.methods.modes.full import Full
from workbench.methods.modes.reuse import Reuse
from workbench.methods.select.query_guided import QueryGuided
from workbench.metrics.latency import stages

LLAMA = "Llama-3.1-8B shape"


def prompt_of(vocabulary: int, length: int, block: int, question: int) -> Prompt:
    """Random tokens in blocks, and a question."""
    draw = torch.Generator().manual_seed(0)
    tokens = torch.randint(vocabulary, (length,), generator=draw)
    parts = [*tokens[: length - question].split(block), tokens[length - question :]]
    return Prompt(tuple(Block(tuple(part.tolist())) for part in parts))


def without(words: list[str], option: str) -> list[str]:
    """A command line without one option: folders of this machine are nobody's business."""
    at = words.index(option) if option in words else len(words)
    return words[:at] + words[at + 2 :]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=LLAMA)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--length", type=int, default=32768)
    parser.add_argument("--block", type=int, default=512, help="tokens of a cached block")
    parser.add_argument("--question", type=int, default=50)
    parser.add_argument("--ratio", type=float, default=0.15, help="share of the document tokens computed again")
    parser.add_argument("--sparse", default="bfla(block=256, tile=128, flat=64)")
    parser.add_argument("--threshold", type=float, nargs="*", default=[0.1, 0.3, 0.5, 0.9])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    asked = parser.parse_args()
    if asked.model == LLAMA:
        from workbench.experiments.bench.whole_model import build  # loads the kernels, which need Triton

        model = build()
    else:
        model = models.load(asked.model, asked.device)[0]
    prompt = prompt_of(model.config.vocab_size, asked.length, asked.block, asked.question)
    store, method = filled(model, prompt.context), sparse.named(asked.sparse)
    ways: dict[str, Full | Reuse] = {
        "full attention": Full(),
        "cached blocks": Reuse(),
        f"blocks, {asked.ratio:.0%} computed again": Reuse(select=QueryGuided(), ratio=asked.ratio),
    }
    ways |= {f"{asked.sparse} at {value:g}": Full(sparse=method.with_threshold(value)) for value in asked.threshold}
    facts: dict[str, Any] = {
        "command": shlex.join(["python", "data/benchmarks/stages.py", *without(sys.argv[1:], "--out")]),
        "model": asked.model,
        "device": device_name(model.device),
        "dtype": str(model.dtype).removeprefix("torch."),
        "length": asked.length,
        "question": asked.question,
        "repeats": asked.repeats,
        "versions": versions(),
        "rows": [],
    }
    for name, way in ways.items():
        found = stages(model, prompt, way, store, asked.repeats)
        facts["rows"].append({"way": name, "sparse": isinstance(way, Full) and bool(way.sparse),
                              "density": found.density, **found.seconds})  # fmt: skip
        spent = ", ".join(f"{stage} {seconds * 1e3:.1f}" for stage, seconds in found.seconds.items())
        print(f"{name:44} {spent} ms, density {found.density:.0%}", flush=True)
    write(json.dumps(facts, indent=1) + "\n", asked.out / "stages.json")


if __name__ == "__main__":
    main()

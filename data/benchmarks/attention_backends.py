"""The fastest attention on this GPU by shape: our kernels, cuDNN's and FlashAttention 2 in one run.

    python data/benchmarks/attention_backends.py

writes attention_backends.json, which `workbench.engine.attention_backends.choice` reads (rows of other GPUs are
kept), and timings of experiment "backends". Candidates take turns; a time is the median in milliseconds. "dense": a
whole prompt; "blocks": 32K tokens in blocks of one length, each attending to itself; "blocks of lengths": blocks of a
quarter to three quarters of 1024 tokens.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from script import options, writer

from workbench.core.errors import BadInput
from workbench.core.utils.files import write_text
from workbench.engine.attention_backends import blocks_backends
from workbench.engine.attention_backends import choice as backends
from workbench.experiments.bench import baselines, timing
from workbench.experiments.bench.kernels.workloads import numbers
from workbench.experiments.bench.run import gpu_facts
from workbench.experiments.bench.timing import Time

OUT = Path(__file__).with_name("attention_backends.json")
HEADS = (((32, 8), 128), ((32, 8), 64), ((28, 4), 128), ((9, 3), 64))  # Llama-3.1-8B, Llama-3.2-1B, Qwen2.5-7B, SmolLM2
LENGTHS = (1024, 2048, 4096, 8192, 16384, 32768)
BLOCKS = (128, 256, 512, 1024, 4096)
TOKENS = 32768  # of all blocks

Calls = Mapping[str, Sequence[Any]]


def dense(heads: tuple[int, int], width: int, length: int) -> Calls:
    """A whole prompt by every backend."""
    q, k, v = (numbers(1, n, length, width) for n in (heads[0], heads[1], heads[1]))
    rows = torch.arange(length, device=q.device)[None]
    ours = partial(backends.kernel("tile_attention").launch, q, k, v, rows)
    return {"tile_attention": [ours]} | {name: [baselines.torchs(name, q, k, v, True)] for name in ("cudnn", "flash")}


def blocks(heads: tuple[int, int], width: int, lengths: Sequence[int]) -> Calls:
    """Blocks by every backend that supports these lengths."""
    total, longest = sum(lengths), max(lengths)
    q, k, v = (numbers(total, n, width).transpose(0, 1) for n in (heads[0], heads[1], heads[1]))
    starts = torch.tensor((0, *lengths)).cumsum(0).int().to(q.device)
    ways = {n: w for n, w in blocks_backends.WAYS.items() if n not in blocks_backends.EQUAL or len({*lengths}) == 1}
    return {name: [partial(way, q, k, v, starts, longest, None)] for name, way in ways.items()}


def shapes() -> Iterator[tuple[str, tuple[int, int], int, int, Calls]]:
    """Yield (work, heads, head width, length, candidates)."""
    for heads, width in HEADS:
        for length in LENGTHS:
            yield "dense", heads, width, length, dense(heads, width, length)
        for length in BLOCKS:
            yield "blocks", heads, width, length, blocks(heads, width, [length] * (TOKENS // length))
        draw = torch.Generator().manual_seed(0)
        lengths = torch.randint(256, 769, (64,), generator=draw).tolist()
        yield "blocks of lengths", heads, width, max(lengths), blocks(heads, width, lengths)


def row(work: str, heads: tuple[int, int], width: int, length: int, calls: Calls) -> dict[str, Any]:
    """Measure one shape; a backend that refuses it is left out."""
    times = timing.measure(calls)
    found = {name: time.ms for name, time in times.items() if isinstance(time, Time)}
    refused = {name: time for name, time in times.items() if not isinstance(time, Time)}
    entry = {"work": work, "heads": list(heads), "width": width, "length": length, "times": found}
    return entry | ({"refused": refused} if refused else {})


def main() -> None:
    """Measure and write one shape at a time."""
    given = options(__doc__, choices=OUT, shapes=len(HEADS))
    if not torch.cuda.is_available():
        raise BadInput("attention is timed on a GPU, and there is none here")
    facts = gpu_facts()
    name = facts.pop("card")
    before = json.loads(given.choices.read_text())["gpus"] if given.choices.is_file() else {}
    rows: list[dict[str, Any]] = []
    with torch.inference_mode(), writer(given, "backends@gpu", "cuda") as out:
        for work, heads, width, length, calls in shapes():
            if (heads, width) not in HEADS[: given.shapes]:
                continue
            rows.append(row(work, heads, width, length, calls))
            setting = {"work": work, "heads": list(heads), "width": width, "length": length}
            about = {"setting": setting, "workload": f"{work}, {length:,} tokens"}
            out.timings({**about, "candidate": who, "ms": ms} for who, ms in rows[-1]["times"].items())
            print(work, heads, width, length, {k: round(v, 4) for k, v in rows[-1]["times"].items()}, flush=True)
            mine = facts | {"capability": list(torch.cuda.get_device_capability()), "rows": rows}
            command = {"command": "python data/benchmarks/attention_backends.py"}
            write_text(given.choices, json.dumps(command | {"gpus": before | {name: mine}}, indent=1) + "\n")


if __name__ == "__main__":
    main()

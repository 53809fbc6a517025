"""Blocks encoded on one GPU and spread over two: a process each, with a model of its own, as `store encode` deals them.

    python data/benchmarks/two_gpus.py
    python data/benchmarks/two_gpus.py --tiny --out runs/try     two processes on a CPU, for a try

writes timings of experiment "two-gpus": milliseconds for all blocks on the first GPU while the second is idle, and for
half of them on each at the same time, in turns, from a moment that both wait for until the later one is done. No turn
begins after `--seconds`. Llama-3.1-8B's shape, random weights.
"""

import time
from functools import cache
from typing import Any

import torch
from script import TINY, checksum, options, writer

from workbench.core.blocks import Block
from workbench.core.errors import BadInput
from workbench.core.utils.runner import pool
from workbench.experiments.bench.models import whole_model
from workbench.metrics.latency import quantiles

LEAST = 3  # turns that are taken however late it is
SOON = 0.05  # seconds from the order until both begin


@cache
def prepared(number: int, blocks: int, tokens: int, tiny: bool) -> tuple[Any, Any, list[Block], list[Any]]:
    """Return the model, pool, blocks and pages of this process, which computes on GPU `number`."""
    from workbench.engine.pages.paged_pool import Pool

    if not tiny:
        torch.cuda.set_device(number)
    model = whole_model.build(whole_model.LLAMA | TINY if tiny else whole_model.LLAMA)
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(model.config.vocab_size, (blocks, tokens), generator=draw).tolist()
    pages = Pool(model, 2 + blocks * -(-tokens // 64))
    return model, pages, [Block(tuple(row)) for row in ids], [pages.cached(tokens) for _ in range(blocks)]


def encode(number: int, share: slice, size: tuple[int, int, bool], at: float = 0.0) -> tuple[float, float, int]:
    """Encode a share of the blocks on GPU `number` from the moment `at` on; return begin, end and a checksum."""
    model, pages, blocks, cached = prepared(number, *size)
    some = blocks[share]
    time.sleep(max(0.0, at - time.time()))
    begin = time.time()
    pages.encode(model, some, cached[: len(some)])
    if pages.device.type == "cuda":
        torch.cuda.synchronize()
    return begin, time.time(), checksum(pages, cached[0])


def main() -> None:
    """Measure and write."""
    given = options(__doc__, blocks=64, tokens=512, runs=30, seconds=50.0, tiny=False)
    end, size = time.monotonic() + given.seconds, (given.blocks, given.tokens, given.tiny)
    if not given.tiny and torch.cuda.device_count() < 2:
        raise BadInput(f"two GPUs are needed, and {torch.cuda.device_count()} are here")
    if given.blocks < 2 or given.runs < 1:
        raise BadInput(f"{given.blocks} blocks and {given.runs} runs: at least 2 blocks and 1 run are needed")
    shares = {"1 GPU": [slice(None)], "2 GPUs": [slice(0, None, 2), slice(1, None, 2)]}
    taken: dict[str, list[float]] = {name: [] for name in shares}
    with pool(1) as first, pool(1) as second:
        both = first, second
        every = [each.submit(encode, i, slice(None), size) for i, each in enumerate(both)]  # warms up
        same = [each.submit(encode, i, slice(1, None, 2), size) for i, each in enumerate(both)]
        setting = {"blocks": given.blocks, "tokens": given.tokens}
        setting["same_bits"] = len({one.result(90)[2] for one in same}) == 1 == len({one.result()[2] for one in every})
        for run in range(given.runs):
            if run >= LEAST and time.monotonic() > end:
                break
            for name, of in shares.items():
                at = time.time() + SOON
                jobs = [both[i].submit(encode, i, share, size, at) for i, share in enumerate(of)]
                times = [job.result(90) for job in jobs]
                taken[name].append(max(one[1] for one in times) - min(one[0] for one in times))
    origin = {"model": "tiny" if given.tiny else "Llama-3.1-8B"}
    workload = f"{given.blocks} blocks of {given.tokens} tokens"
    with writer(given, "two-gpus@encode", "cpu" if given.tiny else "cuda:0", **origin) as out:
        for gpus, (name, seconds) in enumerate(taken.items(), 1):
            found = quantiles(seconds)
            spent = {"ms": found.p50 * 1e3, "p5": found.p5 * 1e3, "p95": found.p95 * 1e3, "runs": len(seconds)}
            about = {"workload": workload, "candidate": name, "setting": {**setting, "gpus": gpus}}
            out.timings([{**about, **spent}])
            print(about, spent, flush=True)


if __name__ == "__main__":
    main()

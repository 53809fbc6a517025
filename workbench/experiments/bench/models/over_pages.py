"""Candidates of whole-model benchmarks over pages: a question, and answers of several requests.

Each reports, besides its times: `host_ms`, the host's time until all work is queued on the device; `replay_ms`, the
device's time; `cosine` of its logits with those of the model's own layers; `warm_up_s` and `capture_s`.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from time import perf_counter
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from workbench.core.blocks import Block
from workbench.engine import forward
from workbench.engine.attention_backends.choice import kernel
from workbench.engine.graphs import batch_buckets
from workbench.engine.graphs.cuda_graphs import Runner
from workbench.engine.graphs.graph_step import Captured
from workbench.engine.pages.paged_pool import Pool
from workbench.experiments.bench import timing
from workbench.experiments.bench.models.recompute import QUESTION
from workbench.experiments.bench.models.whole_model import (
    BLOCK,
    GPU,
    Candidate,
    Sample,
    Scene,
    clock,
    describe,
    filled_pool,
)
from workbench.experiments.bench.timing import Time

# Variants of the default: arguments of a `Runner`, and settings that are restored afterwards.
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "layers not fused": {"layers": "model"},
    "layers compiled": {"layers": "compiled"},
    "products of torch": {"measured": False},
    "kernels one by one": {"overlap": False},
    "pages one by one": {"run": 1},
    "rows by 16": {"unit": 64},
    "rows as they are": {"unit": 2},
}
HOST = 30  # number of timings of the host


@contextmanager
def settings(pool: Pool, overlap: bool = True, unit: int = 0, run: int = 0) -> Iterator[None]:
    """Apply a variant: whether kernels overlap, rows padded to a multiple of `unit`, `run` pages rerotated together."""
    triton = kernel("_shared.triton_import")
    before = triton.OVERLAP, batch_buckets.UNIT, pool.run
    triton.OVERLAP = overlap
    batch_buckets.UNIT, pool.run = unit or before[1], run or before[2]
    try:
        yield
    finally:
        triton.OVERLAP, batch_buckets.UNIT, pool.run = before


def question(scene: Scene, context: int, count: int, candidate: Candidate, graphs: bool = True, **how: Any) -> Sample:
    """Compute the question over a pool: page table, copy to the device, forward pass, token on the host."""
    pool, cached = filled_pool(scene, context, count, candidate.facts)
    layers, best = how.pop("layers", None), how.pop("measured", True)
    ids = scene.ids(count)

    def logits(runner: Runner) -> torch.Tensor:
        prompt = pool.open(cached, count)
        (row,) = runner.prefill([prompt], [ids])
        pool.close(prompt)
        return row

    plain = logits(Runner(scene.model, pool, False, layers="model"))
    candidate.after.enter_context(settings(pool, **how))
    runner = Runner(scene.model, pool, graphs and GPU, layers=layers if graphs and GPU else "model", measured=best)
    begin = perf_counter()
    first = logits(runner)
    candidate.facts["prepare_s"] = perf_counter() - begin
    candidate.facts |= {"layers": runner.layers, "cosine": cosine(first, plain)}
    for ready in runner.captured.values():
        describe(candidate, ready)
        candidate.facts |= {"rows": ready.batch.bucket.rows, "run": ready.batch.bucket.run}
        candidate.facts["replay_ms"] = time_captured(ready)
    candidate.facts["products"] = runner.products
    candidate.facts["host_ms"] = host(partial(logits, runner))
    return partial(clock, lambda: int(logits(runner).argmax()))


def answers(scene: Scene, context: int, batch: int, candidate: Candidate, count: int = 33, **how: Any) -> Sample:
    """Decode requests over shared pages; a sample is the mean over several steps, including the fetching of tokens."""
    own = min(QUESTION, scene.unit) + count
    pool, cached = filled_pool(scene, context, batch * (own + 64), candidate.facts)
    layers, best = how.pop("layers", None), how.pop("measured", True)
    candidate.after.enter_context(settings(pool, **how))
    runner, ids = Runner(scene.model, pool, layers=layers if GPU else None, measured=best), scene.ids(own - count)

    def sample() -> float:
        prompts = [pool.open(cached, own) for _ in range(batch)]
        logits = runner.prefill(prompts, [ids] * batch)
        ms = clock(lambda: list(runner.decode(prompts, logits, count))) / (count - 1)
        for prompt in prompts:
            pool.close(prompt)
        for bucket, ready in runner.captured.items():
            if bucket.reserve:
                describe(candidate, ready)
        return ms

    return sample


def encoding(scene: Scene, context: int, candidate: Candidate, packed: bool = True) -> Sample:
    """Encode a context of blocks into the pages of a pool, each block independently.

    `packed`: with the fused layers of packed passes, else with the model's own.
    """
    pool, cached = filled_pool(scene, context, 0, candidate.facts)
    size = min(BLOCK, scene.unit)
    blocks = [Block(tuple(run.tolist())) for run in scene.ids(context).split(size)]
    if not packed:
        candidate.after.enter_context(patch.object(forward, "packed_layers", lambda model: None))

    def encode() -> None:
        pool.encode(scene.model, blocks, cached)

    return partial(clock, encode)


def cosine(a: torch.Tensor, b: torch.Tensor) -> float:
    """Return the cosine of two rows of logits."""
    return torch.cosine_similarity(a.float(), b.float(), 0).item()


def host(work: Callable[[], Any]) -> float:
    """Return median milliseconds until `work` returns, started on an idle device and without waiting for it."""
    times = []
    for _ in range(HOST if GPU else 1):
        if GPU:
            torch.cuda.synchronize()
        begin = perf_counter()
        work()
        times.append((perf_counter() - begin) * 1e3)
    return float(np.median(times))


def time_captured(ready: Captured) -> float | None:
    """Return median milliseconds of a captured step on the device; None if nothing was captured."""
    if ready.graph is None:
        return None
    found = timing.measure({"replay": [ready.graph.replay]})["replay"]
    return found.ms if isinstance(found, Time) else None

"""Pools of cached blocks for whole-model benchmarks, and what a candidate notes of its run."""

from typing import Any

from workbench.core.blocks import Block
from workbench.engine.forward import PrefillOutput
from workbench.engine.graphs.graph_step import Captured
from workbench.engine.pages.paged_pool import Pool
from workbench.experiments.bench.models.whole_model import Candidate, Scene, clock

BLOCK = 512  # tokens of a cached block


def filled(scene: Scene, context: int, own: int, candidate: Candidate) -> tuple[Pool, list[Any]]:
    """Make a pool with a context of blocks of BLOCK tokens, and a reserve of `own` tokens.

    The blocks stand in another order than they were encoded.
    """
    size = min(BLOCK, scene.unit)
    ids = scene.ids(context).split(size)
    pool = Pool(scene.model, 2 + sum(-(-len(run) // 64) for run in ids) + -(-own // 64))
    blocks = [Block(tuple(run.tolist())) for run in ids]
    cached: list[Any] = []
    encoding = clock(lambda: cached.extend(pool.encode(scene.model, blocks)))
    candidate.facts["encode_s"] = encoding / 1e3
    return pool, cached[::-1]


def token_of(output: PrefillOutput, candidate: Candidate) -> int:
    """Return the next token of a prefill, and note its attention."""
    assert output.logits is not None
    candidate.facts["executors"] = sorted(set(output.backends.values()))
    return int(output.logits[-1].argmax())


def describe(candidate: Candidate, captured: Captured) -> None:
    """Note what a captured graph took, and its attention."""
    candidate.facts |= {"warm_up_s": captured.warm_up, "capture_s": captured.capture}
    candidate.facts["executors"] = [captured.batch.backend]

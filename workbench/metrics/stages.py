"""Time the stages of a request up to its first token."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from copy import copy
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, PreTrainedModel

from workbench.core.blocks import Prompt
from workbench.core.plan import Site
from workbench.core.tiling.tiles import Grid, Tiles
from workbench.methods import finish
from workbench.methods.modes.full import Full
from workbench.methods.modes.reuse import Reuse
from workbench.metrics.latency import wait
from workbench.models.transformers_attention import NAME, attend
from workbench.store import Store

STAGES = ("place", "choose", "attend", "rest")  # assemble cached blocks, select tokens or tiles, attention, other work


@dataclass(frozen=True)
class Stages:
    """Seconds per stage, and the share of causal pairs that is attended to (1 without a sparse method)."""

    seconds: dict[str, float]
    density: float


def stages(model: PreTrainedModel, prompt: Prompt, method: Full | Reuse, store: Store, repeats: int = 5) -> Stages:
    """Measure the stages up to the first token: medians of `repeats` runs after a warm-up.

    `store` holds the blocks. On a GPU, the host synchronizes at the end of every stage, so the sum exceeds the time to
    first token.
    """
    first = _timed_pass(model, prompt, method, store, counting=True)
    passes = [_timed_pass(model, prompt, method, store).seconds for _ in range(repeats)]
    density = first.kept / first.pairs if first.pairs else 1.0
    return Stages({name: median(seconds[name] for seconds in passes) for name in STAGES}, density)


class Stopwatch:
    """Measure seconds per stage; the time of a nested stage is not counted for the outer one.

    With `counting`, (query, key) pairs are counted too: causal `pairs`, and those `kept` by a sparse method.
    """

    def __init__(self, device: torch.device, counting: bool = False):
        self.device = device
        self.counting = counting
        self.seconds = dict.fromkeys(STAGES, 0.0)
        self.kept = 0
        self.pairs = 0
        self._open: list[str] = []
        self._since = 0.0

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the time of the block to a stage."""
        self._credit()
        self._open.append(name)
        try:
            yield
        finally:
            self._credit()
            self._open.pop()

    def inside(self, name: str) -> bool:
        return name in self._open

    def _credit(self) -> None:
        wait(self.device)
        now = time.perf_counter()
        if self._open:
            self.seconds[self._open[-1]] += now - self._since
        self._since = now


class _Timed:
    """Wrapper that charges the time of a selector or sparse method to the stage "choose"."""

    def __init__(self, inner: Any, watch: Stopwatch):
        self._inner, self._watch = inner, watch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def score_many(self, *arguments: Any) -> Any:
        with self._watch.stage("choose"):
            return self._inner.score_many(*arguments)

    def __call__(self, queries: Tensor, keys: Tensor, rows: Tensor, site: Site) -> Tiles:
        with self._watch.stage("choose"):
            tiles: Tiles = self._inner(queries, keys, rows, site)
        if self._watch.counting:
            by_tile = Grid(rows.to(keys.device), keys.shape[1], tiles.size).pairs()
            self._watch.kept += int((tiles.kept * by_tile).sum())
            self._watch.pairs += int(by_tile.sum()) * len(tiles.kept)
        return tiles

    def for_model(self, model: PreTrainedModel) -> "_Timed":
        return _Timed(self._inner.for_model(model), self._watch)


@contextmanager
def _attention(watch: Stopwatch) -> Iterator[None]:
    """Time attention by registering a timed function; the passes of a selector stay charged to "choose"."""

    def timed(*arguments: Any, **options: Any) -> Any:
        with nullcontext() if watch.inside("choose") else watch.stage("attend"):
            return attend(*arguments, **options)

    AttentionInterface.register(NAME, timed)
    try:
        yield
    finally:
        AttentionInterface.register(NAME, attend)


def _timed_pass(
    model: PreTrainedModel, prompt: Prompt, method: Full | Reuse, store: Store, counting: bool = False
) -> Stopwatch:
    watch = Stopwatch(model.device, counting)
    choosers = {name: getattr(method, name, None) for name in ("select", "sparse")}
    timed = copy(method)
    for name, chooser in choosers.items():
        if chooser:  # `object.__setattr__` bypasses the dataclass's type check
            object.__setattr__(timed, name, _Timed(chooser, watch))
    with watch.stage("rest"), _attention(watch):
        with watch.stage("place"):
            requests = timed.begin(model, [prompt], store)
        (logits,) = finish(model, requests)
        int(logits.argmax())
    return watch

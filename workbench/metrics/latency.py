"""Seconds: of whole jobs measured one at a time, and of the stages up to the first token."""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from copy import copy
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AttentionInterface, PreTrainedModel

from workbench.core.blocks import Prompt
from workbench.core.plan import Site
from workbench.core.tiling.tiles import Grid, Tiles
from workbench.methods import finish
from workbench.methods.modes.full import Full
from workbench.methods.modes.reuse import Reuse
from workbench.models.transformers_attention import NAME, attend
from workbench.store import Store

WARM_UP = 3
WARM = 1.0  # second
STAGES = ("place", "choose", "attend", "rest")  # putting blocks in place, choosing, attention, all else


ENOUGH = 20  # measurements from which percentiles are said; of fewer the median and the range
CLAIMED = 5  # measurements of each side from which on a speedup is claimed
SAME_WORK = 0.02  # of the tokens computed: two methods compute as many, and a speedup is noise of the clock


@dataclass(frozen=True)
class Quantiles:
    """Seconds over `n` measurements."""

    p5: float
    p50: float
    p95: float
    n: int
    least: float | None = None  # None in records of earlier versions
    most: float | None = None


def quantiles(seconds: Sequence[float]) -> Quantiles:
    """Return 5th, 50th and 95th percentile (linear between measurements), the least and the most."""
    p5, p50, p95 = np.quantile(np.asarray(seconds, dtype=float), [0.05, 0.5, 0.95])
    return Quantiles(float(p5), float(p50), float(p95), len(seconds), float(min(seconds)), float(max(seconds)))


def spread(record: Mapping[str, Any]) -> tuple[float, float] | None:
    """Return the ends to draw and say of a record {p5, p95, n or runs, least, most}.

    Percentiles of ENOUGH measurements or more, else the range; None where only percentiles of fewer were kept.
    """
    count = record.get("n", record.get("runs"))
    names = ("p5", "p95") if count is not None and count >= ENOUGH else ("least", "most")
    ends = [float(end) for name in names if (end := record.get(name)) is not None and not math.isnan(end)]
    return (ends[0], ends[1]) if len(ends) == 2 else None


def ratio(slow: Mapping[str, Any], fast: Mapping[str, Any]) -> tuple[float, float, float]:
    """Return how many times as long `slow` takes as `fast`, of records {ms, p5, p95, runs, least, most}, and its ends.

    The ends are the worst of one side over the best of the other, of what `spread` gives; of records of earlier
    versions, which kept no range, of their percentiles.
    """
    (a, b), (c, d) = (spread(one) or (float(one["p5"]), float(one["p95"])) for one in (slow, fast))
    return float(slow["ms"] / fast["ms"]), a / d, b / c


def timed(times: Quantiles) -> dict[str, Any]:
    """Return times to first token as a record {ms, p5, p95, runs, least, most} for `ratio`, in ms."""
    ends = {
        name: None if (end := getattr(times, name)) is None else end * 1e3 for name in ("p5", "p95", "least", "most")
    }
    return {"ms": times.p50 * 1e3, "runs": times.n, **ends}


def spread_words(count: int) -> str:
    """Say what `spread` of so many measurements is, behind "median and"."""
    return "5 to 95%" if count >= ENOUGH else "range"


def measure(
    jobs: Iterable[Callable[[], object]], device: torch.device, warm_up: int = WARM_UP, enough: float = math.inf
) -> Quantiles:
    """Measure the wall time of every job on an idle device, until its work on the device is done.

    `warm_up` runs of the first job before are not counted; a CPU, which compiles nothing, begins none behind WARM
    seconds. No job begins once those before took `enough` seconds.
    """
    seconds: list[float] = []
    for i, job in enumerate(jobs):
        if sum(seconds) >= enough:
            break
        begin = time.perf_counter()
        for _ in range(warm_up if i == 0 else 0):
            job()
            if device.type == "cpu" and time.perf_counter() - begin > WARM:
                break
        wait(device)
        start = time.perf_counter()
        job()
        wait(device)
        seconds.append(time.perf_counter() - start)
    return quantiles(seconds)


def wait(device: torch.device) -> None:
    """Wait until the device has done its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@dataclass(frozen=True)
class Stages:
    """Seconds of every stage, and the share of the causal pairs that is attended to (1 without a sparse method)."""

    seconds: dict[str, float]
    density: float


def stages(model: PreTrainedModel, prompt: Prompt, method: Full | Reuse, store: Store, repeats: int = 5) -> Stages:
    """Measure every stage of STAGES up to the first token: medians of `repeats` after one to warm up.

    `store` holds blocks.

    On a GPU the host waits at the border of every stage, so the sum is more than the time to first token.
    """
    first = _timed_pass(model, prompt, method, store, counting=True)
    passes = [_timed_pass(model, prompt, method, store).seconds for _ in range(repeats)]
    density = first.kept / first.pairs if first.pairs else 1.0
    return Stages({name: median(seconds[name] for seconds in passes) for name in STAGES}, density)


class Stopwatch:
    """Seconds by stage. Time of a stage inside another is the inner one's alone.

    With `counting`, pairs of a row and a key are counted too: all causal `pairs`, and those `kept` by a sparse method.
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
        """Count the time inside the block for a stage."""
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
    """A selector or sparse method whose choosing is counted as such."""

    def __init__(self, inner: Any, watch: Stopwatch):
        self._inner, self._watch = inner, watch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def many(self, *arguments: Any) -> Any:
        with self._watch.stage("choose"):
            return self._inner.many(*arguments)

    def __call__(self, queries: Tensor, keys: Tensor, rows: Tensor, site: Site) -> Tiles:
        with self._watch.stage("choose"):
            tiles: Tiles = self._inner(queries, keys, rows, site)
        if self._watch.counting:
            by_tile = Grid(rows.to(keys.device), keys.shape[1], tiles.size).pairs()
            self._watch.kept += int((tiles.kept * by_tile).sum())
            self._watch.pairs += int(by_tile.sum()) * len(tiles.kept)
        return tiles

    def ready(self, model: PreTrainedModel) -> "_Timed":
        return _Timed(self._inner.ready(model), self._watch)


@contextmanager
def _attention(watch: Stopwatch) -> Iterator[None]:
    """The workbench's attention with its time counted; what a selector computes is part of choosing."""

    def timed(*arguments: Any, **given: Any) -> Any:
        with nullcontext() if watch.inside("choose") else watch.stage("attend"):
            return attend(*arguments, **given)

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
        if chooser:  # past the check of its type: a chooser with a stopwatch is none of the methods there are
            object.__setattr__(timed, name, _Timed(chooser, watch))
    with watch.stage("rest"), _attention(watch):
        with watch.stage("place"):
            requests = timed.begin(model, [prompt], store)
        (logits,) = finish(model, requests)
        int(logits.argmax())
    return watch

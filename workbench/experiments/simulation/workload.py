"""Simulate requests over passages: which passages a request has, in which order, without model and text.

A passage is a number. FusionRAG (section 5.3.3) simulates 1,000 queries whose passages are in the knowledge base (60%),
uploaded and shared (30%) or unique (10%). It does not state the number of passages per query, their total number, and
how often each is requested: these are fields of `Workload`.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Literal, get_args

import numpy as np
import pandas as pd

from workbench.core.errors import BadInput
from workbench.experiments.simulation.simulated_caches import (
    Cache,
    PathCache,
    PrefixCache,
    ReorderedPrefixCache,
    beside_prefix,
    count_lookups,
    replay,
)
from workbench.metrics.answers import Records
from workbench.results import over_draws

Order = Literal["fixed", "relevance", "shuffled"]
Requests = list[list[int]]


@dataclass(frozen=True)
class Workload:
    """Requests, and where their passages come from.

    queries      number of requests
    passages     per request: minimum and maximum, drawn uniformly
    knowledge, uploads      passages of the knowledge base, and shared ones that users upload
    shares       of knowledge base and uploads among the requested passages; the rest is requested once
    zipf         a passage of popularity rank r is drawn with weight r ** -zipf, without replacement in a request
    order        of passages in a prompt: "fixed" by their number, which is independent of popularity; "relevance" by
                 the score they are drawn by; or "shuffled"
    repeats      share of requests that repeat the passages of an earlier one, in its order
    """

    queries: int = 1_000
    passages: tuple[int, int] = (5, 10)
    knowledge: int = 1_000
    uploads: int = 1_000
    shares: tuple[float, float] = (0.6, 0.3)
    zipf: float = 1.0
    order: Order = "relevance"
    repeats: float = 0.0

    def __post_init__(self) -> None:
        fewest, most = self.passages
        if self.order not in get_args(Order):
            raise BadInput(f"order is {self.order!r}: allowed are {', '.join(get_args(Order))}")
        if self.queries < 1 or not 1 <= fewest <= most <= min(self.knowledge, self.uploads or self.knowledge):
            raise BadInput(
                f"queries is {self.queries} and passages {fewest} to {most}, of {self.knowledge} and {self.uploads}: "
                "at least 1 each, and no more than there are"
            )
        if min(*self.shares, self.repeats, self.zipf) < 0 or sum(self.shares) > 1 + 1e-9 or self.repeats > 1:
            raise BadInput(f"shares {self.shares}, repeats {self.repeats}, zipf {self.zipf}: shares lie from 0 to 1")
        if self.shares[1] and not self.uploads:
            raise BadInput(f"a share of {self.shares[1]} is of uploads, and there are none")

    @property
    def encoded_passages(self) -> range:
        """Passages that are encoded before the first request."""
        return range(self.knowledge)

    def requests(self, seed: int = 0) -> Requests:
        """Draw the passages of each request. Passages requested once have numbers from knowledge + uploads on."""
        draw = np.random.default_rng(seed)
        base, shared = (_Pool(size, self.zipf, draw) for size in (self.knowledge, self.uploads))
        fresh, listed = self.knowledge + self.uploads, Requests()
        for _ in range(self.queries):
            if listed and draw.random() < self.repeats:
                listed.append(listed[draw.integers(len(listed))])
                continue
            count = int(draw.integers(self.passages[0], self.passages[1] + 1))
            *known, once = draw.multinomial(count, [*self.shares, max(0.0, 1 - sum(self.shares))])
            numbers, scores = base.draw_passages(int(known[0]))
            more, more_scores = shared.draw_passages(int(known[1]))
            own = np.arange(fresh, fresh + once)
            fresh += once
            numbers = np.concatenate((numbers, more + self.knowledge, own))
            scores = np.concatenate((scores, more_scores, draw.gumbel(size=once)))
            listed.append(numbers[self._argsort(numbers, scores, draw)].tolist())
        return listed

    def _argsort(self, numbers: np.ndarray, scores: np.ndarray, draw: np.random.Generator) -> np.ndarray:
        keys = {"fixed": numbers, "relevance": -scores, "shuffled": draw.random(len(numbers))}
        return np.argsort(keys[self.order], kind="stable")


class _Pool:
    """Passages drawn a few at a time, ∝ weight and without replacement (the Gumbel top-k trick)."""

    def __init__(self, size: int, zipf: float, draw: np.random.Generator):
        self.weights, self.draw = -zipf * np.log(draw.permutation(size) + 1.0), draw

    def draw_passages(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Return `count` numbers and their scores."""
        if not count:
            return np.zeros(0, dtype=int), np.zeros(0)
        scores = self.weights + self.draw.gumbel(size=len(self.weights))
        taken = np.argpartition(-scores, count - 1)[:count]
        return taken, scores[taken]


UNBOUNDED = "prefix caching"  # the baseline, as in the paper
PATH, IN_PLACE = "Alternative Path", "Alternative Path, first computed in place"
LRU, REORDERED = "prefix caching, LRU in as many bytes", "reordered prefix caching"
CACHES = (UNBOUNDED, LRU, REORDERED, PATH, IN_PLACE)
FIELDS = tuple(field.name for field in fields(Workload))
MEASURES = ("storage_saved", "redundant_removed", "computation_saved", "hit_rate")


def replay_caches(workload: Workload, seed: int = 0) -> Records:
    """Return one row per cache: {cache, what `counted` and `beside_prefix` return}.

    `prefix caching, LRU in as many bytes` keeps as many passages as Alternative Path does at the end.
    """
    requests, prepared = workload.requests(seed), workload.encoded_passages
    caches: dict[str, Cache] = {PATH: PathCache(), IN_PLACE: PathCache("in_place")}
    served = {name: replay(cache, requests, prepared) for name, cache in caches.items()}
    prefix = {UNBOUNDED: PrefixCache(), LRU: PrefixCache(len(caches[PATH])), REORDERED: ReorderedPrefixCache()}
    served |= {name: replay(cache, requests, prepared) for name, cache in prefix.items()}
    counts = {name: count_lookups(found, len((caches | prefix)[name]), prepared) for name, found in served.items()}
    return [{"cache": name, **counts[name], **beside_prefix(counts[name], counts[UNBOUNDED])} for name in CACHES]


def counts(workload: Workload, seeds: Sequence[int]) -> Records:
    """Return one row of `results.Count` per cache and measure: means over `seeds`."""
    frame = pd.DataFrame([row for seed in seeds for row in replay_caches(workload, seed)]).rename(
        columns={"cache": "method"}
    )
    listed = over_draws(frame.melt("method", list(MEASURES), "measure"), ["method", "measure"])
    setting = {
        name: " to ".join(map(str, value)) if isinstance(value, tuple) else value
        for name, value in asdict(workload).items()
    }
    return [{**row, "setting": setting} for row in listed.to_dict("records")]

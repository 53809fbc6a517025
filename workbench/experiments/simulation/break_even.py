"""Where reuse of blocks overtakes prefix caching: hits and times to the first token over simulated requests.

    rows = counts(Setting(zipf=1.0, order="shuffled"), [50], fitted(), range(5))
    crossing(times, "reordered prefix caching", "block reuse, 15% recomputed")

Prefix caching computes what full attention computes; block reuse does not, and its loss of quality is not in these
numbers. Caches have one budget. The first half of the requests fills them and is not counted.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
import pandas as pd

from workbench.core.errors import BadInput
from workbench.experiments.latency.ttft_model import Floats, TtftModel
from workbench.experiments.simulation.simulated_caches import (
    BlockCache,
    Cache,
    PrefixCache,
    ReorderedPrefixCache,
    replay,
)
from workbench.experiments.simulation.workload import Order, Workload
from workbench.metrics.answers import Records
from workbench.metrics.published_numbers import FUSION_RAG
from workbench.results import over_draws

RATIO = FUSION_RAG["ratio"]
PREFIX, REORDERED, REUSE = "prefix caching", "reordered prefix caching", "block reuse"
RECOMPUTED = f"block reuse, {RATIO:.0%} recomputed"
METHODS = (PREFIX, REORDERED, REUSE, RECOMPUTED)
MEASURES = ("hit_rate", "ttft_ms")  # means over requests


@dataclass(frozen=True)
class Setting:
    """One point of the comparison.

    zipf, order, pool, repeats   of `Workload`; `pool` is its number of passages, all in one knowledge base
    question    tokens
    passages    of a request, `block` tokens each
    budget      passages that a cache keeps
    requests    how many; the second half is counted
    """

    zipf: float = 1.0
    order: Order = "relevance"
    pool: int = 1_000
    question: int = 50
    repeats: float = 0.0
    passages: int = 10
    block: int = 512
    budget: int = 1_000
    requests: int = 600

    def __post_init__(self) -> None:
        for name in ("pool", "question", "passages", "block", "budget", "requests"):
            if getattr(self, name) < 1:
                raise BadInput(f"{name} is {getattr(self, name)}: at least 1 is needed")

    @property
    def workload(self) -> Workload:
        """The requests."""
        each = self.passages, self.passages
        return Workload(self.requests, each, self.pool, 0, (1.0, 0.0), self.zipf, self.order, self.repeats)


def hits(setting: Setting, seed: int = 0) -> dict[str, Floats]:
    """Return the share of passages found, a request each [requests counted], of the three caches."""
    requests = setting.workload.requests(seed)
    caches: dict[str, Cache] = {
        PREFIX: PrefixCache(setting.budget),
        REORDERED: ReorderedPrefixCache(setting.budget),
        REUSE: BlockCache(setting.budget),
    }
    shares = {}
    for name, cache in caches.items():
        served = replay(cache, requests)[len(requests) // 2 :]
        shares[name] = np.array([sum(found for _, found in request) / len(request) for request in served])
    return shares


def rows(setting: Setting, model: TtftModel, found: dict[str, Floats]) -> Records:
    """Return a row a method: {question, method, hit_rate, ttft_ms}.

    `found` as of `hits`, which the question's length does not change.
    """
    tokens = setting.passages * setting.block
    listed = []
    for method in METHODS:
        share = found[REUSE if method == RECOMPUTED else method]
        cached, missing = share * tokens, (1 - share) * tokens
        if method in (PREFIX, REORDERED):
            times = model.prefix(cached, missing, setting.question)
        else:
            ratio = RATIO if method == RECOMPUTED else 0.0
            times = model.blocks(cached, missing, setting.question, ratio, setting.block)
        means = {"hit_rate": float(share.mean()), "ttft_ms": float(times.mean())}
        listed.append({"question": setting.question, "method": method, **means})
    return listed


def settings(
    zipfs: Sequence[float], orders: Sequence[Order], pools: Sequence[int], repeats: Sequence[float]
) -> list[Setting]:
    """Return every combination of exponent, order and pool without repeats.

    And every share of repeats of the `Setting` by default, at all exponents.
    """
    found = [Setting(z, order, pool) for z in zipfs for order in orders for pool in pools]
    return found + [Setting(z, repeats=share) for z in zipfs for share in repeats if share]


def counts(setting: Setting, questions: Sequence[int], model: TtftModel, seeds: Sequence[int]) -> Records:
    """Return a row of `results.Count` a question's length, method and measure: means over `seeds`."""
    shares = [hits(setting, seed) for seed in seeds]
    asked = [replace(setting, question=question) for question in questions]
    frame = pd.DataFrame([row for one in asked for found in shares for row in rows(one, model, found)])
    listed = frame.melt(["question", "method"], list(MEASURES), "measure")
    found = over_draws(listed, ["question", "method", "measure"]).to_dict("records")
    about = {one.question: {"setting": asdict(one)} for one in asked}
    ratios = {RECOMPUTED: {"ratio": RATIO}}
    return [{**row, **about[row.pop("question")], **ratios.get(row["method"], {})} for row in found]


def crossing(times: pd.DataFrame, one: str, other: str, by: str = "zipf") -> float | None:
    """Return from which `by` on method `one` takes no longer than `other`, to the largest there is.

    `times`: {by, method, value}. Between two points by linear interpolation; None where it takes longer at the largest.
    """
    means = times.pivot_table(index=by, columns="method", values="value")
    gaps = (means[one] - means[other]).sort_index()
    if gaps.iloc[-1] > 0:
        return None
    behind = np.flatnonzero(gaps.to_numpy() > 0)
    if not len(behind):
        return float(gaps.index[0])
    (x0, y0), (x1, y1) = ((float(gaps.index[i]), float(gaps.iloc[i])) for i in (behind[-1], behind[-1] + 1))
    return x0 + (x1 - x0) * y0 / (y0 - y1)


def crossings(times: pd.DataFrame, by: Sequence[str] = ("source", "order", "pool", "question")) -> pd.DataFrame:
    """Return from which Zipf exponent on each kind of prefix caching takes no longer than each kind of block reuse.

    {by, prefix, reuse, zipf}: a row a setting and pair; nan where prefix caching takes longer at every exponent.
    """
    pairs = [(prefix, reuse) for prefix in (PREFIX, REORDERED) for reuse in (REUSE, RECOMPUTED)]
    listed = [
        {**dict(zip(by, keys, strict=True)), "prefix": prefix, "reuse": reuse, "zipf": crossing(group, prefix, reuse)}
        for keys, group in times.groupby(list(by), sort=False)
        for prefix, reuse in pairs
        if {prefix, reuse} <= set(group.method)
    ]
    return pd.DataFrame(listed, columns=[*by, "prefix", "reuse", "zipf"]).astype({"zipf": float})

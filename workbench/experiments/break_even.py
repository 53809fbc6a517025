"""Where reuse of blocks overtakes prefix caching: hits and times to the first token over simulated requests.

    rows = measured(Setting(zipf=1.0, order="shuffled"), fitted(), seed=0)
    crossing(frame, "reordered prefix caching", "block reuse, 15% recomputed")

Prefix caching computes what full attention computes; block reuse does not, and its loss of quality is not in these
numbers. Caches have one budget. The first half of the requests fills them and is not counted.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import t as student

from workbench.core.errors import BadInput
from workbench.experiments.simulated_caches import BlockCache, Cache, PrefixCache, ReorderedPrefixCache, replay
from workbench.experiments.ttft_model import Floats, TtftModel
from workbench.experiments.workload import Order, Workload
from workbench.metrics.answers import Records
from workbench.metrics.published_numbers import FUSION_RAG

RATIO = FUSION_RAG["ratio"]
PREFIX, REORDERED, REUSE = "prefix caching", "reordered prefix caching", "block reuse"
RECOMPUTED = f"block reuse, {RATIO:.0%} recomputed"
METHODS = (PREFIX, REORDERED, REUSE, RECOMPUTED)


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


def rows(setting: Setting, model: TtftModel, found: dict[str, Floats], seed: int = 0) -> Records:
    """Return a row a method: {the fields of `setting`, seed, method, hit_rate, ttft_ms, ttft_p95}.

    `found` as of `hits`, which the question's length does not change.
    """
    about, tokens = asdict(setting) | {"seed": seed}, setting.passages * setting.block
    listed = []
    for method in METHODS:
        share = found[REUSE if method == RECOMPUTED else method]
        cached, missing = share * tokens, (1 - share) * tokens
        if method in (PREFIX, REORDERED):
            times = model.prefix(cached, missing, setting.question)
        else:
            ratio = RATIO if method == RECOMPUTED else 0.0
            times = model.blocks(cached, missing, setting.question, ratio, setting.block)
        numbers = {"ttft_ms": float(times.mean()), "ttft_p95": float(np.quantile(times, 0.95))}
        listed.append({**about, "method": method, "hit_rate": float(share.mean()), **numbers})
    return listed


def grid(
    model: TtftModel,
    zipfs: Sequence[float],
    orders: Sequence[Order],
    pools: Sequence[int],
    questions: Sequence[int],
    repeats: Sequence[float],
    seeds: Sequence[int],
) -> pd.DataFrame:
    """Measure every combination of exponent, order, pool and question without repeats.

    And every share of repeats of the `Setting` by default, at all exponents.
    """
    settings = [Setting(z, order, pool) for z in zipfs for order in orders for pool in pools]
    settings += [Setting(z, repeats=share) for z in zipfs for share in repeats if share]
    listed: Records = []
    for setting in settings:
        for seed in seeds:
            found = hits(setting, seed)
            for question in questions:
                listed += rows(replace(setting, question=question), model, found, seed)
    return pd.DataFrame(listed)


def chosen(frame: pd.DataFrame, **fields: Any) -> pd.DataFrame:
    """Return the rows of some settings. Raises BadInput where there are none."""
    kept = frame
    for name, value in fields.items():
        kept = kept[np.isclose(kept[name], value) if isinstance(value, float) else kept[name] == value]
    if kept.empty:
        raise BadInput(f"no rows with {', '.join(f'{name}={value}' for name, value in fields.items())}")
    return kept


def curve(frame: pd.DataFrame, by: str, value: str) -> Records:
    """Return records for lines: {name (method), at, mean, low, high}, `low` and `high` the 95% interval over seeds."""
    listed = []
    for (method, at), group in frame.groupby(["method", by], sort=True):
        mean, half = over_seeds(group[value])
        listed.append({"name": method, "at": at, "mean": mean, "low": mean - half, "high": mean + half})
    return sorted(listed, key=lambda record: METHODS.index(record["name"]))


def over_seeds(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean over seeds, and half of its 95% interval (Student's t)."""
    numbers = np.asarray(values, float)
    if len(numbers) < 2:
        return float(numbers.mean()), 0.0
    return float(numbers.mean()), float(
        student.ppf(0.975, len(numbers) - 1) * numbers.std(ddof=1) / len(numbers) ** 0.5
    )


def crossing(frame: pd.DataFrame, one: str, other: str, by: str = "zipf", value: str = "ttft_ms") -> float | None:
    """Return from which `by` on `one` takes no longer than `other`, to the largest there is.

    Between two points by linear interpolation; None where it takes longer at the largest.
    """
    means = frame.pivot_table(index=by, columns="method", values=value)
    gaps = (means[one] - means[other]).sort_index()
    if gaps.iloc[-1] > 0:
        return None
    behind = np.flatnonzero(gaps.to_numpy() > 0)
    if not len(behind):
        return float(gaps.index[0])
    (x0, y0), (x1, y1) = ((float(gaps.index[i]), float(gaps.iloc[i])) for i in (behind[-1], behind[-1] + 1))
    return x0 + (x1 - x0) * y0 / (y0 - y1)

"""Where block reuse overtakes prefix caching: hits and times to the first token over simulated requests.

    [workload] = workloads([1.0], ["shuffled"], [1_000], [])
    rows = counts(workload, [50], fitted(), range(5))
    crossing(times, "reordered prefix caching", "block reuse, 15% recomputed")

Prefix caching computes what full attention computes. Block reuse does not, and its loss of quality is not in these
numbers. The caches have equal budgets. The first half of the requests fills them and is not counted.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from workbench.experiments.latency.ttft_model import Floats, TtftModel
from workbench.experiments.serving.serve_fields import BASELINES
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
PREFIX, REORDERED, REUSE = BASELINES["prefix"], BASELINES["reordered"], "block reuse"
RECOMPUTED = f"block reuse, {RATIO:.0%} recomputed"
METHODS = (PREFIX, REORDERED, REUSE, RECOMPUTED)
MEASURES = ("hit_rate", "ttft_ms")  # means over requests


REQUESTS, PASSAGES, BLOCK = 600, 10, 512  # requests (half of them counted), passages per request, tokens per passage
BUDGET = 1_000  # passages that a cache keeps


def workloads(
    zipfs: Sequence[float], orders: Sequence[Order], pools: Sequence[int], repeats: Sequence[float]
) -> list[Workload]:
    """Return a workload for each exponent, order and pool (passages, all in one knowledge base) without repeats.

    Also for each share of repeats and exponent, with the default order and pool of `Workload`.
    """
    usual = Workload(REQUESTS, (PASSAGES, PASSAGES), uploads=0, shares=(1.0, 0.0))
    listed = [replace(usual, zipf=z, order=order, knowledge=pool) for z in zipfs for order in orders for pool in pools]
    return listed + [replace(usual, zipf=z, repeats=share) for z in zipfs for share in repeats if share]


def hits(workload: Workload, seed: int = 0) -> dict[str, Floats]:
    """Return the share of passages found by each of the three caches, per counted request."""
    requests = workload.requests(seed)
    caches: dict[str, Cache] = {
        PREFIX: PrefixCache(BUDGET),
        REORDERED: ReorderedPrefixCache(BUDGET),
        REUSE: BlockCache(BUDGET),
    }
    shares = {}
    for name, cache in caches.items():
        served = replay(cache, requests)[len(requests) // 2 :]
        shares[name] = np.array([sum(found for _, found in request) / len(request) for request in served])
    return shares


def rows(question: int, model: TtftModel, found: dict[str, Floats]) -> Records:
    """Return one row per method for a question of `question` tokens: {question, method, hit_rate, ttft_ms}.

    `found` is from `hits`, which the question's length does not change.
    """
    tokens = PASSAGES * BLOCK
    result = []
    for method in METHODS:
        share = found[REUSE if method == RECOMPUTED else method]
        cached, missing = share * tokens, (1 - share) * tokens
        if method in (PREFIX, REORDERED):
            times = model.prefix(cached, missing, question)
        else:
            ratio = RATIO if method == RECOMPUTED else 0.0
            times = model.blocks(cached, missing, question, ratio, BLOCK)
        means = {"hit_rate": float(share.mean()), "ttft_ms": float(times.mean())}
        result.append({"question": question, "method": method, **means})
    return result


def counts(workload: Workload, questions: Sequence[int], model: TtftModel, seeds: Sequence[int]) -> Records:
    """Return one row of `results.Count` per question length, method and measure: means over `seeds`."""
    shares = [hits(workload, seed) for seed in seeds]
    frame = pd.DataFrame([row for question in questions for found in shares for row in rows(question, model, found)])
    listed = frame.melt(["question", "method"], list(MEASURES), "measure")
    setting: dict[str, Any] = {
        "requests": REQUESTS,
        "passages": PASSAGES,
        "block": BLOCK,
        "budget": BUDGET,
        "pool": workload.knowledge,
    }
    setting |= {"zipf": workload.zipf, "order": workload.order, "repeats": workload.repeats}
    found = over_draws(listed, ["question", "method", "measure"]).to_dict("records")
    settings = [{**setting, "question": row.pop("question")} for row in found]
    ratios = {RECOMPUTED: {"ratio": RATIO}}
    return [{**row, "setting": one, **ratios.get(row["method"], {})} for row, one in zip(found, settings, strict=True)]


def crossing(times: pd.DataFrame, one: str, other: str, by: str = "zipf") -> float | None:
    """Return the value of `by` from which on method `one` takes no longer than `other`, up to the largest value.

    `times`: {by, method, value}, interpolated linearly; None if it takes longer at the largest value.
    """
    means = times.pivot_table(index=by, columns="method", values="value")
    gaps = (means[one] - means[other]).sort_index()
    if gaps.iloc[-1] > 0:
        return None
    slower = np.flatnonzero(gaps.to_numpy() > 0)
    if not len(slower):
        return float(gaps.index[0])
    (x0, y0), (x1, y1) = ((float(gaps.index[i]), float(gaps.iloc[i])) for i in (slower[-1], slower[-1] + 1))
    return x0 + (x1 - x0) * y0 / (y0 - y1)


def crossings(times: pd.DataFrame, by: Sequence[str] = ("source", "order", "pool", "question")) -> pd.DataFrame:
    """Return the Zipf exponent from which on each kind of prefix caching takes no longer than each kind of block reuse.

    {by, prefix, reuse, zipf}: one row per setting and pair; nan if prefix caching takes longer at the largest exponent.
    """
    pairs = [(prefix, reuse) for prefix in (PREFIX, REORDERED) for reuse in (REUSE, RECOMPUTED)]
    listed = [
        {**dict(zip(by, keys, strict=True)), "prefix": prefix, "reuse": reuse, "zipf": crossing(group, prefix, reuse)}
        for keys, group in times.groupby(list(by), sort=False)
        for prefix, reuse in pairs
        if {prefix, reuse} <= set(group.method)
    ]
    return pd.DataFrame(listed, columns=[*by, "prefix", "reuse", "zipf"]).astype({"zipf": float})

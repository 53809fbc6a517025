"""FusionRAG's simulated workload (section 5.3.3): storage, redundant computation and hits of caches.

rows = replayed(Workload(), seed=0)
summary(rows)
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import pandas as pd

from workbench.experiments.break_even import over_seeds
from workbench.experiments.simulated_caches import (
    Cache,
    PathCache,
    PrefixCache,
    ReorderedPrefixCache,
    beside_prefix,
    counted,
    replay,
)
from workbench.experiments.workload import Workload
from workbench.metrics.answers import Records

UNBOUNDED = "prefix caching"  # what the others are held against, as in the paper
PATH, IN_PLACE = "Alternative Path", "Alternative Path, first computed in place"
LRU, REORDERED = "prefix caching, LRU in as many bytes", "reordered prefix caching"
CACHES = (UNBOUNDED, LRU, REORDERED, PATH, IN_PLACE)
MEASURES = ("storage_saved", "redundant_removed", "computation_saved", "hit_rate")


def replayed(workload: Workload, seed: int = 0) -> Records:
    """Return a row a cache: {fields of the workload, seed, cache, what `counted` and `beside_prefix` return}.

    `prefix caching, LRU in as many bytes` keeps as many passages as Alternative Path does at the end.
    """
    requests, prepared = workload.requests(seed), workload.prepared
    caches: dict[str, Cache] = {PATH: PathCache(), IN_PLACE: PathCache("in_place")}
    served = {name: replay(cache, requests, prepared) for name, cache in caches.items()}
    prefix = {UNBOUNDED: PrefixCache(), LRU: PrefixCache(len(caches[PATH])), REORDERED: ReorderedPrefixCache()}
    served |= {name: replay(cache, requests, prepared) for name, cache in prefix.items()}
    counts = {name: counted(found, len((caches | prefix)[name]), prepared) for name, found in served.items()}
    about = asdict(workload) | {"passages": list(workload.passages), "shares": list(workload.shares), "seed": seed}
    return [
        {**about, "cache": name, **counts[name], **beside_prefix(counts[name], counts[UNBOUNDED])} for name in CACHES
    ]


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, tuple[float, float, float]]]:
    """Return cache → measure → (mean, low, high): 95% intervals over the seeds of one workload."""
    out: dict[str, dict[str, tuple[float, float, float]]] = {}
    for name, of_cache in pd.DataFrame(rows).groupby("cache", sort=False):
        out[str(name)] = {}
        for measure in MEASURES:
            mean, half = over_seeds(of_cache[measure])
            out[str(name)][measure] = mean, mean - half, mean + half
    return out


def variations(rows: Sequence[dict[str, Any]], default: dict[str, Any]) -> dict[tuple[str, str], Records]:
    """Return (field, its value as text) → rows, of every setting that differs from `default` in one field.

    The default itself under ("", "").
    """
    found: dict[tuple[str, str], Records] = {}
    for row in rows:
        apart = [name for name, value in default.items() if row[name] != value]
        if len(apart) < 2:
            key = (apart[0], _said(row[apart[0]])) if apart else ("", "")
            found.setdefault(key, []).append(row)
    return found


def _said(value: Any) -> str:
    return "–".join(map(str, dict.fromkeys(value))) if isinstance(value, list) else str(value)

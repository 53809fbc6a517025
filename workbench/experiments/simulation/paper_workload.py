"""FusionRAG's simulated workload (section 5.3.3): storage, redundant computation and hits of caches.

rows = counts(Workload(), seeds=range(5))
"""

from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any

import pandas as pd

from workbench.experiments.simulation.simulated_caches import (
    Cache,
    PathCache,
    PrefixCache,
    ReorderedPrefixCache,
    beside_prefix,
    counted,
    replay,
)
from workbench.experiments.simulation.workload import Workload
from workbench.metrics.answers import Records
from workbench.results import over_draws

UNBOUNDED = "prefix caching"  # what the others are held against, as in the paper
PATH, IN_PLACE = "Alternative Path", "Alternative Path, first computed in place"
LRU, REORDERED = "prefix caching, LRU in as many bytes", "reordered prefix caching"
CACHES = (UNBOUNDED, LRU, REORDERED, PATH, IN_PLACE)
FIELDS = tuple(field.name for field in fields(Workload))
MEASURES = ("storage_saved", "redundant_removed", "computation_saved", "hit_rate")


def replayed(workload: Workload, seed: int = 0) -> Records:
    """Return a row a cache: {cache, what `counted` and `beside_prefix` return}.

    `prefix caching, LRU in as many bytes` keeps as many passages as Alternative Path does at the end.
    """
    requests, prepared = workload.requests(seed), workload.prepared
    caches: dict[str, Cache] = {PATH: PathCache(), IN_PLACE: PathCache("in_place")}
    served = {name: replay(cache, requests, prepared) for name, cache in caches.items()}
    prefix = {UNBOUNDED: PrefixCache(), LRU: PrefixCache(len(caches[PATH])), REORDERED: ReorderedPrefixCache()}
    served |= {name: replay(cache, requests, prepared) for name, cache in prefix.items()}
    counts = {name: counted(found, len((caches | prefix)[name]), prepared) for name, found in served.items()}
    return [{"cache": name, **counts[name], **beside_prefix(counts[name], counts[UNBOUNDED])} for name in CACHES]


def counts(workload: Workload, seeds: Sequence[int]) -> Records:
    """Return a row of `results.Count` a cache and measure: means over `seeds`."""
    frame = pd.DataFrame([row for seed in seeds for row in replayed(workload, seed)]).rename(
        columns={"cache": "method"}
    )
    listed = over_draws(frame.melt("method", list(MEASURES), "measure"), ["method", "measure"])
    setting = {name: _text(value) for name, value in asdict(workload).items()}
    return [{**row, "setting": setting} for row in listed.to_dict("records")]


def _text(value: Any) -> Any:
    """Return a setting as one value: a range or several shares as text."""
    return " to ".join(map(str, value)) if isinstance(value, tuple) else value

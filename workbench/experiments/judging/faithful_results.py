"""Right and faithful answers of the methods at 15% of every model that data/benchmarks/faithful.py has measured."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from workbench import results as tables
from workbench.core.errors import BadInput
from workbench.metrics.seeds import OverSeeds, crossed, crossed_share

SMALL, LARGE = "-small-", "-large-"  # of the names of two sizes of one training seed
FULL = "full attention"
REUSE, OURS = "Full Reuse", "FusionRAG"
BASELINES = ("CacheBlend", "Cache-Craft")
METHODS = (FULL, REUSE, *BASELINES, OURS)
Kept = Mapping[str, Any]


def kept(needed: Sequence[str] = METHODS) -> dict[str, Kept]:
    """Read the results of every model of which all `needed` methods are measured, by the model's name."""
    rows = tables.read().answers("trial")
    rows = rows[rows.faithful.notna()]
    found: dict[str, Kept] = {}
    for (model, seed), own in rows.groupby(["model", rows.training_seed.fillna(-1).astype(int)], sort=False):
        methods = {
            name: {"right": list(of.em), "faithful": list(of.faithful)}
            for name, of in own.groupby("method", sort=False)
        }
        about = {key: own[key].iloc[0] for key in ("data", "seed", "passages")}
        name = str(model) if seed < 0 else f"{model}-{seed}"
        found[name] = {"model": name, **about, "samples": own.question.nunique(), "methods": methods}
    return {name: one for name, one in found.items() if set(needed) <= set(one["methods"])}


def digits(one: Kept, method: str, score: str) -> list[float]:
    """Return 1 for every question whose answer is `right`, or `faithful`, under a method."""
    return [float(digit) for digit in one["methods"][method][score]]


def over_seeds(size: str) -> list[Kept]:
    """Return the models of a size (`lab-hard-small`), by training seed, that answered the same questions."""
    found = {name: one for name, one in kept().items() if re.fullmatch(rf"{re.escape(size)}-\d+", name)}
    listed = [found[name] for name in sorted(found, key=_seed)]
    return [one for one in listed if _same(one, listed[0])]


def sizes() -> list[str]:
    """List the sizes of models that were trained from several seeds, the smaller first."""
    named = {name.rpartition("-")[0] for name in kept() if name.rpartition("-")[2].isdecimal()}
    return sorted(named, key=lambda name: (LARGE in f"{name}-", name))


def gap(models: Sequence[Kept], one: str, other: str, score: str) -> OverSeeds:
    """Compare two methods over training seeds, question by question; seeds and questions are resampled crosswise."""
    pairs = [(digits(each, one, score), digits(each, other, score)) for each in models]
    return crossed([np.subtract(*pair).tolist() for pair in pairs])


def having(size: str, *methods: str) -> list[Kept]:
    """Return the models of a size, by training seed, of which all these methods are measured."""
    return [one for one in over_seeds(size) if set(methods) <= set(one["methods"])]


def won_back(models: Sequence[Kept], method: str, score: str = "right") -> OverSeeds | None:
    """Return the share of what Full Reuse loses to full attention that a method wins back, over training seeds.

    None where reuse may have lost nothing.
    """
    ours, plain, full = ([digits(one, name, score) for one in models] for name in (method, REUSE, FULL))
    try:
        return crossed_share(np.subtract(ours, plain).tolist(), np.subtract(full, plain).tolist())
    except BadInput:
        return None


def lifted(models: Sequence[Kept], method: str, plain: str, score: str = "right") -> OverSeeds:
    """Return how much more a method answers than another, as a share of what the other answers, over training seeds."""
    ours, theirs = ([digits(one, name, score) for one in models] for name in (method, plain))
    return crossed_share(np.subtract(ours, theirs).tolist(), theirs)


def two_sizes() -> list[tuple[Kept, Kept]]:
    """Return (smaller, larger) of every training seed of which both sizes answered the same questions.

    Under full attention and the baselines, of which the paper speaks; other methods may lack.
    """
    of = kept((FULL, *BASELINES))
    pairs = [(one, of.get(name.replace(SMALL, LARGE))) for name, one in of.items() if SMALL in name]
    found = [(one, other) for one, other in pairs if other and _same(one, other)]
    return [pair for pair in found if _same(pair[0], found[0][0])]


def against_smaller(method: str) -> OverSeeds:
    """Compare a method on the larger models with full attention on the smaller; at least one pair of sizes is there."""
    pairs = two_sizes()
    rows = [np.subtract(digits(large, method, "right"), digits(small, FULL, "right")) for small, large in pairs]
    return crossed([row.tolist() for row in rows])


def _seed(name: str) -> int:
    return int(name.rpartition("-")[2])


def _same(one: Kept, other: Kept) -> bool:
    return all(one[key] == other[key] for key in ("data", "seed", "samples", "passages"))

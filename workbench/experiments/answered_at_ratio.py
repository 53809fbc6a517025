"""Right and faithful answers of the methods at 15%, as data/benchmarks/faithful.py leaves them for every model."""

from collections.abc import Mapping
from typing import Any

from workbench.experiments import results
from workbench.metrics.answers import Records, bootstrap

START = "faithful-"
SMALL, LARGE = "-small-", "-large-"  # of the names of two sizes of one training seed
METHODS = ("full attention", "Full Reuse", "CacheBlend", "Cache-Craft", "FusionRAG")
Kept = Mapping[str, Any]


def kept() -> dict[str, Kept]:
    """Read the results of every model of which all methods are measured, by the model's name."""
    names = (name.removeprefix(START) for name in results.names() if name.startswith(START))
    files = [results.read(f"faithful-{name}") for name in names]
    return {str(one["model"]): one for one in files if set(METHODS) <= set(one["methods"])}


def digits(one: Kept, method: str, score: str) -> list[float]:
    """Return 1 for every question whose answer is `right`, or `faithful`, under a method."""
    return [float(digit) for digit in one["methods"][method][score]]


def rows(one: Kept) -> Records:
    """Return {method, score, mean, low, high, n} for every method, right and faithful."""
    listed = []
    for method in one["methods"]:
        for score in ("right", "faithful"):
            values = digits(one, method, score)
            low, high = bootstrap(values)
            about = {"method": method, "score": score, "n": len(values)}
            listed.append({**about, "mean": sum(values) / len(values), "low": low, "high": high})
    return listed


def two_sizes() -> list[tuple[Kept, Kept]]:
    """Return (smaller, larger) of every training seed of which both sizes answered the same questions."""
    of = kept()
    same = ("data", "seed", "samples", "passages")
    pairs = [(one, of.get(name.replace(SMALL, LARGE))) for name, one in of.items() if SMALL in name]
    return [(one, other) for one, other in pairs if other and all(one[key] == other[key] for key in same)]


def against_smaller(method: str) -> tuple[list[float], list[float]]:
    """Return right answers of a method on the larger models, and of full attention on the smaller, seeds joined."""
    larger: list[float] = []
    smaller: list[float] = []
    for small, large in two_sizes():
        larger += digits(large, method, "right")
        smaller += digits(small, "full attention", "right")
    return larger, smaller

"""Sparse methods over training seeds, as data/benchmarks/sparse_seeds.py leaves them."""

from collections.abc import Mapping
from statistics import fmean
from typing import Any

import numpy as np

from workbench.experiments import results
from workbench.metrics.seeds import OverSeeds, crossed

DENSE = "dense(block=64)"
Kept = Mapping[str, Any]


def kept() -> dict[str, Any]:
    """Read the results; BadInput where they are missing."""
    return results.read("sparse-seeds")


def digits(content: Kept, spec: str) -> list[list[float]]:
    """Return 1 a training seed and question that a setting answers right."""
    return rights({seed: one["right"] for seed, one in content["settings"][spec].items()})


def rights(by_seed: Mapping[str, str]) -> list[list[float]]:
    """Return strings of digits, one a training seed, as numbers."""
    return [[float(digit) for digit in right] for right in by_seed.values()]


def density(content: Kept, spec: str) -> float:
    """Return the share of causal pairs that a setting keeps, a mean over training seeds."""
    return fmean(one["density"] for one in content["settings"][spec].values())


def attended(content: Kept, spec: str) -> float:
    """Return the share of causal pairs that are attended to: for CompactAttention those of the union of its choices."""
    name = "union" if spec.startswith("compact(") else "density"
    return fmean(one[name] for one in content["settings"][spec].values())


def share(content: Kept, spec: str) -> OverSeeds:
    """Return the share of right answers over training seeds."""
    return crossed(digits(content, spec))


def gap(content: Kept, one: str, other: str = DENSE) -> OverSeeds:
    """Compare two settings over training seeds; seeds and questions are resampled crosswise."""
    return crossed(np.subtract(digits(content, one), digits(content, other)).tolist())


def specs(content: Kept, beginning: str = "") -> list[str]:
    """List the settings whose spec begins so, by the share that is attended to."""
    chosen = [spec for spec in content["settings"] if spec.startswith(beginning)]
    return sorted(chosen, key=lambda spec: attended(content, spec))


def best(content: Kept, beginning: str, most: float) -> str:
    """Return the setting that answers most right of those that keep at most a share; "" where none does."""
    chosen = [spec for spec in specs(content, beginning) if density(content, spec) <= most]
    return max(chosen, key=lambda spec: np.mean(digits(content, spec)), default="")


def summary(content: Kept) -> str:
    """Return density and exact match with its interval over seeds and questions, a line a setting."""
    lines = []
    for spec in specs(content):
        got = share(content, spec)
        about = f"{density(content, spec):.0%}: {got.mean:.3f} [{got.low:.3f}, {got.high:.3f}]"
        lines.append(f"{spec}, {about}, {got.seeds} seeds, n = {got.n:,}")
    return "\n".join(lines)

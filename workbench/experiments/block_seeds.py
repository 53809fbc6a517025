"""Block fine-tuning over training seeds, as data/benchmarks/block_seeds.py leaves it."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from workbench.experiments import results
from workbench.metrics.seeds import OverSeeds, crossed

Methods = Mapping[str, Mapping[str, str]]  # method → training seed → a digit a question
UNTRAINED = ("full attention", "block, not fine-tuned")  # of the one model that all trainings begin with


def kept() -> dict[str, Any]:
    """Read the results; BadInput where they are missing."""
    return results.read("block-seeds")


def seeds(methods: Methods, name: str) -> list[str]:
    """Return the training seeds of a method; none where it was not measured."""
    return sorted(methods.get(name, {}), key=int)


def digits(methods: Methods, name: str, seed: str) -> list[float]:
    """Return 1 a question that a method answers right; of the model before fine-tuning whatever the seed."""
    right = methods[name]["0" if name in UNTRAINED else seed]
    return [float(digit) for digit in right]


def share(methods: Methods, name: str) -> OverSeeds:
    """Return the share of right answers of a method over the seeds that it has."""
    return crossed([digits(methods, name, seed) for seed in seeds(methods, name)])


def gap(methods: Methods, one: str, other: str) -> OverSeeds:
    """Compare two methods over the seeds that both have; seeds and questions are resampled crosswise."""
    both = [seeds(methods, name) for name in (one, other) if name not in UNTRAINED] or [["0"]]
    shared = sorted(set.intersection(*map(set, both)), key=int)
    pairs = [(digits(methods, one, seed), digits(methods, other, seed)) for seed in shared]
    return crossed([np.subtract(*pair).tolist() for pair in pairs])


def summary(methods: Methods) -> str:
    """Return exact match with its interval over seeds and questions, a line a method."""
    lines = []
    for name in methods:
        got = share(methods, name)
        lines.append(f"{name}: {got.mean:.3f} [{got.low:.3f}, {got.high:.3f}], {got.seeds} seeds, n = {got.n:,}")
    return "\n".join(lines)

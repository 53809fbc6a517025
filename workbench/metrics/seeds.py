"""Scores over training seeds: an interval that holds for other seeds and other worlds.

A model of another seed would score otherwise, and so would other questions. Both are resampled: seeds with replacement,
and the answers of each drawn seed as right or wrong by its share.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from workbench.core.errors import BadInput

RESAMPLES = 4000


@dataclass(frozen=True)
class OverSeeds:
    """Mean of a share over `seeds` training seeds of `n` questions each, with its 95% interval."""

    seeds: int
    n: int
    mean: float
    low: float
    high: float


def over_seeds(shares: Sequence[float], n: int, seed: int = 0) -> OverSeeds:
    """Summarise one share a training seed, of `n` questions each. BadInput for none, and for what is no share."""
    if not len(shares) or n < 1 or not all(0 <= share <= 1 for share in shares):
        raise BadInput(f"shares are {list(shares)} of {n} questions: at least one from 0 to 1, of 1 question or more")
    drawn = _resampled(np.asarray(shares, float), n, np.random.default_rng(seed))
    low, high = np.quantile(drawn.mean(1), (0.025, 0.975))
    return OverSeeds(len(shares), n, float(np.mean(shares)), float(low), float(high))


def gap_over_seeds(one: Sequence[float], other: Sequence[float], n: int, seed: int = 0) -> OverSeeds:
    """Summarise the difference of two methods, `one - other`, seeds drawn together. BadInput for unlike numbers."""
    if len(one) != len(other) or not len(one):
        raise BadInput(f"{len(one)} and {len(other)} seeds: the same are needed for both, and at least one")
    draw = np.random.default_rng(seed)
    pairs = np.stack((np.asarray(one, float), np.asarray(other, float)))
    which = draw.integers(pairs.shape[1], size=(RESAMPLES, pairs.shape[1]))
    gaps = (draw.binomial(n, pairs[0][which]) - draw.binomial(n, pairs[1][which])) / n
    low, high = np.quantile(gaps.mean(1), (0.025, 0.975))
    return OverSeeds(pairs.shape[1], n, float((pairs[0] - pairs[1]).mean()), float(low), float(high))


def _resampled(shares: np.ndarray, n: int, draw: np.random.Generator) -> np.ndarray:
    """[RESAMPLES, S] shares of resampled seeds and answers."""
    which = draw.integers(len(shares), size=(RESAMPLES, len(shares)))
    resampled: np.ndarray = draw.binomial(n, shares[which]) / n
    return resampled

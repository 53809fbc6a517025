"""Scores over training seeds: an interval that holds for other seeds and other worlds.

A model of another seed would score otherwise, and so would other questions. Both are resampled: seeds with replacement,
and the answers of each drawn seed as right or wrong by its share. Where every seed answered the same questions, seeds
and questions are resampled crosswise (`crossed`); where a gain and its interval are known of each seed, a gain is drawn
from it (`gains_over_seeds`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from workbench.core.errors import BadInput

RESAMPLES = 4000
Z = 1.959964  # standard deviations from the mean to the end of a 95% interval


@dataclass(frozen=True)
class OverSeeds:
    """Mean of a share over `seeds` training seeds of `n` questions each, with its 95% interval."""

    seeds: int
    n: int
    mean: float
    low: float
    high: float


def mean_over_seeds(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean of a number a seed, and half of its 95% interval (Student's t)."""
    from scipy.stats import t as student

    numbers = np.asarray(values, float)
    if len(numbers) < 2:
        return float(numbers.mean()), 0.0
    half = student.ppf(0.975, len(numbers) - 1) * numbers.std(ddof=1) / len(numbers) ** 0.5
    return float(numbers.mean()), float(half)


def over_seeds(shares: Sequence[float], n: int, seed: int = 0) -> OverSeeds:
    """Summarise one share a training seed, of `n` questions each. BadInput for none, and for what is no share."""
    if not len(shares) or n < 1 or not all(0 <= share <= 1 for share in shares):
        raise BadInput(f"shares are {list(shares)} of {n} questions: at least one from 0 to 1, of 1 question or more")
    drawn = _resampled(np.asarray(shares, float), n, np.random.default_rng(seed))
    low, high = np.quantile(drawn.mean(1), (0.025, 0.975))
    return OverSeeds(len(shares), n, float(np.mean(shares)), float(low), float(high))


def crossed(values: Sequence[Sequence[float]], seed: int = 0) -> OverSeeds:
    """Summarise a number a training seed and question [S, N]. BadInput where seeds have not the same questions."""
    counts = [len(row) for row in values]
    if len(set(counts)) != 1 or not counts[0]:
        raise BadInput(f"questions by seed: {counts}; every seed needs the same, and at least one")
    given = np.asarray(values, float)
    seeds, n = given.shape
    by_seed, by_question = _crosswise(seeds, n, seed)
    low, high = np.quantile(((by_question @ given.T) * by_seed).sum(1), (0.025, 0.975))
    return OverSeeds(seeds, n, float(given.mean()), float(low), float(high))


def crossed_share(part: Sequence[Sequence[float]], whole: Sequence[Sequence[float]], seed: int = 0) -> OverSeeds:
    """Summarise the sum of one number a training seed and question as a share of another's, both [S, N].

    BadInput where shapes differ, and where the whole is 0 or may be.
    """
    parts, wholes = np.asarray(part, float), np.asarray(whole, float)
    if parts.shape != wholes.shape or parts.ndim != 2 or not parts.size:
        raise BadInput(f"{parts.shape} numbers are no share of {wholes.shape}: the same seeds and questions are needed")
    seeds, n = parts.shape
    by_seed, by_question = _crosswise(seeds, n, seed)
    above, below = (((by_question @ each.T) * by_seed).sum(1) for each in (parts, wholes))
    if (below <= 0).any():
        raise BadInput("the whole may be 0: no share of it can be given")
    low, high = np.quantile(above / below, (0.025, 0.975))
    return OverSeeds(seeds, n, float(parts.mean() / wholes.mean()), float(low), float(high))


def gains_over_seeds(gains: Sequence[tuple[float, float, float]], n: int, seed: int = 0) -> OverSeeds:
    """Summarise a gain a training seed, each with the ends of its own 95% interval over `n` questions.

    A drawn seed's gain is normal around what it has. BadInput for none, and for ends the wrong way round.
    """
    if not len(gains) or any(not low <= value <= high for value, low, high in gains):
        raise BadInput(f"gains are {list(gains)}: at least one, each as (value, low, high) in order")
    value, low, high = np.asarray(gains, float).T
    draw = np.random.default_rng(seed)
    which = draw.integers(len(value), size=(RESAMPLES, len(value)))
    drawn = draw.normal(value[which], ((high - low) / (2 * Z))[which])
    ends = np.quantile(drawn.mean(1), (0.025, 0.975))
    return OverSeeds(len(value), n, float(value.mean()), *map(float, ends))


@lru_cache(maxsize=4)
def _crosswise(seeds: int, n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw the weights of seeds [R, S] and of questions [R, N] in R resamples; rows sum to 1; not to be written to."""
    draw = np.random.default_rng(seed)
    by_seed, by_question = (draw.multinomial(k, np.full(k, 1 / k), RESAMPLES // 2) / k for k in (seeds, n))
    by_seed.flags.writeable = by_question.flags.writeable = False
    return by_seed, by_question


def _resampled(shares: np.ndarray, n: int, draw: np.random.Generator) -> np.ndarray:
    """Return [RESAMPLES, S] shares of resampled seeds and answers."""
    which = draw.integers(len(shares), size=(RESAMPLES, len(shares)))
    resampled: np.ndarray = draw.binomial(n, shares[which]) / n
    return resampled

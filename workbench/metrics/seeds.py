"""Numbers over training runs: the interval holds for a run of another seed, not for other questions alone."""

from collections.abc import Sequence

import numpy as np

Z = 1.959964  # standard deviations from the mean to the end of a 95% interval
Ends = tuple[float, float, float]  # value, low, high


def mean_over_seeds(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean of a number a seed, and half of its 95% interval (Student's t)."""
    from scipy.stats import t as student

    numbers = np.asarray(values, float)
    if len(numbers) < 2:
        return float(numbers.mean()), 0.0
    half = student.ppf(0.975, len(numbers) - 1) * numbers.std(ddof=1) / len(numbers) ** 0.5
    return float(numbers.mean()), float(half)


def over_runs(runs: Sequence[Ends]) -> Ends:
    """Summarise a number of every training run, each with its own 95% interval over questions.

    Student's interval of the runs, no narrower than the widest of theirs: few runs may agree by chance.
    """
    mean, half = mean_over_seeds([value for value, _, _ in runs])
    half = max(half, *((high - low) / 2 for _, low, high in runs))
    return mean, mean - half, mean + half

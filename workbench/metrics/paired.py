"""Paired comparison of methods: differences, McNemar's test, average ranks, groups that no test tells apart.

Differences are taken per question and questions are resampled as a whole, so that a question which is hard for every
method does not widen the interval. Ranks: Demšar (2006), Statistical comparisons of classifiers over multiple data
sets, with questions in place of data sets. Pairs of methods are tested as Benavoli et al. (2016) recommend, by paired
tests that do not depend on the other methods.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from typing import Any

import numpy as np

from workbench.core.errors import BadInput
from workbench.metrics.answers import bootstrap, resample_counts

Ends = tuple[float, float, float]  # value, low, high


def mean_over_seeds(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean of one value per seed, and half the width of its 95% interval (Student's t)."""
    from scipy.special import stdtrit

    numbers = np.asarray(values, float)
    if len(numbers) < 2:
        return float(numbers.mean()), 0.0
    half = stdtrit(len(numbers) - 1, 0.975) * numbers.std(ddof=1) / len(numbers) ** 0.5
    return float(numbers.mean()), float(half)


def over_runs(runs: Sequence[Ends]) -> Ends:
    """Return mean and 95% interval of (value, low, high) over training runs.

    This is Student's interval of the runs, but at least as wide as the widest interval of one run, because a few runs
    may agree by chance.
    """
    mean, half = mean_over_seeds([value for value, _, _ in runs])
    half = max(half, *((high - low) / 2 for _, low, high in runs))
    return mean, mean - half, mean + half


ALPHA = 0.05


@dataclass(frozen=True)
class Ranks:
    """Ranks of k methods over n questions.

    average   mean rank of each method, from 1; tied methods get their mean rank
    friedman  p-value of the hypothesis that all methods rank alike (Friedman); None for fewer than three methods
    critical  Nemenyi's critical difference of two average ranks
    p         {(i, j): p-value}, i < j: paired Wilcoxon signed-rank tests (exact sign tests if all differences have one
              size), corrected after Holm
    together  maximal groups of two or more methods, in order of rank, no two of which a test tells apart
    """

    n: int
    average: tuple[float, ...]
    friedman: float | None
    critical: float
    p: dict[tuple[int, int], float]
    together: tuple[tuple[int, ...], ...]


def ranks(table: np.ndarray, higher: bool) -> Ranks:
    """Rank methods by scores [n, k], one row per question; with `higher`, larger scores are better.

    Raises BadInput for fewer than two methods, no question, and scores that are not finite.
    """
    from scipy import stats  # slow to import, and optional

    table = np.asarray(table, float)
    if table.ndim != 2 or table.shape[0] < 1 or table.shape[1] < 2 or not np.isfinite(table).all():
        raise BadInput(f"scores have shape {table.shape}: finite scores, [questions ≥ 1, methods ≥ 2], are needed")
    n, k = table.shape
    average = stats.rankdata(-table if higher else table, axis=1).mean(0)
    alike = bool((table == table[:, :1]).all())
    friedman = None if k < 3 else 1.0 if alike else float(stats.friedmanchisquare(*table.T).pvalue)
    critical = _studentized_range(k) * (k * (k + 1) / 12 / n) ** 0.5
    pairs = list(combinations(range(k), 2))
    p = dict(zip(pairs, holm(_p_values(np.stack([table[:, i] - table[:, j] for i, j in pairs]))), strict=True))
    return Ranks(n, tuple(average.tolist()), friedman, critical, p, _groups(average, p))


@cache  # leaderboards call it repeatedly
def _studentized_range(k: int) -> float:
    from scipy import stats

    return float(stats.studentized_range.ppf(1 - ALPHA, k, np.inf))


def holm(values: Sequence[float]) -> list[float]:
    """Return p-values corrected for multiple comparisons (Holm 1979)."""
    order = np.argsort(values, kind="stable")
    scaled = [(len(values) - rank) * values[at] for rank, at in enumerate(order)]
    corrected = np.minimum(1.0, np.maximum.accumulate(scaled)) if len(values) else np.zeros(0)
    result = np.empty(len(values))
    result[order] = corrected
    return result.tolist()


MANY = 50  # above this number of differences, Wilcoxon's test uses the normal approximation, as in scipy


def _p_values(gaps: np.ndarray) -> list[float]:
    """Return the p-values of paired differences [pairs, n] from 0; zero differences are dropped."""
    from scipy import stats

    sizes = np.abs(gaps)
    moved, more = (gaps != 0).sum(1), (gaps > 0).sum(1)
    p = _sign_test(more, moved - more)
    uneven = np.where(sizes > 0, sizes, np.inf).min(1) < sizes.max(1)
    many = np.flatnonzero(uneven & (moved > MANY))
    if len(many):  # one call, which ignores zeros
        p[many] = stats.wilcoxon(gaps[many], axis=1, method="approx").pvalue
    for pair in np.flatnonzero(uneven & (moved <= MANY)):
        p[pair] = stats.wilcoxon(gaps[pair][gaps[pair] != 0]).pvalue
    return p.tolist()


def _sign_test(more: Any, less: Any) -> Any:
    """Return two-sided p-values, given the numbers of differences above and below 0."""
    from scipy.special import bdtr

    return np.minimum(1.0, 2 * bdtr(np.minimum(more, less), more + less, 0.5))


def _groups(average: np.ndarray, p: dict[tuple[int, int], float]) -> tuple[tuple[int, ...], ...]:
    def alike(i: int, j: int) -> bool:
        return p[min(i, j), max(i, j)] >= ALPHA

    order = [int(at) for at in np.argsort(average, kind="stable")]
    groups: list[tuple[int, ...]] = []
    last_end = 0  # of the last group
    for begin in range(len(order)):
        last = begin + 1
        while last < len(order) and all(alike(i, order[last]) for i in order[begin:last]):
            last += 1
        if last - begin > 1 and last > last_end:
            groups.append(tuple(order[begin:last]))
            last_end = last
    return tuple(groups)


Values = Sequence[float] | np.ndarray


@dataclass(frozen=True)
class Difference:
    """Mean of `one - other` over `n` questions, with its bootstrap 95% interval; `moved` of the questions differ."""

    n: int
    mean: float
    low: float
    high: float
    moved: int

    @property
    def few(self) -> bool:
        """Return whether too few questions differ for an interval (`too_few`)."""
        return too_few(self.moved)


FEWEST = 6  # minimum number of differing questions


def too_few(moved: int) -> bool:
    """Return whether fewer than FEWEST questions differ: a paired difference then has no interval (`count_differing`).

    A bootstrap resamples only these questions' differences, so that its interval excludes 0 even with two of one sign,
    and has no width with one question. An exact paired test tells nothing from so few: n differences of one sign have a
    two-sided p of 2 · 2⁻ⁿ in the sign test (Dixon and Mood 1946, The statistical sign test), as in McNemar's and
    Wilcoxon's, which `ranks` uses. It is under 5% from n = 6 on.
    """
    return moved < FEWEST


def count_differing(moved: int, n: int) -> str:
    """Say how many questions differ, in place of an interval: "3 of 8 differ: too few"."""
    return f"{moved:,} of {n:,} differ: too few" if moved else f"none of {n:,} differ{'s' if n == 1 else ''}"


@dataclass(frozen=True)
class McNemar:
    """McNemar's exact test of two methods: questions that only `one` and only `other` answers, and the p-value."""

    only_one: int
    only_other: int
    p: float


@dataclass(frozen=True)
class GapClosed:
    """Share of the gap between reuse and full attention that a method closes, with its bootstrap 95% interval.

    If the gap is not positive, `share` and its interval are None, and `note` says why. An end of the interval is None
    if it is unbounded, because many resamples have no gap.
    """

    n: int
    gap: float  #: of the means, reuse - full
    share: float | None
    low: float | None
    high: float | None
    note: str = ""


def difference(one: Values, other: Values, seed: int = 0) -> Difference:
    """Compare two methods question by question. Raises BadInput unless both have scores of the same questions."""
    table = _table(one, other)
    gap = table[0] - table[1]
    return Difference(len(gap), float(gap.mean()), *bootstrap(gap.tolist(), seed), int((gap != 0).sum()))


def mcnemar(one: Values, other: Values) -> McNemar:
    """Test whether two methods are correct equally often, given 1 (correct) or 0 (wrong) per question and method.

    Exact and two-sided: a question that only one method answers is equally likely to be either's (McNemar 1947). Raises
    BadInput for other values than 0 and 1.
    """
    table = _table(one, other)
    if odd := sorted({float(value) for value in table.flat} - {0.0, 1.0}):
        raise BadInput(f"McNemar's test is of right (1) and wrong (0) answers: {odd[0]:g} is neither")
    first, second = int((table[0] > table[1]).sum()), int((table[1] > table[0]).sum())
    return McNemar(first, second, float(_sign_test(first, second)))


def bits_explained(method: Values, reuse: Values, full: Values | None = None, seed: int = 0) -> GapClosed:
    """Return (reuse - method) / (reuse - full) of mean losses (negative log-likelihood), one per question.

    0 is plain reuse, 1 full attention; values below and above are possible. Without `full`, its losses are 0, as for KL
    from full attention. The losses are of the same questions, which are resampled together.
    """
    full = np.zeros(len(reuse)) if full is None else full
    table = _table(method, reuse, full)
    n = table.shape[1]
    ours, high_end, low_end = table.mean(1)
    gap = float(high_end - low_end)
    if gap <= 0:
        note = f"reuse loses nothing to full attention here ({gap:+.4g}): there is no gap to close"
        return GapClosed(n, gap, None, None, None, note)
    means = resample_counts(n, seed=seed) / n @ table.T
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = (means[:, 1] - means[:, 0]) / (means[:, 1] - means[:, 2])
    shares = np.where(means[:, 1] > means[:, 2], shares, math.nan)
    low, high = _ends(shares)
    return GapClosed(n, gap, float((high_end - ours) / gap), low, high)


def _ends(shares: np.ndarray) -> tuple[float | None, float | None]:
    """Return the 95% interval of the resampled shares; resamples without a gap count at both ends."""
    low, high = (np.sort(np.where(np.isnan(shares), beyond, shares)) for beyond in (-math.inf, math.inf))
    return (
        _finite(float(np.quantile(low, 0.025, method="lower"))),
        _finite(float(np.quantile(high, 0.975, method="higher"))),
    )


def _finite(end: float) -> float | None:
    return end if math.isfinite(end) else None


def _table(*columns: Values) -> np.ndarray:
    """Return [methods, n]. Raises BadInput if methods have different questions, or none."""
    lengths = {len(column) for column in columns}
    if len(lengths) > 1 or not lengths or 0 in lengths:
        counts = " and ".join(map(str, map(len, columns)))
        raise BadInput(f"scores of {counts} questions: the same questions are needed, at least one")
    table = np.array(columns, dtype=float)
    if not np.isfinite(table).all():
        raise BadInput("a score is missing or not finite: drop its question from every method")
    return table

"""Many methods on the same questions: average ranks, and which methods these questions do not tell apart.

Demšar (2006), Statistical comparisons of classifiers over multiple data sets, with questions in place of data sets;
pairs are tested as Benavoli et al. (2016) recommend, by paired tests that do not depend on the other methods.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from workbench.core.errors import BadInput

ALPHA = 0.05


@dataclass(frozen=True)
class Ranks:
    """Ranks of k methods over n questions.

    average   mean rank of each method, 1 is best; questions on which methods are equal give them their mean rank
    friedman  p-value of all methods ranking alike (Friedman); None below three methods
    critical  difference of two average ranks from which on Nemenyi's test tells them apart
    p         {(i, j): p-value}, i < j: paired Wilcoxon signed-rank tests (exact sign tests where all differences are of
              one size), corrected after Holm
    together  groups of two methods and more, best first, no two of which a test tells apart; none holds another
    """

    n: int
    average: tuple[float, ...]
    friedman: float | None
    critical: float
    p: dict[tuple[int, int], float]
    together: tuple[tuple[int, ...], ...]


def ranks(table: np.ndarray, higher: bool) -> Ranks:
    """Rank methods by scores [n, k], a row a question; `higher` scores are better.

    Raises BadInput for fewer than two methods, no question, and scores that are not finite.
    """
    from scipy import stats  # heavy, and not on every machine that measures

    table = np.asarray(table, float)
    if table.ndim != 2 or table.shape[0] < 1 or table.shape[1] < 2 or not np.isfinite(table).all():
        raise BadInput(f"scores of {table.shape}: finite ones of at least one question and two methods are needed")
    n, k = table.shape
    average = stats.rankdata(-table if higher else table, axis=1).mean(0)
    alike = bool((table == table[:, :1]).all())
    friedman = None if k < 3 else 1.0 if alike else float(stats.friedmanchisquare(*table.T).pvalue)
    critical = float(stats.studentized_range.ppf(1 - ALPHA, k, np.inf) * np.sqrt(k * (k + 1) / 12 / n))
    pairs = list(combinations(range(k), 2))
    p = dict(zip(pairs, holm([_paired(table[:, i] - table[:, j]) for i, j in pairs]), strict=True))
    return Ranks(n, tuple(average.tolist()), friedman, critical, p, _groups(average, p))


def holm(values: Sequence[float]) -> list[float]:
    """Return p-values corrected for their number (Holm 1979)."""
    order = np.argsort(values, kind="stable")
    scaled = [(len(values) - rank) * values[at] for rank, at in enumerate(order)]
    corrected = np.minimum(1.0, np.maximum.accumulate(scaled)) if len(values) else np.zeros(0)
    found = np.empty(len(values))
    found[order] = corrected
    return found.tolist()


def _paired(gaps: np.ndarray) -> float:
    """Return the p-value of paired differences [n] around 0; questions without a difference are left out."""
    from scipy import stats

    gaps = gaps[gaps != 0]
    if not len(gaps):
        return 1.0
    if len(set(np.abs(gaps))) == 1:
        return float(stats.binomtest(int((gaps > 0).sum()), len(gaps)).pvalue)
    return float(stats.wilcoxon(gaps).pvalue)


def _groups(average: np.ndarray, p: dict[tuple[int, int], float]) -> tuple[tuple[int, ...], ...]:
    def alike(i: int, j: int) -> bool:
        return p[min(i, j), max(i, j)] >= ALPHA

    order = [int(at) for at in np.argsort(average, kind="stable")]
    found: list[tuple[int, ...]] = []
    end = 0  # of the last group
    for begin in range(len(order)):
        last = begin + 1
        while last < len(order) and all(
            p[min(i, order[last]), max(i, order[last])] >= ALPHA for i in order[begin:last]
        ):
            last += 1
        if last - begin > 1 and last > end:
            found.append(tuple(order[begin:last]))
            end = last
    return tuple(found)

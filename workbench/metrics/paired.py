"""Two methods on the same questions: their difference, McNemar's test, and the share of a loss that a method undoes.

Differences are taken question by question and questions are resampled whole, so that a question which is hard for every
method does not widen the interval.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from workbench.core.errors import BadInput
from workbench.metrics.answers import bootstrap, resampled

Values = Sequence[float] | np.ndarray
RESAMPLES = 2000


@dataclass(frozen=True)
class Difference:
    """Mean of `one - other` over `n` questions, with its bootstrap 95% interval."""

    n: int
    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class McNemar:
    """McNemar's exact test of two methods: questions only `one` and only `other` answers right, and the p-value."""

    only_one: int
    only_other: int
    p: float


@dataclass(frozen=True)
class Explained:
    """Share of the gap between reuse and full attention that a method closes, with its bootstrap 95% interval.

    Where the gap is not above 0, there is nothing to close: `share` and its interval are None, `note` says why. An end
    of the interval is None where it lies beyond all bounds, because many resamples have no gap.
    """

    n: int
    gap: float  # of the means, reuse - full
    share: float | None
    low: float | None
    high: float | None
    note: str = ""


def difference(one: Values, other: Values, seed: int = 0) -> Difference:
    """Compare two methods question by question. Raises BadInput where they have not answered the same questions."""
    table = _table(one, other)
    gap = table[0] - table[1]
    return Difference(len(gap), float(gap.mean()), *bootstrap(gap.tolist(), seed))


def mcnemar(one: Values, other: Values) -> McNemar:
    """Test whether two methods are right equally often, from one right (1) or wrong (0) a question and method.

    Exact and two-sided: of the questions that exactly one of them answers, each is as likely to be either's (McNemar
    1947). Raises BadInput for other values than 0 and 1.
    """
    from scipy.stats import binomtest  # heavy, and not on every machine that measures

    table = _table(one, other)
    if odd := sorted({float(value) for value in table.flat} - {0.0, 1.0}):
        raise BadInput(f"McNemar's test is of right (1) and wrong (0) answers: {odd[0]:g} is neither")
    first, second = int((table[0] > table[1]).sum()), int((table[1] > table[0]).sum())
    p = binomtest(first, first + second).pvalue if first + second else 1.0
    return McNemar(first, second, float(p))


def bits_explained(method: Values, reuse: Values, full: Values | None = None, seed: int = 0) -> Explained:
    """Return (reuse - method) / (reuse - full) of mean losses, as negative log-likelihood, a question each.

    0 is plain reuse, 1 full attention; below and above are possible. `full` None stands for zeros: of KL from full
    attention. The three are of the same questions, which are resampled together.
    """
    full = np.zeros(len(reuse)) if full is None else full
    table = _table(method, reuse, full)
    n = table.shape[1]
    ours, high_end, low_end = table.mean(1)
    gap = float(high_end - low_end)
    if gap <= 0:
        note = f"reuse loses nothing to full attention here ({gap:+.4g}): there is no gap to close"
        return Explained(n, gap, None, None, None, note)
    means = resampled(n, RESAMPLES, seed) / n @ table.T
    with np.errstate(divide="ignore", invalid="ignore"):
        shares = (means[:, 1] - means[:, 0]) / (means[:, 1] - means[:, 2])
    shares = np.where(means[:, 1] > means[:, 2], shares, math.nan)
    low, high = _ends(shares)
    return Explained(n, gap, float((high_end - ours) / gap), low, high)


def _ends(shares: np.ndarray) -> tuple[float | None, float | None]:
    """Return the 95% interval of the resampled shares; a resample without a gap may lie anywhere, at either end."""
    low, high = (np.sort(np.where(np.isnan(shares), beyond, shares)) for beyond in (-math.inf, math.inf))
    return (
        _finite(float(np.quantile(low, 0.025, method="lower"))),
        _finite(float(np.quantile(high, 0.975, method="higher"))),
    )


def _finite(end: float) -> float | None:
    return end if math.isfinite(end) else None


def _table(*columns: Values) -> np.ndarray:
    """Return [methods, n]; BadInput where the methods have not the same questions, or none."""
    lengths = {len(column) for column in columns}
    if len(lengths) > 1 or not lengths or 0 in lengths:
        raise BadInput(f"{' and '.join(map(str, map(len, columns)))} questions: the same are needed, and at least one")
    table = np.array(columns, dtype=float)
    if not np.isfinite(table).all():
        raise BadInput("a score is missing or not finite: leave those questions out of every method")
    return table

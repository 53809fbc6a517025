"""Which rows of result tables a claim speaks of, and their number with its 95% interval, in every place.

A selector is {column: wanted}. A column is one of the table, a key of `setting`, or a measure of the same method's
counts (`density`). Wanted is a number, null, {"least": x, "most": y}, "smallest" or "largest" of numbers; of texts a
pattern such as "bfla(*", one of several ("" where there is none), and "!lab*" for all but those.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from workbench.metrics.answers import normalised
from workbench.metrics.latency import ratio
from workbench.metrics.paired import bits_explained, difference, mean_over_seeds, over_runs
from workbench.results import Results, expanded
from workbench.results.schema import MEASURES, METHOD, TABLES, Origin, columns

UNUSED = {"versions", "weights", "answer", "expected", "samples"}
ORDER = ("smallest", "largest")
BY = ["source", "model", "data", *METHOD]  # of counts that stand beside a method's other rows
Selector = Mapping[str, Any]
Scores = tuple[np.ndarray, np.ndarray]  # numbers of questions, and their scores


@dataclass(frozen=True, kw_only=True)
class ClaimScope:
    """Which number of which rows.

    table, experiment, measure   of the rows; timings have no measure
    left, right   the two sides of a comparison; `right` None: the left side's own number
    full          full attention, where a share of what reuse loses to it is asked for; None of KL, which is beside it
    how           "difference" right subtracted; "ratio" times as fast as right; "explained" share won back between
                  right and full; "relative" difference as a share of right; "normalised" as FusionRAG does; "value"
    over          what is resampled; of ratios of counts "seeds": of the data, with Student's interval
    across        columns in which the sides may differ, of those they share elsewhere: "model", "workload", …
    scope         restricts the rows of both sides
    """

    table: Literal["answers", "timings", "counts", ""] = ""
    experiment: str = ""
    measure: str = ""
    left: Selector = field(default_factory=dict)
    right: Selector | None = None
    full: Selector | None = None
    how: Literal["difference", "ratio", "explained", "relative", "normalised", "value"] = "value"
    over: Literal["questions", "training seeds", "seeds"] = "questions"
    across: tuple[str, ...] = ()
    scope: Selector = field(default_factory=dict)


class Tables:
    """The tables of results as claims about `measures` read them: each once, keys of `setting` as columns.

    Answers stand there as runs, rows that differ in their questions alone: `start` to `stop` of `scores`.
    """

    def __init__(self, found: Results, measures: Collection[str]):
        self.sources = found.sources
        self.numbers: dict[str, list[Number]] = {}  # that were asked for, as claims of several items do
        other = set(MEASURES) - {"em", *measures}  # of answers
        read = {table: [*columns(table).keys() - UNUSED - (other if table == "answers" else set())] for table in TABLES}
        self._table = cache(lambda table, experiment: found.coded(table, experiment, read[table]))
        self._rows, self._runs, self.scores = cache(self._rows_of), cache(self._runs_of), cache(self._scores_of)
        self._means = cache(self._means_of)

    def rows(self, asked: ClaimScope) -> pd.DataFrame:
        """Return the rows of either side, with a column for every name that a selector uses."""
        rows = self._rows(asked.table, asked.experiment, asked.measure)
        if rows.empty:
            return rows
        sides = [each for each in (asked.left, asked.right, asked.full) if each is not None]
        for name in sorted({name for each in (*sides, asked.scope) for name in each} - set(rows)):
            means = self._means(asked.experiment, name)
            rows = rows.merge(means, on=BY, how="left") if len(means) else rows.assign(**{name: np.nan})
        return chosen(rows[np.logical_or.reduce([fitting(rows, each) for each in sides])], asked.scope)

    def _rows_of(self, table: str, experiment: str, measure: str) -> pd.DataFrame:
        if table != "answers":
            rows = self._table(table, experiment)
            return _with_settings(rows[rows.measure == measure] if table == "counts" else rows)
        runs = self._runs(experiment)[0]
        scores, em = (self.scores(experiment, name)[1] for name in (measure, "em"))
        known, both = ~np.isnan(scores), ~np.isnan(scores + em)
        sums = {"n": known, "em_n": both, "em": np.where(both, em, 0.0)}
        runs = runs.assign(**{name: np.add.reduceat(each, runs.start, dtype=float) for name, each in sums.items()})
        return runs[runs.n > 0].copy()

    def _means_of(self, experiment: str, measure: str) -> pd.DataFrame:
        """Return a measure of every method's counts over all questions, a mean over training seeds."""
        own = self._rows("counts", experiment, measure)
        means = own[own.kind.isin(["", "all"])].groupby(BY, dropna=False, observed=True).value.mean()
        return means.rename(measure).reset_index()

    def _runs_of(self, experiment: str) -> tuple[pd.DataFrame, np.ndarray]:
        """Return the runs of answers, and the rows of the table one run behind the other."""
        rows = self._table("answers", experiment)
        about = rows[[name for name in ("source", *(each.name for each in fields(Origin))) if name in rows]]
        run = np.zeros(len(rows), int)
        for name in about:
            codes, values = pd.factorize(about[name], use_na_sentinel=False)
            run = pd.factorize(run * len(values) + codes)[0]
        order, stop = np.argsort(run, kind="stable"), np.cumsum(np.bincount(run))
        start = np.r_[0, stop][:-1]
        runs = _with_settings(about.iloc[order[start]].assign(start=start, stop=stop))
        return runs.assign(trial=runs.groupby(list(METHOD), sort=False, dropna=False).ngroup()), order

    def _scores_of(self, experiment: str, measure: str) -> Scores:
        """Return the number of every answer's question and a measure of it, run by run."""
        rows, (_, order) = self._table("answers", experiment), self._runs(experiment)
        numbered = pd.factorize(rows.question)[0][order] if measure == "em" else self.scores(experiment, "em")[0]
        return numbered, rows[measure].to_numpy(float)[order]


def _with_settings(rows: pd.DataFrame) -> pd.DataFrame:
    """Add a column for every key of `setting`; where it is named as one of the table, the table's own value stands."""
    rows = rows.astype(dict.fromkeys(rows.select_dtypes(["str", "category"]), object))
    more = expanded(rows[["setting"]])
    both = {name: rows[name].where(rows[name].notna(), more[name]) for name in more if name in rows}
    whole = pd.concat([rows, more.drop(columns=list(both))], axis=1).assign(**both)
    return whole.copy()  # one array: taken from at once


def chosen(rows: pd.DataFrame, wanted: Selector) -> pd.DataFrame:
    """Return the rows that a selector picks; "smallest" and "largest" are of those that all else picks."""
    rows = rows[fitting(rows, wanted)]
    for name, want in wanted.items():
        if _ordered(want) and len(rows):
            values = pd.to_numeric(rows[name])
            if name == "em":  # of a method, not of its questions
                right, n = (rows[each].groupby(rows.trial).transform("sum") for each in ("em", "em_n"))
                values = right / n
            rows = rows[values == (values.max() if want == "largest" else values.min())]
    return rows


def fitting(rows: pd.DataFrame, wanted: Selector) -> np.ndarray:
    """Return which rows a selector may pick."""
    fits = np.ones(len(rows), bool)
    for name, want in wanted.items():
        if not _ordered(want):
            values = [None if value != value else value for value in rows[name].tolist()]
            picked = {value: _fits(_named(name, value), want) for value in set(values)}
            fits &= np.array([picked[value] for value in values], bool)
    return fits


def _named(column: str, value: Any) -> Any:
    """Return the value by which a row is picked: a file of questions goes by its name, wherever it lies."""
    return Path(value).name if column == "data" and isinstance(value, str) else value


def _ordered(want: Any) -> bool:
    return isinstance(want, str) and want in ORDER


def _fits(value: Any, want: Any) -> bool:
    if want is None or value is None or value == "":
        return value in (None, "") and (want is None or (isinstance(want, list) and "" in want))
    if isinstance(want, Mapping):
        return bool(want.get("least", -np.inf) <= float(value) <= want.get("most", np.inf))
    if not isinstance(want, str | list):
        return bool(np.isclose(float(value), float(want)))
    patterns = [want] if isinstance(want, str) else want
    wanted = [pattern for pattern in patterns if not pattern.startswith("!")]
    unwanted = [pattern[1:] for pattern in patterns if pattern.startswith("!")]
    return not _like(value, unwanted) and (not wanted or _like(value, wanted))


def _like(value: Any, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(str(value), pattern) for pattern in patterns)


SHARED = {  # columns in which both sides of a comparison agree, by table
    "answers": ("source", "model", "data", "passages", "seed"),
    "counts": ("source", "model", "data", "passages", "seed", "training_seed", "device"),
    "timings": ("source", "model", "data", "device"),
}
LOSSES = ("nll", "kl")  # measures of answers of which less is better
PAIRED = ("workload", "report")  # in which two timings agree besides
Ends = tuple[float, float, float, int]  # value, low, high, n


@dataclass(frozen=True)
class Number:
    """What was measured: a value with its 95% interval (of times: 5% to 95% of the runs), of `n` questions or runs.

    where   {source, model, data, device, …} of the left side
    seeds   training runs that were measured, 0 of models that name none; over several goes the interval
    beside  mean of the right side
    method  the left side's name
    """

    value: float
    low: float
    high: float
    n: int
    where: Mapping[str, Any]
    seeds: int = 0
    beside: float | None = None
    method: str = ""


def numbers(tables: Tables, asked: ClaimScope) -> list[Number]:
    """Return the number of every group of rows, as (source, model, data), that has both sides; none where none has."""
    wanted = repr([getattr(asked, each.name) for each in fields(ClaimScope)])
    if wanted not in tables.numbers:
        apart = (*asked.across, "seed") if asked.over == "seeds" else asked.across
        keys = [name for name in SHARED[asked.table] if name not in apart]
        groups = tables.rows(asked).groupby(keys, sort=False, dropna=False)
        tables.numbers[wanted] = [number for _, group in groups for number in _of_group(group, asked, tables)]
    return tables.numbers[wanted]


def _of_group(group: pd.DataFrame, asked: ClaimScope, tables: Tables) -> Iterator[Number]:
    left = chosen(group, asked.left)
    others = [chosen(group, each) for each in (asked.right, asked.full) if each is not None]
    if left.empty or any(each.empty for each in others):
        return
    if asked.table == "answers":
        for _, own in left.groupby("trial", sort=False):
            if number := _of_answers(own, others, asked, tables.scores(asked.experiment, asked.measure)):
                yield number
    elif asked.over == "seeds":
        pairs = [(row, [other[other.seed == row.seed] for other in others]) for _, row in left.iterrows()]
        values = [ROWS[asked.how](row, of, asked)[0] for row, of in pairs if all(len(each) for each in of)]
        mean, half = mean_over_seeds(values)
        yield Number(mean, mean - half, mean + half, len(values), where=left.iloc[0].to_dict())
    else:
        alike = [name for name in PAIRED if name in left and asked.table == "timings" and name not in asked.across]
        for _, row in left.iterrows():
            own = others
            for name in alike:
                own = [other[other[name] == row[name]] for other in own]
            if any(other.empty for other in own):
                continue
            ends = ROWS[asked.how](row, own, asked)
            yield Number(*ends, where=row.to_dict(), method=str(row.get("candidate") or row["method"]))


# Answers: a score a question, of one or several training seeds


def _of_answers(left: pd.DataFrame, others: Sequence[pd.DataFrame], asked: ClaimScope, scores: Scores) -> Number | None:
    sides = [_by_seed(left, scores), *(_by_seed(_closest(each, left, scores), scores) for each in others)]
    values = _aligned(sides)
    if values is None:
        return None
    if asked.how == "explained" and asked.measure not in LOSSES:
        values = [-each for each in values]  # a share of losses
    where = left.iloc[0].to_dict()
    trained = any(set(side) != {-1} for side in sides)
    several = asked.over == "training seeds" or trained or len(values[0]) > 1
    got = ANSWERS[asked.how](values) if len(values[0]) == 1 else _of_runs(values, ANSWERS[asked.how])
    if got is None:
        return None
    beside = float(np.mean(values[1])) if len(values) > 1 else None
    return Number(*got, where=where, seeds=len(values[0]) if several else 0, beside=beside, method=str(where["method"]))


def _closest(rows: pd.DataFrame, left: pd.DataFrame, scores: Scores) -> pd.DataFrame:
    """Return, of several methods that a selector picks, the one that shares most questions with the left side.

    Of equals the one that the left side's command measured; its rows come last.
    """
    asked = _scores(left, scores).keys()
    same = rows.command.isin(set(left.command)).to_numpy()
    order = np.argsort(same, kind="stable")
    rows, same = rows.iloc[order], same[order]
    methods = [(rows[of], rows[of & same]) for of in (rows.trial.to_numpy() == each for each in rows.trial.unique())]
    return max(methods, key=lambda both: [len(asked & _scores(each, scores).keys()) for each in both])[0]


def _scores(rows: pd.DataFrame, scores: Scores) -> dict[int, float]:
    """Return the scores of runs by question; of a question that was asked again, the last."""
    at = np.concatenate([np.arange(0), *map(np.arange, rows.start, rows.stop)])
    questions, values = (each[at] for each in scores)
    known = values == values
    return dict(zip(questions[known].tolist(), values[known].tolist(), strict=True))


def _by_seed(rows: pd.DataFrame, scores: Scores) -> dict[int, dict[int, float]]:
    """Return {training seed: score by question}; -1 stands for a model without one."""
    seeds = rows.training_seed.fillna(-1).to_numpy(int)
    return {int(seed): _scores(rows[seeds == seed], scores) for seed in np.unique(seeds)}


def _aligned(sides: Sequence[Mapping[int, Mapping[int, float]]]) -> list[np.ndarray] | None:
    """Return [seeds, questions] of every side, of what all of them have; None where they share nothing.

    A side without training seeds stands beside every seed of the others.
    """
    trained = [set(side) for side in sides if set(side) != {-1}]
    seeds = sorted(set.intersection(*trained)) if trained else [-1]
    runs = [side[seed] if seed in side else side[-1] for side in sides for seed in seeds]
    shared = [question for question in runs[0] if all(question in run for run in runs)] if runs else []
    values = np.array([[run[question] for question in shared] for run in runs])
    return list(values.reshape(len(sides), len(seeds), -1)) if shared else None


def _of_runs(values: Sequence[np.ndarray], statistic: "Statistic") -> Ends | None:
    """Return the number of all training runs; None where one of them has none."""
    runs = [statistic([side[i : i + 1] for side in values]) for i in range(len(values[0]))]
    known = [run for run in runs if run is not None]
    return (*over_runs([run[:3] for run in known]), known[0][3]) if len(known) == len(runs) else None


def _gap(values: Sequence[np.ndarray]) -> Ends:
    """Compare two methods question by question. Where all differ alike, up to 3 in n others may not (rule of three)."""
    got = difference(values[0][0], values[1][0])
    wide = 3 / got.n if got.low == got.high else 0.0
    return got.mean, got.low - wide, got.high + wide, got.n


def _explained(values: Sequence[np.ndarray]) -> Ends | None:
    """Return the share of what the right side loses to full attention that the left side wins back."""
    method, plain, *rest = values
    full = rest[0] if rest else np.zeros_like(plain)  # of KL from full attention
    got = bits_explained(method[0], plain[0], full[0])
    if got.share is None or got.low is None or got.high is None:
        return None
    return got.share, got.low, got.high, got.n


def _relative(values: Sequence[np.ndarray]) -> Ends | None:
    """Return how much more the left side scores, as a share of what the right side scores."""
    one, other = values
    return _explained([2 * other - one, other])  # of a loss of `other`, what lies between the two is won back


def _normalised(values: Sequence[np.ndarray]) -> Ends:
    """Return FusionRAG's normalised score: 0 is reuse, 1 full attention."""
    one, reuse, full = (each[0] for each in values)
    return *normalised(one, reuse, full), len(one)


Statistic = Callable[[Sequence[np.ndarray]], Ends | None]
ANSWERS: Mapping[str, Statistic] = {
    "difference": _gap,
    "explained": _explained,
    "relative": _relative,
    "normalised": _normalised,
}


# Counts and timings: rows that hold their interval


def _value(row: pd.Series, others: Sequence[pd.DataFrame], asked: ClaimScope) -> Ends:
    ends = [row[name] if row[name] == row[name] else row.value for name in ("low", "high")]
    return float(row.value), float(ends[0]), float(ends[1]), _n(row.n)


def _apart(row: pd.Series, others: Sequence[pd.DataFrame], asked: ClaimScope) -> Ends:
    """Return the difference of two numbers with intervals of their own (Newcombe 1998, method 10)."""
    one, other = _value(row, others, asked), _value(others[0].iloc[0], others, asked)
    middle = one[0] - other[0]
    below = np.hypot(one[0] - one[1], other[2] - other[0])
    above = np.hypot(one[2] - one[0], other[0] - other[1])
    return middle, float(middle - below), float(middle + above), min(one[3], other[3])


def _ratio(row: pd.Series, others: Sequence[pd.DataFrame], asked: ClaimScope) -> Ends:
    """Return how many times as fast the left side is as the fastest of the right; of counts, right over left."""
    if asked.table == "counts":
        value = float(others[0].value.iloc[0] / row.value)
        return value, value, value, min(_n(row.n), _n(others[0].n.iloc[0]))
    slow = others[0].loc[others[0].ms.idxmin()]
    return *ratio(slow.to_dict(), row.to_dict()), int(min(slow.runs, row.runs))


def _n(count: float) -> int:
    return int(count) if count == count else 1


ROWS: Mapping[str, Callable[[pd.Series, Sequence[pd.DataFrame], ClaimScope], Ends]] = {
    "value": _value,
    "difference": _apart,
    "ratio": _ratio,
}

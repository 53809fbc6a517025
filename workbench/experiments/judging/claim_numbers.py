"""Select the result rows that a claim refers to, and compute their value with a 95% interval, in each place.

A column of a selector is a column of the table, a key of `setting`, or a measure of the same method's counts
(`density`).
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd

from workbench.experiments.judging.claim_rows import Columns, Rows, Selector
from workbench.metrics.answers import normalised
from workbench.metrics.latency import ratio
from workbench.metrics.paired import bits_explained, difference, mean_over_seeds, over_runs
from workbench.results import Results
from workbench.results.schema import MEASURES, METHOD, TABLES, Origin, columns

UNUSED = {"versions", "weights", "answer", "expected", "samples"}
BY = ["source", "model", "data", *METHOD]  # of counts to join with a method's other rows


class Scores(NamedTuple):
    """Answers in order of runs: the index of each answer's question, its score, and the number of questions."""

    questions: np.ndarray
    values: np.ndarray
    size: int


@dataclass(frozen=True, kw_only=True)
class ClaimScope:
    """Selects rows, and the number to compute from them.

    table, experiment, measure   of the rows; timings have no measure
    left, right   the two sides of a comparison; `right` None: the left side's own number
    full          full attention, for shares of what reuse loses to it; None for KL, which is already relative to it
    how           "difference" right subtracted; "ratio" times as fast as right; "explained" share won back between
                  right and full; "relative" difference as a share of right; "normalised" as FusionRAG does; "value"
    over          what is resampled; for ratios of counts "seeds": of the data, with Student's interval
    across        columns in which the sides may differ although they are shared by default: "model", "workload", …
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


class ClaimTables:
    """Result tables for claims about `measures`: each table is read once, with keys of `setting` as columns.

    Answers are grouped into runs, rows that differ only in the question: `start` to `stop` of `scores`.
    """

    def __init__(self, found: Results, measures: Collection[str]):
        self.sources = found.sources
        self.numbers: dict[str, list[MeasuredNumber]] = {}  # cached, as several claims may share a number
        other = set(MEASURES) - {"em", *measures}  # measures of answers that are not read
        read = {table: [*columns(table).keys() - UNUSED - (other if table == "answers" else set())] for table in TABLES}
        self._table = cache(lambda table, experiment: found.coded(table, experiment, read[table]))
        self._rows, self._runs, self.scores = cache(self._rows_of), cache(self._runs_of), cache(self._scores_of)
        self._means = cache(self._means_of)

    def rows(self, claim: ClaimScope) -> Rows:
        """Return the rows of all sides, with a column for each name that a selector uses."""
        rows = self._rows(claim.table, claim.experiment, claim.measure)
        if not len(rows):
            return rows
        sides = [each for each in (claim.left, claim.right, claim.full) if each is not None]
        columns = rows.columns
        names = {name for each in (*sides, claim.scope) for name in each}
        for name in names - set(columns.names) - set(columns.arrays):
            means = self._means(claim.experiment, name)
            by = pd.DataFrame({each: columns[each] for each in BY})
            columns.arrays[name] = by.merge(means, on=BY, how="left")[name].to_numpy()
        return rows.subset(np.logical_or.reduce([rows.matching(each) for each in sides])).select_rows(claim.scope)

    def _rows_of(self, table: str, experiment: str, measure: str) -> Rows:
        if table != "answers":
            own = self._table(table, experiment)
            own = own[own.measure == measure] if table == "counts" else own
        else:
            runs = self._runs(experiment)[0]
            scores, em = (self.scores(experiment, name).values for name in (measure, "em"))
            known, both = ~np.isnan(scores), ~np.isnan(scores + em)
            sums = {"n": known, "em_n": both, "em": np.where(both, em, 0.0)}
            own = runs.assign(**{name: np.add.reduceat(each, runs.start, dtype=float) for name, each in sums.items()})
            own = own[own.n > 0]
        return Rows(Columns(own), np.arange(len(own)))

    def _means_of(self, experiment: str, measure: str) -> pd.DataFrame:
        """Return a measure of each method's counts over all questions, mean over training seeds."""
        own = self._rows("counts", experiment, measure)
        own = own.subset(np.isin(own["kind"].astype(str), ["", "all"]))
        rows = pd.DataFrame({name: own[name] for name in (*BY, "value")})
        means = rows.groupby(BY, dropna=False, observed=True).value.mean()
        return means.rename(measure).reset_index()

    def _runs_of(self, experiment: str) -> tuple[pd.DataFrame, np.ndarray]:
        """Return the runs of answers, and the order of the table's rows by run."""
        rows = self._table("answers", experiment)
        about = rows[[name for name in ("source", *(each.name for each in fields(Origin))) if name in rows]]
        values = [each.cat.codes if each.dtype == "category" else each.fillna(-1) for _, each in about.items()]
        is_first = np.any([np.diff(each, prepend=np.nan) != 0 for each in values], axis=0)  # of equal rows
        run = Columns(about[is_first]).groups([*about])[np.cumsum(is_first) - 1]
        order, stop = np.argsort(run, kind="stable"), np.cumsum(np.bincount(run))
        start = np.r_[0, stop][:-1]
        runs = about.iloc[order[start]].assign(start=start, stop=stop)
        return runs.assign(trial=Columns(runs).groups(METHOD)), order

    def _scores_of(self, experiment: str, measure: str) -> Scores:
        """Return the question index and the measure of each answer, run by run."""
        rows, (_, order) = self._table("answers", experiment), self._runs(experiment)
        if measure == "em":
            questions, names = pd.factorize(rows.question)
            return Scores(questions[order], rows.em.to_numpy(float)[order], len(names))
        return self.scores(experiment, "em")._replace(values=rows[measure].to_numpy(float)[order])


SHARED = {  # columns that must be equal on both sides of a comparison, by table
    "answers": ("source", "model", "data", "passages", "seed"),
    "counts": ("source", "model", "data", "passages", "seed", "training_seed", "device"),
    "timings": ("source", "model", "data", "device"),
}
LOSSES = ("nll", "kl")  # measures of answers for which lower is better
PAIRED = ("workload", "report")  # further columns that must be equal for timings
Ends = tuple[float, float, float, int]  # value, low, high, n


@dataclass(frozen=True)
class MeasuredNumber:
    """A measured value with its 95% interval (for times, 5% to 95% of the runs), from `n` questions or runs.

    where   {source, model, data, device, …} of the left side
    seeds   number of training runs, 0 for models that name none; over several, the interval is over runs
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


def numbers(tables: ClaimTables, claim: ClaimScope) -> list[MeasuredNumber]:
    """Return the number of each group of rows, as (source, model, data), that has all sides."""
    key = repr([getattr(claim, each.name) for each in fields(ClaimScope)])
    if key not in tables.numbers:
        separate = (*claim.across, "seed") if claim.over == "seeds" else claim.across
        keys = [name for name in SHARED[claim.table] if name not in separate]
        groups = tables.rows(claim).groups(keys)
        tables.numbers[key] = [number for group in groups for number in _of_group(group, claim, tables)]
    return tables.numbers[key]


def _of_group(group: Rows, claim: ClaimScope, tables: ClaimTables) -> Iterator[MeasuredNumber]:
    left = group.select_rows(claim.left)
    others = [group.select_rows(each) for each in (claim.right, claim.full) if each is not None]
    if not len(left) or not all(map(len, others)):
        return
    if claim.table == "answers":
        for own in left.groups(["trial"]):
            if number := _of_answers(own, others, claim, tables.scores(claim.experiment, claim.measure)):
                yield number
    elif claim.over == "seeds":
        pairs = [(row, [other.subset(other["seed"] == row["seed"]) for other in others]) for row in left.dicts()]
        values = [ROWS[claim.how](row, of, claim)[0] for row, of in pairs if all(map(len, of))]
        mean, half = mean_over_seeds(values)
        yield MeasuredNumber(mean, mean - half, mean + half, len(values), where=pairs[0][0])
    else:
        alike = [
            name
            for name in PAIRED
            if name in left.columns.names and claim.table == "timings" and name not in claim.across
        ]
        for row in left.dicts():
            matching = others
            for name in alike:
                matching = [other.subset(other[name] == row[name]) for other in matching]
            if all(map(len, matching)):
                ends = ROWS[claim.how](row, matching, claim)
                yield MeasuredNumber(*ends, where=row, method=str(row.get("candidate") or row["method"]))


# Answers: one score per question, of one or several training seeds


def _of_answers(left: Rows, others: Sequence[Rows], claim: ClaimScope, scores: Scores) -> MeasuredNumber | None:
    sides = [_by_seed(left, scores), *(_by_seed(_closest(each, left, scores), scores) for each in others)]
    values = _aligned(sides)
    if values is None:
        return None
    if claim.how == "explained" and claim.measure not in LOSSES:
        values = [-each for each in values]  # scores as losses
    where = next(left.dicts())
    trained = any(set(side) != {-1} for side in sides)
    runs = len(values[0]) if claim.over == "training seeds" or trained or len(values[0]) > 1 else 0
    ends = ANSWERS[claim.how](values) if len(values[0]) == 1 else _of_runs(values, ANSWERS[claim.how])
    if ends is None:
        return None
    beside = float(np.mean(values[1])) if len(values) > 1 else None
    return MeasuredNumber(*ends, where=where, seeds=runs, beside=beside, method=str(where["method"]))


def _closest(rows: Rows, left: Rows, scores: Scores) -> Rows:
    """Return, of several selected methods, the one that shares the most questions with the left side.

    Ties go to the one measured by the left side's command, whose rows come last.
    """
    commands = set(left["command"])

    def same(some: Rows) -> np.ndarray:
        return np.array([command in commands for command in some["command"]], bool)

    def shared(some: Rows) -> int:
        return int((left_known & _scores(some, scores).is_known).sum())

    methods = rows.subset(np.argsort(same(rows), kind="stable")).groups(["trial"])
    left_known = _scores(left, scores).is_known
    return (
        methods[0] if len(methods) == 1 else max(methods, key=lambda one: (shared(one), shared(one.subset(same(one)))))
    )


@dataclass(frozen=True)
class RunScores:
    """Scores of runs by question index, nan if missing; `asked` lists the answered questions in order, with repeats."""

    scores: np.ndarray
    asked: np.ndarray

    @property
    def is_known(self) -> np.ndarray:
        """Which questions have a score."""
        return ~np.isnan(self.scores)


def _scores(rows: Rows, scores: Scores) -> RunScores:
    """Return the scores of runs; for a repeated question, the last one."""
    at = np.concatenate([np.arange(0), *map(np.arange, rows["start"], rows["stop"])])
    questions, values = scores.questions[at], scores.values[at]
    known = ~np.isnan(values)
    by_question = np.full(scores.size, np.nan)
    by_question[questions[known]] = values[known]
    return RunScores(by_question, questions[known])


def _by_seed(rows: Rows, scores: Scores) -> dict[int, RunScores]:
    """Return {training seed: its scores}, with key -1 for a model without a seed."""
    seeds = np.nan_to_num(rows["training_seed"].astype(float), nan=-1).astype(int)
    return {int(seed): _scores(rows.subset(seeds == seed), scores) for seed in np.unique(seeds)}


def _aligned(sides: Sequence[Mapping[int, RunScores]]) -> list[np.ndarray] | None:
    """Return [seeds, questions] of each side, for common seeds and questions; None if there are none.

    A side without training seeds is paired with every seed of the others.
    """
    trained = [set(side) for side in sides if set(side) != {-1}]
    seeds = sorted(set.intersection(*trained)) if trained else [-1]
    runs = [side[seed] if seed in side else side[-1] for side in sides for seed in seeds]
    known = np.logical_and.reduce([run.is_known for run in runs]) if runs else np.zeros(0, bool)
    if not known.any():
        return None
    shared = [question for question in dict.fromkeys(runs[0].asked.tolist()) if known[question]]
    values = np.array([run.scores[shared] for run in runs])
    return list(values.reshape(len(sides), len(seeds), -1))


def _of_runs(values: Sequence[np.ndarray], statistic: "Statistic") -> Ends | None:
    """Return the statistic over all training runs; None if it is None for a run."""
    runs = [statistic([side[i : i + 1] for side in values]) for i in range(len(values[0]))]
    complete = [run for run in runs if run is not None]
    return (*over_runs([run[:3] for run in complete]), complete[0][3]) if len(complete) == len(runs) else None


def _gap(values: Sequence[np.ndarray]) -> Ends:
    """Compare two methods question by question. If all differences are equal, widen by 3 / n (rule of three)."""
    gap = difference(values[0][0], values[1][0])
    margin = 3 / gap.n if gap.low == gap.high else 0.0
    return gap.mean, gap.low - margin, gap.high + margin, gap.n


def _explained(values: Sequence[np.ndarray]) -> Ends | None:
    """Return the share of the right side's loss against full attention that the left side recovers."""
    method, plain, *rest = values
    full = rest[0] if rest else np.zeros_like(plain)  # full attention's own KL is 0
    result = bits_explained(method[0], plain[0], full[0])
    if result.share is None or result.low is None or result.high is None:
        return None
    return result.share, result.low, result.high, result.n


def _relative(values: Sequence[np.ndarray]) -> Ends | None:
    """Return the left side's gain over the right side, as a share of the right side's score."""
    one, other = values
    return _explained([2 * other - one, other])  # as a recovered share of a loss of `other`


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


# Counts and timings: rows with intervals


def _value(row: Mapping[str, Any], others: Sequence[Rows], claim: ClaimScope) -> Ends:
    ends = [row[name] if row[name] == row[name] else row["value"] for name in ("low", "high")]
    return float(row["value"]), float(ends[0]), float(ends[1]), _n(row["n"])


def _difference(row: Mapping[str, Any], others: Sequence[Rows], claim: ClaimScope) -> Ends:
    """Return the difference of two numbers, each with its own interval (Newcombe 1998, method 10)."""
    one, other = _value(row, others, claim), _value(next(others[0].dicts()), others, claim)
    middle = one[0] - other[0]
    below = np.hypot(one[0] - one[1], other[2] - other[0])
    above = np.hypot(one[2] - one[0], other[0] - other[1])
    return middle, float(middle - below), float(middle + above), min(one[3], other[3])


def _ratio(row: Mapping[str, Any], others: Sequence[Rows], claim: ClaimScope) -> Ends:
    """Return the speedup of the left side over the fastest of the right; for counts, right over left."""
    if claim.table == "counts":
        value = float(others[0]["value"][0] / row["value"])
        return value, value, value, min(_n(row["n"]), _n(others[0]["n"][0]))
    slow = min(others[0].dicts(), key=lambda other: float(other["ms"]))
    return *ratio(slow, row), int(min(slow["runs"], row["runs"]))


def _n(count: float) -> int:
    return int(count) if count == count else 1


ROWS: Mapping[str, Callable[[Mapping[str, Any], Sequence[Rows], ClaimScope], Ends]] = {
    "value": _value,
    "difference": _difference,
    "ratio": _ratio,
}

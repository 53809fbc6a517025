"""The number that a claim speaks of, with its 95% interval, in every place (source, model, data) that holds it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pandas as pd

from workbench.experiments.judging.claim_rows import ClaimScope, Tables, chosen
from workbench.metrics.answers import normalised
from workbench.metrics.latency import ratio
from workbench.metrics.paired import bits_explained, difference
from workbench.metrics.seeds import mean_over_seeds, over_runs

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
    """What was measured: a value with its 95% interval, of `n` questions, runs or cases, and where.

    where   {source, model, data, device, …} of the left side
    seeds   training runs that the interval is over, 0 where it is over questions
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
        rows = tables.rows(asked)
        apart = (*asked.across, "seed") if asked.over == "seeds" else asked.across
        keys = [name for name in SHARED[asked.table] if name not in apart]
        groups = rows.groupby(keys, sort=False, dropna=False, observed=True)
        tables.numbers[wanted] = [number for _, group in groups for number in _of_group(group, asked)]
    found: list[Number] = tables.numbers[wanted]
    return found


def _of_group(group: pd.DataFrame, asked: ClaimScope) -> Iterator[Number]:
    if asked.table == "answers":
        group = group.dropna(subset=[asked.measure])
    left = chosen(group, asked.left)
    others = [chosen(group, each) for each in (asked.right, asked.full) if each is not None]
    if left.empty or any(each.empty for each in others):
        return
    if asked.table == "answers":
        for _, own in left.groupby("trial", sort=False):
            if number := _of_answers(own, others, asked):
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


def _of_answers(left: pd.DataFrame, others: Sequence[pd.DataFrame], asked: ClaimScope) -> Number | None:
    sides = [_by_seed(left, asked.measure), *(_by_seed(_closest(each, left), asked.measure) for each in others)]
    values = _aligned(sides)
    if values is None:
        return None
    if asked.how == "explained" and asked.measure not in LOSSES:
        values = [-each for each in values]  # a share of losses
    where = left.iloc[0].to_dict()
    several = asked.over == "training seeds" or len(values[0]) > 1
    got = ANSWERS[asked.how](values) if len(values[0]) == 1 else _of_runs(values, ANSWERS[asked.how])
    if got is None:
        return None
    beside = float(np.mean(values[1])) if len(values) > 1 else None
    return Number(*got, where=where, seeds=len(values[0]) if several else 0, beside=beside, method=str(where["method"]))


def _closest(rows: pd.DataFrame, left: pd.DataFrame) -> pd.DataFrame:
    """Return, of several methods that a selector picks, the one that shares most questions with the left side.

    Of equals the one that the left side's command measured; its rows come last.
    """
    asked = set(left.question)
    rows = rows.assign(same=rows.command.isin(set(left.command))).sort_values("same", kind="stable")
    methods = [own for _, own in rows.groupby("trial", sort=False)]
    return max(methods, key=lambda own: (len(asked & set(own.question)), len(asked & set(own[own.same].question))))


def _by_seed(rows: pd.DataFrame, measure: str) -> dict[int, pd.Series]:
    """Return {training seed: score by question}; -1 stands for a model without one."""
    runs = rows[["question", measure]].assign(run=rows.training_seed.fillna(-1).astype(int))
    runs = runs.drop_duplicates(["run", "question"], keep="last")
    return {int(run): own.set_index("question")[measure] for run, own in runs.groupby("run")}


def _aligned(sides: Sequence[Mapping[int, pd.Series]]) -> list[np.ndarray] | None:
    """Return [seeds, questions] of every side, of what all of them have; None where they share nothing.

    A side without training seeds stands beside every seed of the others.
    """
    trained = [set(side) for side in sides if set(side) != {-1}]
    seeds = sorted(set.intersection(*trained)) if trained else [-1]
    if not seeds or not all(sides):
        return None
    runs = [[side[seed] if seed in side else side[-1] for seed in seeds] for side in sides]
    questions = runs[0][0].index
    for run in (run for side in runs for run in side):
        questions = questions[questions.isin(run.index)]
    if not len(questions):
        return None
    return [np.array([run[questions].to_numpy(float) for run in side]) for side in runs]


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
        return value, value, value, _n(row.n)
    slow = others[0].loc[others[0].ms.idxmin()]
    return *ratio(slow.to_dict(), row.to_dict()), int(min(slow.runs, row.runs))


def _n(count: float) -> int:
    return int(count) if count == count else 1


ROWS: Mapping[str, Callable[[pd.Series, Sequence[pd.DataFrame], ClaimScope], Ends]] = {
    "value": _value,
    "difference": _apart,
    "ratio": _ratio,
}

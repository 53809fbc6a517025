"""Numbers with intervals out of result tables: means, paired differences, speedups, one wide row a method."""

from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd

from workbench.core.errors import BadInput
from workbench.metrics.answers import bootstrap, wilson
from workbench.metrics.paired import difference
from workbench.results.schema import METHOD

RIGHT = ("em", "contains", "faithful", "agree_first", "full_em", "full_contains")  # 0 or 1 a question
INTERVAL = ["value", "low", "high", "n"]
OF_TRIAL = ("source", "experiment", "model", "data", "passages", *METHOD, "setting", "seed", "training_seed", "device")


def means(answers: pd.DataFrame, measures: Sequence[str], by: Sequence[str]) -> pd.DataFrame:
    """Return {by, measure, value, low, high, n}: means over questions with their 95% intervals.

    Wilson's interval of what is 0 or 1 a question, else a bootstrap over questions (seed 0).
    """
    found: list[dict[str, Any]] = []
    for keys, group in answers.groupby(list(by), sort=False, dropna=False):
        for measure in measures:
            values = group[measure].dropna().astype(float)
            if not len(values):
                continue
            low, high = wilson(values.sum(), len(values)) if measure in RIGHT else bootstrap(values.tolist())
            numbers = {"value": values.mean(), "low": low, "high": high, "n": len(values)}
            found.append({**dict(zip(by, keys, strict=True)), "measure": measure, **numbers})
    return pd.DataFrame(found, columns=[*by, "measure", *INTERVAL])


def paired(
    answers: pd.DataFrame, baseline: Callable[[pd.DataFrame], Any], measure: str, by: Sequence[str] = ("method",)
) -> pd.DataFrame:
    """Return {by, value, low, high, n, against}: each group's mean difference from the baseline's, by question.

    `baseline` picks rows of `answers` (a mask). Questions that one side lacks are left out; the interval is a paired
    bootstrap's. Raises BadInput where the baseline holds a question twice, or none.
    """
    base = answers[baseline(answers)].set_index("question")[measure].dropna()
    if base.empty or base.index.duplicated().any():
        what = "no question" if base.empty else f"question {base.index[base.index.duplicated()][0]!r} twice"
        raise BadInput(f"the baseline has {what} with a score {measure!r}: exactly one row a question is needed")
    found = []
    for keys, group in answers.groupby(list(by), sort=False, dropna=False):
        own = group.set_index("question")[measure].dropna()
        both = own.index.intersection(base.index)
        if len(both):
            gap = difference(own[both].tolist(), base[both].tolist())
            numbers = {"value": gap.mean, "low": gap.low, "high": gap.high, "n": gap.n}
            found.append({**dict(zip(by, keys, strict=True)), **numbers})
    return pd.DataFrame(found, columns=[*by, *INTERVAL])


def scores(counts: pd.DataFrame) -> pd.DataFrame:
    """Return a row a trial and kind of question: its method's fields, and {measure}, {measure}_low, {measure}_high.

    `n` is the largest number of observations of a measure in the row.
    """
    keys = [name for name in (*OF_TRIAL, "kind") if name in counts]
    if counts.empty:
        return pd.DataFrame(columns=[*keys, "n"])
    filled = counts.assign(**{name: counts[name].astype(object).where(counts[name].notna(), "") for name in keys})
    wide = filled.pivot_table(index=keys, columns="measure", values=["value", "low", "high"], sort=False, dropna=False)
    wide = wide.dropna(how="all").dropna(axis=1, how="all")
    wide.columns = [name if end == "value" else f"{name}_{end}" for end, name in wide.columns]
    table = wide.join(filled.groupby(keys, sort=False, dropna=False).n.max()).reset_index()
    numbers = [name for name in keys if pd.api.types.is_numeric_dtype(counts[name])]
    return table.assign(**{name: pd.to_numeric(table[name]) for name in numbers})


def speedups(
    timings: pd.DataFrame,
    baseline: Callable[[pd.DataFrame], pd.Series | None],
    by: Sequence[str] = ("source", "workload"),
) -> pd.DataFrame:
    """Add {value, low, high, against}: how many times as fast a row is as the `baseline` of its workload.

    `baseline` picks one row of those of a workload, None for no comparison. The ends are the worst of one side over the
    best of the other, of their 5 to 95% (of fewer than 20 runs their range).
    """
    from workbench.metrics import latency  # imports torch, which reading tables does not need

    found = []
    for _, group in timings.groupby(list(by), sort=False):
        slow = baseline(group)
        for row in group.to_dict("records") if slow is not None else ():
            value, low, high = latency.ratio(slow.to_dict(), row)
            found.append({**row, "value": value, "low": low, "high": high, "against": slow["candidate"]})
    return pd.DataFrame(found, columns=[*timings.columns, "value", "low", "high", "against"])


def candidate(name: str) -> Callable[[pd.DataFrame], pd.Series | None]:
    """Return the baseline of that name, for `speedups`."""
    return lambda rows: next((row for _, row in rows[rows.candidate == name].iterrows()), None)


def fastest(rows: pd.DataFrame) -> pd.Series | None:
    """Return the fastest of rows, for `speedups`; None of none."""
    return rows.loc[rows.ms.idxmin()] if len(rows) else None

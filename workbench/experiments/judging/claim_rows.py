"""Which rows of result tables a claim speaks of: selectors of rows, and the tables as claims read them.

A selector is {column: wanted}. A column is one of the table, a key of `setting`, or a measure of the same method's
counts (`density`). Wanted is a number, null, {"least": x, "most": y}, "smallest" or "largest" of numbers; of texts a
pattern such as "bfla(*", one of several, and "!lab*" for all but those.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from workbench.results import Results, expanded
from workbench.results.schema import METHOD, columns

UNUSED = ["versions", "weights", "answer", "expected", "samples"]
OF_ANSWER = "source model data passages seed training_seed device command time question trial em".split()
ORDER = ("smallest", "largest")
Selector = Mapping[str, Any]


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
    """The tables of results as claims read them: each once, texts as categories, keys of `setting` as columns."""

    def __init__(self, found: Results):
        self.found = found
        self.sources = found.sources
        self.numbers: dict[str, Any] = {}  # that were asked for, as claims of several items do
        self._kept: dict[tuple[str, str], pd.DataFrame] = {}
        self._fits: dict[tuple[str, ...], np.ndarray] = {}

    def rows(self, asked: ClaimScope) -> pd.DataFrame:
        """Return the rows of either side, with a column for every name that a selector uses."""
        rows = self._rows(asked.table, asked.experiment)
        sides = [each for each in (asked.left, asked.right, asked.full) if each is not None]
        names = {name for each in (*sides, asked.scope) for name in each}
        known = [{name: want for name, want in each.items() if name in rows} for each in sides]
        either = np.logical_or.reduce([self._fitting(rows, asked, each) for each in known])
        if asked.table == "counts":
            either &= self._fitting(rows, asked, {"measure": asked.measure})
        if asked.table == "answers":
            needed = {*OF_ANSWER, *METHOD, asked.measure, *names}
            rows = rows[[name for name in rows if name in needed]]
        rows = rows[either]
        for name in sorted(names - set(rows)):
            rows = _with_measure(rows, self._rows("counts", asked.experiment), name)
        if known != sides:
            rows = rows[np.logical_or.reduce([fitting(rows, each) for each in sides])]
        return chosen(rows, asked.scope)

    def _fitting(self, rows: pd.DataFrame, asked: ClaimScope, wanted: Selector) -> np.ndarray:
        """Return which rows of a table fit a selector, each of whose columns is looked at once for all claims."""
        fits = np.ones(len(rows), bool)
        for name, want in wanted.items():
            place = (asked.table, asked.experiment, name, repr(want))
            if place not in self._fits:
                self._fits[place] = fitting(rows, {name: want})
            fits &= self._fits[place]
        return fits

    def _rows(self, table: str, experiment: str) -> pd.DataFrame:
        if (table, experiment) not in self._kept:
            rows = _with_settings(self.found.table(table, experiment).drop(columns=UNUSED, errors="ignore"))
            texts = [name for name, kind in columns(table).items() if kind is str and name in rows]
            rows = rows.astype(dict.fromkeys(("source", "setting", *texts), "category"))
            trial = rows.groupby(list(METHOD), sort=False, dropna=False, observed=True).ngroup()
            numbered = {"question": rows.question.cat.codes} if table == "answers" else {}
            self._kept[table, experiment] = rows.assign(trial=trial, **numbered)
        return self._kept[table, experiment]


def _with_settings(rows: pd.DataFrame) -> pd.DataFrame:
    """Add a column for every key of `setting`; where it is named as one of the table, the table's own value stands."""
    more = expanded(rows)
    both = [name for name in rows if not more[name].equals(rows[name])]
    return more.assign(**{name: rows[name].where(rows[name].notna(), more[name]) for name in both})


def _with_measure(rows: pd.DataFrame, counts: pd.DataFrame, measure: str) -> pd.DataFrame:
    """Add a measure of the same method's counts over all questions, a mean over training seeds; nan without one."""
    keys = ["source", "model", "data", *METHOD]
    own = counts[(counts.measure == measure) & counts.kind.isin(["", "all"])]
    means = own.groupby(keys, dropna=False, observed=True).value.mean().rename(measure).reset_index()
    return rows.merge(means, on=keys, how="left") if len(means) else rows.assign(**{measure: np.nan})


def chosen(rows: pd.DataFrame, wanted: Selector) -> pd.DataFrame:
    """Return the rows that a selector picks; "smallest" and "largest" are of those that all else picks."""
    rows = rows[fitting(rows, wanted)]
    for name, want in wanted.items():
        if _ordered(want) and len(rows):
            values = pd.to_numeric(rows[name])
            if "em" in rows:  # answers: of a method, not of its questions
                values = values.groupby(rows.trial).transform("mean")
            rows = rows[values == (values.max() if want == "largest" else values.min())]
    return rows


def fitting(rows: pd.DataFrame, wanted: Selector) -> np.ndarray:
    """Return which rows a selector may pick."""
    fits = np.ones(len(rows), bool)
    for name, want in wanted.items():
        if not _ordered(want):
            codes, values = pd.factorize(rows[name])  # -1 where there is none
            fits &= np.array([*(_fits(_named(name, value), want) for value in values), want is None], bool)[codes]
    return fits


def _named(column: str, value: Any) -> Any:
    """Return the value by which a row is picked: a file of questions goes by its name, wherever it lies."""
    return Path(value).name if column == "data" and isinstance(value, str) else value


def _ordered(want: Any) -> bool:
    return isinstance(want, str) and want in ORDER


def _fits(value: Any, want: Any) -> bool:
    if want is None or value is None or value == "":
        return want is None and value in (None, "")
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

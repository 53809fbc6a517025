"""Select rows of a result table repeatedly: the rows that a selector picks by one column are cached.

A selector is {column: condition}. For numbers, a condition is a number, null, {"least": x, "most": y}, "smallest" or
"largest". For texts, it is a pattern such as "bfla(*", a list of patterns ("" matches a missing text), or "!lab*" to
exclude.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

ORDER = ("smallest", "largest")
Selector = Mapping[str, Any]


class Columns:
    """Columns of a table and keys of its `setting`, each built once, with the rows that fit each condition.

    A key with the name of a column fills the column's gaps.
    """

    def __init__(self, table: pd.DataFrame):
        self.table = table
        self.arrays: dict[str, np.ndarray] = {}
        self.masks: dict[str, np.ndarray] = {}
        self._setting, texts = pd.factorize(table.setting)
        self._settings = [json.loads(text) if text else {} for text in texts]
        self.names = dict.fromkeys([*table, *(name for each in self._settings for name in each)])

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self.arrays:
            self.arrays[name] = self._column(name)
        return self.arrays[name]

    def _column(self, name: str) -> np.ndarray:
        own = self.table[name].to_numpy() if name in self.table else np.full(len(self.table), np.nan)
        if any(name in each for each in self._settings):
            key = np.array([*(each.get(name) for each in self._settings), None], object)[self._setting]
            own = np.where(pd.isna(own), key, own)
        return own

    def matching(self, name: str, condition: Any) -> np.ndarray:
        """Return which rows satisfy a condition."""
        if (key := f"{name} {condition!r}") not in self.masks:
            values = [None if value != value else value for value in self[name].tolist()]
            fits = {value: _fits(_named(name, value), condition) for value in set(values)}
            self.masks[key] = np.array([fits[value] for value in values], bool)
        return self.masks[key]

    def groups(self, names: Sequence[str]) -> np.ndarray:
        """Return the group number of each row; rows of a group are equal in the named columns."""
        if (key := " ".join(names)) not in self.arrays:
            group = np.zeros(len(self.table), int)
            for name in names:
                codes, values = pd.factorize(self[name], use_na_sentinel=False)
                group = pd.factorize(group * len(values) + codes)[0]
            self.arrays[key] = group
        return self.arrays[key]


@dataclass(frozen=True)
class Rows:
    """Rows of a table, by their indices `at`."""

    columns: Columns
    at: np.ndarray

    def __len__(self) -> int:
        return len(self.at)

    def __getitem__(self, name: str) -> np.ndarray:
        return self.columns[name][self.at]

    def subset(self, which: np.ndarray) -> "Rows":
        """Return a subset of the rows, given a mask or indices among them."""
        return Rows(self.columns, self.at[which])

    def dicts(self) -> Iterator[dict[str, Any]]:
        """Yield each row as {column: value}."""
        columns = {name: self.columns[name] for name in self.columns.names}
        return ({name: column.item(at) for name, column in columns.items()} for at in self.at.tolist())

    def groups(self, names: Sequence[str]) -> list["Rows"]:
        """Return groups of rows that are equal in the named columns, in order of first occurrence."""
        group = pd.factorize(self.columns.groups(names)[self.at])[0]
        order = np.argsort(group, kind="stable")
        return [self.subset(places) for places in np.split(order, np.cumsum(np.bincount(group))[:-1])]

    def matching(self, selector: Selector) -> np.ndarray:
        """Return which rows satisfy a selector, except for "smallest" and "largest"."""
        masks = [self.columns.matching(name, x)[self.at] for name, x in selector.items() if not _ordered(x)]
        return np.logical_and.reduce([np.ones(len(self), bool), *masks])

    def select_rows(self, selector: Selector) -> "Rows":
        """Return the rows that a selector picks; "smallest" and "largest" apply to rows that satisfy all else."""
        rows = self.subset(self.matching(selector))
        for name, condition in selector.items():
            if _ordered(condition) and len(rows):
                values = rows[name].astype(float)
                if name == "em":  # one value per method, not per question
                    right, n = (np.bincount(rows["trial"], rows[each])[rows["trial"]] for each in ("em", "em_n"))
                    with np.errstate(invalid="ignore"):
                        values = right / n
                rows = rows.subset(values == (np.fmax if condition == "largest" else np.fmin).reduce(values))
        return rows


def _named(column: str, value: Any) -> Any:
    """Return the value by which rows are selected: the name of a question file, without folders."""
    return Path(value).name if column == "data" and isinstance(value, str) else value


def _ordered(condition: Any) -> bool:
    return isinstance(condition, str) and condition in ORDER


def _fits(value: Any, condition: Any) -> bool:
    if condition is None or value is None or value == "":
        return value in (None, "") and (condition is None or (isinstance(condition, list) and "" in condition))
    if isinstance(condition, Mapping):
        return bool(condition.get("least", -np.inf) <= float(value) <= condition.get("most", np.inf))
    if not isinstance(condition, str | list):
        return bool(np.isclose(float(value), float(condition)))
    patterns = [condition] if isinstance(condition, str) else condition
    required = [pattern for pattern in patterns if not pattern.startswith("!")]
    excluded = [pattern[1:] for pattern in patterns if pattern.startswith("!")]
    return not _like(value, excluded) and (not required or _like(value, required))


def _like(value: Any, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(str(value), pattern) for pattern in patterns)

"""Read result tables of any folders as one: what ships, a run of one's own, or several side by side.

found = read(["shipped", "runs/mine"])
found.counts("trial")              # a DataFrame; column `source` says where a row comes from
found.missing("deviation")         # one sentence: what is not there, and the command that measures it
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pandas.api.types import union_categoricals

from workbench.core.errors import BadInput, brief, not_allowed, shown
from workbench.data.assets import SHIPPED, results_path
from workbench.results import schema

MARK = "results.json"
HERE = "here"  # source of what a notebook measures while it runs
FOLDER = results_path(SHIPPED)


@dataclass(frozen=True)
class Missing:
    """What no source holds, as one line that a notebook shows in place of a figure."""

    text: str

    def __str__(self) -> str:
        return self.text

    def _repr_markdown_(self) -> str:
        return self.text


@dataclass(frozen=True)
class Results:
    """Result tables of one or several sources; `live` holds rows that were not read from a folder."""

    folders: Mapping[str, Sequence[Path]]  # source → folders
    live: Mapping[str, Sequence[pd.DataFrame]] = field(default_factory=dict)  # table → rows with their source

    def __repr__(self) -> str:
        return f"Results({', '.join(self.sources)})"

    @property
    def sources(self) -> list[str]:
        """Names of the sources, in the order in which they were asked for."""
        return list(dict.fromkeys([*self.folders, *(s for each in self.live.values() for t in each for s in t.source)]))

    def answers(self, *experiments: str) -> pd.DataFrame:
        """Return a row a question and method (`schema.Answer`) of the experiments; of all where none is named."""
        return self.table("answers", *experiments)

    def timings(self, *experiments: str) -> pd.DataFrame:
        """Return a row a workload and candidate (`schema.Timing`)."""
        return self.table("timings", *experiments)

    def counts(self, *experiments: str) -> pd.DataFrame:
        """Return a row a measured number (`schema.Count`)."""
        return self.table("counts", *experiments)

    def table(self, table: str, *experiments: str) -> pd.DataFrame:
        """Return the rows of a table with all its columns and `source`, in the order of the sources."""
        return pd.concat(self._parts(table, experiments), ignore_index=True)

    def coded(self, table: str, experiment: str, columns: Sequence[str]) -> pd.DataFrame:
        """Return some columns of a table and `source`, texts as categories: of many rows in a fraction of the time."""
        names = tuple(name for name in schema.columns(table) if name in ("experiment", *columns))
        parts = self._parts(table, [experiment], names)
        joined: dict[str, Any] = {}
        for name in parts[0]:
            if name != "source" and schema.columns(table)[name] is not str:
                joined[name] = np.concatenate([part[name] for part in parts])
            else:
                joined[name] = union_categoricals([part[name].astype("category") for part in parts])
        return pd.DataFrame(joined)

    def _parts(self, table: str, experiments: Sequence[str], columns: tuple[str, ...] = ()) -> list[pd.DataFrame]:
        """Return the rows of every file and what is live, one part at least; with `columns` texts are categories."""
        parts = [
            part.assign(source=pd.Categorical([source]).repeat(len(part)) if columns else source)
            for source, folders in self.folders.items()
            for folder in folders
            for part in _parts(folder, table, experiments, columns)
        ]
        parts += [rows[rows.experiment.isin(experiments or rows.experiment)] for rows in self.live.get(table, ())]
        names = ["source", *(columns or schema.columns(table))]
        if not (parts := [part[names] for part in parts if len(part)]):
            if odd := [name for name in experiments if name.partition("@")[0] not in schema.EXPERIMENTS]:
                raise not_allowed("experiment", odd[0], schema.EXPERIMENTS)
            return [pd.DataFrame(columns=names)]
        return parts

    def with_rows(self, table: str, rows: Iterable[Mapping[str, Any]], source: str = HERE, **origin: Any) -> "Results":
        """Return these results and rows that were measured just now."""
        whole = schema.frame(table, schema.rows(table, rows, **origin))
        added = [*self.live.get(table, ()), whole.assign(source=source)] if len(whole) else self.live.get(table, ())
        return Results(self.folders, {**self.live, table: list(added)})

    def missing(self, experiment: str, what: str = "") -> Missing:
        """Say that none of the sources holds an experiment, and which command measures it."""
        command = schema.EXPERIMENTS.get(experiment, "")
        named = what or experiment.replace("-", " ")
        places = " and ".join(self.sources) or "no source"
        how = f": `{command}` measures it." if command else "."
        return Missing(f"Not in {places}: {named}{how}")


def read(places: str | Path | Sequence[str | Path] = SHIPPED) -> Results:
    """Read results of one or several places: "shipped", or folders that hold results at any depth.

    A place "NAME=FOLDER" is called NAME; else a folder is called as it was given. Raises BadInput for a place that is
    missing, holds no results, or results of another version of the schema.
    """
    several = [places] if isinstance(places, str | Path) else list(places)
    if not several:
        raise BadInput(f"results is {shown(places)}: at least one place is needed, as {SHIPPED!r} or a folder")
    folders: dict[str, list[Path]] = {}
    for place in several:
        name, path = str(place).partition("=")[0], results_path(place)
        if name in folders:
            raise BadInput(f"results names {name!r} twice: each source needs a name of its own, as mine=runs/mine")
        folders[name] = list(_folders(path))
    return Results(folders)


def expanded(rows: pd.DataFrame, *needed: str) -> pd.DataFrame:
    """Return rows with a column for every key of `setting`; the `needed` ones are there even without a row."""
    known = {text: json.loads(text) if text else {} for text in rows.setting.unique()}
    keys = list(dict.fromkeys([*needed, *(key for values in known.values() for key in values)]))
    codes, texts = pd.factorize(rows.setting)
    each = {key: pd.Series([known[text].get(key) for text in texts]) for key in keys}
    return rows.assign(**{key: values.take(codes).set_axis(rows.index) for key, values in each.items()})


def _folders(path: Path) -> Iterator[Path]:
    """Return the folders of results under `path`, each checked."""
    marks = [path / MARK] if (path / MARK).is_file() else sorted(path.glob(f"**/{MARK}"))
    if not marks:
        raise BadInput(f"{brief(path)} holds no results of this workbench: no {MARK} lies in it")
    for mark in marks:
        _check(mark)
        yield mark.parent


def _check(mark: Path) -> None:
    try:
        about = json.loads(mark.read_text(encoding="utf-8"))
        version = about["version"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise BadInput(f"{brief(mark)} does not say which version of results lies there: it is not whole") from None
    if version != schema.VERSION:
        raise BadInput(f"{brief(mark.parent)} holds results of version {version}: version {schema.VERSION} is read")


def _parts(folder: Path, table: str, experiments: Sequence[str], columns: tuple[str, ...]) -> Iterator[pd.DataFrame]:
    """Return the rows of every part of a table that may hold the experiments; of a file of lines all columns."""
    for path in sorted([*(folder / table).glob("*.parquet"), *(folder / table).glob("*.jsonl")]):
        if path.name.startswith(".") or (experiments and path.stem.partition("@")[0] not in experiments):
            continue
        if path.suffix == ".jsonl":
            part = schema.frame(table, schema.rows(table, lines_of(path)))
        else:
            part = _cached(path, path.stat().st_mtime_ns, table, columns)
        yield part[part.experiment.isin(experiments)] if experiments else part


@lru_cache(maxsize=256)  # more than ship: else a second reading would find none of them
def _cached(path: Path, changed: int, table: str, columns: tuple[str, ...]) -> pd.DataFrame:
    known = schema.columns(table)
    texts = [name for name in columns if known[name] is str]
    rows = table_of(path, [name for name in known if columns and name not in columns], texts)
    if odd := sorted(set(rows) - set(known)):
        raise BadInput(f"{brief(path)} has a column {odd[0]!r} that table {table} does not have")
    none = pd.Categorical([""]).repeat(len(rows)) if columns else ""
    empty = {name: none for name in columns or known if known[name] is str and name not in rows}
    return schema.typed(table, rows.assign(**empty), columns)


def table_of(path: Path, without: Sequence[str] = (), coded: Sequence[str] = ()) -> pd.DataFrame:
    """Read a parquet file `without` some columns, texts of `coded` as categories.

    Raises BadInput where it is not whole.
    """
    try:
        names = [name for name in pq.read_schema(path).names if name not in without]
        coded = [name for name in coded if name in names]
        with pq.ParquetFile(path, read_dictionary=coded) as file:
            packed = file.read(names, use_threads=False)  # which cost more than files of this size take
    except (OSError, pa.ArrowException) as problem:
        raise BadInput(f"{brief(path)} cannot be read: {brief(problem)}") from None
    frame = packed.to_pandas(use_threads=False)
    lacking = {name for name in coded if frame[name].hasnans}
    frame = frame.assign(**{name: frame[name].cat.add_categories("") for name in lacking})
    return frame.fillna(dict.fromkeys(lacking | set(frame.select_dtypes("str")), ""))


def lines_of(path: Path) -> list[dict[str, Any]]:
    """Read a file of JSON lines, none where it is missing; a last line that is not whole is left out.

    Raises BadInput for any other line that is no JSON object.
    """
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.is_file() else []
    found = []
    for number, line in enumerate(lines, 1):
        try:
            found.append(dict(json.loads(line)))
        except (ValueError, TypeError) as problem:
            if number < len(lines) or line.endswith("\n"):
                raise BadInput(f"{brief(path)}, line {number}, is no row of results: {brief(problem)}") from None
    return found

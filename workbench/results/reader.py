"""Read result tables of one or several folders: shipped results, your own runs, or both.

    found = read(["shipped", "runs/mine"])
    found.counts("trial")
    found.missing("deviation")

Tables are DataFrames, with a column `source`: the place that a row was read from. `missing` names the command that
measures an experiment without results.
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
import pyarrow.compute as pc
import pyarrow.parquet as pq

from workbench.core.errors import BadInput, format_value, not_allowed, shorten
from workbench.data.assets import SHIPPED, results_path
from workbench.results import schema

MARK = "results.json"
TEXTS = pa.dictionary(pa.int32(), pa.string())  # type of text columns, which repeat values
HERE = "here"  # source of a notebook's own measurements
FOLDER = results_path(SHIPPED)


@dataclass(frozen=True)
class Missing:
    """Text that a notebook shows in place of a figure without results."""

    text: str

    def __str__(self) -> str:
        return self.text

    def _repr_markdown_(self) -> str:
        return self.text


@dataclass(frozen=True)
class Results:
    """Result tables of one or several sources; `live` holds rows that were not read from a folder."""

    folders: Mapping[str, Sequence[Path]]  #: source → folders
    live: Mapping[str, Sequence[pd.DataFrame]] = field(default_factory=dict)  #: table → rows with their source

    def __repr__(self) -> str:
        return f"Results({', '.join(self.sources)})"

    @property
    def sources(self) -> list[str]:
        """Names of the sources, in the order given to `read`."""
        return list(dict.fromkeys([*self.folders, *(s for each in self.live.values() for t in each for s in t.source)]))

    def answers(self, *experiments: str) -> pd.DataFrame:
        """Return one row per question and method (`schema.Answer`) of the experiments; by default of all."""
        return self.table("answers", *experiments)

    def timings(self, *experiments: str) -> pd.DataFrame:
        """Return one row per workload and candidate (`schema.Timing`)."""
        return self.table("timings", *experiments)

    def counts(self, *experiments: str) -> pd.DataFrame:
        """Return one row per measured number (`schema.Count`)."""
        return self.table("counts", *experiments)

    def table(self, table: str, *experiments: str) -> pd.DataFrame:
        """Return the rows of a table with all its columns and `source`, in the order of the sources."""
        parts = [_part(path, table).assign(source=source) for source, path in self._files(table, experiments)]
        parts += self.live.get(table, ())
        names = ["source", *schema.columns(table)]
        parts = [rows[rows.experiment.isin(experiments or rows.experiment)][names] for rows in parts]
        if not (parts := [rows for rows in parts if len(rows)]):
            _check_experiments(experiments)
            return pd.DataFrame(columns=names)
        return pd.concat(parts, ignore_index=True)

    def coded(self, table: str, experiment: str, columns: Sequence[str]) -> pd.DataFrame:
        """Return some columns of a table and `source`, with texts as categories: faster than `table` for many rows."""
        names = ["source", *(name for name in schema.columns(table) if name in ("experiment", *columns))]
        texts = [name for name in names if {"source": str, **schema.columns(table)}[name] is str]
        kinds = pa.schema([(name, TEXTS if name in texts else pa.float64()) for name in names])
        parts = [kinds.empty_table()]
        for source, path in self._files(table, [experiment]):
            part = _columns_of(path, path.stat().st_mtime_ns, table, kinds.remove(0))
            of = pa.DictionaryArray.from_arrays(np.zeros(len(part), np.int32), [source])
            parts.append(part.append_column("source", of))
        parts += [pa.Table.from_pandas(rows, kinds, preserve_index=False) for rows in self.live.get(table, ())]
        merged = pa.concat_tables(parts, promote_options="default").unify_dictionaries()
        merged = merged.filter(pc.equal(merged["experiment"], experiment))
        if not len(merged):
            _check_experiments([experiment])
        gaps = [name for name in texts if merged[name].null_count]
        filled = {name: pc.fill_null(merged[name], "") if name in gaps else merged[name] for name in names}
        return pa.table(filled).to_pandas(use_threads=False)

    def _files(self, table: str, experiments: Sequence[str]) -> Iterator[tuple[str, Path]]:
        """Yield each file of a table that may contain the experiments, with its source."""
        for source, folder in ((source, folder) for source, folders in self.folders.items() for folder in folders):
            for path in sorted([*(folder / table).glob("*.parquet"), *(folder / table).glob("*.jsonl")]):
                own = not experiments or path.stem.partition("@")[0] in experiments
                if own and not path.name.startswith("."):
                    yield source, path

    def with_rows(self, table: str, rows: Iterable[Mapping[str, Any]], source: str = HERE, **origin: Any) -> "Results":
        """Return these results plus rows that were not read from a folder."""
        frame = schema.frame(table, schema.rows(table, rows, **origin))
        added = [*self.live.get(table, ()), frame.assign(source=source)] if len(frame) else self.live.get(table, ())
        return Results(self.folders, {**self.live, table: list(added)})

    def missing(self, experiment: str, what: str = "") -> Missing:
        """Return a message that no source has an experiment, with the command that measures it."""
        command = schema.EXPERIMENTS.get(experiment, "")
        named = what or experiment.replace("-", " ")
        places = " and ".join(self.sources) or "no source"
        how = f". To measure: `{command}`" if command else "."
        return Missing(f"Not in {places}: {named}{how}")


def read(places: str | Path | Sequence[str | Path] = SHIPPED) -> Results:
    """Read results of one or several places: "shipped", or folders that contain results at any depth.

    A place "NAME=FOLDER" gets the name NAME, any other is named as given. Raises BadInput for a place that does not
    exist, contains no results, or has results of another version of the schema.
    """
    requested = [places] if isinstance(places, str | Path) else list(places)
    if not requested:
        raise BadInput(f"results is {format_value(places)}: at least one place is needed, as {SHIPPED!r} or a folder")
    folders: dict[str, list[Path]] = {}
    for place in requested:
        name, path = str(place).partition("=")[0], results_path(place)
        if name in folders:
            raise BadInput(f"results names {name!r} twice: each source needs a unique name, as mine=runs/mine")
        folders[name] = list(_folders(path))
    return Results(folders)


def expand_settings(rows: pd.DataFrame, *needed: str) -> pd.DataFrame:
    """Return rows with a column for each key of `setting`, and for each of the keys `needed`."""
    known = {text: json.loads(text) if text else {} for text in rows.setting.unique()}
    keys = list(dict.fromkeys([*needed, *(key for values in known.values() for key in values)]))
    codes, texts = pd.factorize(rows.setting)
    each = {key: pd.Series([known[text].get(key) for text in texts]) for key in keys}
    return rows.assign(**{key: values.take(codes).set_axis(rows.index) for key, values in each.items()})


def _folders(path: Path) -> Iterator[Path]:
    """Yield the folders of results under `path`, after checking each."""
    marks = [path / MARK] if (path / MARK).is_file() else sorted(path.glob(f"**/{MARK}"))
    if not marks:
        raise BadInput(f"{shorten(path)} holds no results of this workbench: it contains no {MARK}")
    for mark in marks:
        _check(mark)
        yield mark.parent


def _check(mark: Path) -> None:
    try:
        about = json.loads(mark.read_text(encoding="utf-8"))
        version = about["version"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise BadInput(f"{shorten(mark)} does not state the version of the results: it is not whole") from None
    if version != schema.VERSION:
        raise BadInput(f"{shorten(mark.parent)} holds results of version {version}: version {schema.VERSION} is read")


def _check_experiments(names: Sequence[str]) -> None:
    if odd := [name for name in names if name.partition("@")[0] not in schema.EXPERIMENTS]:
        raise not_allowed("experiment", odd[0], schema.EXPERIMENTS)


def _part(path: Path, table: str) -> pd.DataFrame:
    """Return the rows of a table's file, with all columns."""
    if path.suffix == ".jsonl":
        return schema.frame(table, schema.rows(table, lines_of(path)))
    return _cached(path, path.stat().st_mtime_ns, table)


@lru_cache(maxsize=256)  # more than the shipped files, or a second pass over them would only miss
def _cached(path: Path, changed: int, table: str) -> pd.DataFrame:
    rows, known = table_of(path), schema.columns(table)
    _check_columns(path, table, rows)
    return schema.with_types(
        table, rows.assign(**{name: "" for name in known if known[name] is str and name not in rows})
    )


@lru_cache(maxsize=256)
def _columns_of(path: Path, changed: int, table: str, kinds: pa.Schema) -> pa.Table:
    """Return the columns `kinds`, as far as a table's file has them."""
    if path.suffix == ".jsonl":
        return pa.Table.from_pandas(_part(path, table), kinds, preserve_index=False)
    packed = _read(path, kinds.names)
    _check_columns(path, table, pq.read_schema(path).names)
    return packed.cast(pa.schema([kinds.field(name) for name in packed.column_names]))


def _check_columns(path: Path, table: str, names: Iterable[str]) -> None:
    if odd := sorted(set(names) - set(schema.columns(table))):
        raise BadInput(f"{shorten(path)} has a column {odd[0]!r} that table {table} does not have")


def _read(path: Path, names: Sequence[str] = ()) -> pa.Table:
    """Read a parquet file, or its columns `names` as far as it has them, with texts as dictionaries.

    Raises BadInput if it is damaged.
    """
    try:
        present = [name for name in pq.read_schema(path).names if name in (names or [name])]
        with pq.ParquetFile(path, read_dictionary=present if names else []) as file:
            return file.read(present, use_threads=False)  # threads are slower for files this small
    except (OSError, pa.ArrowException) as problem:
        raise BadInput(f"{shorten(path)} cannot be read: {shorten(problem)}") from None


def table_of(path: Path) -> pd.DataFrame:
    """Read a parquet file, with "" for missing texts. Raises BadInput for a damaged file."""
    frame = _read(path).to_pandas(use_threads=False)
    return frame.fillna(dict.fromkeys(frame.select_dtypes("str"), ""))


def lines_of(path: Path) -> list[dict[str, Any]]:
    """Read a file of JSON lines; [] if it does not exist. An incomplete last line is dropped.

    Raises BadInput for any other line that is not a JSON object.
    """
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.is_file() else []
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            rows.append(dict(json.loads(line)))
        except (ValueError, TypeError) as problem:
            if number < len(lines) or line.endswith("\n"):
                raise BadInput(f"{shorten(path)}, line {number}, is no row of results: {shorten(problem)}") from None
    return rows

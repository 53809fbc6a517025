"""Write result tables row by row; rows of a killed process are kept.

    with Writer("runs/mine", "trial", model="lab-full", device="NVIDIA H200") as out:
        out.counts([{"measure": "em", "value": 0.91, "low": 0.88, "high": 0.93, "n": 400}])

<folder>/results.json            marks a folder of results, with the version of its schema
         <table>/<part>.jsonl    rows of an open writer, one per line
         <table>/<part>.parquet  the same rows once their writer is closed
"""

import json
import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from workbench.core.errors import BadInput, format_value
from workbench.core.utils.files import check_folder, write_atomically, write_text
from workbench.results import schema
from workbench.results.reader import MARK, Results, lines_of, table_of

NAME = "cached-block results"
ARROW = {str: pa.string(), float: pa.float64(), int: pa.int64(), list[float]: pa.list_(pa.float64())}
Rows = Iterable[Mapping[str, Any]]


class Writer:
    """Appends rows to one part of a results folder; `origin` holds the columns that all rows share.

    folder   results folder, created if it does not exist
    part     name of the files, one for each measurement: writing a part again replaces its earlier rows
    resume   keep the earlier rows instead; `rows_written` returns them

    Raises BadInput, before anything is written, for a folder that cannot hold results.
    """

    def __init__(self, folder: str | Path, part: str, *, resume: bool = False, **origin: Any):
        self.folder, self.part = Path(folder), part
        self.origin = {"experiment": part.partition("@")[0], **origin}
        if not part or "/" in part or part.startswith("."):
            raise BadInput(f"part is {format_value(part)}: a file name is needed")
        prepare(self.folder)
        if not resume:
            for table in schema.TABLES:
                self._path(table, "jsonl").unlink(missing_ok=True)
        self._resume = resume
        self._written: set[str] = set()

    def answers(self, rows: Rows) -> None:
        """Append rows of `schema.Answer`."""
        self.add("answers", rows)

    def timings(self, rows: Rows) -> None:
        """Append rows of `schema.Timing`."""
        self.add("timings", rows)

    def counts(self, rows: Rows) -> None:
        """Append rows of `schema.Count`."""
        self.add("counts", rows)

    def add(self, table: str, rows: Rows) -> None:
        """Append rows to `table` and flush them to the file. Raises BadInput as `schema.row` does."""
        added = schema.rows(table, rows, **self.origin)
        if not added:
            return
        path = self._path(table, "jsonl")
        path.parent.mkdir(exist_ok=True)
        _end_line(path)
        with path.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps({k: v for k, v in row.items() if v not in (None, "")}) + "\n" for row in added)
        self._written.add(table)

    def rows_written(self, table: str) -> list[dict[str, Any]]:
        """Return the rows of this part that are already written, including those of earlier processes."""
        packed, loose = self._path(table, "parquet"), self._path(table, "jsonl")
        earlier = table_of(packed).to_dict("records") if packed.is_file() and self._resume else []
        return [*earlier, *(schema.row(table, one) for one in lines_of(loose))]

    def close(self) -> None:
        """Convert the appended rows to one parquet file per table."""
        for table in schema.TABLES:
            loose = self._path(table, "jsonl")
            if loose.is_file():
                pack(self._path(table, "parquet"), table, self.rows_written(table))
                loose.unlink()
            elif not self._resume:
                self._path(table, "parquet").unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, failed: object, *_: object) -> None:
        if failed is None:
            self.close()

    def _path(self, table: str, ending: str) -> Path:
        return self.folder / table / f"{self.part}.{ending}"


def prepare(folder: Path) -> None:
    """Create a results folder, or check that `folder` is one. Raises BadInput for a file and another tool's folder."""
    check_folder("out", folder)
    mark = folder / MARK
    if not mark.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        write_text(mark, json.dumps({"format": NAME, "version": schema.VERSION}) + "\n")


def pack(path: Path, table: str, rows: Rows) -> None:
    """Write rows as a parquet file, atomically; columns without values are left out."""
    complete = [schema.row(table, one) for one in rows]
    kinds = {name: _arrow(kind) for name, kind in schema.columns(table).items()}
    used = [name for name in kinds if any(one[name] not in (None, "") for one in complete)]
    packed = pa.Table.from_pylist(
        [{name: one[name] for name in used} for one in complete], pa.schema([(name, kinds[name]) for name in used])
    )
    floats = [name for name in used if kinds[name] == pa.float64()]
    options = {"compression": "zstd", "compression_level": 19, "use_byte_stream_split": floats}
    path.parent.mkdir(parents=True, exist_ok=True)
    rest = [name for name in used if name not in floats]
    write_atomically(path, lambda partial: pq.write_table(packed, partial, use_dictionary=rest, **options))


def merge(found: Results, folder: Path, part: str) -> None:
    """Write all rows of `found` as one part of a results folder, replacing its earlier rows.

    Scores of single questions are rounded to 15 bits (more than four digits), which makes files much smaller.
    """
    with Writer(folder, part) as out:
        for table in schema.TABLES:
            rows = found.table(table).drop(columns="source")
            if table == "answers":
                measures = rows.columns.intersection(schema.MEASURES)
                parts, powers = np.frexp(rows[measures])
                rows = rows.assign(**np.ldexp(np.round(parts * 2**15) / 2**15, powers))
            out.add(table, rows.to_dict("records"))


def this_run() -> dict[str, Any]:
    """Return {command, time} of the running process for `Writer`: its command line without folders, and UTC time."""
    program, *rest = sys.argv or [""]
    name = Path(program).name
    own = name.startswith("workbench") or Path(program).parent.name == "workbench"  # or `python -m workbench`
    words = ["workbench" if own else f"python {name}", *rest]
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return {"command": " ".join(Path(word).name if word.startswith("/") else word for word in words), "time": now}


def _arrow(annotation: Any) -> pa.DataType:
    return next(kind for name, kind in ARROW.items() if name == annotation or annotation == name | None)


def _end_line(path: Path) -> None:
    """Truncate an incomplete last line, left by a killed process."""
    if path.is_file() and (text := path.read_bytes()) and not text.endswith(b"\n"):
        write_atomically(path, lambda partial: partial.write_bytes(text[: text.rfind(b"\n") + 1]))

"""Samples given as Python objects: lists of records, data frames, `datasets`; kept in a file, so that all can read them."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from workbench.core.errors import BadInput, shown
from workbench.core.utils.files import write_text
from workbench.data.sample import Sample
from workbench.data.sources import files


def samples(given: Any, answered: bool = True) -> list[Sample]:
    """Return samples of a list of `Sample`s or records, a pandas.DataFrame or a `datasets.Dataset`: a row a question.

    Records are those that files hold (`files`). Raises BadInput that names the row and the field.
    """
    if callable(to_dict := getattr(given, "to_dict", None)) and hasattr(given, "columns"):
        given = to_dict("records")
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise BadInput(f"data is {shown(given)}: a name, a file, a data frame or a list of records is needed")
    read = []
    for number, one in enumerate(given, 1):
        if isinstance(one, Sample):
            read.append(one if one.id else replace(one, id=f"given-{number}"))
            continue
        try:
            read.append(files.sample(_plain(one), f"given-{number}", answered))
        except BadInput as problem:
            raise BadInput(f"data, row {number}: {problem}") from None
    if not read:
        raise BadInput("data holds no rows")
    return read


def kept(given: Any) -> str:
    """Return the file that holds samples, one content one file; written where it is not there yet."""
    if isinstance(given, Path):
        return str(given)
    text = "".join(json.dumps(sample.to_json()) + "\n" for sample in samples(given, answered=False))
    from platformdirs import user_cache_path  # not on every machine that measures what lies in files

    folder = user_cache_path("workbench") / "data"
    path = folder / f"given-{sha256(text.encode()).hexdigest()[:12]}.jsonl"
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        write_text(path, text)
    return str(path)


def _plain(record: Any) -> Any:
    """Return a record of a data frame or of `datasets` as JSON has it: lists for arrays, nothing for nan."""
    if not isinstance(record, Mapping):
        return record
    return {str(name): value for name, one in record.items() if (value := _value(one)) is not None}


def _value(value: Any) -> Any:
    if callable(tolist := getattr(value, "tolist", None)):
        value = tolist()
    return None if isinstance(value, float) and value != value else value

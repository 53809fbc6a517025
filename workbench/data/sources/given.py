"""Samples given as Python objects (lists of records, data frames, `datasets`), and the file that keeps them."""

import json
from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from workbench.core.errors import BadInput, shown
from workbench.core.utils.files import write_text
from workbench.data.sample import Sample
from workbench.data.sources import files


def samples(given: Any, answered: bool = True) -> list[Sample]:
    """Return samples of a list of `Sample`s or records, a pandas.DataFrame or a `datasets.Dataset`: a row a question.

    Records are those that files hold (`files`); their passages may be documents of LangChain or nodes of LlamaIndex,
    titled by `title`, `source` or `file_name` of their metadata. Raises BadInput that names the row and the field.
    """
    if callable(to_dict := getattr(given, "to_dict", None)) and hasattr(given, "columns"):
        given = to_dict("records")
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise BadInput(f"data is {shown(given)}: a name, a file, a data frame or a list of records is needed")
    read = []
    for number, one in enumerate(given, 1):
        record = one.to_json() if isinstance(one, Sample) else _record(one)
        try:
            read.append(files.sample(record, f"given-{number}", answered))
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


def _record(row: Any) -> Any:
    """Return a row without the fields that it leaves empty; what is no mapping, as it is."""
    if not isinstance(row, Mapping):
        return row
    with_records = {name: _documents(value) if name in files.PASSAGES else value for name, value in row.items()}
    return {name: value for name, value in files.as_json(with_records).items() if value is not None}


def _documents(passages: Any) -> Any:
    """Return passages in which documents of LangChain and nodes of LlamaIndex, known by their fields, are records."""
    if not isinstance(passages, Iterable) or isinstance(passages, str | Mapping):
        return passages
    return [_document(getattr(one, "node", one)) for one in passages]  # a node with its score holds the node


def _document(one: Any) -> Any:
    text, about = getattr(one, "page_content", getattr(one, "text", None)), getattr(one, "metadata", None)
    if not isinstance(text, str) or not isinstance(about, Mapping):
        return one
    titles = (about.get(name) for name in ("title", "source", "file_name"))
    return {"title": str(next(filter(None, titles), "")), "text": text}

"""Runs read back in one form: records of trials and sweeps, and results of notebooks.

    for run in read("runs/sweep"):
        print(run.name, run.scores["em"], len(run.answers))

A record of `--out FOLDER` has its questions in the answers table of that folder.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from workbench.core.errors import BadInput
from workbench.experiments.trials import rows
from workbench.experiments.trials.record import Record

QUESTIONS = ("data", "samples", "seed", "passages")  # parameters that determine the questions
Numbers = dict[str, float]


@dataclass(frozen=True)
class Run:
    """One run. `answers` has a row a question, {id, kind, em, …}; none where only sums were kept."""

    name: str
    source: str  #: the file it was read from
    parameters: Mapping[str, Any]
    scores: Numbers  #: of all questions, {em, em_low, em_high, …}, and costs
    versions: Mapping[str, str] = field(default_factory=dict)
    answers: Sequence[Mapping[str, Any]] = ()
    record: Record | None = None

    @property
    def questions_key(self) -> tuple[Any, ...]:
        """What has to be equal so that two runs without texts of their answers can be compared by question."""
        return tuple(str(self.parameters.get(name)) for name in QUESTIONS)


def of_record(record: Record, answers: Sequence[Mapping[str, Any]] = (), source: str = "", name: str = "") -> Run:
    """Return the run of a trial's record; `answers` as `Trial.run_each` returns them."""
    about = {"device": record.device} | ({"note": record.note} if record.note else {})
    values = record.to_json() | {f"ttft_{end}": value for end, value in vars(record.ttft_s).items()}
    numbers = {k: float(v) for k, v in values.items() if isinstance(v, int | float) and not isinstance(v, bool)}
    return Run(name or record.label, source, {**record.trial, **about}, numbers, record.versions, answers, record)


def read_runs(place: str | Path) -> list[Run]:
    """Read the runs of a folder (a sweep or a notebook's results) or of a file (records, one or a line each).

    Raises BadInput for what is none of these.
    """
    path = Path(place)
    if path.is_dir():
        if (path / rows.FOLDER).is_dir():
            return _of_trials(path)
        if (path / "metrics.json").is_file():
            return [_of_notebook(path)]
        raise BadInput(f"{path} holds no results: neither trials/ of `--out` nor metrics.json of a notebook")
    if not path.is_file():
        raise BadInput(f"no run {str(place)!r}: a record, a folder of results or a model is needed")
    return _of_file(path)


def distinct(runs: Sequence[Run]) -> list[Run]:
    """Return the runs with names that tell them apart: the method, and what differs among runs of one method."""
    named = []
    for run in runs:
        alike = [other.parameters for other in runs if other.name == run.name]
        named.append(replace(run, name=", ".join([run.name, *_telling(run.parameters, alike)])))
    counts: dict[str, int] = {}
    for at, run in enumerate(named):
        counts[run.name] = counts.get(run.name, 0) + 1
        if counts[run.name] > 1:
            named[at] = replace(run, name=f"{run.name} ({counts[run.name]})")
    return named


UNTOLD = frozenset(("timed", "batch", "store_gib", "fidelity", "receipt", "note"))  # change neither answers nor costs


def _telling(parameters: Mapping[str, Any], alike: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the values that tell a run from those of the same method; a budget stands for the ratio that it sets."""
    differing = [key for key in differing_values(alike) if key not in UNTOLD and parameters.get(key) is not None]
    if "charged" in differing:
        differing = [key for key in differing if key != "ratio"]
    return [f"{key} {_short(parameters[key])}" for key in differing]


def differing_values(mappings: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return the values, one a mapping, of every key whose values differ; None where a mapping lacks it."""
    keys = dict.fromkeys(key for mapping in mappings for key in mapping)
    by_key = {key: [mapping.get(key) for mapping in mappings] for key in keys}
    return {key: values for key, values in by_key.items() if any(value != values[0] for value in values)}


def _short(value: Any) -> str:
    text = Path(value).name if isinstance(value, str) and "/" in value else str(value)
    return text if len(text) <= 40 else text[:39] + "…"


def _of_trials(folder: Path) -> list[Run]:
    files = [path for path in sorted((folder / rows.FOLDER).glob("*.json")) if not path.name.endswith(".failed.json")]
    if not files:
        raise BadInput(f"{folder} holds no finished trial")
    return [run for path in files for run in _of_file(path)]


def _of_file(path: Path) -> list[Run]:
    try:
        text = path.read_text(encoding="utf-8")
        entries = (
            [json.loads(text)] if text.lstrip()[:2] in ("{\n", "[") else [json.loads(x) for x in text.splitlines()]
        )
    except (OSError, ValueError, RecursionError) as problem:
        raise BadInput(f"{path} holds no records: {type(problem).__name__}, {problem}") from None
    if len(entries) == 1 and isinstance(entries[0], list):
        (entries,) = entries
    runs = [run for entry in entries for run in _of_entry(entry, path)]
    if not runs:
        raise BadInput(f"{path} is empty: a record is needed")
    answers = rows.answers_of(path.parent.parent, path.stem) if path.parent.name == rows.FOLDER else []
    return [replace(run, answers=answers) for run in runs] if answers else runs


def _of_entry(entry: Any, path: Path) -> list[Run]:
    """Return the runs of a record, or of a trial of a sweep."""
    if not isinstance(entry, dict):
        raise BadInput(f"{path} holds no records: an object is needed, not {type(entry).__name__}")
    record = entry.get("record", entry)
    if not isinstance(record, dict) or "trial" not in record:
        raise BadInput(f"{path} holds no record of a trial: it has no field 'trial'")
    try:
        return [of_record(Record.from_json(record), source=str(path), name=entry.get("method") or "")]
    except (TypeError, AttributeError, KeyError) as problem:
        raise BadInput(f"{path} holds a record that cannot be read: {problem}") from None


def _of_notebook(folder: Path) -> Run:
    try:
        metrics = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as problem:
        raise BadInput(f"{folder / 'metrics.json'} is no whole JSON file: {problem}") from None
    metrics = metrics.get("here", {})  # only the notebook's own measurements
    texts = {key: value for key, value in metrics.items() if isinstance(value, str)}
    (flat,) = pd.json_normalize(metrics, sep=".").to_dict("records")
    numbers = {k: float(v) for k, v in flat.items() if isinstance(v, int | float) and not isinstance(v, bool)}
    return Run(folder.name, str(folder), _given(folder) | texts, numbers)


def _given(folder: Path) -> dict[str, Any]:
    """Return the parameters of the executed notebook in a folder, if there is one."""
    for path in sorted(folder.glob("*.ipynb")):
        metadata = json.loads(path.read_text(encoding="utf-8")).get("metadata", {})
        return dict(metadata.get("papermill", {}).get("parameters", {}))
    return {}

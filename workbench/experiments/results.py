"""Committed results: what the scripts in data/benchmarks measured on many questions, read back for figures and tests.

A file holds one entry a method: {"record": Record as JSON, "right": "0110…"}, a digit a question in the order of the
data, so that two methods are compared question by question.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from workbench.core import renamed
from workbench.core.errors import BadInput
from workbench.data.assets import ROOT
from workbench.experiments.record import Record
from workbench.metrics.answers import Interval, bootstrap

FOLDER = ROOT / "benchmarks"


def read(name: str) -> dict[str, Any]:
    """A results file by name, `block-attention` say. Raises BadInput where it is missing or half-written."""
    path = FOLDER / f"{name}.json"
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        raise BadInput(f"no results {name!r} in {FOLDER}: there are {', '.join(names()) or 'none'}") from None
    except json.JSONDecodeError as problem:
        raise BadInput(f"{path} is no whole JSON file ({problem}): make it anew") from None


def table(name: str) -> pd.DataFrame:
    """A results table by name, `fusion` say. Raises BadInput where it is missing."""
    path = FOLDER / f"{name}.parquet"
    if not path.is_file():
        raise BadInput(f"no results table {name!r} in {FOLDER}: there are {', '.join(names('parquet')) or 'none'}")
    return pd.read_parquet(path)


def today(swept: pd.DataFrame) -> pd.DataFrame:
    """The table of a sweep with its preparations by their names today."""
    return swept.assign(prepare=swept.prepare.map(renamed.spec))


def names(kind: str = "json") -> list[str]:
    """The results there are."""
    return sorted(path.stem for path in Path(FOLDER).glob(f"*.{kind}"))


def rows(methods: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One row a method and kind of question: {name, kind, n, em, em_low, em_high, f1, …}; kind "all" comes first."""
    return [
        {**row, "name": name, "kind": row["kind"]}
        for name, entry in methods.items()
        for row in Record.from_json(entry["record"]).rows()
    ]


def difference(one: Mapping[str, Any], other: Mapping[str, Any], seed: int = 0) -> tuple[float, Interval]:
    """How many more questions `one` answers right than `other`, as a share, with a paired bootstrap 95% interval."""
    pairs = [np.array([int(digit) for digit in entry["right"]]) for entry in (one, other)]
    if len(pairs[0]) != len(pairs[1]):
        raise BadInput(f"{len(pairs[0])} and {len(pairs[1])} questions: only the same questions can be compared")
    gap = pairs[0] - pairs[1]
    return float(gap.mean()), bootstrap(gap.tolist(), seed)

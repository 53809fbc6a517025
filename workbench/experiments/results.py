"""Committed results of the scripts in data/benchmarks on many questions, written there and read back for figures.

A file holds one entry a method: {"record": Record as JSON, "right": "0110…"}, a digit a question in the order of the
data, so that two methods are compared question by question.
"""

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from workbench import data
from workbench.core.errors import BadInput
from workbench.core.utils.files import write_atomically, write_text
from workbench.data.assets import ROOT
from workbench.metrics.answers import Interval, bootstrap

FOLDER = ROOT / "benchmarks"


def read(name: str) -> dict[str, Any]:
    """Read a results file by name, `block-attention` say. Raises BadInput where it is missing or half-written."""
    path = FOLDER / f"{name}.json"
    if not path.is_file():
        raise BadInput(f"no results {name!r} in {FOLDER}: there are {', '.join(names()) or 'none'}")
    return read_json(path)


def read_json(path: Path) -> Any:
    """Read a JSON file. Raises BadInput where it is half-written."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as problem:
        raise BadInput(f"{path} is no whole JSON file ({problem}): make it anew") from None


def table(name: str) -> pd.DataFrame:
    """Read a results table by name, `fusion` say. Raises BadInput where it is missing."""
    path = FOLDER / f"{name}.parquet"
    if not path.is_file():
        raise BadInput(f"no results table {name!r} in {FOLDER}: there are {', '.join(names('parquet')) or 'none'}")
    return pd.read_parquet(path)


def write_table(path: Path, frame: pd.DataFrame) -> None:
    """Write a table without its index, whole or not at all: byte planes of floats apart, a third smaller than together.

    Every number is read back as it was.
    """
    floats = [name for name in frame if pd.api.types.is_float_dtype(frame[name])]
    rest = [name for name in frame if name not in floats]
    packing = {"compression": "zstd", "compression_level": 19}
    columns = {"use_byte_stream_split": floats, "use_dictionary": rest}
    write_atomically(path, partial(frame.to_parquet, index=False, **packing, **columns))


def names(kind: str = "json") -> list[str]:
    """List the results there are."""
    return sorted(path.stem for path in Path(FOLDER).glob(f"*.{kind}"))


def kinds(samples: int, seed: int, passages: int = 10) -> list[str]:
    """Return the kind of every question of the lab corpus, in the order in which results files hold them."""
    return [sample.kind for sample in data.load("lab", samples, seed, passages)]


def right(entry: Mapping[str, Any]) -> list[int]:
    """Return 1 for every question that an entry of a results file answers right, else 0."""
    return [int(digit) for digit in entry["right"]]


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file whole or not at all."""
    write_text(path, json.dumps(content, indent=1) + "\n")


def difference(one: Mapping[str, Any], other: Mapping[str, Any], seed: int = 0) -> tuple[float, Interval]:
    """Return how many more questions `one` answers right than `other`, as a share.

    With a paired bootstrap 95% interval.
    """
    first, second = (np.array([int(digit) for digit in entry["right"]]) for entry in (one, other))
    if len(first) != len(second):
        raise BadInput(f"{len(first)} and {len(second)} questions: only the same questions can be compared")
    gap = first - second
    return float(gap.mean()), bootstrap(gap.tolist(), seed)

"""Schema of the result tables: answers, timings and counts. Every row states what was measured, of what, and how.

Every measurement writes these three tables (`results.writer`); figures and claims read them (`results.reader`). A field
that does not apply is None, or "" if it is a text.
"""

import json
import types
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, fields
from functools import cache
from typing import Any, get_args, get_type_hints

import pandas as pd

from workbench.core.errors import BadInput, format_value, not_allowed
from workbench.core.utils.annotations import fits_annotation, words

VERSION = 1  # of the schema: incremented when a column changes its meaning or is removed


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Origin of a row: the columns that all tables share."""

    experiment: str  #: what was measured, one of `EXPERIMENTS`: "trial", "deviation", "kernels", …
    model: str = ""  #: as `models.load` takes it
    weights: str = ""  #: fingerprint of the weights; "" if it is unknown
    data: str = ""  #: as `data.load` takes it
    passages: int | None = None  #: per prompt
    method: str = ""  #: published name, or a description
    mode: str = ""  #: full, block, …: the fields of `methods.config.MethodConfig`
    positions: str = ""
    prepare: str = ""
    select: str = ""
    ratio: float | None = None  #: share of the document tokens that is recomputed
    correct: str = ""
    attend: str = ""
    sparse: str = ""
    chunk: int | None = None  #: chunk size of chunked prefill, in tokens
    setting: str = ""  #: JSON object: parameters of this experiment that have no column
    seed: int | None = None  #: of the data
    training_seed: int | None = None
    device: str = ""  #: product name of the GPU, or processor and threads
    dtype: str = ""
    versions: str = ""  #: JSON object: packages and their versions
    command: str = ""  #: command that repeats the measurement
    time: str = ""  #: start of the measurement, ISO 8601, UTC


@dataclass(frozen=True, kw_only=True)
class Answer(Origin):
    """One question under one method: the answer, and its scores.

    Scores are those of `metrics.answers` and `metrics.fidelity`; `full_…` are full attention's own.
    """

    question: str  #: id of the sample: methods are compared on equal ids of equal data
    kind: str = ""  #: kind of question, if the data has kinds
    asked: str = ""  #: the question itself
    answer: str = ""
    expected: str = ""
    em: float | None = None  #: exact match, 0 or 1
    contains: float | None = None  #: whether the answer contains an alias, 0 or 1
    f1: float | None = None
    faithful: float | None = None  #: whether the passages support the whole answer, 0 or 1
    full_em: float | None = None
    full_contains: float | None = None
    full_f1: float | None = None
    nll: float | None = None  #: negative log-likelihood of the gold answer, nats per token
    nll_full: float | None = None
    nll_own: float | None = None  #: the same for full attention's own greedy answer
    nll_own_full: float | None = None
    kl: float | None = None  #: KL from full attention, over its own answer, nats per token
    kl_first: float | None = None
    kl_gold: float | None = None
    agree: float | None = None  #: share of tokens for which both predict the same
    agree_first: float | None = None
    agree_gold: float | None = None
    tokens: int | None = None  #: of the prompt
    rows: float | None = None  #: computed tokens, counted through all layers, passes of the selector included
    rows_reused: float | None = None
    flops: float | None = None
    bytes: float | None = None
    seconds: float | None = None  #: to the first token


@dataclass(frozen=True, kw_only=True)
class Timing(Origin):
    """One candidate on one workload: milliseconds of repeated runs in one process.

    `p5` to `p95` and `least` to `most` summarise the runs; `samples` are the single runs, if they were kept.
    """

    workload: str
    candidate: str  #: this workbench, or the name of a baseline
    ms: float  #: median
    p5: float | None = None
    p95: float | None = None
    least: float | None = None
    most: float | None = None
    runs: int | None = None
    samples: list[float] | None = None
    flops: float | None = None
    bytes: float | None = None


@dataclass(frozen=True, kw_only=True)
class Count(Origin):
    """One measured number, with its interval and the number of observations."""

    measure: str  #: "em", "hit_rate", "left_outside_15_percent", …
    kind: str = ""  #: kind of question, or part of the measurement; "" and "all": everything
    at: float | None = None  #: x value of a curve: step, layer, position, …
    value: float | None = None
    low: float | None = None  #: ends of the 95% interval
    high: float | None = None
    n: int | None = None
    unit: str = ""


TABLES: dict[str, type[Origin]] = {"answers": Answer, "timings": Timing, "counts": Count}
MEASURES = tuple(f.name for f in fields(Answer) if f.type == "float | None" or f.type == float | None)[1:]  # not ratio
METHOD = ("method", "mode", "positions", "prepare", "select", "ratio", "correct", "attend", "sparse", "chunk")
# Experiments and their commands, with placeholders MODEL, FILE and DIR.
EXPERIMENTS = {
    "bench": "workbench bench all --out DIR",  # kernels and whole models against baselines; ceilings of the GPU
    "ttft": "python data/benchmarks/ttft.py --model MODEL --out DIR",  # setting: length, and what is varied
    "methods": "python data/benchmarks/method_ttft.py --out DIR",  # TTFT of published methods; counts: charged_share
    "stages": "python data/benchmarks/stages.py --out DIR",  # where the time of a prefill goes, in seconds
    "float8": "python data/benchmarks/float8_products.py --out DIR",  # products in float8: times, and answers
    "preparation": "python data/benchmarks/preparation.py --out DIR",  # passages behind neighbours: rate, and time
    "scale": "python data/benchmarks/scale.py --out DIR",  # one axis varied: context, question, blocks or batch
    "soak": "python -m tests.stress.soak --out DIR",
    "backends": "python data/benchmarks/attention_backends.py --out DIR",  # of attention, by shape
    "touch": "python data/benchmarks/touch.py --out DIR",  # time until the prompt editor shows a change
    "trial": "workbench sweep --model MODEL --data FILE --out DIR",
    "parts": "python data/benchmarks/parts.py --out DIR",  # of a published composition; at: its place in it
    "deviation": "python data/benchmarks/deviation.py --model MODEL --data NAME=FILE --out DIR",
    "training": "workbench tune --model MODEL --data FILE --out DIR",
    "replay": "python data/benchmarks/store_replay.py --out DIR",  # requests on a simulated clock: tiers, scheduler
    "workload": "python data/benchmarks/workload.py --out DIR",  # simulated look-ups: hits and storage of caches
    "break-even": "python data/benchmarks/workload.py --out DIR",  # simulated TTFT of caches, in milliseconds
    "serving": "workbench serve-bench --model MODEL --data FILE --out DIR",  # many questions, by tier and mode
    "tiers": "python data/benchmarks/ttft.py --tiers --model MODEL --out DIR",  # TTFT; workload: tokens of the prompt
    "int8": "python data/benchmarks/store_int8.py --model MODEL --out DIR",  # blocks in 8 bits; kind: difference
    "faults": "python -m tests.stress.run_store_faults --out DIR",  # blocks lost or wrong after faults
    "poisoned": "python data/benchmarks/poisoned.py --out DIR",  # cached behind an attacker's text; method: attack
    "session": "python data/benchmarks/beyond_rag.py --model MODEL --out DIR",
}


@cache
def columns(table: str) -> dict[str, Any]:
    """Return {column: annotation} of a table. Raises BadInput for an unknown one."""
    if table not in TABLES:
        raise not_allowed("table", table, TABLES)
    return get_type_hints(TABLES[table])


@cache
def _defaults(table: str) -> dict[str, Any]:
    return {field.name: field.default for field in fields(TABLES[table])}


def row(table: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a complete row of `table` from known values; mappings in `setting` and `versions` become JSON.

    Raises BadInput for an unknown or missing column, and for a value of the wrong type.
    """
    known = columns(table)
    packed = {name: _plain(value) for name, value in values.items()}
    if unknown := sorted(set(packed) - set(known)):
        raise BadInput(f"table {table} has no column {unknown[0]!r}: allowed are {', '.join(known)}")
    complete = {name: packed.get(name, default) for name, default in _defaults(table).items()}
    for name, value in complete.items():
        if (name in packed or value is MISSING) and not _fits(value, known[name]):
            raise BadInput(f"column {name} of table {table} is {format_value(value)}: it must be {words(known[name])}")
    return complete


def rows(table: str, many: Iterable[Mapping[str, Any]], **origin: Any) -> list[dict[str, Any]]:
    """Return complete rows of `table`; `origin` holds the values that they share."""
    return [row(table, {**origin, **values}) for values in many]


def frame(table: str, complete: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Return complete rows as a DataFrame with all columns of `table`; numbers are floats, missing ones nan."""
    return with_types(table, pd.DataFrame(list(complete), columns=list(columns(table))))


def with_types(table: str, frame: pd.DataFrame, names: Iterable[str] = ()) -> pd.DataFrame:
    """Return a frame with the columns of `table` in order, or with `names` only; numbers become floats."""
    known = columns(table)
    ordered = frame.reindex(columns=list(names or known))
    numbers = [name for name in ordered if known[name] not in (str, list[float] | None)]
    return ordered.astype({name: float for name in numbers if ordered[name].dtype != float})


def json_text(values: Mapping[str, Any]) -> str:
    """Return a JSON object with sorted keys, so that equal settings have equal texts; "" for an empty one."""
    return json.dumps(dict(values), sort_keys=True) if values else ""


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return json_text(value)
    if hasattr(value, "item") and not isinstance(value, str):
        value = value.item()  # a NumPy or torch scalar
    return None if isinstance(value, float) and value != value else value


def _fits(value: Any, annotation: Any) -> bool:
    if isinstance(annotation, types.UnionType) and int in get_args(annotation) and isinstance(value, float):
        return value.is_integer()  # pandas stores whole numbers with gaps as floats
    return fits_annotation(value, annotation) or (annotation == int | None and isinstance(value, int))

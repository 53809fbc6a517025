"""Model times to the first token of simulated requests, fitted to shipped GPU measurements.

    model = fitted()
    model.prefix(cached=…, missing=…, question=50)

A pass takes `start`, plus a time per computed token (its products with the weights) and per pair of a token and a key
it attends to. The three numbers are fitted to the committed reports `question`, `recompute` and `prefill` of `workbench
bench`: one engine, an NVIDIA H200, the shape of Llama-3.1-8B. Baselines therefore get our engine's times. Cached KV is
assumed to be on the GPU; loading it from elsewhere is not in these times.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import nnls

from workbench.core.errors import BadInput
from workbench.metrics import cost
from workbench.metrics.answers import Records
from workbench.metrics.published_numbers import QUESTION, TABLE_3
from workbench.results import expand_settings, read

MODES = ("full", "block")


def computed(
    shape: cost.ModelShape, lengths: Sequence[int], itemsize: int, question: int = QUESTION, ratio: float = 0.15
) -> Records:
    """Compute the cost of full, block and recompute for any model shape, with `cost.first_token`.

    Records {length, way, flops, linear, attention, bytes, kv_loaded, convention}. Recomputed tokens are spread evenly
    and their selection is left out. `convention` counts FLOPs as the paper does: 2 · parameters · rows.
    """
    records = []
    for length in lengths:
        context = max(0, length - question)
        spread = np.unique(np.linspace(0, max(0, context - 1), round(ratio * context)).astype(int))
        question_rows = np.arange(context, length)
        recompute = np.concatenate((spread[spread < context], question_rows))
        for name, rows in (("full", np.arange(length)), ("block", question_rows), ("recompute", recompute)):
            costs = cost.first_token(shape, rows, length, itemsize)
            record = {field: getattr(costs, field) for field in ("flops", "linear", "attention", "bytes", "kv_loaded")}
            convention = cost.convention(shape.convention, len(rows))
            records.append({"length": length, "way": name, **record, "convention": convention})
    return records


def published() -> Records:
    """Return the paper's Table 3 as records {length, way, ttft_ms, flops}."""
    return [
        {"length": length, "way": way, "ttft_ms": TABLE_3["ttft_ms"][way][i], "flops": TABLE_3["flops"][way][i]}
        for way in MODES
        for i, length in enumerate(TABLE_3["length"])
    ]


OURS = {  # report → candidates without selection; the first one that was measured counts
    "question": ("ours",),
    "recompute": ("ours, random rows, no choice", "ours, in place", "ours"),
    "prefill": ("ours, dense",),
}
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class MeasuredPass:
    """A measured pass: computed tokens, pairs of a token and a key it attends to, milliseconds."""

    work: str
    rows: float
    pairs: float
    ms: float


@dataclass(frozen=True)
class TtftModel:
    """Milliseconds of a pass: `start` + `row` per token + `pair` per pair. `points` are the fitted measurements."""

    start: float
    row: float
    pair: float
    gpu: str = ""
    points: Sequence[MeasuredPass] = ()

    def pass_ms(self, rows: ArrayLike, pairs: ArrayLike) -> Floats:
        """Return the milliseconds of passes, 0 for one without rows."""
        rows, pairs = np.asarray(rows, float), np.asarray(pairs, float)
        return np.where(rows > 0, self.start + self.row * rows + self.pair * pairs, 0.0)

    def prefix(self, cached: ArrayLike, missing: ArrayLike, question: int) -> Floats:
        """Return the times with a prefix cache, in milliseconds.

        The `missing` tokens and the question are computed in one pass after the `cached` ones.
        """
        cached, rows = np.asarray(cached, float), np.asarray(missing, float) + question
        return self.pass_ms(rows, rows * cached + rows**2 / 2)

    def blocks(self, cached: ArrayLike, missing: ArrayLike, question: int, ratio: float, block: int) -> Floats:
        """Return the times of block reuse, in milliseconds.

        Missing blocks of `block` tokens are encoded independently in one separate pass; then the question is computed,
        with `ratio` of the other tokens. Their selection costs one more pass of the question.
        """
        missing = np.asarray(missing, float)
        context = np.asarray(cached, float) + missing
        pairs = question * context + question**2 / 2
        recomputed = ratio * context
        choice = self.pass_ms(question, pairs) if ratio else 0.0
        last = self.pass_ms(question + recomputed, pairs + recomputed * context / 2)
        return self.pass_ms(missing, missing * block / 2) + choice + last

    @property
    def worst_error(self) -> float:
        """Largest relative difference between a measured time and the fit."""
        return max((abs(float(self.pass_ms(p.rows, p.pairs)) / p.ms - 1) for p in self.points), default=0.0)


def fit_ttft(timed: pd.DataFrame | None = None) -> TtftModel:
    """Fit the three non-negative numbers to the measured times, by relative differences.

    `timed`: timings of `workbench bench`; None: the shipped ones. Raises BadInput for fewer than three times.
    """
    found = expand_settings(read().timings("bench") if timed is None else timed, "report")
    of = {name: found[found.report == name] for name in OURS}
    points = [point for name, rows in of.items() for point in _points(name, rows)]
    if len(points) < 3:
        named = ", ".join(name for name, rows in of.items() if len(rows)) or "no reports"
        raise BadInput(f"{len(points)} times in {named}: three numbers need at least 3")
    rows = np.array([[1.0, point.rows, point.pairs] for point in points])
    solution, _ = nnls(rows / np.array([[point.ms] for point in points]), np.ones(len(points)))
    start, row, pair = (float(number) for number in solution)
    return TtftModel(start, row, pair, str(found.device.iloc[0]), tuple(points))


def _points(name: str, timed: pd.DataFrame) -> Iterator[MeasuredPass]:
    for work, rows in timed.groupby("workload", sort=False):
        shape = json.loads(rows.setting.iloc[0])
        if "rows" in shape and shape["rows"] == shape["question"]:
            continue  # without recomputation it equals `question`, which has its own report
        by = dict(zip(rows.candidate, rows.ms, strict=True))
        ms = next((by[who] for who in OURS[name] if who in by), None)
        if ms is not None:
            yield MeasuredPass(f"{name}: {work}", *_size(shape), float(ms))


def _size(shape: Mapping[str, int]) -> tuple[float, float]:
    """Return rows and pairs of a measured request."""
    if "tokens" in shape:
        return shape["tokens"], shape["tokens"] ** 2 / 2
    context, question = shape["context"], shape["question"]
    chosen = shape.get("rows", question) - question  # recomputed context tokens, at any positions
    return question + chosen, question * context + question**2 / 2 + chosen * context / 2

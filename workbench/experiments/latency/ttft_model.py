"""Times to the first token of simulated requests, from times that were measured on a GPU and ship with the package.

    model = fitted()
    model.prefix(cached=…, missing=…, question=50)

A pass takes `start` and a time for every row (its products with the weights) and for every pair of a row and a key it
sees (attention). The three numbers are fitted to the committed reports `question`, `recompute` and `prefill` of
`workbench bench`: one engine, an NVIDIA H200, the shape of Llama-3.1-8B. So baselines are given our engine's times.
All KV that is found lies on the GPU; loading it from elsewhere is not in these times.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import nnls

from workbench.core.errors import BadInput
from workbench.experiments import bench_reports

OURS = {  # report → candidate without a choice of rows, the first that was measured
    "question": ("ours",),
    "recompute": ("ours, random rows, no choice", "ours, in place", "ours"),
    "prefill": ("ours, dense",),
}
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Timed:
    """A measured pass: rows that were computed, pairs of a row and a key it sees, milliseconds."""

    work: str
    rows: float
    pairs: float
    ms: float


@dataclass(frozen=True)
class TtftModel:
    """Milliseconds of a pass: `start` + `row` a row + `pair` a pair. `points` is what it was fitted to."""

    start: float
    row: float
    pair: float
    gpu: str = ""
    points: Sequence[Timed] = ()

    def passed(self, rows: ArrayLike, pairs: ArrayLike) -> Floats:
        """Return the milliseconds of passes, 0 for one without rows."""
        rows, pairs = np.asarray(rows, float), np.asarray(pairs, float)
        return np.where(rows > 0, self.start + self.row * rows + self.pair * pairs, 0.0)

    def prefix(self, cached: ArrayLike, missing: ArrayLike, question: int) -> Floats:
        """Return the times behind a prefix cache, in milliseconds.

        The `missing` tokens and the question are computed in one pass behind the `cached` ones.
        """
        cached, rows = np.asarray(cached, float), np.asarray(missing, float) + question
        return self.passed(rows, rows * cached + rows**2 / 2)

    def blocks(self, cached: ArrayLike, missing: ArrayLike, question: int, ratio: float, block: int) -> Floats:
        """Return the times of block reuse, in milliseconds.

        Missing blocks of `block` tokens are encoded, each by itself, in a pass of their own; then the question is
        computed, with `ratio` of the other tokens. Choosing these costs one more pass of the question, which is
        charged.
        """
        missing = np.asarray(missing, float)
        context = np.asarray(cached, float) + missing
        asked = question * context + question**2 / 2
        recomputed = ratio * context
        choice = self.passed(question, asked) if ratio else 0.0
        last = self.passed(question + recomputed, asked + recomputed * context / 2)
        return self.passed(missing, missing * block / 2) + choice + last

    @property
    def worst(self) -> float:
        """Largest relative difference between a measured time and its fit."""
        return max((abs(float(self.passed(p.rows, p.pairs)) / p.ms - 1) for p in self.points), default=0.0)


def fitted(reports: Mapping[str, Mapping[str, Any]] | None = None) -> TtftModel:
    """Fit the three numbers, none below 0, to the relative differences from the measured times.

    `reports`: of `workbench bench` by name; None: those that ship. Raises BadInput where fewer than three times are
    there.
    """
    read = bench_reports.reports() if reports is None else reports
    points = [point for name in OURS if name in read for point in _points(name, read[name])]
    if len(points) < 3:
        raise BadInput(f"{len(points)} times in {', '.join(read) or 'no reports'}: three numbers need at least 3")
    rows = np.array([[1.0, point.rows, point.pairs] for point in points])
    solved, _ = nnls(rows / np.array([[point.ms] for point in points]), np.ones(len(points)))
    start, row, pair = (float(number) for number in solved)
    return TtftModel(start, row, pair, next(read[name] for name in OURS if name in read)["card"], tuple(points))


def _points(name: str, report: Mapping[str, Any]) -> Iterator[Timed]:
    for work in report["workloads"]:
        shape = work["shape"]
        if "rows" in shape and shape["rows"] == shape["question"]:
            continue  # nothing is computed again: the work of `question`, which has a report of its own
        timed = {one["who"]: one["ms"] for one in work["contestants"] if one.get("ms")}
        ms = next((timed[who] for who in OURS[name] if who in timed), None)
        if ms is not None:
            yield Timed(f"{name}: {work['name']}", *_size(shape), ms)


def _size(shape: Mapping[str, int]) -> tuple[float, float]:
    """Return rows and pairs of a measured request."""
    if "tokens" in shape:
        return shape["tokens"], shape["tokens"] ** 2 / 2
    context, question = shape["context"], shape["question"]
    chosen = shape.get("rows", question) - question  # of the context; they lie anywhere in it
    return question + chosen, question * context + question**2 / 2 + chosen * context / 2

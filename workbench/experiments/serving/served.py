"""Measurements of served questions, and their result rows."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from workbench.experiments.serving.serve_fields import ServeFields
from workbench.metrics.latency import Quantiles, quantiles

REUSE = "reuse"  # method of all rows except baselines
NAMES = {"sync": "sync", "request": "async by request", "layer": "async by layer"}


@dataclass(frozen=True)
class Served:
    """Result of serving questions in one mode of the scheduler, or with a baseline.

    method          "reuse", or the baseline
    seconds         time from the first arrival to the last answer
    ttfts           seconds from arrival to first token of each question
    idle            share of `seconds` in which the engine computed nothing
    hit_rate        share of the context blocks that were found in pages, memory or on disk
    rows_computed   mean number of computed tokens per question, without blocks that are encoded for the cache
    """

    mode: str
    engine: str
    questions: int
    seconds: float
    ttfts: tuple[float, ...]
    idle: float
    hit_rate: float
    rows_computed: float
    method: str = REUSE

    @property
    def name(self) -> str:
        """The mode, or the name of the baseline."""
        return self.mode if self.method == REUSE else self.method

    @property
    def ttft(self) -> Quantiles:
        """Percentiles of the time to first token, in seconds."""
        return quantiles(self.ttfts)

    @property
    def ttft_mean(self) -> float:
        """Mean time to first token, in seconds."""
        return float(np.mean(self.ttfts))

    @property
    def per_second(self) -> float:
        """Answers per second."""
        return self.questions / self.seconds

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        values = asdict(self) | {"per_second": self.per_second, "ttft_s": {"mean": self.ttft_mean} | asdict(self.ttft)}
        return {name: value for name, value in values.items() if name != "ttfts"}


def origin(fields: ServeFields) -> dict[str, Any]:
    """Return the columns that all rows share."""
    names = ("model", "data", "passages", "select", "seed", "dtype")
    shared = {name: value for name in names if (value := getattr(fields, name)) is not None}
    ratio = 0.0 if fields.select == "none" else fields.ratio  # share of recomputed tokens
    return {**shared, "method": REUSE, "mode": "block", "positions": "re-encoded", "ratio": ratio}


def setting(fields: ServeFields) -> dict[str, Any]:
    """Return the options that have no column; {scheduler} is added to each row."""
    return {name: getattr(fields, name) for name in ("rate", "engine", "batch", "loaders", "max_new_tokens")}


def timings(runs: Sequence[Served], setting: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return one row of `results.Timing` per mode: milliseconds to the first token."""
    return [
        {"workload": "first token", "candidate": run.name, **_method(run), "runs": run.questions}
        | {"setting": {**setting, "scheduler": run.mode}}
        | {"ms": 1e3 * run.ttft.p50, "p5": 1e3 * run.ttft.p5, "p95": 1e3 * run.ttft.p95}
        | {"least": 1e3 * min(run.ttfts), "most": 1e3 * max(run.ttfts), "samples": [1e3 * one for one in run.ttfts]}
        for run in runs
    ]


def counts(runs: Sequence[Served], start: str, setting: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return one row of `results.Count` per mode and measure, under the names of the documentation page on serving."""
    rows = []
    for run in runs:
        about = _method(run) | {"kind": start if run.method == REUSE else "", "n": run.questions}
        about["setting"] = {**setting, "scheduler": run.mode}
        values = {"ttft_ms": 1e3 * run.ttft_mean, "ttft_p50": 1e3 * run.ttft.p50, "ttft_p95": 1e3 * run.ttft.p95}
        values |= {"per_second": run.per_second, "idle": run.idle, "reused": run.hit_rate}
        values |= {"rows_computed": run.rows_computed}
        rows += [{**about, "measure": name, "value": value} for name, value in values.items()]
    return rows


def _method(run: Served) -> dict[str, Any]:
    """Return the columns of a baseline's method, which override the shared ones."""
    return {} if run.method == REUSE else {"method": run.method, "mode": "full", "select": "none", "ratio": 0.0}

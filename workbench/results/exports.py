"""Result tables for other tools: flat records for W&B, MLflow or TensorBoard; a figure's data as CSV and LaTeX."""

import base64
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from workbench.results.reader import Results
from workbench.results.schema import METHOD
from workbench.results.summary import scores

CONFIG = ("source", "model", "data", "passages", *METHOD[:-1])
AXES = ("x", "y", "z")
ENDS = {"low": "arrayminus", "high": "array"}


def records(found: Results, experiment: str = "trial") -> Iterator[tuple[str, dict[str, Any], dict[str, float]]]:
    """Yield (name, configuration, metrics) of every trial, as experiment trackers take them.

        for name, config, metrics in results.records(found):
            run = wandb.init(project="kv", name=name, config=config); run.log(metrics); run.finish()
            with mlflow.start_run(run_name=name): mlflow.log_params(config); mlflow.log_metrics(metrics)
            writer = SummaryWriter(name); [writer.add_scalar(k, v) for k, v in metrics.items()]

    Metrics are named `measure`, `measure_low` and `measure_high`; those of one kind of question `kind/measure`.
    """
    table = scores(found.counts(experiment))
    config = [name for name in (*CONFIG, "seed", "training_seed", "device") if name in table]
    for keys, rows in table.groupby(config, sort=False, dropna=False):
        known = {name: value for name, value in zip(config, keys, strict=True) if value == value and value != ""}
        metrics: dict[str, float] = {}
        for row in rows.to_dict("records"):
            before = "" if row["kind"] in ("", "all") else f"{row['kind']}/"
            numbers = {
                name: row[name] for name in row if name not in (*config, "kind", "setting", "experiment", "chunk")
            }
            metrics |= {f"{before}{name}": float(value) for name, value in numbers.items() if value == value}
        yield (
            " ".join(str(known[name]) for name in ("source", "model", "data", "method") if name in known),
            known,
            metrics,
        )


def figure_data(figure: Any) -> pd.DataFrame:
    """Return what a figure draws: a row a point, {trace, x, y, z, low, high, text}; of a table its cells.

    `low` and `high` are the ends of the error bars.
    """
    traces = figure.to_plotly_json()["data"] if hasattr(figure, "to_plotly_json") else figure["data"]
    parts = [_cells(trace) if trace.get("type") == "table" else _points(trace) for trace in traces]
    parts = [part for part in parts if len(part)]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


def latex(table: pd.DataFrame) -> str:
    """Return a table for LaTeX (booktabs), its texts escaped, numbers with four digits."""
    return table.to_latex(index=False, escape=True, na_rep="--", float_format="{:.4g}".format)


def _cells(trace: Mapping[str, Any]) -> pd.DataFrame:
    heads = [_plain(head) for head in _values(trace["header"]["values"])]
    columns = [[_plain(cell) for cell in _values(column)] for column in _values(trace["cells"]["values"])]
    return pd.DataFrame(dict(zip(heads, columns, strict=True)))


def _points(trace: Mapping[str, Any]) -> pd.DataFrame:
    columns = {axis: _values(trace[axis]) for axis in AXES if trace.get(axis) is not None}
    if "z" in columns:  # a map: its cells one below the other
        grid = np.asarray(columns["z"])
        down, across = np.indices(grid.shape[:2])
        return pd.DataFrame(
            {"trace": trace.get("name") or "", "x": across.ravel(), "y": down.ravel(), "z": grid.ravel()}
        )
    if not columns or (length := max(map(len, columns.values()))) == 0 or trace.get("hoverinfo") == "skip":
        return pd.DataFrame()
    made = pd.DataFrame({axis: pd.Series(values) for axis, values in columns.items()}, index=range(length))
    made.insert(0, "trace", trace.get("name") or "")
    for axis in ("x", "y"):
        bars = trace.get(f"error_{axis}") or {}
        if bars.get("array") is not None:
            above, below = (np.asarray(_values(bars.get(key, bars["array"])), float) for key in ("array", "arrayminus"))
            middle = pd.to_numeric(made[axis])
            made["low"], made["high"] = middle - below, middle + above
    return made


def _values(values: Any) -> Sequence[Any]:
    """Return a list of what plotly holds: a list, an array, or an array's bytes."""
    if isinstance(values, Mapping):
        flat = np.frombuffer(base64.b64decode(values["bdata"]), np.dtype(values["dtype"]))
        shape = [int(size) for size in str(values.get("shape", len(flat))).split(",")]
        return flat.reshape(shape).tolist()
    return list(values)


def _plain(text: Any) -> str:
    return str(text).replace("<br>", " ").replace("<b>", "").replace("</b>", "")

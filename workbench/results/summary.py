"""Summaries of result tables with intervals, and exports to other tools."""

import base64
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from workbench.core.errors import BadInput
from workbench.metrics import latency
from workbench.metrics.answers import bootstrap, bootstraps, wilson
from workbench.metrics.paired import difference, mean_over_seeds, over_runs
from workbench.results.reader import Results
from workbench.results.schema import METHOD

RIGHT = ("em", "contains", "faithful", "agree_first", "full_em", "full_contains")  # measures that are 0 or 1
INTERVAL = ["value", "low", "high", "n"]
OF_TRIAL = ("source", "experiment", "model", "data", "passages", *METHOD, "setting", "seed", "training_seed", "device")


def means(answers: pd.DataFrame, measures: Sequence[str], by: Sequence[str]) -> pd.DataFrame:
    """Return columns {by, measure, value, low, high, n}: means over questions with 95% intervals.

    Intervals are Wilson's for measures that are 0 or 1, else bootstrap intervals over questions (seed 0).
    """
    rows: list[dict[str, Any]] = []
    for keys, group in answers.groupby(list(by), sort=False, dropna=False):
        for measure in measures:
            values = group[measure].dropna().astype(float)
            if not len(values):
                continue
            low, high = wilson(values.sum(), len(values)) if measure in RIGHT else bootstrap(values.tolist())
            numbers = {"value": values.mean(), "low": low, "high": high, "n": len(values)}
            rows.append({**dict(zip(by, keys, strict=True)), "measure": measure, **numbers})
    return pd.DataFrame(rows, columns=[*by, "measure", *INTERVAL])


def paired_differences(
    answers: pd.DataFrame,
    baseline: Callable[[pd.DataFrame], Any],
    measure: str,
    by: Sequence[str] = ("method",),
    within: Sequence[str] = (),
) -> pd.DataFrame:
    """Return {by, value, low, high, n, against}: each group's mean difference from the baseline's, by question.

    `baseline` selects rows of `answers` (a mask). Questions that one side lacks are left out; the interval is a paired
    bootstrap's. `within` are columns of `by`, such as the source and the data, whose groups are each compared with
    their own baseline, or left out without one. Raises BadInput if a baseline has a question twice, or none.
    """
    if within:
        groups = [group for _, group in answers.groupby(list(within), sort=False) if baseline(group).any()]
        tables = [paired_differences(group, baseline, measure, by) for group in groups]
        return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=[*by, *INTERVAL])
    base = answers[baseline(answers)].set_index("question")[measure].dropna()
    if base.empty or base.index.duplicated().any():
        what = "no question" if base.empty else f"question {base.index[base.index.duplicated()][0]!r} twice"
        raise BadInput(f"the baseline has {what} with a score {measure!r}: exactly one row a question is needed")
    rows = []
    for keys, group in answers.groupby(list(by), sort=False, dropna=False):
        own = group.set_index("question")[measure].dropna()
        both = own.index.intersection(base.index)
        if len(both):
            gap = difference(own[both].tolist(), base[both].tolist())
            numbers = {"value": gap.mean, "low": gap.low, "high": gap.high, "n": gap.n}
            rows.append({**dict(zip(by, keys, strict=True)), **numbers})
    return pd.DataFrame(rows, columns=[*by, *INTERVAL])


def over_draws(counts: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Return {by, value, low, high, n}: means over draws, one row per seed, with Student's 95% interval."""
    rows = []
    for keys, group in counts.groupby(list(by), sort=False, dropna=False):
        mean, half = mean_over_seeds(group.value)
        numbers = {"value": mean, "low": mean - half, "high": mean + half, "n": len(group)}
        rows.append({**dict(zip(by, keys, strict=True)), **numbers})
    return pd.DataFrame(rows, columns=[*by, *INTERVAL])


def usual_values(rows: pd.DataFrame, columns: Sequence[str]) -> pd.Series:
    """Return the most frequent value of each column."""
    return rows[list(columns)].mode().iloc[0]


def vary_one(rows: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """Return the rows that differ from `usual_values` in at most one of `columns`; a new column `varied` names it."""
    if rows.empty:
        return rows.assign(varied="")
    common = usual_values(rows, columns)
    differs = rows[list(columns)].ne(common)
    few = differs[differs.sum(axis=1) < 2]
    names = [next((f"{name} {rows.at[at, name]}" for name in columns if few.at[at, name]), "usual") for at in few.index]
    return rows.loc[few.index].assign(varied=names)


def scores(counts: pd.DataFrame) -> pd.DataFrame:
    """Return one row per trial and kind of question: the method's fields, and {measure}, {measure}_low, {measure}_high.

    `n` is the largest number of observations of a measure in the row.
    """
    keys = [name for name in (*OF_TRIAL, "kind") if name in counts]
    if counts.empty:
        return pd.DataFrame(columns=[*keys, "n"])
    filled = counts.assign(**{name: counts[name].astype(object).where(counts[name].notna(), "") for name in keys})
    groups = filled.groupby(keys, sort=False)
    rows = filled.assign(row=groups.ngroup()).drop_duplicates(["row", "measure"], keep="last")
    parts = {end: rows.pivot(index="row", columns="measure", values=end) for end in ("value", "low", "high")}
    wide = pd.concat([part.add_suffix("" if end == "value" else f"_{end}") for end, part in parts.items()], axis=1)
    about = rows.groupby("row")[[*keys, "n"]].first().assign(n=rows.groupby("row").n.max())
    table = about.join(wide.dropna(axis=1, how="all"))
    numbers = [name for name in keys if pd.api.types.is_numeric_dtype(counts[name])]
    return table.assign(**{name: pd.to_numeric(table[name]) for name in numbers}).reset_index(drop=True)


def speedups(
    timings: pd.DataFrame,
    baseline: Callable[[pd.DataFrame], pd.Series | None],
    by: Sequence[str] = ("source", "workload"),
) -> pd.DataFrame:
    """Add {value, low, high, against}: how many times as fast a row is as the `baseline` of its workload.

    `baseline` selects one row of a workload's, or None for no comparison. The ends are the slow end of one side over
    the fast end of the other, of their 5 to 95% (of their range with fewer than 20 runs).
    """
    rows = []
    for _, group in timings.groupby(list(by), sort=False):
        slow = baseline(group)
        if slow is None:
            continue
        for row in group.to_dict("records"):
            value, low, high = latency.ratio(slow.to_dict(), row)
            rows.append({**row, "value": value, "low": low, "high": high, "against": slow["candidate"]})
    return pd.DataFrame(rows, columns=[*timings.columns, "value", "low", "high", "against"])


def candidate(name: str) -> Callable[[pd.DataFrame], pd.Series | None]:
    """Return a baseline for `speedups`: the row of the candidate `name`."""
    return lambda rows: next((row for _, row in rows[rows.candidate == name].iterrows()), None)


def fastest(rows: pd.DataFrame) -> pd.Series | None:
    """Return the fastest row as a baseline for `speedups`; None without rows."""
    return rows.loc[rows.ms.idxmin()] if len(rows) else None


def most_frequent(rows: pd.DataFrame, *columns: str) -> pd.DataFrame:
    """Return, for each source, the rows with the most frequent value of each column, weighted by observations.

    A figure that shows one model, data set or ratio then shows the one that was measured most. Rows without a value (a
    method that recomputes nothing has no ratio) are kept.
    """
    for column in columns:
        known = rows[column].notna() & (rows[column] != "")
        counted = rows[known].assign(weight=rows.n.fillna(1)).groupby(["source", column], sort=False).weight.sum()
        most = counted.groupby("source", sort=False).idxmax()
        rows = rows[~known | pd.Series([*zip(rows.source, rows[column], strict=True)], rows.index).isin(most)]
    return rows


def rank_measures(rows: pd.DataFrame, by: str, measure: str) -> pd.DataFrame:
    """Return rows of several measures, grouped by `by`, in order of one measure."""
    order = rows[rows.measure == measure].groupby(by).value.min()
    return rows.assign(rank=rows[by].map(order)).sort_values("rank", kind="stable").drop(columns="rank")


def with_trial_measure(counts: pd.DataFrame, measure: str) -> pd.DataFrame:
    """Add a column with the same trial's `measure` over all questions; rows without one are dropped."""
    keys = [name for name in OF_TRIAL if name in counts]
    own = counts[(counts.measure == measure) & counts.kind.isin(["", "all"])]
    trials, known = ([*frame[keys].astype(str).itertuples(index=False, name=None)] for frame in (counts, own))
    values = dict(zip(known, own.value, strict=True))
    return counts.assign(**{measure: [values.get(trial) for trial in trials]}).dropna(subset=[measure])


def over_seeds(answers: pd.DataFrame, measure: str, by: Sequence[str]) -> pd.DataFrame:
    """Return {by, value, low, high, n, seeds}: means over training runs, as `metrics.paired.over_runs` computes them.

    Prompts of different numbers of passages are never one row: `passages` is added to `by` if the answers have it.
    """
    by = [*by, *(name for name in ("passages",) if name in answers and name not in by)]
    trained = answers[answers.training_seed.notna()]
    of_each = [*by, "training_seed", "question"]
    means = trained.groupby(of_each, sort=False, dropna=False)[measure].mean().dropna().reset_index()
    groups = [(keys, _by_run(rows, measure)) for keys, rows in means.groupby(list(by), sort=False, dropna=False)]
    groups = [(keys, runs) for keys, runs in groups if runs.size]
    ends = iter(bootstraps([run for _, runs in groups for run in runs]))
    found = []
    for keys, runs in groups:
        over = over_runs([(run.mean(), *next(ends)) for run in runs])
        numbers = dict(zip(INTERVAL, (*over, runs.shape[1]), strict=True)) | {"seeds": len(runs)}
        found.append({**dict(zip(by, keys, strict=True)), **numbers})
    return pd.DataFrame(found, columns=[*by, *INTERVAL, "seeds"])


def _by_run(rows: pd.DataFrame, measure: str) -> np.ndarray:
    """Return [training runs, questions answered in all of them], both sorted."""
    seeds, down = np.unique(rows.training_seed.to_numpy(), return_inverse=True)
    questions, across = np.unique(rows.question.to_numpy(dtype=object), return_inverse=True)
    grid = np.full((len(seeds), len(questions)), np.nan)
    grid[down, across] = rows[measure]
    return grid[:, ~np.isnan(grid).any(axis=0)]


CONFIG = ("source", "model", "data", "passages", *METHOD[:-1])
AXES = ("x", "y", "z")


def records(found: Results, experiment: str = "trial") -> Iterator[tuple[str, dict[str, Any], dict[str, float]]]:
    """Yield (name, configuration, metrics) of each trial, in the form that experiment trackers take.

        for name, config, metrics in results.records(found):
            run = wandb.init(project="kv", name=name, config=config); run.log(metrics); run.finish()
            with mlflow.start_run(run_name=name): mlflow.log_params(config); mlflow.log_metrics(metrics)
            writer = SummaryWriter(name); [writer.add_scalar(k, v) for k, v in metrics.items()]

    Metrics are named `measure`, `measure_low` and `measure_high`; for one kind of question, `kind/measure`.
    """
    table = scores(found.counts(experiment))
    config = [name for name in (*CONFIG, "seed", "training_seed", "device") if name in table]
    for keys, rows in table.groupby(config, sort=False, dropna=False):
        known = {name: value for name, value in zip(config, keys, strict=True) if value == value and value != ""}
        metrics: dict[str, float] = {}
        for row in rows.to_dict("records"):
            prefix = "" if row["kind"] in ("", "all") else f"{row['kind']}/"
            numbers = {
                name: row[name] for name in row if name not in (*config, "kind", "setting", "experiment", "chunk")
            }
            metrics |= {f"{prefix}{name}": float(value) for name, value in numbers.items() if value == value}
        yield (
            " ".join(str(known[name]) for name in ("source", "model", "data", "method") if name in known),
            known,
            metrics,
        )


def figure_data(figure: Any) -> pd.DataFrame:
    """Return the data of a figure, one row per point: {trace, panel, x, y, z, low, high, text}; for a table, its cells.

    `panel` is present only with several panels. `low` and `high` are the ends of the error bars. On a category axis, x
    or y is the category's name.
    """
    drawn = figure.to_plotly_json() if hasattr(figure, "to_plotly_json") else figure
    layout = drawn.get("layout", {})
    parts = [_cells(trace) if trace.get("type") == "table" else _points(trace, layout) for trace in drawn["data"]]
    parts = [part for part in parts if len(part)]
    rows = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()
    return rows.drop(columns="panel") if "panel" in rows and rows.panel.nunique() < 2 else rows


def latex(table: pd.DataFrame) -> str:
    """Return a LaTeX table (booktabs) with escaped text and numbers of four digits."""
    return table.to_latex(index=False, escape=True, na_rep="--", float_format="{:.4g}".format)


def _cells(trace: Mapping[str, Any]) -> pd.DataFrame:
    heads = [_plain(head) for head in _values(trace["header"]["values"])]
    columns = [[_plain(cell) for cell in _values(column)] for column in _values(trace["cells"]["values"])]
    return pd.DataFrame(dict(zip(heads, columns, strict=True)))


def _points(trace: Mapping[str, Any], layout: Mapping[str, Any]) -> pd.DataFrame:
    axes = {name: layout.get(f"{name}axis{trace.get(f'{name}axis', name)[1:]}", {}) for name in "xy"}
    columns = {axis: _values(trace[axis]) for axis in AXES if trace.get(axis) is not None}
    if "z" in columns:  # a heatmap: one row per cell
        grid = np.asarray(columns["z"])
        down, across = np.indices(grid.shape[:2])
        return pd.DataFrame(
            {
                "trace": trace.get("name") or "",
                "panel": _panel(axes, layout),
                **{"x": across.ravel(), "y": down.ravel(), "z": grid.ravel()},
            }
        )
    if not columns or (length := max(map(len, columns.values()))) == 0 or trace.get("hoverinfo") == "skip":
        return pd.DataFrame()
    points = pd.DataFrame({axis: pd.Series(values) for axis, values in columns.items()}, index=range(length))
    points.insert(0, "trace", trace.get("name") or "")
    points.insert(1, "panel", _panel(axes, layout))
    for axis in ("x", "y"):
        bars = trace.get(f"error_{axis}") or {}
        if bars.get("array") is not None:
            above, below = (np.asarray(_values(bars.get(key, bars["array"])), float) for key in ("array", "arrayminus"))
            middle = pd.to_numeric(points[axis])
            points["low"], points["high"] = middle - below, middle + above
    for axis in {*columns} & {*axes}:
        points[axis] = _names(points[axis], axes[axis])
    return points


def _names(places: "pd.Series[Any]", axis: Mapping[str, Any]) -> "pd.Series[Any]":
    """Return the tick labels at `places`; along a numeric axis, `places` unchanged."""
    texts, ticks = list(axis.get("ticktext") or ()), list(axis.get("tickvals") or ())
    if not texts or ticks != list(range(len(texts))) or min(axis.get("range") or [0]) > -0.4:
        return places
    return pd.to_numeric(places).round().clip(0, len(texts) - 1).map(lambda at: _plain(texts[int(at)]))


def _panel(axes: Mapping[str, Mapping[str, Any]], layout: Mapping[str, Any]) -> str:
    """Return the title of the panel with these axes; "" if it has none."""
    left, top = axes["x"].get("domain", [0])[0], axes["y"].get("domain", [1])[-1]
    notes = (note for note in layout.get("annotations", ()) if not note.get("name"))
    return next((_plain(note["text"]) for note in notes if (note.get("x"), note.get("y")) == (left, top)), "")


def _values(values: Any) -> Sequence[Any]:
    """Convert Plotly data (a list, an array, or base64-encoded bytes) to a list."""
    if isinstance(values, Mapping):
        flat = np.frombuffer(base64.b64decode(values["bdata"]), np.dtype(values["dtype"]))
        shape = [int(size) for size in str(values.get("shape", len(flat))).split(",")]
        return flat.reshape(shape).tolist()
    return list(values)


def _plain(text: Any) -> str:
    joined = str(text).replace("\u200b<br>", "")  # a word broken by a table
    return joined.replace("<br>", " ").replace("<b>", "").replace("</b>", "")

"""Quality of trials against cost: one mark per trial, one line per method whose ratio was varied.

Also the contents of a store of cached blocks, and what requests found in one.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from workbench.core.errors import BadInput
from workbench.metrics.measures import MEASURES
from workbench.plots.marks import chart
from workbench.plots.marks.method_names import FIELDS, cached, measure_of
from workbench.plots.marks.styles import MODES, SELECTORS, SeriesStyle
from workbench.plots.marks.table import table
from workbench.plots.marks.theme import BLUE, GREEN, INK, ORANGE, RED, escape_text, finish
from workbench.plots.reports.findings import join_words
from workbench.results import scores, with_trial_measure

MOST_LINES = 6  # (model, data) pairs in one figure
QUESTIONS = ["source", "model", "data", "seed", "passages"]  # columns that identify a set of questions
NOTHING = ("", "none")


def trials(counts: pd.DataFrame) -> pd.DataFrame:
    """Return one row per trial and kind of question; `where` names model and data.

    Methods with a sparse method, a correction or an attention rule are dropped: they are not selectors.
    `charged_share` (`metrics.cost`) is nan if a trial lacks it.
    """
    table = scores(counts)
    table = table[_of_selectors(table)]
    table = table if "charged_share" in table else table.assign(charged_share=float("nan"))
    trial = [*QUESTIONS, "method", "mode", "prepare", "select", "ratio"]
    table = table.assign(charged_share=table.groupby(trial, dropna=False).charged_share.transform("max"))
    return table.assign(where=table.model + " on " + table.data)


def _of_selectors(table: pd.DataFrame) -> "pd.Series[bool]":
    return table[["sparse", "correct", "attend"]].isin(NOTHING).all(axis=1)


def with_charged_share(rows: pd.DataFrame, counts: pd.DataFrame) -> pd.DataFrame:
    """Add `charged_share` to rows of `counts`: tokens charged over those of full attention on the same questions.

    Rows without either are dropped; full attention computes every token.
    """
    asked = ["source", "model", "data", "passages"]
    known = counts[(counts.measure == "rows_charged") & counts.kind.isin(["", "all"])]
    full = known[(known["mode"] == "full") & known["sparse"].isin(NOTHING)]
    whole = full.groupby(asked, dropna=False, as_index=False).value.mean().rename(columns={"value": "whole"})
    found = with_trial_measure(pd.concat([rows, known], ignore_index=True), "rows_charged").merge(whole, on=asked)
    found = found[found.measure.isin(rows.measure)]
    return found.assign(charged_share=found.rows_charged / found.whole).drop(columns="whole")


def of_page(table: pd.DataFrame, model: str, data: str) -> pd.DataFrame:
    """Return the trials of a page's model and data if any, else of the MOST_LINES pairs with most trials."""
    own = table[(table.model == model) & (table.data == data)]
    return own if len(own) else table[table["where"].isin(table["where"].value_counts().index[:MOST_LINES])]


def selector_curves(table: pd.DataFrame, prepare: str, least: int = 2) -> pd.DataFrame:
    """Return the points of one curve per selector: reuse at ratio 0, its ratios, and full attention at 1.

    `prepare`: the passages' preprocessing. Sets of questions with fewer than `least` ratios are dropped; a selector
    measured on several sets is drawn on one (`most_asked`).
    """
    reuse = table[(table["mode"] == "block") & (table.prepare == prepare)]
    swept = reuse[~reuse["select"].isin((*NOTHING, "all")) & reuse.ratio.notna()]
    if swept.empty:
        return swept
    ends = [reuse[reuse["select"].isin(NOTHING)].assign(ratio=0.0), table[table["mode"] == "full"].assign(ratio=1.0)]
    parts = [swept]
    for end in ends:
        names = swept[[*QUESTIONS, "kind", "select"]].drop_duplicates()
        own = end.drop(columns="select").drop_duplicates([*QUESTIONS, "kind"])
        parts.append(names.merge(own, on=[*QUESTIONS, "kind"]))
    curves = pd.concat(parts, ignore_index=True).drop_duplicates([*QUESTIONS, "kind", "select", "ratio"])
    enough = curves.groupby([*QUESTIONS, "kind", "select"], dropna=False).ratio.transform("nunique") >= least
    return most_asked(curves[enough], "select")


def most_asked(table: pd.DataFrame, *by: str) -> pd.DataFrame:
    """Return, for every model, data and value of `by`, the rows of the largest set of questions."""
    sets = table.groupby(QUESTIONS, dropna=False)
    size = sets.n.transform("max").fillna(0)
    keys = ["source", "model", "data", *by]
    table = table.assign(size=size, set=sets.ngroup())
    first = table.sort_values("size", ascending=False, kind="stable").groupby(keys, dropna=False).set.transform("first")
    return table[table.set == first.loc[table.index]].drop(columns=["size", "set"])


def at_ratio(table: pd.DataFrame, ratio: float) -> pd.DataFrame:
    """Return full attention, plain reuse and methods at (about) a ratio, or without one."""
    plain = table["select"].isin(NOTHING) | (table["mode"] != "block") | table.ratio.isna()
    return table[plain | ((table.ratio - ratio).abs() < 0.005)]


def with_policy_names(table: pd.DataFrame) -> pd.DataFrame:
    """Add `name` (full attention, the mode, or the selector) and `cached` (the preprocessing in words)."""
    words = table["select"].replace("", "none").map(SELECTORS.name_of)
    words += table["positions"].map({"naive": ", naive positions"}).fillna("")
    known = {"full": "full attention"}
    modes = table["mode"].map(lambda mode: known.get(mode, mode))
    return table.assign(name=words.where(table["mode"] == "block", modes), cached=table.prepare.map(cached))


def plain_reuse(counts: pd.DataFrame) -> pd.DataFrame:
    """Return the counts of full attention and of independently cached blocks, with `name` and `where`."""
    alike = _of_selectors(counts) & counts["select"].isin(NOTHING) & counts.prepare.isin(("", "independent"))
    rows = counts[alike & counts["mode"].isin(("full", "block"))]
    return with_policy_names(rows.assign(where=rows.model + " on " + rows.data))


COSTS = {
    "rows_computed": "tokens computed",
    "ttft_p50": "time to first token (ms)",
    "flops": "operations to the first token",
    "bytes": "bytes to the first token",
    "bytes_loaded": "bytes from the store",
    "ratio": "share of passage tokens recomputed",
}
SCALES = {"ttft_p50": 1e3}
CHOICES = ("model", *(name for name in FIELDS if name != "ratio"))  # the fields of a method, without the ratio


def quality_by_cost(trials: pd.DataFrame, score: str, cost: str) -> go.Figure:
    """Draw a score of trials of one kind of question against a cost, with 95% intervals.

    Raises BadInput if no trial has both."""
    measure = measure_of(score, trials)
    known = trials[trials[score].notna() & trials[cost].notna()]
    if known.empty:
        raise BadInput(f"no trial has both {measure.words.split(',')[0]} and {COSTS[cost]}")
    rows = known.assign(name=method_names(known), source="", **{cost: known[cost] * SCALES.get(cost, 1)})
    looks = {row["name"]: replace(_look(row), name=row["name"]) for _, row in rows.iterrows()}
    lines = sum(len(name) * 7 + 50 for name in looks) // 800 + 1
    figure = chart.lines(
        rows,
        x=cost,
        y=score,
        by="name",
        look=looks.__getitem__,
        x_axis={"title_text": COSTS[cost], "rangemode": "tozero", **({"tickformat": ".0%"} if cost == "ratio" else {})},
        y_axis={"title_text": measure.axis.split(",")[0]},
        percent=measure.percent,
        bars=True,
        lines=lines,
        title=f"{measure.words.split(',')[0]} against {COSTS[cost].split(' (')[0]}",
        notice=best_of(known, score, cost),
        caption=f"95% intervals ({measure.interval}). {len(known):,} trials.",
    )
    assert figure is not None  # there are rows
    return figure


def method_names(trials: pd.DataFrame) -> pd.Series:
    """Return the name of every trial's method: the fields that differ among the trials, without the ratio."""
    differing = [name for name in CHOICES if name in trials and trials[name].astype(str).nunique() > 1]
    return trials.apply(lambda row: _name(row, differing), axis=1) if len(trials) else pd.Series(dtype=str)


def _name(row: pd.Series, differing: list[str]) -> str:
    if row["mode"] == "full":
        words = ["full attention"]
    else:
        words = [str(row["prepare"])] if "prepare" in differing or "select" not in differing else []
        words += [SELECTORS.name_of(str(row["select"]))] if "select" in differing else []
        words += (
            [f"{row['positions']} positions"] if "positions" in differing and row["positions"] != "re-encoded" else []
        )
    words += [str(row[name]) for name in ("correct", "attend", "sparse") if name in differing and row[name] != "none"]
    if "chunk" in differing and row["chunk"] == row["chunk"] and row["chunk"]:
        words.append(f"chunks of {int(row['chunk'])}")
    model = str(row["model"]).rstrip("/").rpartition("/")[2]
    return ", ".join(([model] if "model" in differing else []) + words)


def _look(row: pd.Series) -> SeriesStyle:
    return MODES["full"] if row["mode"] == "full" else SELECTORS.of(str(row["select"]))


def best_of(trials: pd.DataFrame, score: str, cost: str) -> str:
    """Name the trial with the highest score, and the cheapest one whose interval includes that score."""
    measure = MEASURES[score]
    lower = measure.better == "lower"
    ordered = trials.assign(name=method_names(trials)).sort_values(score, ascending=lower)
    best = ordered.iloc[0]
    reach = (
        ordered[ordered[f"{score}_low"] <= best[score]] if lower else ordered[ordered[f"{score}_high"] >= best[score]]
    )
    cheap = reach.sort_values(cost).iloc[0]
    parts = [f"Best is {_at(best)} with {measure.format_value(best[score])}"]
    if cheap.name != best.name and cheap[cost] < best[cost]:
        share = cheap[cost] / best[cost] if best[cost] else 1
        parts.append(
            f"{_at(cheap)} reaches it within its interval ({measure.format_value(cheap[score])}) "
            f"at {share:.0%} of the cost"
        )
        return f"{join_words(parts)}."
    return f"{parts[0]}; no cheaper trial reaches it within its interval."


def _at(row: pd.Series) -> str:
    ratio = row.get("ratio")
    return row["name"] + (f" at {ratio:.0%}" if ratio is not None and ratio == ratio else "")


MOST = 400  # requests drawn individually; more are averaged
LOOKS = {"reused": BLUE, "recomputed": ORANGE, "encoded": RED, "computed": INK, "question": GREEN}
TIERS = {"memory": BLUE, "disk": ORANGE, "remote": RED}


def store_contents(found: Mapping[str, Any]) -> go.Figure:
    """Draw the contents of a store: `found` is from `store.files.scrub.describe`."""
    rows = [
        [name, f"{found[name]:,}"] for name in ("blocks", "tokens", "files", "bytes") if found.get(name) is not None
    ]
    rows += [[str(name), str(value)] for name, value in found["kind"].items()]
    rows += [["made with", ", ".join(f"{name} {value}" for name, value in each.items())] for each in found["made"]]
    aside = found["set_aside"]
    rows += [[f"{each['kind']}: {each['file']}", str(each["detail"])] for each in aside[:10]]
    each = found["bytes"] / found["blocks"] / 1e6 if found["blocks"] else 0
    return table(
        ["what", "value"],
        rows,
        widths=[1, 2.6],
        words=2,
        title=f"{found['folder']}",
        caption=f"{each:.2f} MB a block; {len(aside)} files were quarantined as damaged or foreign. From the "
        "file headers; `workbench store verify` reads every block.",
    )


def requests_of(receipts: Sequence[Mapping[str, Any]], unit: str, name: str, misses: Counter[str]) -> go.Figure:
    """Draw what every request reused, recomputed and encoded: `receipts` of a record; `unit` blocks, tokens or bytes.

    Above 400 requests, consecutive ones are averaged.
    """
    counts = {key: np.array(values, float) for key, values in _counts(receipts, unit).items()}
    groups = np.array_split(np.arange(len(receipts)), min(MOST, len(receipts)))
    fig = go.Figure()
    for key, values in counts.items():
        heights = [float(values[group].mean()) for group in groups]
        colour = LOOKS.get(key) or TIERS.get(key, BLUE)
        marker = {"color": colour, "line": {"width": 0}}
        fig.add_bar(x=[int(group[0]) for group in groups], y=heights, name=escape_text(key), marker=marker)
    fig.update_layout(barmode="stack", bargap=0.05)
    fig.update_xaxes(title_text="request")
    fig.update_yaxes(title_text=f"{unit} per request", rangemode="tozero")
    total = sum(float(values.sum()) for values in counts.values()) or 1.0
    parts = [f"{values.sum() / total:.0%} {key}" for key, values in counts.items() if values.sum()]
    reasons = [f"{count:,} {reason}" for reason, count in misses.most_common()]
    return finish(
        fig,
        title="Store lookups of the requests",
        caption=f"{name}; {len(receipts):,} requests, from their reports. Of all {unit}: {', '.join(parts) or 'none'}. "
        f"Misses: {', '.join(reasons) or 'none'}.",
        height=280,
        legend=6,
    )


def _counts(receipts: Sequence[Mapping[str, Any]], unit: str) -> dict[str, list[float]]:
    """Return one number per request by block status, or by tier if bytes are counted."""
    found: list[Counter[str]] = []
    for each in receipts:
        counter: Counter[str] = Counter()
        for block in each["receipt"]["blocks"]:
            if unit == "bytes":
                if block.get("bytes"):
                    counter[block.get("tier") or "memory"] += block["bytes"]
            elif unit == "blocks":
                counter[block["status"]] += 1
            else:
                again = block.get("recomputed", 0)
                counter[block["status"]] += block["tokens"] - again
                counter["recomputed"] += again
        if unit == "tokens":
            counter["question"] += each["receipt"]["question"]
        found.append(counter)
    keys = dict.fromkeys(key for counter in found for key in counter)
    return {key: [float(counter[key]) for counter in found] for key in keys}

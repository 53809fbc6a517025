"""Quality of any trials against what they cost: a mark a trial, a line a method whose ratio was varied.

And what a store of cached blocks holds, and what requests found in one.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from workbench.plots.marks.line_styles import family_looks
from workbench.plots.marks.lines import Panel, Series, line_chart
from workbench.plots.marks.measures import MEASURES, measure_of
from workbench.plots.marks.method_names import FIELDS
from workbench.plots.marks.styles import MODES, SELECTORS, Look
from workbench.plots.marks.table import table
from workbench.plots.marks.theme import BLUE, GREEN, INK, ORANGE, RED, escaped, finish
from workbench.plots.reports.findings import joined

COSTS = {
    "rows_computed": "tokens computed",
    "ttft_p50": "time to first token (ms)",
    "flops": "operations to the first token",
    "bytes": "bytes to the first token",
    "bytes_loaded": "bytes from the store",
    "ratio": "share of document tokens recomputed",
}
SCALES = {"ttft_p50": 1e3}
CHOICES = ("model", *(name for name in FIELDS if name != "ratio"))  # what makes a method, but the ratio


def quality_by_cost(trials: pd.DataFrame, score: str, cost: str) -> go.Figure:
    """Draw a score of trials of one kind of question against a cost, with 95% intervals."""
    measure = measure_of(score, trials)
    known = trials[trials[score].notna() & trials[cost].notna()]
    groups = [(name, part.sort_values(cost)) for name, part in known.groupby(method_names(known), sort=False)]
    looks = family_looks([(name, _look(part.iloc[0])) for name, part in groups])
    lines = []
    for name, part in groups:
        x, y = (part[cost] * SCALES.get(cost, 1)).tolist(), part[score].tolist()
        low, high = part[f"{score}_low"].tolist(), part[f"{score}_high"].tolist()
        mode = "lines+markers" if len(x) > 1 else "markers"
        form = ".1%" if measure.percent else ".3g"
        hover = f"{COSTS[cost]} %{{x:.3g}}: %{{y:{form}}}"
        lines.append(Series(name, x, y, low, high, hover, look=looks[name], size=8, mode=mode))
    across = {"title_text": COSTS[cost], "rangemode": "tozero", **({"tickformat": ".0%"} if cost == "ratio" else {})}
    up = {"title_text": measure.axis.split(",")[0], **({"tickformat": ".0%"} if measure.percent else {})}
    panel = Panel("", lines, across, up)
    asked = int(known.n.max()) if len(known) and "n" in known else 0
    caption = f"n = {asked:,} questions; 95% intervals ({measure.interval}). {len(known):,} trials."
    rows = sum(len(name) * 7 + 50 for name, _ in groups) // 800 + 1
    title = f"{measure.words.split(',')[0]} against {COSTS[cost].split(' (')[0]}"
    notice = best_of(known, score, cost)
    return line_chart([panel], lines=rows, bars=True, title=title, notice=notice, caption=caption)


def method_names(trials: pd.DataFrame) -> pd.Series:
    """Return what the method of every trial is called: the choices that differ among the trials, the ratio left out."""
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


def _look(row: pd.Series) -> Look:
    return MODES["full"] if row["mode"] == "full" else SELECTORS.of(str(row["select"]))


def best_of(trials: pd.DataFrame, score: str, cost: str) -> str:
    """Say which trial scores best, and the cheapest one whose interval reaches it."""
    measure = MEASURES[score]
    if not len(trials):
        return "No trial has both."
    lower = measure.better == "lower"
    ordered = trials.assign(name=method_names(trials)).sort_values(score, ascending=lower)
    best = ordered.iloc[0]
    reach = (
        ordered[ordered[f"{score}_low"] <= best[score]] if lower else ordered[ordered[f"{score}_high"] >= best[score]]
    )
    cheap = reach.sort_values(cost).iloc[0]
    parts = [f"Best is {_at(best)} with {measure.say(best[score])}"]
    if cheap.name != best.name and cheap[cost] < best[cost]:
        share = cheap[cost] / best[cost] if best[cost] else 1
        parts.append(
            f"{_at(cheap)} reaches it within its interval ({measure.say(cheap[score])}) at {share:.0%} of the cost"
        )
        return f"{joined(parts)}."
    return f"{parts[0]}; none that costs less reaches it within its interval."


def _at(row: pd.Series) -> str:
    ratio = row.get("ratio")
    return row["name"] + (f" at {ratio:.0%}" if ratio is not None and ratio == ratio else "")


MOST = 400  # requests that are drawn one by one; more are joined
LOOKS = {"reused": BLUE, "recomputed": ORANGE, "encoded": RED, "computed": INK, "question": GREEN}
TIERS = {"memory": BLUE, "disk": ORANGE, "remote": RED}


def held(found: Mapping[str, Any]) -> go.Figure:
    """Draw what a store holds: `found` as of `store.files.scrub.describe`."""
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
        caption=f"{each:.2f} MB a block; {len(aside)} files were set aside as damaged or foreign. By the headers "
        "of its files; `workbench store verify` reads every block.",
    )


def requests_of(receipts: Sequence[Mapping[str, Any]], unit: str, name: str, misses: Counter[str]) -> go.Figure:
    """Draw what every request reused, recomputed and encoded: `receipts` of a record; `unit` blocks, tokens or bytes.

    Over 400 requests, neighbours are joined by their mean.
    """
    counts = {key: np.array(values, float) for key, values in _counts(receipts, unit).items()}
    groups = np.array_split(np.arange(len(receipts)), min(MOST, len(receipts)))
    fig = go.Figure()
    for key, values in counts.items():
        heights = [float(values[group].mean()) for group in groups]
        colour = LOOKS.get(key) or TIERS.get(key, BLUE)
        marker = {"color": colour, "line": {"width": 0}}
        fig.add_bar(x=[int(group[0]) for group in groups], y=heights, name=escaped(key), marker=marker)
    fig.update_layout(barmode="stack", bargap=0.05)
    fig.update_xaxes(title_text="request")
    fig.update_yaxes(title_text=f"{unit} a request", rangemode="tozero")
    total = sum(float(values.sum()) for values in counts.values()) or 1.0
    parts = [f"{values.sum() / total:.0%} {key}" for key, values in counts.items() if values.sum()]
    reasons = [f"{count:,} {reason}" for reason, count in misses.most_common()]
    return finish(
        fig,
        title="What requests found in the store",
        caption=f"{name}; {len(receipts):,} requests, by their receipts. Of all {unit}: {', '.join(parts) or 'none'}. "
        f"Misses: {', '.join(reasons) or 'none'}.",
        height=280,
        legend=6,
    )


def _counts(receipts: Sequence[Mapping[str, Any]], unit: str) -> dict[str, list[float]]:
    """Return a number a request by status of its blocks, or by tier where bytes are counted."""
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

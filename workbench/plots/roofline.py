"""Work done in a second against work done per byte: every measurement under the two ceilings of its device."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10
from typing import Any, Unpack

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from workbench.experiments.bench_reports import FEEDS
from workbench.experiments.ttft import WORK
from workbench.plots.styles import BASELINES, SYMBOLS
from workbench.plots.theme import INK, MUTED, PAPER, RULE, Texts, finish, panel_titles


@dataclass(frozen=True)
class Roofs:
    """One device: bytes and operations a second that it reaches, and what was measured on it.

    `points`: {kind, name (who made it), who, work, intensity (operations a byte), flops (operations a second), ms,
    share of the roof}.
    """

    name: str
    copy: float
    product: float
    points: Sequence[Mapping[str, Any]]


def of_reports(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the points of a table of reports (`bench_reports.table`); attention that a choice feeds is other work."""
    measured = rows[rows.who != FEEDS].dropna(subset=["ms"])
    points = measured[["report", "work", "who", "intensity", "ms", "share"]].rename(columns={"report": "kind"})
    rates = measured.flops / measured.ms * 1e3
    return points.assign(name=measured.who.map(BASELINES.maker), flops=rates).to_dict("records")


def of_requests(records: Sequence[Mapping[str, Any]], copy: float, product: float) -> list[dict[str, Any]]:
    """Return the points of times to the first token (`ttft.by_length`) on a device with these ceilings."""
    kinds = {"full": "full prefill", "block": "question over blocks", "recompute": "some recomputed"}
    points = []
    for r in records:
        least = max(r["flops"] / product, r["bytes"] / copy)  # seconds
        point = {"kind": kinds[WORK[r["way"]]], "who": r["way"], "work": f"{r['length']:,} tokens"}
        point |= {"intensity": r["flops"] / r["bytes"], "flops": r["flops"] / r["p50"]}
        point |= {"ms": r["p50"] * 1e3, "share": least / r["p50"]}
        points.append({**point, "name": "transformers" if r["way"].startswith("stock") else "ours"})
    return points


def roofline(panels: Sequence[Roofs], colours: Mapping[str, str], **texts: Unpack[Texts]) -> go.Figure:
    """Draw a panel a device. The colour is by `name` (who made it), the symbol by `kind` (of work)."""
    fig = make_subplots(1, len(panels), horizontal_spacing=0.11, subplot_titles=[panel.name for panel in panels])
    kinds = list(dict.fromkeys(point["kind"] for panel in panels for point in panel.points))
    names = list(dict.fromkeys(point["name"] for panel in panels for point in panel.points))
    symbols = {kind: SYMBOLS[i % len(SYMBOLS)] for i, kind in enumerate(kinds)}
    for col, panel in enumerate(panels, 1):
        _ceilings(fig, panel, col)
        for name in names:
            points = [point for point in panel.points if point["name"] == name]
            if points:
                fig.add_trace(_points(name, points, colours.get(name, MUTED), symbols), row=1, col=col)
    for name in names:
        fig.add_trace(_legend_entry(name, colours.get(name, MUTED), "circle"), row=1, col=1)
    for kind in kinds:
        fig.add_trace(_legend_entry(kind, PAPER, symbols[kind], MUTED), row=1, col=1)
    fig.update_layout(legend_itemclick=False, legend_itemdoubleclick=False)
    panel_titles(fig)
    above = 50 + 20 * -(-(len(names) + len(kinds)) // 5)  # five to a line of the legend
    return finish(fig, height=360, above=above, below=58, left=80, legend=26, **texts)


def _ceilings(fig: go.Figure, panel: Roofs, col: int) -> None:
    """Draw both ceilings with their numbers, and set the axes so that all points lie within."""
    place = {"row": 1, "col": col}
    ridge = panel.product / panel.copy
    xs = [point["intensity"] for point in panel.points] + [ridge]
    ys = [point["flops"] for point in panel.points] + [panel.product]
    left, right = 10 ** floor(log10(min(xs) / 1.5)), 10 ** ceil(log10(max(xs) * 1.5))
    bottom = 10 ** floor(log10(min([*ys, left * panel.copy]) / 1.2))
    roof = {"x": [left, ridge, right], "y": [left * panel.copy, panel.product, panel.product]}
    form = {"mode": "lines", "hoverinfo": "skip", "showlegend": False}
    fig.add_scatter(**roof, **form, line={"color": INK, "width": 1.6}, **place)
    dotted = {"color": RULE, "width": 1, "dash": "dot"}
    fig.add_scatter(x=[ridge, ridge], y=[bottom, panel.product], **form, line=dotted, **place)
    powers = {"type": "log", "dtick": 1, "exponentformat": "power"}
    fig.update_xaxes(title_text="operations a byte (FLOP/B)", range=[log10(left), log10(right)], **powers, **place)
    ends = [log10(bottom), log10(panel.product) + 0.35]
    fig.update_yaxes(title_text="operations a second (FLOP/s)", range=ends, **powers, **place)
    low = left * (ridge / left) ** 0.12
    font = {"size": 11, "color": INK}
    for x, y, text, anchors in (
        (right, panel.product, f"matrix product {si(panel.product)}FLOP/s", ("right", "bottom", -4, 2)),
        (low, low * panel.copy, f"copy {si(panel.copy)}B/s", ("left", "top", 8, 0)),
    ):
        shift = dict(zip(("xanchor", "yanchor", "xshift", "yshift"), anchors, strict=True))
        fig.add_annotation(x=log10(x), y=log10(y), text=text, showarrow=False, font=font, **shift, **place)


def _points(name: str, points: Sequence[Mapping[str, Any]], colour: str, symbols: Mapping[str, str]) -> go.Scatter:
    shapes = [symbols[point["kind"]] for point in points]
    data = [[p["kind"], p["work"], p["ms"], si(p["flops"] / p["intensity"]), p["share"], p["who"]] for p in points]
    return go.Scatter(
        x=[point["intensity"] for point in points],
        y=[point["flops"] for point in points],
        mode="markers",
        name=name,
        showlegend=False,
        marker={"color": colour, "size": 9, "symbol": shapes, "line": {"color": PAPER, "width": 0.8}},
        customdata=data,
        hovertemplate="<b>%{customdata[0]}</b>, %{customdata[1]}<br>%{customdata[2]:.3g} ms: %{y:.3s}FLOP/s, "
        "%{customdata[3]}B/s, %{customdata[4]:.0%} of the roof<extra>%{customdata[5]}</extra>",
    )


def _legend_entry(name: str, colour: str, symbol: str, edge: str = "") -> go.Scatter:
    marker = {"color": colour, "size": 9, "symbol": symbol, "line": {"color": edge or colour, "width": 1.4}}
    return go.Scatter(x=[None], y=[None], mode="markers", name=name, marker=marker, hoverinfo="skip")


def si(value: float) -> str:
    """Return three digits with the letter of their unit: 4.3e12 → "4.3 T"."""
    for letter, scale in (("T", 1e12), ("G", 1e9), ("M", 1e6)):
        if value >= scale:
            return f"{value / scale:.3g} {letter}"
    return f"{value:.3g} "

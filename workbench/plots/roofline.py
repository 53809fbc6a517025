"""Work done in a second against work done per byte: every measurement under the two ceilings of its device."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from workbench.experiments.bench_reports import FEEDS
from workbench.experiments.ttft import WORK
from workbench.plots.looks import BASELINES, SYMBOLS
from workbench.plots.theme import INK, MUTED, PAPER, RULE, finish, legend_over, panel_titles


@dataclass(frozen=True)
class Roofs:
    """One device: bytes and operations a second that it reaches, and `points`: {kind, name (who made it), who, work,
    intensity (operations a byte), flops (operations a second), ms, share of the roof}."""

    name: str
    copy: float
    product: float
    points: Sequence[Mapping]


def of_reports(rows: pd.DataFrame) -> list[dict]:
    """Points of a table of reports (`timings.table`); attention that a choice feeds is other work."""
    return [
        {
            "kind": r.report, "name": BASELINES.maker(r.who), "work": r.work, "who": r.who, "intensity": r.intensity,
            "flops": r.flops / r.ms * 1e3, "ms": r.ms, "share": r.share,
        }
        for r in rows[rows.who != FEEDS].dropna(subset=["ms"]).itertuples()
    ]  # fmt: skip


def of_requests(records: Sequence[Mapping], copy: float, product: float) -> list[dict]:
    """Points of times to the first token (`ttft.by_length`) on a device with these ceilings."""
    kinds = {"full": "full prefill", "block": "question over blocks", "recompute": "some computed again"}
    found = []
    for r in records:
        floor = max(r["flops"] / product, r["bytes"] / copy)
        found.append(
            {
                "kind": kinds[WORK[r["way"]]], "name": "transformers" if r["way"].startswith("stock") else "ours",
                "work": f"{r['length']:,} tokens", "who": r["way"], "intensity": r["flops"] / r["bytes"],
                "flops": r["flops"] / r["p50"], "ms": r["p50"] * 1e3, "share": floor / r["p50"],
            }
        )  # fmt: skip
    return found


def roofline(
    panels: Sequence[Roofs], colours: Mapping[str, str], *, title: str, caption: str, notice: str
) -> go.Figure:
    """A panel a device. Colour is by `name` (who), symbol by `kind` (what)."""
    fig = make_subplots(1, len(panels), horizontal_spacing=0.11, subplot_titles=[panel.name for panel in panels])
    kinds = list(dict.fromkeys(point["kind"] for panel in panels for point in panel.points))
    names = list(dict.fromkeys(point["name"] for panel in panels for point in panel.points))
    symbols = {kind: SYMBOLS[i % len(SYMBOLS)] for i, kind in enumerate(kinds)}
    for col, panel in enumerate(panels, 1):
        _ceilings(fig, panel, col)
        for name in names:
            part = [point for point in panel.points if point["name"] == name]
            if part:
                fig.add_trace(_points(name, part, colours.get(name, MUTED), symbols), row=1, col=col)
    for name in names:
        fig.add_trace(_key(name, colours.get(name, MUTED), "circle"), row=1, col=1)
    for kind in kinds:
        fig.add_trace(_key(kind, PAPER, symbols[kind], MUTED), row=1, col=1)
    height = 360
    fig.update_layout(legend=legend_over(height, 26, itemclick=False, itemdoubleclick=False))
    panel_titles(fig)
    above = 50 + 20 * -(-(len(names) + len(kinds)) // 5)  # five to a line of the legend
    return finish(fig, title=title, notice=notice, caption=caption, height=height, above=above, below=58, left=80)


def _ceilings(fig: go.Figure, panel: Roofs, col: int) -> None:
    ridge = panel.product / panel.copy
    xs = [point["intensity"] for point in panel.points] + [ridge]
    ys = [point["flops"] for point in panel.points] + [panel.product]
    left, right = 10 ** (floor(log10(min(xs) / 1.5))), 10 ** (ceil(log10(max(xs) * 1.5)))
    bottom = 10 ** (floor(log10(min([*ys, left * panel.copy]) / 1.2)))
    fig.add_trace(
        go.Scatter(
            x=[left, ridge, right], y=[left * panel.copy, panel.product, panel.product], mode="lines",
            line={"color": INK, "width": 1.6}, hoverinfo="skip", showlegend=False,
        ),
        row=1, col=col,
    )  # fmt: skip
    fig.add_trace(
        go.Scatter(
            x=[ridge, ridge], y=[bottom, panel.product], mode="lines", hoverinfo="skip", showlegend=False,
            line={"color": RULE, "width": 1, "dash": "dot"},
        ),
        row=1, col=col,
    )  # fmt: skip
    fig.update_xaxes(
        type="log", range=[log10(left), log10(right)], dtick=1, exponentformat="power",
        title_text="operations a byte (FLOP/B)", row=1, col=col,
    )  # fmt: skip
    fig.update_yaxes(
        type="log", range=[log10(bottom), log10(panel.product) + 0.35], dtick=1, exponentformat="power",
        title_text="operations a second (FLOP/s)", row=1, col=col,
    )  # fmt: skip
    low = left * (ridge / left) ** 0.12
    said = ((right, panel.product, f"matrix product {si(panel.product)}FLOP/s", "right", "bottom", -4, 2),
            (low, low * panel.copy, f"copy {si(panel.copy)}B/s", "left", "top", 8, 0))  # fmt: skip
    for x, y, text, side, edge, over, up in said:
        fig.add_annotation(
            x=log10(x), y=log10(y), text=text, xanchor=side, yanchor=edge, showarrow=False, xshift=over, yshift=up,
            font={"size": 11, "color": INK}, row=1, col=col,
        )  # fmt: skip


def _points(name: str, part: Sequence[Mapping], colour: str, symbols: Mapping[str, str]) -> go.Scatter:
    return go.Scatter(
        x=[point["intensity"] for point in part],
        y=[point["flops"] for point in part],
        mode="markers",
        name=name,
        showlegend=False,
        marker={
            "color": colour, "size": 9, "symbol": [symbols[point["kind"]] for point in part],
            "line": {"color": PAPER, "width": 0.8},
        },
        customdata=[
            [
                point["kind"], point["work"], point["ms"], si(point["flops"] / point["intensity"]), point["share"],
                point["who"],
            ]
            for point in part
        ],
        hovertemplate="<b>%{customdata[0]}</b>, %{customdata[1]}<br>%{customdata[2]:.3g} ms: %{y:.3s}FLOP/s, "
        "%{customdata[3]}B/s, %{customdata[4]:.0%} of the roof<extra>%{customdata[5]}</extra>",
    )  # fmt: skip


def _key(name: str, colour: str, symbol: str, edge: str = "") -> go.Scatter:
    marker = {"color": colour, "size": 9, "symbol": symbol, "line": {"color": edge or colour, "width": 1.4}}
    return go.Scatter(x=[None], y=[None], mode="markers", name=name, marker=marker, hoverinfo="skip")


def si(value: float) -> str:
    """4.3e12 → "4.3 T"."""
    for letter, scale in (("T", 1e12), ("G", 1e9), ("M", 1e6)):
        if value >= scale:
            return f"{value / scale:.3g} {letter}"
    return f"{value:.3g} "

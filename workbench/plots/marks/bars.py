"""Horizontal bars of several colours in rows: stacked, side by side or at places of their own."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Unpack

import plotly.graph_objects as go

from workbench.plots.marks.styles import STAGE_COLOURS
from workbench.plots.marks.theme import INK, PAPER, Texts, finish


@dataclass(frozen=True)
class Bars:
    """Bars of one colour, one in each of N rows.

    `hover` is what a bar says, with `data` as plotly's customdata; `more` are further settings of plotly's bars.
    """

    name: str
    colour: str
    rows: Sequence[Any]
    values: Sequence[float | None]
    hover: str
    data: Sequence[Any] | None = None
    more: Mapping[str, Any] = field(default_factory=dict)


def bar_chart(
    bars: Sequence[Bars],
    *,
    height: int,
    x: Mapping[str, Any],
    y: Mapping[str, Any],
    mode: str = "stack",
    gap: float = 0.35,
    above: int = 40,
    below: int = 58,
    left: int = 72,
    right: int = 24,
    ends: Sequence[tuple[Any, str, Mapping[str, Any]]] = (),
    **texts: Unpack[Texts],
) -> go.Figure:
    """Draw horizontal bars under one legend.

    height     of the plot area, px
    x, y       plotly's settings of the axes
    mode, gap  plotly's barmode and bargap
    ends       (row, text, place) of texts that stand behind bars
    """
    fig = go.Figure()
    for each in bars:
        marker = {"color": each.colour, **each.more.get("marker", {})}
        values = {"y": list(each.rows), "x": list(each.values), "customdata": each.data, "hovertemplate": each.hover}
        fig.add_bar(orientation="h", name=each.name, **values, **{**each.more, "marker": marker})
    for row, text, place in ends:
        fig.add_annotation(y=row, text=text, xanchor="left", showarrow=False, **place)
    fig.update_xaxes(**x)
    fig.update_yaxes(**y)
    fig.update_layout(barmode=mode, bargap=gap, legend_traceorder="normal")
    return finish(fig, height=height, above=above, below=below, left=left, right=right, legend=6, **texts)


EDGE = {"line": {"color": PAPER, "width": 1}}  # of bars that touch


def breakdown(bars: Mapping[str, Mapping[str, float]], stages: Mapping[str, str], **texts: Unpack[Texts]) -> go.Figure:
    """Draw where the time goes: `bars` method → stage → seconds; `stages`: stage → its name, in the order drawn."""
    rows, totals = list(bars), {row: sum(seconds.values()) * 1e3 for row, seconds in bars.items()}
    longest = max(totals.values())
    drawn = []
    for stage, name in stages.items():
        values = [bars[row].get(stage, 0.0) * 1e3 for row in rows]
        shares = [value / totals[row] if totals[row] else 0.0 for row, value in zip(rows, values, strict=True)]
        labels = [spoken(value, "") if value > 0.06 * longest else "" for value in values]
        font = {"size": 11, "color": PAPER if stage in ("choose", "attend") else INK}
        label = {"text": labels, "textposition": "inside", "insidetextanchor": "middle", "textangle": 0}
        hover = f"<b>%{{y}}</b><br>{name}: %{{x:.3g}} ms, %{{customdata:.0%}}<extra></extra>"
        more = {**label, "textfont": font, "marker": EDGE}
        drawn.append(Bars(name, STAGE_COLOURS[stage], rows, values, hover, shares, more))
    return bar_chart(
        drawn,
        height=34 * len(rows) + 16,
        gap=0.28,
        below=52,
        left=40 + 7 * max(map(len, rows)),
        right=40,
        x={"title_text": "milliseconds to the first token", "range": [0, 1.14 * longest]},
        y={"categoryorder": "array", "categoryarray": rows[::-1], "ticks": "", "showgrid": False},
        ends=[(row, f"<b>{spoken(totals[row])}</b>", {"x": totals[row], "xshift": 6}) for row in rows],
        **texts,
    )


def listed(stages: Mapping[str, str], seconds: Mapping[str, float]) -> str:
    """List the stages by how much they take, for a sentence: "attention 62%, …"."""
    total = sum(seconds.values()) or 1.0
    ordered = sorted(stages, key=lambda stage: -seconds.get(stage, 0.0))
    return ", ".join(f"{stages[stage]} {seconds.get(stage, 0.0) / total:.0%}" for stage in ordered)


def spoken(milliseconds: float, unit: str = " ms") -> str:
    """Return three digits: "7.87 ms", "1,430 ms"."""
    return (f"{milliseconds:,.0f}" if milliseconds >= 100 else f"{milliseconds:.3g}") + unit

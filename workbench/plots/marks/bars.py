"""Dot plots and horizontal bars: stacked, side by side or at given positions."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import floor
from typing import Any, Unpack

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from workbench.plots.marks.elements import interval
from workbench.plots.marks.styles import SeriesStyle
from workbench.plots.marks.theme import (
    FAINT,
    INK,
    LETTER,
    NARROW_PAGE,
    PAPER,
    SMALLEST,
    WIDTH,
    Texts,
    clear,
    finish,
    legend_lines,
    log_ticks,
    panel_titles,
)

CLOSE = 120  # px; in narrower panels, axis labels would touch those of the next panel
ALIKE = 0.05  # margin of a share axis on which all values are equal


@dataclass(frozen=True)
class Column:
    """One panel of `dots`: records {name, series, mean, low, high} and the name of their values.

    A dotted line is drawn at `level`. Values are shares, shown in percent, or nats. `log`: logarithmic axis; `whole`:
    axis from 0 to 100%.
    """

    title: str
    axis: str
    rows: Sequence[Mapping[str, Any]]
    percent: bool = False
    level: float | None = None
    log: bool = False
    whole: bool = False


def dots(
    columns: Sequence[Column],
    looks: Mapping[str, SeriesStyle],
    *,
    spread: bool = False,
    lines: int = 1,
    named: bool = True,
    row: int | None = None,
    **texts: Unpack[Texts],
) -> go.Figure:
    """Draw values of many methods in panels side by side: one row per name, with one mark per series.

    looks    series → colour, symbol and name, in the legend's order
    spread   the marks of a row are drawn below one another, not on one line
    lines    number of lines of the legend
    named    whether there is a legend
    row      px of a row; default: what its marks need
    """
    names = list(dict.fromkeys(r["name"] for column in columns for r in column.rows))
    titles = [column.title for column in columns]
    gap = 0.03 if len(columns) < 5 else 0.045
    fig = make_subplots(1, len(columns), shared_yaxes=True, horizontal_spacing=gap, subplot_titles=titles)
    left = 30 + round(6.6 * max(map(len, names)))
    wide = round((WIDTH - left - 24) * (1 - gap * (len(columns) - 1)) / len(columns))  # px of a panel
    titled, size = _axis_titles([column.axis for column in columns], wide)
    shifts = [_shifts(column, looks) if spread else {} for column in columns]
    for col, column in enumerate(columns, 1):
        _marks(fig, col, column, names, looks, shifts[col - 1])
        _axis(fig, col, column, wide, {"text": column.axis if col in titled else "", "font": {"size": size}})
    _name_once(fig) if named else fig.update_traces(showlegend=False)
    ticks = {"tickvals": list(range(len(names))), "ticktext": names, "ticks": ""}
    fig.update_yaxes(**ticks, range=[len(names) - 0.4, -0.6], showgrid=True, gridcolor=FAINT)
    panel_titles(fig, across=WIDTH - left - 24)
    most = max(sum(of == name for of, _ in own) for own in shifts for name in names)
    tall = row or 20 + (7 * most if most > 1 else 0)
    lines = max(lines, legend_lines(look.name for look in looks.values())) if named else 0
    heads = 16 * max(title.count("<br>") for title in titles)  # px of additional lines
    above = {"above": (46 if named else 28) + 20 * lines + heads, "legend": 26 + heads}
    return finish(fig, height=tall * len(names) + 12, below=56, left=left, **above, **texts)


def _marks(
    fig: go.Figure,
    col: int,
    column: Column,
    names: Sequence[str],
    looks: Mapping[str, SeriesStyle],
    shifts: Mapping[tuple[str, str], float],
) -> None:
    """Add the marks of a panel, one trace per series."""
    form = ".1%" if column.percent else ".3g" if column.log else ".3f"
    for series, look in looks.items():
        rows = [r for r in column.rows if r["series"] == series]
        if not rows:
            continue
        values, low, high = ([r[key] for r in rows] for key in ("mean", "low", "high"))
        ends = f"95% interval %{{customdata[1]:{form}}} to %{{customdata[2]:{form}}}"
        fig.add_scatter(
            x=values,
            y=[names.index(r["name"]) + shifts.get((r["name"], series), 0) for r in rows],
            error_x={**interval(values, low, high, 1.3, 2), "color": clear(look.colour, 0.6)},
            mode="markers",
            name=look.name,
            legendgroup=series,
            marker={"size": 8, "color": look.colour, "symbol": look.symbol},
            customdata=[[r["name"], *ends] for r, *ends in zip(rows, low, high, strict=True)],
            hovertemplate=f"<b>%{{customdata[0]}}</b><br>{column.axis}: %{{x:{form}}}<br>{ends}"
            f"<extra>{look.name}</extra>",
            row=1,
            col=col,
        )


def _shifts(column: Column, looks: Mapping[str, SeriesStyle]) -> dict[tuple[str, str], float]:
    """Return the vertical offset of every (row, series) mark; only series in that row take space."""
    present = {(r["name"], r["series"]) for r in column.rows}
    shifts: dict[tuple[str, str], float] = {}
    for name in {name for name, _ in present}:
        own = [series for series in looks if (name, series) in present]
        shifts |= {(name, series): (i - (len(own) - 1) / 2) * 0.72 / len(own) for i, series in enumerate(own)}
    return shifts


def _axis(fig: go.Figure, col: int, column: Column, wide: int, title: dict[str, Any]) -> None:
    """Set the horizontal axis of a panel of `wide` px, and its level line."""
    shown: dict[str, Any] = {"nticks": max(2, min(6, wide // 45)), "tickangle": 0}
    shown |= {"tickformat": ".1~%"} if column.percent else {}
    if column.whole:
        edge = max(0.04, 6 / (NARROW_PAGE * wide))  # keeps a mark at the end uncut
        ends = {} if wide > CLOSE else {"tickvals": [0, 1], "ticktext": ["0", "100%"], "tickfont": {"size": 11}}
        most = max([1, *(row["mean"] for row in column.rows)])  # marks beyond 100% are drawn too
        shown |= {"range": [-edge, most + edge], **ends}
    values = {r[name] for r in column.rows for name in ("mean", "low", "high")}
    if column.percent and not (column.whole or column.log) and len(values) == 1:  # plotly's own axis is 200% wide
        shown["range"] = [value + side * ALIKE for value in values for side in (-1, 1)]
    shown |= {"type": "log", **log_ticks(values, NARROW_PAGE * wide)} if column.log else {}
    fig.update_xaxes(title=title, gridcolor=FAINT, **shown, row=1, col=col)
    if column.level is not None and not column.log:
        fig.add_vline(column.level, line={"color": INK, "width": 1, "dash": "dot"}, row=1, col=col)


def _name_once(fig: go.Figure) -> None:
    """Show only the first trace of every series in the legend."""
    named: set[str] = set()
    for trace in fig.data:
        trace.showlegend = trace.legendgroup not in named
        named.add(trace.legendgroup)


def _axis_titles(titles: Sequence[str], wide: int) -> tuple[Collection[int], int]:
    """Return the panels (from 1) whose axis gets a title, and the title size, for panels of `wide` px.

    If all titles are equal and wider than a panel, only the middle panel gets one.
    """
    longest = max(1, *map(len, titles)) * LETTER
    if len(set(titles)) == 1 and 12 * longest > NARROW_PAGE * wide:
        return [(len(titles) + 1) // 2], 12
    return range(1, len(titles) + 1), max(SMALLEST, min(12, floor(wide / longest)))


@dataclass(frozen=True)
class Bars:
    """Bars of one colour, one in each of N rows.

    `hover`: hover template, with `data` as plotly's customdata; `more`: other settings of plotly's bars.
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
    **texts: Unpack[Texts],
) -> go.Figure:
    """Draw horizontal bars under one legend.

    height     of the plot area, px
    x, y       plotly's settings of the axes
    mode, gap  plotly's barmode and bargap
    """
    fig = go.Figure()
    for each in bars:
        marker = {"color": each.colour, **each.more.get("marker", {})}
        values = {"y": list(each.rows), "x": list(each.values), "customdata": each.data, "hovertemplate": each.hover}
        fig.add_bar(orientation="h", name=each.name, **values, **{**each.more, "marker": marker})
    fig.update_xaxes(**x)
    fig.update_yaxes(**y)
    fig.update_layout(barmode=mode, bargap=gap, legend_traceorder="normal")
    return finish(fig, height=height, above=above, below=below, left=left, right=right, legend=6, **texts)


EDGE = {"line": {"color": PAPER, "width": 1}}  # between touching bars

"""Lines with 95% intervals, in panels side by side: something by layer, by place in a block, by share of tokens."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from workbench.plots.theme import BLUE, MUTED, clear, finish, legend_over, log_ticks, panel_titles


@dataclass(frozen=True)
class Panel:
    """`records`: {name, at, mean} and, where there are intervals, {low, high}; a line per name."""

    name: str
    records: Sequence[Mapping]
    x: str  # axis title
    y: str = ""
    log: bool = False
    percent: bool = False
    percent_x: bool = False


def profiles(
    panels: Sequence[Panel],
    *,
    title: str,
    caption: str,
    notice: str,
    colours: Mapping[str, str],
    symbols: Mapping[str, str] | None = None,
    height: int = 300,
    mark: float | None = None,
    share: bool = False,
    lines: int = 1,
    zero: bool = True,
) -> go.Figure:
    """A line per name in every panel, one legend for all. `mark`: a dotted vertical line at this x; `share`: all panels
    have one vertical range; `lines` that the legend takes; `zero`: linear vertical axes begin at 0."""
    fig = make_subplots(
        1, len(panels), subplot_titles=[panel.name for panel in panels], shared_yaxes=share,
        horizontal_spacing=0.03 if share else 0.3 / (len(panels) + 1),
    )  # fmt: skip
    listed: set[str] = set()
    for col, panel in enumerate(panels, 1):
        for name in dict.fromkeys(r["name"] for r in panel.records):
            for trace in _line(panel, name, colours.get(name, BLUE), (symbols or {}).get(name, "circle")):
                shown = trace.name not in listed and trace.mode is not None and "markers" in trace.mode
                listed |= {trace.name} if shown else set()
                fig.add_trace(trace.update(showlegend=shown), row=1, col=col)
        form: dict[str, Any] = {"tickformat": ".0%"} if panel.percent else {}
        if panel.log:
            form |= {"type": "log", **log_ticks(r["mean"] for r in panel.records)}
        elif zero:
            form |= {"rangemode": "tozero"}
        fig.update_yaxes(title_text=panel.y, **form, row=1, col=col)
        fig.update_xaxes(title_text=panel.x, tickformat=".0%" if panel.percent_x else None, row=1, col=col)
        if mark is not None:
            fig.add_vline(mark, line={"color": MUTED, "width": 1, "dash": "dot"}, row=1, col=col)
    fig.update_layout(legend=legend_over(height, 24))
    panel_titles(fig)
    return finish(fig, title=title, notice=notice, caption=caption, height=height, above=46 + 20 * lines, below=58)


def _line(panel: Panel, name: str, colour: str, symbol: str) -> list[go.Scatter]:
    points = [r for r in panel.records if r["name"] == name and r["mean"] == r["mean"]]  # nan is left out
    x, y = [r["at"] for r in points], [r["mean"] for r in points]
    traces = []
    if points and "low" in points[0]:
        band = [r["high"] for r in points] + [r["low"] for r in points][::-1]
        traces.append(
            go.Scatter(
                x=x + x[::-1],
                y=band,
                fill="toself",
                fillcolor=clear(colour, 0.14),
                line={"width": 0},
                mode="lines",
                hoverinfo="skip",
                name=name,
                legendgroup=name,
            )
        )
    value, at = "%{y:.1%}" if panel.percent else "%{y:.3g}", "%{x:.0%}" if panel.percent_x else "%{x}"
    few = len(points) <= 24
    traces.append(
        go.Scatter(
            x=x,
            y=y,
            name=name,
            legendgroup=name,
            mode="lines+markers",
            line={"color": colour, "width": 2},
            marker={"color": colour, "symbol": symbol, "size": 7 if few else 1},
            hovertemplate=f"{panel.x.split(' (')[0]} {at}: {value}<extra>{name}</extra>",
        )
    )
    return traces

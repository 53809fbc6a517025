"""Cost against context length: one panel per place it was taken from, one line per way to answer."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, log10

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from workbench.plots.theme import MODE_NAMES, MODE_SYMBOLS, MODES, finish, legend_over, pale, panel_titles


@dataclass(frozen=True)
class Series:
    """One line. `mode` gives name and colour; `low` and `high` a band; `dots` draws markers only (published numbers)."""

    mode: str
    length: Sequence[float]
    value: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    name: str = ""
    dots: bool = False


@dataclass(frozen=True)
class Panel:
    """One plot; `label` says measured, computed or published."""

    label: str
    series: Sequence[Series]
    unit: str


def against_length(panels: Sequence[Panel], *, title: str, caption: str, notice: str) -> go.Figure:
    """Log-log plots side by side, each with its own axes; lengths in tokens."""
    fig = make_subplots(1, len(panels), horizontal_spacing=0.1, subplot_titles=[panel.label for panel in panels])
    listed: set[str] = set()
    for col, panel in enumerate(panels, 1):
        for series in panel.series:
            for trace in _traces(series, panel.unit, listed):
                fig.add_trace(trace, row=1, col=col)
        lengths = sorted({n for series in panel.series for n in series.length})
        ticks = [2**p for p in range(4, 18) if lengths[0] <= 2**p <= lengths[-1]]
        texts = [f"{t // 1024}K" if t >= 1024 else str(t) for t in ticks]
        fig.update_xaxes(
            title_text="context length (tokens)", type="log", tickvals=ticks, ticktext=texts, row=1, col=col
        )
        fig.update_yaxes(title_text=panel.unit, type="log", exponentformat="power", **_ticks(panel), row=1, col=col)
    fig.update_layout(legend=legend_over(320, 26))
    panel_titles(fig)
    return finish(fig, title=title, notice=notice, caption=caption, height=320, above=66, below=58, left=80)


def _traces(series: Series, unit: str, listed: set[str]) -> list[go.Scatter]:
    colour = MODES[series.mode]
    name = series.name or MODE_NAMES[series.mode]
    traces = []
    if len(series.low):
        around = [*series.high, *reversed(series.low)]
        traces.append(go.Scatter(
            x=[*series.length, *reversed(series.length)], y=around, fill="toself", fillcolor=pale(colour, 0.25),
            line={"width": 0}, hoverinfo="skip", showlegend=False, mode="lines",
        ))  # fmt: skip
    between = "<br>5 to 95%: %{customdata[0]:.3s} to %{customdata[1]:.3s}" if len(series.low) else ""
    traces.append(go.Scatter(
        x=series.length, y=series.value, name=name, legendgroup=name, showlegend=name not in listed,
        mode="markers" if series.dots else "lines+markers", line={"color": colour, "width": 2},
        marker={"color": colour, "size": 9 if series.dots else 6,
                "symbol": MODE_SYMBOLS[series.mode] + ("-open" if series.dots else ""), "line": {"width": 2 if series.dots else 0}},
        customdata=list(zip(series.low, series.high, strict=True)) if len(series.low) else None,
        hovertemplate="%{x:,} tokens: %{y:.3s} " + unit.split("(")[-1].rstrip(")") + between + "<extra>" + name + "</extra>",
    ))  # fmt: skip
    listed.add(name)
    return traces


def _ticks(panel: Panel) -> dict:
    """Powers of ten where the values span more than three of them, else 1-2-5 steps."""
    values = [v for series in panel.series for v in (*series.value, *series.low) if v > 0]
    low, high = floor(log10(min(values))), ceil(log10(max(values)))
    if high - low > 3:
        return {"dtick": 1}
    steps = [digit * 10.0**power for power in range(low, high + 1) for digit in (1, 2, 5)]
    return {"tickvals": steps, "ticktext": [f"{step:,.3g}" if step < 1000 else f"{step:,.0f}" for step in steps]}

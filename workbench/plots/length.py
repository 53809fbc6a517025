"""Cost against context length: one panel per place it was taken from, one line per way to answer."""

from collections.abc import Sequence
from dataclasses import dataclass

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from workbench.plots.theme import MODE_NAMES, MODE_SYMBOLS, MODES, clear, finish, legend_over, log_ticks, panel_titles


@dataclass(frozen=True)
class Series:
    """One line. `mode` gives name and colour; `low` and `high` a band; `dots` draws markers only (published numbers);
    `thick` is the width of the line, px."""

    mode: str
    length: Sequence[float]
    value: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    name: str = ""
    dots: bool = False
    thick: float = 2


@dataclass(frozen=True)
class Panel:
    """One plot; `label` says measured, computed or published."""

    label: str
    series: Sequence[Series]
    unit: str


def against_length(panels: Sequence[Panel], *, title: str, caption: str, notice: str, lines: int = 1) -> go.Figure:
    """Log-log plots side by side, each with its own axes; lengths in tokens. `lines` that the legend takes."""
    fig = make_subplots(1, len(panels), horizontal_spacing=0.1, subplot_titles=[panel.label for panel in panels])
    listed: set[str] = set()
    for col, panel in enumerate(panels, 1):
        for series in panel.series:
            if len(series.low):
                fig.add_trace(_band(series), row=1, col=col)
        for series in panel.series:
            fig.add_trace(_line(series, panel.unit, listed), row=1, col=col)
        lengths = sorted({n for series in panel.series for n in series.length})
        ticks = [2**p for p in range(4, 18) if lengths[0] <= 2**p <= lengths[-1]]
        ticks = ticks[:: -(-len(ticks) * len(panels) // 20)] if len(ticks) > 1 else lengths
        texts = [f"{t / 1024:.0f}K" if t >= 1024 else str(t) for t in ticks]
        fig.update_xaxes(
            title_text="context length (tokens)", type="log", tickvals=ticks, ticktext=texts, row=1, col=col
        )
        values = [v for series in panel.series for v in (*series.value, *series.low)]
        fig.update_yaxes(title_text=panel.unit, type="log", **log_ticks(values), row=1, col=col)
    fig.update_layout(legend=legend_over(320, 26))
    panel_titles(fig)
    return finish(
        fig, title=title, notice=notice, caption=caption, height=320, above=46 + 20 * lines, below=58, left=80
    )


def _band(series: Series) -> go.Scatter:
    around = [*series.high, *reversed(series.low)]
    return go.Scatter(
        x=[*series.length, *reversed(series.length)],
        y=around,
        fill="toself",
        fillcolor=clear(MODES[series.mode], 0.16),
        line={"width": 0},
        hoverinfo="skip",
        showlegend=False,
        mode="lines",
    )


def _line(series: Series, unit: str, listed: set[str]) -> go.Scatter:
    colour, name = MODES[series.mode], series.name or MODE_NAMES[series.mode]
    between = "<br>5 to 95%: %{customdata[0]:.3s} to %{customdata[1]:.3s}" if len(series.low) else ""
    ring = series.dots
    trace = go.Scatter(
        x=series.length,
        y=series.value,
        name=name,
        legendgroup=name,
        showlegend=name not in listed,
        mode="markers" if ring else "lines+markers",
        line={"color": colour, "width": series.thick},
        marker={
            "color": colour,
            "size": 9 if ring else 5 + series.thick / 2,
            "line": {"width": 2 if ring else 0},
            "symbol": MODE_SYMBOLS[series.mode] + ("-open" if ring else ""),
        },
        customdata=list(zip(series.low, series.high, strict=True)) if len(series.low) else None,
        hovertemplate="%{x:,} tokens: %{y:.3s} "
        + unit.split("(")[-1].rstrip(")")
        + between
        + "<extra>"
        + name
        + "</extra>",
    )
    listed.add(name)
    return trace

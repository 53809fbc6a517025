"""Line charts: panels side by side, one line per name, with intervals."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Unpack

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from workbench.plots.marks.elements import band, interval
from workbench.plots.marks.styles import SeriesStyle
from workbench.plots.marks.theme import INK, MUTED, Texts, clear, finish, legend_lines, panel_titles

BETWEEN = 84  # px between rows of panels, for axis and title


@dataclass(frozen=True)
class Series:
    """A line through N points.

    `hover`: hover template after the line's name, with `data` as plotly's customdata; `low` and `high`: interval ends.
    """

    name: str
    x: Sequence[Any]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    hover: str = ""
    data: Sequence[Any] | None = None
    look: SeriesStyle = field(default_factory=SeriesStyle)
    width: float = 2  #: px of the line
    size: float = 7  #: px of the marks
    edge: float | None = None  #: px of the marks' outlines
    mode: str = "lines+markers"


@dataclass(frozen=True)
class Panel:
    """One plot: lines, and plotly's settings of both axes. A dotted line is drawn at height `level`."""

    name: str
    series: Sequence[Series]
    x: Mapping[str, Any] = field(default_factory=dict)
    y: Mapping[str, Any] = field(default_factory=dict)
    level: float | None = None

    @property
    def unit(self) -> str:
        """Title of the vertical axis."""
        return self.y.get("title_text", "")


def panels_per_row(panels: int) -> int:
    """Return the number of panels per row: two if there are more than three, else all."""
    return panels if panels <= 3 else 2


def line_chart(
    panels: Sequence[Panel],
    *,
    height: int = 300,
    lines: int = 1,
    above: int = 46,
    gap: int = 26,
    left: int = 72,
    spacing: float = 0.1,
    share: bool = False,
    bars: bool = False,
    mark: float | None = None,
    **texts: Unpack[Texts],
) -> go.Figure:
    """Draw `panels` side by side under one legend that lists every name once.

    height    px of a row of panels: up to three; two per row if there are more
    lines     minimum number of lines of the legend
    share     one vertical range for all panels
    bars      intervals are error bars, else bands behind all lines
    mark      a dotted vertical line at this x
    """
    titles = [panel.name for panel in panels] if any(panel.name for panel in panels) else None
    wide = panels_per_row(len(panels))
    deep = -(-len(panels) // wide)
    room = {"horizontal_spacing": spacing, "vertical_spacing": BETWEEN / (deep * height)}
    fig = make_subplots(deep, wide, shared_yaxes="all" if share else False, subplot_titles=titles, **room)
    listed: dict[str, None] = {}  # in order
    for at, panel in enumerate(panels):
        place = {"row": at // wide + 1, "col": at % wide + 1}
        for series in panel.series if not bars else ():
            if len(series.low):
                area = band(series.x, series.low, series.high, series.look.colour, legendgroup=series.name)
                fig.add_trace(area, **place)
        for series in panel.series:
            fig.add_trace(_line(series, bars).update(showlegend=series.name not in listed), **place)
            listed[series.name] = None
        fig.update_xaxes(**panel.x, **place)
        fig.update_yaxes(**panel.y, **place)
        if panel.level is not None:
            fig.add_hline(panel.level, line={"color": INK, "width": 1, "dash": "dot"}, **place)
        if mark is not None:
            fig.add_vline(mark, line={"color": MUTED, "width": 1, "dash": "dot"}, **place)
    panel_titles(fig)
    lines = max(lines, legend_lines(listed))
    above = max(above, gap + 8 + 5 * lines)  # keeps the legend off the text above
    return finish(fig, height=deep * height, above=above + 24 * lines - 4, below=58, left=left, legend=gap, **texts)


def _line(series: Series, bars: bool) -> go.Scatter:
    colour = series.look.colour
    errors = interval(series.y, series.low, series.high, 1, 0) if bars and len(series.low) else {}
    edge = {} if series.edge is None else {"width": series.edge}
    return go.Scatter(
        x=list(series.x),
        y=list(series.y),
        error_y={**errors, "color": clear(colour, 0.35)} if errors else None,
        name=series.name,
        legendgroup=series.name,
        mode=series.mode,
        line={"color": colour, "width": series.width, "dash": series.look.dash},
        marker={"color": colour, "symbol": series.look.symbol, "size": series.size, "line": edge},
        customdata=series.data,
        hovertemplate=f"{series.hover}<extra>{series.name}</extra>",
    )

"""Points with 95% intervals, joined by method, in panels side by side: quality against what it costs."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from workbench.methods import registry
from workbench.plots.sparse_methods import colour_of, name_of, symbol_of
from workbench.plots.theme import BLUE, INK, clear, finish, legend_over, panel_titles


@dataclass(frozen=True)
class Plane:
    """`records`: {name, x, y, low, high, label}, a line per name; `level`: a dotted line at this y."""

    name: str
    records: Sequence[Mapping]
    x: str  # axis title
    y: str = ""
    level: float | None = None
    percent: bool = True  # the vertical axis
    log: bool = False


@dataclass(frozen=True)
class Look:
    colour: str = BLUE
    symbol: str = "circle"
    dash: str = "solid"


def looks_of(specs: Iterable[str]) -> dict[str, Look]:
    """The looks of sparse methods by name; CompactAttention takes the colour of what it is over, and dots."""
    found = {}
    for spec in specs:
        over = registry.parse(spec)[1].get("over", spec)
        found[name_of(spec)] = Look(colour_of(over), symbol_of(spec), "solid" if over == spec else "dot")
    return found


def points(table: pd.DataFrame, x: str, y: str) -> list[dict[str, Any]]:
    """Records of a table of settings, a line a method: columns `x`, `y`, `y`_low and `y`_high; without either: none."""
    return [
        {"name": name_of(r["spec"]), "x": r[x], "y": r[y], "low": r[f"{y}_low"], "high": r[f"{y}_high"],
         "label": r["spec"]}
        for r in table[table[x].notna() & table[y].notna()].to_dict("records")
    ]  # fmt: skip


def planes(
    panels: Sequence[Plane], looks: Mapping[str, Look], *, title: str, caption: str, notice: str, height: int = 330,
    lines: int = 3,
) -> go.Figure:  # fmt: skip
    """Horizontal axes are shares. A name that is clicked in the legend is hidden in all panels; `lines` that the legend
    takes."""
    gap = 0.26 / (len(panels) + 1)
    fig = make_subplots(1, len(panels), subplot_titles=[panel.name for panel in panels], horizontal_spacing=gap)
    listed: set[str] = set()
    for col, panel in enumerate(panels, 1):
        for name in dict.fromkeys(r["name"] for r in panel.records):
            points = [r for r in panel.records if r["name"] == name and r["y"] == r["y"]]
            fig.add_trace(_line(panel, name, points, looks.get(name, Look()), name not in listed), row=1, col=col)
            listed.add(name)
        if panel.level is not None:
            fig.add_hline(panel.level, line={"color": INK, "width": 1, "dash": "dot"}, row=1, col=col)
        form: dict[str, Any] = {"tickformat": ".0%"} if panel.percent else {}
        if panel.log:
            form |= {"type": "log", "dtick": 1, "exponentformat": "power"}
        fig.update_yaxes(title_text=panel.y, **form, row=1, col=col)
        fig.update_xaxes(title_text=panel.x, tickformat=".0%", rangemode="tozero", row=1, col=col)
    fig.update_layout(legend=legend_over(height, 26))
    panel_titles(fig)
    return finish(fig, title=title, notice=notice, caption=caption, height=height, above=48 + 20 * lines, below=58)


def _line(panel: Plane, name: str, points: Sequence[Mapping], look: Look, listed: bool) -> go.Scatter:
    bars = {
        "array": [r["high"] - r["y"] for r in points],
        "arrayminus": [r["y"] - r["low"] for r in points],
        "thickness": 1,
        "width": 0,
        "color": clear(look.colour, 0.35),
    }
    value = "%{y:.1%}" if panel.percent else "%{y:.3g}"
    between = "%{customdata[1]:.1%} to %{customdata[2]:.1%}" if panel.percent else "%{customdata[1]:.3g} to "
    between += "" if panel.percent else "%{customdata[2]:.3g}"
    return go.Scatter(
        x=[r["x"] for r in points],
        y=[r["y"] for r in points],
        error_y=bars if points and "low" in points[0] else None,
        name=name,
        legendgroup=name,
        showlegend=listed,
        mode="lines+markers" if len(points) > 1 else "markers",
        line={"color": look.colour, "width": 1.6, "dash": look.dash},
        marker={"color": look.colour, "symbol": look.symbol, "size": 8},
        customdata=[[r.get("label", ""), r.get("low"), r.get("high")] for r in points],
        hovertemplate=f"%{{customdata[0]}}<br>at %{{x:.1%}}: {value}<br>95% interval {between}<extra>{name}</extra>",
    )

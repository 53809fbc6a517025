"""Kept tiles over exact attention: kept, dropped, and (highlighted) missed tiles."""

from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass
from math import ceil
from typing import Unpack

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from workbench.metrics.tiles.tile_recall import SelectedTiles, TileWindow
from workbench.plots.marks.elements import choice_menu, finish_with_slider, frame_slider, layer_slider, swatches
from workbench.plots.marks.theme import BLUE, FAINT, INK, PAPER, RED, RULE, FigureTexts, Texts
from workbench.plots.tiles.reduce import blocks

LEVELS, CELLS, COLUMNS = 50, 96, 3
SIDE, LOW = 400, 178  # px of a map next to a second panel; its height above another
RAMPS = {  # tile status: colours for little and much attention, and for the legend
    "dropped": (FAINT, "#8a9199", RULE),
    "kept": ("#c9dff0", "#003a5c", BLUE),
    "dropped although needed": ("#ffc46b", "#c22f00", RED),
}
TOP = (len(RAMPS) + 1) * LEVELS - 1
SCALE = [[0.0, PAPER], [LEVELS / TOP, PAPER]] + [
    [(at * LEVELS + edge) / TOP, colour]
    for at, ramp in enumerate(RAMPS.values(), 1)
    for edge, colour in zip((0, LEVELS - 1), ramp[:2], strict=True)
]
HOVER = "queries near %{y:,d}, keys near %{x:,d}<br><b>%{customdata}%</b> of the queries’ attention<extra></extra>"


@dataclass(frozen=True)
class Cells:
    """A picture: `z` uint8 [n, m] is a cell's status, shaded by its attention; `percent` uint8 that attention."""

    z: np.ndarray
    percent: np.ndarray


@dataclass(frozen=True)
class Span:
    """Tokens of a picture: queries [rows.start, rows.stop) over keys [keys.start, keys.stop)."""

    rows: range
    keys: range

    @classmethod
    def whole(cls, tokens: Sized) -> "Span":
        """Return all rows over all keys of a prompt."""
        return cls(range(len(tokens)), range(len(tokens)))


def cells(
    mass: np.ndarray, kept: np.ndarray, needed: np.ndarray, causal: np.ndarray, most: int = CELLS, among: int = 0
) -> Cells:
    """Return a picture of [I, J] tiles, reduced to at most `most` cells a side.

    A reduced cell shows missed before kept before dropped tiles; attention is summed over keys and averaged over query
    tiles. `among`: key tiles of the whole prompt, if [I, J] is a window of it.
    """
    what = np.where(needed & ~kept, 3, np.where(kept, 2, 1)) * causal
    share = blocks(mass, most, "mean", "sum")
    low = np.log10(0.1 / max(2, among or mass.shape[1]))
    level = np.clip((np.log10(np.maximum(share, 1e-12)) - low) / -low, 0, 1) * (LEVELS - 1)
    z = blocks(what.astype(np.uint8), most).astype(np.uint8) * LEVELS
    return Cells(z + np.where(z > 0, level.round(), 0).astype(np.uint8), (100 * share).round().astype(np.uint8))


def of_head(choice: SelectedTiles, head: int, most: int = CELLS) -> Cells:
    """Return the picture of one head's selection."""
    parts = (choice.mass[head], choice.kept[head], choice.needed[head], choice.grid.causal)
    mass, kept, needed, causal = (x.cpu().numpy() for x in parts)
    return cells(mass, kept, needed, causal, most)


def in_window(window: TileWindow, among: int, most: int = CELLS) -> Cells:
    """Return the picture of a window of a prompt of `among` key tiles."""
    mass, kept, needed, causal = (x.cpu().numpy() for x in (window.mass, window.kept, window.needed, window.causal))
    return cells(mass, kept, needed, causal, most, among)


def span_of(window: TileWindow) -> Span:
    """Return the span of a window."""
    i, j = window.mass.shape
    rows, keys = window.rows.start * window.size, window.keys.start * window.size
    return Span(range(rows, rows + i * window.size), range(keys, keys + j * window.size))


def image(z: np.ndarray, span: Span, **more: object) -> go.Heatmap:
    """Return a heat map of [n, m] cells whose axes are the tokens of `span`."""
    dy, dx = len(span.rows) / z.shape[0], len(span.keys) / z.shape[1]
    at = {"x0": span.keys.start + dx / 2, "dx": dx, "y0": span.rows.start + dy / 2, "dy": dy}
    return go.Heatmap(z=z, showscale=False, **at, **more)


def heatmap(picture: Cells, span: Span, **more: object) -> go.Heatmap:
    """Return a picture with its axes in tokens."""
    look = {"zmin": 0, "zmax": TOP, "colorscale": SCALE, "hovertemplate": HOVER}
    return image(picture.z, span, customdata=picture.percent, **look, **more)


def maps(
    panels: Mapping[str, Sequence[Sequence[Cells]]],
    span: Span,
    *,
    layers: Sequence[int],
    heads: Sequence[int],
    layer: int = 0,
    head: int = 0,
    columns: int = COLUMNS,
    **texts: Unpack[Texts],
) -> go.Figure:
    """Draw methods side by side.

    `panels` name → a picture per layer of `layers` and head of `heads`, all of `span`. With several, a slider selects
    the layer and a menu the head; `layer` and `head` (indices in the lists) are shown first.
    """
    lines = ceil(len(panels) / columns)
    side = round(870 / columns) - 12 if lines == 1 else LOW
    fig = token_panels(list(panels), columns)
    for h in range(len(heads)):
        for index, pictures in enumerate(panels.values()):
            trace = heatmap(pictures[layer][h], span, visible=h == head)
            fig.add_trace(trace, row=index // columns + 1, col=index % columns + 1)
    legend(fig)
    height = lines * side + (lines - 1) * 26
    axes(fig, span, lines)
    pictures_of = {
        str(number): [_replaced(pictures[at][h]) for h in range(len(heads)) for pictures in panels.values()]
        for at, number in enumerate(layers)
    }
    menu = choice_menu([f"head {number}" for number in heads], len(panels), height, (), head, len(RAMPS))
    slider = layer_slider(layers, layer) if len(layers) > 1 else None
    return finish_with_slider(fig, height, pictures_of, slider, menu, **texts)


def token_panels(titles: Sequence[str], columns: int) -> go.Figure:
    """Return empty token-by-token panels that zoom together, at most `columns` per row."""
    lines = ceil(len(titles) / columns)
    spacing = {"horizontal_spacing": 0.03, "vertical_spacing": 0.1 / lines}
    across = min(columns, len(titles))
    return make_subplots(lines, across, subplot_titles=titles, shared_xaxes=True, shared_yaxes=True, **spacing)


def _replaced(picture: Cells) -> go.Heatmap:
    return go.Heatmap(z=picture.z, customdata=picture.percent)


def legend(fig: go.Figure) -> None:
    """Add a legend of tile statuses; its entries are the figure's last traces."""
    swatches(fig, {name: colour for name, (_, _, colour) in RAMPS.items()})


def axes(fig: go.Figure, span: Span, lines: int = 1, **where: int) -> None:
    """Set the axes: tokens across and down, the first row on top; titles below row `lines` of the panels."""
    form = {"showgrid": False, "ticks": "outside", "tickformat": "~s" if span.rows.stop > 9_999 else "d"}
    fig.update_xaxes(range=[span.keys.start, span.keys.stop], nticks=6, **form, **where)
    fig.update_yaxes(range=[span.rows.stop, span.rows.start], nticks=6, **form, **where)
    fig.update_xaxes(title_text="key (token)", row=lines, col=where.get("col"))
    fig.update_yaxes(title_text="query token", row=where.get("row"), col=1)


@dataclass(frozen=True)
class ThresholdStep:
    """One threshold value: its picture, a sentence, and the density and attention kept over all heads."""

    picture: Cells
    sentence: str
    density: float
    mass: float


@dataclass(frozen=True)
class DensityCurve:
    """A method's curve from few tiles to many: attention kept over density, with the option's value for the hover."""

    name: str
    colour: str
    symbol: str
    density: Sequence[float]
    mass: Sequence[float]
    values: Sequence[str]


def by_threshold(
    steps: Sequence[ThresholdStep],
    span: Span,
    curves: Sequence[DensityCurve],
    names: Mapping[str, str],
    *,
    active: int,
    **notes: Unpack[FigureTexts],
) -> go.Figure:
    """Draw a threshold under a slider: its kept tiles, and its point on the curve of attention over density.

    `names` of the two panels: "map" and "curves". The slider starts at step `active`.
    """
    wide = SIDE / 860
    titles = [names["map"], names["curves"]]
    fig = make_subplots(1, 2, subplot_titles=titles, column_widths=[wide, 0.9 - wide], horizontal_spacing=0.1)
    fig.add_trace(heatmap(steps[active].picture, span), row=1, col=1)
    ring = {"color": INK, "symbol": "circle-open", "size": 17, "line": {"width": 2.5}}
    point = _point(steps[active]).update(mode="markers", marker=ring, showlegend=False, hoverinfo="skip")
    fig.add_trace(point.update(cliponaxis=False), row=1, col=2)
    for curve in curves:
        fig.add_scatter(
            x=list(curve.density),
            y=list(curve.mass),
            name=curve.name,
            mode="lines+markers",
            legend="legend2",
            line={"color": curve.colour, "width": 2},
            marker={"color": curve.colour, "symbol": curve.symbol, "size": 7},
            customdata=list(curve.values),
            hovertemplate="%{customdata}: %{y:.1%} of the attention in %{x:.1%} of the pairs"
            f"<extra>{curve.name}</extra>",
            row=1,
            col=2,
        )
    legend(fig)
    axes(fig, span, row=1, col=1)
    fig.update_xaxes(title_text="density: share of the causal pairs kept", tickformat=".0%", range=[0, 1.01], col=2)
    fig.update_yaxes(title_text="attention kept", tickformat=".0%", range=[0, 1.01], row=1, col=2)
    fig.update_layout(legend2={"x": 0.995, "xanchor": "right", "y": 0.03, "yanchor": "bottom", "orientation": "v"})
    pictures = {str(at): [_replaced(step.picture), _point(step)] for at, step in enumerate(steps)}
    slider = frame_slider([step.sentence for step in steps], active, spoken=True, pad=52)
    return finish_with_slider(fig, SIDE, pictures, slider, below=132, title="Attention kept by density", **notes)


def _point(step: ThresholdStep) -> go.Scatter:
    return go.Scatter(x=[step.density], y=[step.mass])

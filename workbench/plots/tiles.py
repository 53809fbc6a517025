"""Kept tiles over true attention: what a choice keeps, what it drops, and, lit, what it drops though needed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from workbench.metrics.tile_recall import Chosen, TileWindow
from workbench.plots.controls import choice_menu, layer_slider
from workbench.plots.reduce import blocks
from workbench.plots.theme import BLUE, FAINT, PAPER, RED, RULE, finish, legend_over, panel_titles

LEVELS, CELLS, COLUMNS = 50, 96, 3
RAMPS = {  # what became of a tile: colours of little and of much attention, and of the legend
    "dropped": (FAINT, "#8a9199", RULE),
    "kept": ("#c9dff0", "#003a5c", BLUE),
    "dropped though needed": ("#ffc46b", "#c22f00", RED),
}
TOP = (len(RAMPS) + 1) * LEVELS - 1
SCALE = [[0.0, PAPER], [LEVELS / TOP, PAPER]] + [
    [(at * LEVELS + edge) / TOP, colour]
    for at, ramp in enumerate(RAMPS.values(), 1)
    for edge, colour in zip((0, LEVELS - 1), ramp[:2], strict=True)
]
HOVER = "rows near %{y:,d}, keys near %{x:,d}<br><b>%{customdata}%</b> of the rows’ attention<extra></extra>"


@dataclass(frozen=True)
class Cells:
    """One picture: `z` uint8 [n, m] is what became of a cell and, by shade, how much attention it gets; `percent` uint8
    of that attention."""

    z: np.ndarray
    percent: np.ndarray


@dataclass(frozen=True)
class Span:
    """Which tokens a picture shows: rows [rows.start, rows.stop) over keys [keys.start, keys.stop)."""

    rows: range
    keys: range


def cells(
    mass: np.ndarray, kept: np.ndarray, needed: np.ndarray, causal: np.ndarray, most: int = CELLS, among: int = 0
) -> Cells:
    """All [I, J]; reduced to at most `most` cells a side: what was missed shows before what was kept, that before what
    was dropped; attention is summed over keys and averaged over query tiles. `among`: key tiles of the
    whole prompt, where [I, J] is a window of it."""
    what = np.where(needed & ~kept, 3, np.where(kept, 2, 1)) * causal
    share = blocks(mass, most, "mean", "sum")
    low = np.log10(0.1 / max(2, among or mass.shape[1]))
    level = np.clip((np.log10(np.maximum(share, 1e-12)) - low) / -low, 0, 1) * (LEVELS - 1)
    z = blocks(what.astype(np.uint8), most).astype(np.uint8) * LEVELS
    return Cells(z + np.where(z > 0, level.round(), 0).astype(np.uint8), (100 * share).round().astype(np.uint8))


def of_head(choice: Chosen, head: int, most: int = CELLS) -> Cells:
    """The picture of one head of a choice."""
    parts = (choice.mass[head], choice.kept[head], choice.needed[head], choice.grid.causal)
    mass, kept, needed, causal = (x.cpu().numpy() for x in parts)
    return cells(mass, kept, needed, causal, most)


def in_window(part: TileWindow, among: int, most: int = CELLS) -> Cells:
    """The picture of a window of a prompt of `among` key tiles."""
    mass, kept, needed, causal = (x.cpu().numpy() for x in (part.mass, part.kept, part.needed, part.causal))
    return cells(mass, kept, needed, causal, most, among)


def span_of(part: TileWindow) -> Span:
    """Where a window lies."""
    i, j = part.mass.shape
    rows, keys = part.rows.start * part.size, part.keys.start * part.size
    return Span(range(rows, rows + i * part.size), range(keys, keys + j * part.size))


def heatmap(picture: Cells, span: Span, **more: object) -> go.Heatmap:
    """A picture with its axes in tokens."""
    high, wide = picture.z.shape
    dy, dx = len(span.rows) / high, len(span.keys) / wide
    return go.Heatmap(
        z=picture.z, customdata=picture.percent, x0=span.keys.start + dx / 2, dx=dx, y0=span.rows.start + dy / 2, dy=dy,
        zmin=0, zmax=TOP, colorscale=SCALE, showscale=False, hovertemplate=HOVER, **more,
    )  # fmt: skip


def maps(
    panels: Mapping[str, Sequence[Sequence[Cells]]], span: Span, *, layers: Sequence[int], heads: Sequence[int],
    title: str, caption: str, notice: str, layer: int = 0, head: int = 0, columns: int = COLUMNS,
) -> go.Figure:  # fmt: skip
    """`panels` name → a picture for every one of `layers` and `heads`, all of `span`. Where there are several, a slider
    picks the layer and a menu the head; `layer` and `head` (their places in the lists) are shown first."""
    lines, side = ceil(len(panels) / columns), round(870 / columns) - 12
    fig = make_subplots(
        lines, min(columns, len(panels)), subplot_titles=list(panels), shared_xaxes=True, shared_yaxes=True,
        horizontal_spacing=0.03, vertical_spacing=0.1 / lines,
    )  # fmt: skip
    for h in range(len(heads)):
        for index, found in enumerate(panels.values()):
            trace = heatmap(found[layer][h], span, visible=h == head)
            fig.add_trace(trace, row=index // columns + 1, col=index % columns + 1)
    count = len(fig.data)
    legend(fig)
    fig.frames = [
        go.Frame(
            name=str(number), traces=list(range(count)),
            data=[
                go.Heatmap(z=found[at][h].z, customdata=found[at][h].percent)
                for h in range(len(heads)) for found in panels.values()
            ],
        )
        for at, number in enumerate(layers)
    ] if len(layers) > 1 else []  # fmt: skip
    height = lines * side + (lines - 1) * 26
    axes(fig, span)
    fig.update_xaxes(title_text="key (token)", row=lines)
    fig.update_yaxes(title_text="row (token)", col=1)
    if len(layers) > 1:
        fig.update_layout(sliders=[layer_slider(layers, layer)])
    if len(heads) > 1:
        labels = [f"head {number}" for number in heads]
        fig.update_layout(updatemenus=[choice_menu(labels, len(panels), height, (), head, len(RAMPS))])
    panel_titles(fig)
    fig.update_layout(legend=legend_over(height, 26, itemclick=False))
    return finish(
        fig, title=title, notice=notice, caption=caption, height=height, above=62,
        below=128 if len(layers) > 1 else 56, left=76,
    )  # fmt: skip


def legend(fig: go.Figure) -> None:
    """What became of a tile; the last traces of a figure."""
    for name, (_, _, colour) in RAMPS.items():
        square = {"color": colour, "symbol": "square", "size": 11}
        fig.add_scatter(x=[None], y=[None], mode="markers", marker=square, name=name, hoverinfo="skip")


def axes(fig: go.Figure, span: Span, **where: int) -> None:
    """Tokens across and down, the first row on top."""
    form = {"showgrid": False, "ticks": "outside", "tickformat": "~s" if span.rows.stop > 9_999 else "d"}
    fig.update_xaxes(range=[span.keys.start, span.keys.stop], nticks=6, **form, **where)
    fig.update_yaxes(range=[span.rows.stop, span.rows.start], nticks=6, **form, **where)

"""Attention of the last token to every token, and between blocks, by layer and head."""

from collections.abc import Collection, Mapping, Sequence
from typing import Unpack

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from workbench.plots.attention.masks import names
from workbench.plots.marks.elements import block_axis, block_edges, frames, head_menu, layer_slider, of_head
from workbench.plots.marks.styles import MODE_NAMES
from workbench.plots.marks.theme import RULE, SEQUENTIAL, FigureTexts, block_colour, finish, panel_titles


def attention(
    mass: Mapping[str, np.ndarray],
    tokens: Sequence[str],
    block_of: np.ndarray,
    *,
    layer: int = -1,
    head: int = -1,
    marked: Collection[int] = (),
    **notes: Unpack[FigureTexts],
) -> go.Figure:
    """Draw the last token's attention to every token: one row of bars per mode, head menu, layer slider.

    `mass` mode → float32 [L, H, T]: attention of the prompt's last token to every token, rows summing to 1. `layer` and
    `head` (-1: the mean) are shown first; `marked` blocks get a star.
    """
    layers, heads = next(iter(mass.values())).shape[:2]
    layer %= layers
    blocks, panels, labels = int(block_of.max()) + 1, len(mass), names(tokens, block_of)
    titles = [MODE_NAMES.get(mode, mode) for mode in mass]
    fig = make_subplots(panels, 1, shared_xaxes=True, vertical_spacing=0.09, subplot_titles=titles)
    marker = {"color": [block_colour(int(b), blocks) for b in block_of], "line": {"width": 0}}
    hover = "%{customdata}<br>%{y:.1%} of the attention<extra></extra>"
    places = np.arange(len(block_of), dtype=np.int32)
    for h in range(heads + 1):
        for row, values in enumerate(mass.values(), 1):
            bars = go.Bar(x=places, y=of_head(values, layer, h), marker=marker, customdata=labels, hovertemplate=hover)
            fig.add_trace(bars.update(showlegend=False, visible=h == head + 1), row=row, col=1)
    fig.frames = frames(
        {
            str(at): [go.Bar(y=of_head(values, at, h)) for h in range(heads + 1) for values in mass.values()]
            for at in range(layers)
        }
    )
    fig.update_xaxes(block_axis(block_of, marked, tickangle=0))
    fig.update_xaxes(title_text="key token (by block; Q is the question)", row=panels, col=1)
    fig.update_yaxes(tickformat=".2~%", nticks=4, title_text="share")
    for edge in block_edges(block_of):
        line = {"line": {"color": RULE, "width": 0.7}, "layer": "below", "type": "line"}
        for end in ["", *map(str, range(2, panels + 1))]:
            fig.add_shape(x0=edge, x1=edge, y0=0, y1=1, xref=f"x{end}", yref=f"y{end} domain", **line)
    height = 140 * panels
    ends = [f"yaxis{end or ''}.range" for end in (0, *range(2, panels + 1))]
    top = [max(float(of_head(m, at, h).max()) for m in mass.values() for at in range(layers)) for h in range(heads + 1)]
    scales = [{end: [0, 1.05 * value] for end in ends} for value in top]  # of all modes and layers of a head
    menu = head_menu(heads, panels, height, scales, head + 1)
    fig.update_layout(bargap=0, sliders=[layer_slider(layers, layer)], updatemenus=[menu], **scales[head + 1])
    panel_titles(fig)
    return finish(fig, title="Attention of the answer-predicting token", height=height, above=62, below=128, **notes)


def block_mass(mass: Mapping[str, np.ndarray], *, layer: int = -1, **notes: Unpack[FigureTexts]) -> go.Figure:
    """Draw the attention between blocks: one panel per mode, head menu, layer slider.

    `mass` mode → float32 [L, H, B, B]: mean share of attention from one block's tokens to another block; exact zeros
    (masked, or the future) stay blank.
    """
    layers, heads, count = next(iter(mass.values())).shape[:3]
    layer %= layers
    ticks = [*map(str, range(count - 1)), "Q"]
    titles = [MODE_NAMES.get(mode, mode) for mode in mass]
    fig = make_subplots(1, len(mass), horizontal_spacing=0.05, subplot_titles=titles)
    hover = "queries in block %{y} → block %{x}<br>%{z:.1%} of their attention<extra></extra>"
    place = {"x": ticks, "y": ticks, "xgap": 1, "ygap": 1}
    for head in range(heads + 1):
        for col, values in enumerate(mass.values(), 1):
            heat = go.Heatmap(z=_visible(values, layer, head), zmin=0, zmax=1, coloraxis="coloraxis", **place)
            fig.add_trace(heat.update(visible=head == 0, hovertemplate=hover), row=1, col=col)
    fig.frames = frames(
        {
            str(at): [go.Heatmap(z=_visible(values, at, h)) for h in range(heads + 1) for values in mass.values()]
            for at in range(layers)
        }
    )
    fig.update_xaxes(type="category", showgrid=False, ticks="", title_text="block of the keys", constrain="domain")
    fig.update_yaxes(type="category", showgrid=False, ticks="", autorange="reversed", constrain="domain")
    fig.update_yaxes(title_text="block of the queries", row=1, col=1)
    bar = {"title": {"text": "share", "side": "top"}, "tickformat": ".0%", "thickness": 12, "outlinewidth": 0}
    axis = {"cmin": 0, "cmax": 1, "colorscale": SEQUENTIAL, "colorbar": {**bar, "x": 1.01, "len": 1, "y": 0.5}}
    fig.update_layout(coloraxis=axis, sliders=[layer_slider(layers, layer)])
    fig.update_layout(updatemenus=[head_menu(heads, len(mass), 270)])
    panel_titles(fig)
    title = "Attention between blocks"
    return finish(fig, title=title, height=270, above=62, below=128, right=84, **notes)


def _visible(mass: np.ndarray, layer: int, head: int) -> np.ndarray:
    shares = of_head(mass, layer, head)
    return np.where(shares > 0, shares, np.nan).astype(np.float32)

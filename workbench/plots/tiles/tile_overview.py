"""A long prompt's tile selection in one picture, by block mean or max, without striding."""

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Unpack

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots
from torch import Tensor

from workbench.plots.marks.elements import choice_menu, finish_with_slider
from workbench.plots.marks.theme import FAINT, INK, PAPER, FigureTexts, Texts, finish, panel_titles
from workbench.plots.tiles.reduce import blocks
from workbench.plots.tiles.tile_recall import (
    RAMPS,
    SIDE,
    Cells,
    Span,
    axes,
    heatmap,
    image,
    legend,
    token_panels,
)

Panels = Mapping[str, Mapping[str, np.ndarray]]  # name → menu entry → `reduced`
REDUCTIONS = {"mean": "share of tiles kept", "max": "max: any tile kept"}
SCALE = [[0, PAPER], [0.5 / 255, PAPER], [0.5 / 255, FAINT], [1.5 / 255, FAINT], [1.5 / 255, RAMPS["kept"][0]]]
SCALE += [[1, RAMPS["kept"][1]]]


def reduce_tiles(kept: np.ndarray, cells: int, how: str) -> np.ndarray:
    """Reduce `kept` [I, I] of a whole prompt to uint8 [n, n], n at most `cells`; no kept tile is lost.

    0 is the future, 1 nothing kept, 2 to 255 the share of a cell's causal tiles that is kept ("mean"), or 255 where any
    is ("max").
    """
    causal = np.tri(len(kept), dtype=bool)
    seen, some = blocks(causal, cells), blocks(kept & causal, cells)
    count = blocks(causal.astype(np.uint32), cells, "sum")
    share = blocks((kept & causal).astype(np.uint32), cells, "sum") / np.maximum(count, 1) if how == "mean" else some
    return np.where(some, np.maximum(2, np.round(255 * share)), seen).astype(np.uint8)


def pictures(kept: Tensor, cells: int) -> dict[str, np.ndarray]:
    """Return the `reduce_tiles` pictures of all heads of `kept` [H, I, I] as menu entries, the last head first."""
    return {
        f"head {head}: {words}": reduce_tiles(kept[head].cpu().numpy(), cells, how)
        for head in reversed(range(len(kept)))
        for how, words in REDUCTIONS.items()
    }


def overview(
    panels: Panels, span: Span, *, detail: Span | None = None, columns: int = 3, **notes: Unpack[FigureTexts]
) -> go.Figure:
    """Draw whole prompts side by side; the menu selects "head 0, share of tiles kept", …; `detail` is framed."""
    choices: Sequence[str] = list(next(iter(panels.values())))
    columns = min(columns, len(panels))
    lines, side = ceil(len(panels) / columns), round(870 / max(2, columns)) - 12
    fig = token_panels(list(panels), columns)
    for number, choice in enumerate(choices):
        for index, pictures in enumerate(panels.values()):
            heat = _heatmap(pictures[choice], span).update(visible=number == 0)
            fig.add_trace(heat, row=index // columns + 1, col=index % columns + 1)
    axes(fig, span, lines)
    if detail is not None:
        for index in range(len(panels)):
            _frame(fig, detail, index // columns + 1, index % columns + 1)
    height = lines * side + (lines - 1) * 26
    if len(choices) > 1:
        fig.update_layout(updatemenus=[choice_menu(choices, len(panels), height)])
    panel_titles(fig)
    return finish(fig, title="Overview of a long prompt", height=height, above=62, below=56, left=76, **notes)


def overview_figure(
    z: np.ndarray, span: Span, detail: Cells, window: Span, *, names: Sequence[str], **texts: Unpack[Texts]
) -> go.Figure:
    """Draw one head's selection: the overview (`reduce_tiles`), and the tiles of `window` over true attention.

    `names`: of the two panels.
    """
    fig = make_subplots(1, 2, subplot_titles=list(names), horizontal_spacing=0.09)
    fig.add_trace(_heatmap(z, span), row=1, col=1)
    fig.add_trace(heatmap(detail, window), row=1, col=2)
    legend(fig)
    axes(fig, span, row=1, col=1)
    axes(fig, window, row=1, col=2)
    _frame(fig, window, 1, 1)
    return finish_with_slider(fig, SIDE, **texts)


def _heatmap(z: np.ndarray, span: Span) -> go.Heatmap:
    hover = "queries near %{y:,.0f}, keys near %{x:,.0f}<extra></extra>"
    return image(z, span, zmin=0, zmax=255, colorscale=SCALE, hovertemplate=hover)


def _frame(fig: go.Figure, window: Span, row: int, col: int) -> None:
    ends = {"x0": window.keys.start, "x1": window.keys.stop, "y0": window.rows.start, "y1": window.rows.stop}
    fig.add_shape(type="rect", **ends, line={"color": INK, "width": 1.5}, row=row, col=col)

"""A choice of tiles for a long prompt in one picture: block mean or block max, never a stride."""

from collections.abc import Mapping, Sequence

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from workbench.plots.controls import choice_menu
from workbench.plots.reduce import blocks
from workbench.plots.theme import FAINT, INK, PAPER, finish, legend_over, panel_titles
from workbench.plots.tiles import RAMPS, Cells, Span, axes, heatmap, legend

SIDE = 400  # px
WAYS = {"mean": "share of tiles kept", "max": "any tile kept"}
SCALE = [[0, PAPER], [0.5 / 255, PAPER], [0.5 / 255, FAINT], [1.5 / 255, FAINT], [1.5 / 255, RAMPS["kept"][0]]]
SCALE += [[1, RAMPS["kept"][1]]]


def reduced(kept: np.ndarray, cells: int, how: str) -> np.ndarray:
    """`kept` [I, I] of a whole prompt as uint8 [n, n], n at most `cells`: 0 the future, 1 nothing kept, 2 to 255 the
    share of a cell's causal tiles that is kept ("mean"), or 255 where any is ("max"): no kept tile is lost."""
    causal = np.tri(len(kept), dtype=bool)
    seen, some = blocks(causal, cells), blocks(kept & causal, cells)
    count = blocks(causal.astype(np.uint32), cells, "sum")
    share = blocks((kept & causal).astype(np.uint32), cells, "sum") / np.maximum(count, 1) if how == "mean" else some
    return np.where(some, np.maximum(2, np.round(255 * share)), seen).astype(np.uint8)


def overview(
    panels: Mapping[str, Mapping[str, np.ndarray]], span: Span, *, caption: str, notice: str,
    detail: Span | None = None, columns: int = 3,
) -> go.Figure:  # fmt: skip
    """`panels` name → choice of the menu ("head 0, share of tiles kept", …) → `reduced`. `detail` is framed."""
    choices: Sequence[str] = list(next(iter(panels.values())))
    columns = min(columns, len(panels))
    lines, side = -(-len(panels) // columns), round(870 / max(2, columns)) - 12
    fig = make_subplots(
        lines, columns, subplot_titles=list(panels), shared_xaxes=True, shared_yaxes=True,
        horizontal_spacing=0.03, vertical_spacing=0.1 / lines,
    )  # fmt: skip
    for number, choice in enumerate(choices):
        for index, found in enumerate(panels.values()):
            z = found[choice]
            dy, dx = len(span.rows) / z.shape[0], len(span.keys) / z.shape[1]
            heat = go.Heatmap(
                z=z, x0=dx / 2, dx=dx, y0=dy / 2, dy=dy, zmin=0, zmax=255, colorscale=SCALE, showscale=False,
                visible=number == 0, hovertemplate="rows near %{y:,.0f}, keys near %{x:,.0f}<extra></extra>",
            )  # fmt: skip
            fig.add_trace(heat, row=index // columns + 1, col=index % columns + 1)
    axes(fig, span)
    fig.update_xaxes(title_text="key (token)", row=lines)
    fig.update_yaxes(title_text="row (token)", col=1)
    if detail is not None:
        for index in range(len(panels)):
            _frame(fig, detail, index // columns + 1, index % columns + 1)
    height = lines * side + (lines - 1) * 26
    if len(choices) > 1:
        fig.update_layout(updatemenus=[choice_menu(choices, len(panels), height)])
    panel_titles(fig)
    return finish(
        fig, title="A long prompt at a glance", notice=notice, caption=caption, height=height, above=62, below=56,
        left=76,
    )  # fmt: skip


def zoomed(
    z: np.ndarray, span: Span, detail: Cells, window: Span, *, names: Sequence[str], title: str, caption: str,
    notice: str,
) -> go.Figure:  # fmt: skip
    """One head of one choice: the overview (`reduced`), and beside it the tiles of `window` over true attention.
    `names` of the two panels."""
    fig = make_subplots(1, 2, subplot_titles=list(names), horizontal_spacing=0.09)
    dy, dx = len(span.rows) / z.shape[0], len(span.keys) / z.shape[1]
    fig.add_heatmap(
        z=z, x0=dx / 2, dx=dx, y0=dy / 2, dy=dy, zmin=0, zmax=255, colorscale=SCALE, showscale=False, row=1, col=1,
        hovertemplate="rows near %{y:,.0f}, keys near %{x:,.0f}<extra></extra>",
    )  # fmt: skip
    fig.add_trace(heatmap(detail, window), row=1, col=2)
    legend(fig)
    axes(fig, span, row=1, col=1)
    axes(fig, window, row=1, col=2)
    fig.update_xaxes(title_text="key (token)")
    fig.update_yaxes(title_text="row (token)", col=1)
    _frame(fig, window, 1, 1)
    panel_titles(fig)
    fig.update_layout(legend=legend_over(SIDE, 26, itemclick=False))
    return finish(fig, title=title, notice=notice, caption=caption, height=SIDE, above=62, below=56, left=76)


def _frame(fig: go.Figure, window: Span, row: int, col: int) -> None:
    fig.add_shape(
        type="rect", x0=window.keys.start, x1=window.keys.stop, y0=window.rows.start, y1=window.rows.stop,
        line={"color": INK, "width": 1.5}, row=row, col=col,
    )  # fmt: skip

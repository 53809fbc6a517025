"""A choice of tiles for a long prompt in one picture: block mean or block max, never a stride."""

from collections.abc import Mapping, Sequence
from itertools import product
from math import ceil
from typing import Unpack

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from workbench.metrics.tiles.tile_recall import Framed
from workbench.plots.marks.elements import choice_menu, steered
from workbench.plots.marks.table import table
from workbench.plots.marks.theme import FAINT, INK, PAPER, Notes, Texts, finish, panel_titles
from workbench.plots.tiles.reduce import blocks
from workbench.plots.tiles.tile_recall import (
    RAMPS,
    SIDE,
    Cells,
    Span,
    axes,
    heatmap,
    image,
    in_window,
    legend,
    maps,
    span_of,
    token_panels,
)

Panels = Mapping[str, Mapping[str, np.ndarray]]  # name → choice of the menu → `reduced`
REDUCTIONS = {"mean": "share of tiles kept", "max": "any tile kept"}
SCALE = [[0, PAPER], [0.5 / 255, PAPER], [0.5 / 255, FAINT], [1.5 / 255, FAINT], [1.5 / 255, RAMPS["kept"][0]]]
SCALE += [[1, RAMPS["kept"][1]]]


def reduced(kept: np.ndarray, cells: int, how: str) -> np.ndarray:
    """Reduce `kept` [I, I] of a whole prompt to uint8 [n, n], n at most `cells`; no kept tile is lost.

    0 is the future, 1 nothing kept, 2 to 255 the share of a cell's causal tiles that is kept ("mean"), or 255 where any
    is ("max").
    """
    causal = np.tri(len(kept), dtype=bool)
    seen, some = blocks(causal, cells), blocks(kept & causal, cells)
    count = blocks(causal.astype(np.uint32), cells, "sum")
    share = blocks((kept & causal).astype(np.uint32), cells, "sum") / np.maximum(count, 1) if how == "mean" else some
    return np.where(some, np.maximum(2, np.round(255 * share)), seen).astype(np.uint8)


def overview(
    panels: Panels, span: Span, *, detail: Span | None = None, columns: int = 3, **notes: Unpack[Notes]
) -> go.Figure:
    """Draw whole prompts side by side; the menu picks "head 0, share of tiles kept", …; `detail` is framed."""
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
    return finish(fig, title="A long prompt at a glance", height=height, above=62, below=56, left=76, **notes)


def zoomed(
    z: np.ndarray, span: Span, detail: Cells, window: Span, *, names: Sequence[str], **texts: Unpack[Texts]
) -> go.Figure:
    """Draw one head of one choice: the overview (`reduced`), and beside it the tiles of `window` over true attention.

    `names` of the two panels.
    """
    fig = make_subplots(1, 2, subplot_titles=list(names), horizontal_spacing=0.09)
    fig.add_trace(_heatmap(z, span), row=1, col=1)
    fig.add_trace(heatmap(detail, window), row=1, col=2)
    legend(fig)
    axes(fig, span, row=1, col=1)
    axes(fig, window, row=1, col=2)
    _frame(fig, window, 1, 1)
    return steered(fig, SIDE, **texts)


def _heatmap(z: np.ndarray, span: Span) -> go.Heatmap:
    hover = "rows near %{y:,.0f}, keys near %{x:,.0f}<extra></extra>"
    return image(z, span, zmin=0, zmax=255, colorscale=SCALE, hovertemplate=hover)


def _frame(fig: go.Figure, window: Span, row: int, col: int) -> None:
    ends = {"x0": window.keys.start, "x1": window.keys.stop, "y0": window.rows.start, "y1": window.rows.stop}
    fig.add_shape(type="rect", **ends, line={"color": INK, "width": 1.5}, row=row, col=col)


def long_overview(
    choices: Mapping[str, Framed], specs: Mapping[str, str], length: int, *, cells: int, states: str
) -> go.Figure:
    """Draw the choices for a prompt of `length` tokens, at most `cells` a side; `states` says whose attention it is."""
    panels: dict[str, dict[str, np.ndarray]] = {name: {} for name in choices}
    for name, choice in choices.items():
        for head, how in product((1, 0), REDUCTIONS):
            kept = choice.tiles.kept[head].cpu().numpy()
            panels[name][f"head {head}: {REDUCTIONS[how]}"] = reduced(kept, cells, how)
    return overview(
        panels,
        Span.whole(range(length)),
        detail=_frame_span(choices),
        caption=f"{states} All {length:,} × {length:,} tokens of one head in at most {cells} × {cells} cells; the menu "
        "shows the other head, and by max where anything is kept. The frame is below. Head 1 looks for its topic, "
        f"head 0 nearby. {', '.join(specs[name] for name in choices)}.",
    )


def frame_maps(choices: Mapping[str, Framed], *, share: float, device: str) -> go.Figure:
    """Draw the frame of every choice for a long prompt over the true attention of its head 1."""
    windows = {name: choice.frames[1].at(choice.frames[1].rows) for name, choice in choices.items()}
    return maps(
        {name: [[in_window(window, choices[name].tiles.kept.shape[2])]] for name, window in windows.items()},
        _frame_span(choices),
        layers=[0],
        heads=[1],
        title="The frame, tile by tile",
        caption=f"Orange was dropped though needed for {share:.0%}. Head 1 of the made-up states; "
        f"true attention of {len(_frame_span(choices).rows):,} rows over all keys "
        f"before them. {device}.",
    )


def choosing_table(choices: Mapping[str, Framed], length: int, device: str) -> go.Figure:
    """Tabulate time, density and attention kept of the choices for a long prompt of two heads."""
    rows = []
    for name, choice in choices.items():
        first, second = choice.record(0), choice.record(1)
        shares = [f"{r['density']:.1%}" for r in (first, second)] + [f"{r['attention']:.0%}" for r in (first, second)]
        rows.append([name, f"{choice.seconds:.2f} s", *shares])
    return table(
        ["method", "time to choose", "tiles kept, head 0", "head 1", "attention kept, head 0", "head 1"],
        rows,
        title=f"Choosing for {length:,} tokens",
        caption=f"2 query heads, torch on {device}, measured once, beside whatever else the machine did; a kernel for "
        "the choice is another matter. Attention kept: of the rows in the frame.",
        widths=[2, 1.3, 1.4, 1, 1.6, 1],
    )


def _frame_span(choices: Mapping[str, Framed]) -> Span:
    window = next(iter(choices.values())).frames[1]
    return span_of(window.at(window.rows))

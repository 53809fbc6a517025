"""Deviation of cached keys and values from full attention, by token, layer and position.

Preprocessings are named as in `methods.prepare`; `about` states model, data and device.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Unpack

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots
from torch import Tensor

from workbench.data.prompt_view import PromptView
from workbench.metrics.kv.kv_deviation import RepairDeviation
from workbench.plots.attention.masks import names
from workbench.plots.attention.token_axes import TokenAxes, counts_tokens
from workbench.plots.marks.elements import block_axis, block_edges
from workbench.plots.marks.theme import INK, MUTED, PAPER, SEQUENTIAL, FigureTexts, finish, panel_titles
from workbench.plots.reports.findings import join_words
from workbench.plots.tiles.reduce import blocks as reduce_cells
from workbench.plots.tiles.reduce import cell_starts

Gaps = Mapping[str, np.ndarray]  # name → squared deviations [T, L]
CELLS = 1024  # maximum cells across
MOST_APART = 12  # layers with lines between them; with more, lines would cover the cells
FLOOR = 1e-4  # squared deviation within rounding, counted as 0


def deviation(
    gaps: Gaps,
    tokens: Sequence[str],
    block_of: np.ndarray,
    *,
    marked: Collection[int] = (),
    **notes: Unpack[FigureTexts],
) -> go.Figure:
    """Draw squared deviations over tokens and layers: one panel per name, one logarithmic colour scale.

    Deviations within rounding are white. `block_of` [T]; `marked` blocks get a star. Above 1,024 tokens a cell is the
    maximum of several tokens.
    """
    count = len(block_of)
    at = cell_starts(count, CELLS)
    gaps = {name: reduce_cells(gap, CELLS) for name, gap in gaps.items()}
    tokens, block_of = [tokens[i] for i in at], block_of[at]
    shown = {name: np.where(gap > FLOOR, np.log10(np.maximum(gap, FLOOR)), np.nan).T for name, gap in gaps.items()}
    every = np.concatenate([z[~np.isnan(z)] for z in shown.values()])
    low, high = (float(np.quantile(every, 0.02)), float(every.max())) if len(every) else (-1.0, 0.0)
    fig = make_subplots(len(shown), 1, shared_xaxes=True, vertical_spacing=0.12, subplot_titles=list(shown))
    labels = names([*tokens, ""], np.append(block_of, block_of.max() + 1))[:-1]  # without the question
    layers = next(iter(shown.values())).shape[0]
    for row, (name, z) in enumerate(shown.items(), 1):
        fig.add_heatmap(
            z=z.astype(np.float32),
            x=np.arange(z.shape[1]),
            y=list(range(layers)),
            coloraxis="coloraxis",
            customdata=np.broadcast_to(np.array(labels, dtype=object), z.shape),
            xgap=0,
            ygap=1 if layers <= MOST_APART else 0,
            hovertemplate=f"%{{customdata}}<br>layer %{{y}}: squared deviation 10^%{{z:.2f}}<extra>{name}</extra>",
            row=row,
            col=1,
        )
        for edge in block_edges(block_of):
            fig.add_vline(edge, line={"color": INK, "width": 0.8}, row=row, col=1)
    fig.update_xaxes(block_axis(block_of, marked, question=False))
    fig.update_xaxes(title_text="token (by block)", row=len(shown), col=1)
    fig.update_yaxes(title_text="layer", showgrid=False, dtick=max(1, layers // 8))
    ticks = np.arange(np.ceil(low), np.floor(high) + 1)
    powers = {"tickvals": ticks, "ticktext": [f"10<sup>{int(t)}</sup>" for t in ticks]}
    title = {"text": "squared<br>deviation", "font": {"size": 12, "color": MUTED}}
    bar = {"title": title, "thickness": 12, "outlinewidth": 0, **powers}
    axis = {"colorscale": SEQUENTIAL, "cmin": low, "cmax": high, "colorbar": bar}
    fig.update_layout(coloraxis=axis, plot_bgcolor=PAPER)
    panel_titles(fig)
    counts_tokens(fig, TokenAxes(count, len(at)))
    title_text = "Deviation of cached keys and values from full attention"
    return finish(fig, title=title_text, height=170 * len(shown), above=34, below=56, right=90, **notes)


def token_map(gaps: Mapping[str, Tensor], view: PromptView, *, about: str, notice: str = "") -> go.Figure:
    """Draw the squared deviation [T, L] of one prompt's context per token, by preprocessing."""
    end = view.prompt.starts[-1]
    return deviation(
        {name: gap[:end].cpu().numpy() for name, gap in gaps.items()},
        view.tokens[:end],
        view.block_of[:end],
        marked=view.supporting,
        notice=notice,
        caption=f"{view.opening}. {about}. Blank: below rounding error. ★: passages the answer needs.",
    )


def repaired(cached: str, left: RepairDeviation, view: PromptView, selector: str, ratio: float) -> go.Figure:
    """Draw the deviation of one prompt as `cached`, and after recomputation."""
    gaps = {cached: left.before, f"{len(left.rows):,} tokens recomputed": left.after}
    return token_map(gaps, view, about=f"{len(view.prompt):,} tokens", notice=of_repair(selector, ratio, left))


def of_repair(selector: str, ratio: float, left: RepairDeviation) -> str:
    """Return a sentence on the last layer's deviation after recomputation, of context and question."""
    if not len(left.rows):
        return "Nothing is recomputed: both panels are identical."
    context, asked = float(left.context[-1]), float(left.question_left[-1])
    kinder = "more" if asked < context else "no more"
    return (
        f"{selector} at {ratio:.0%} leaves {context:.0%} of the context's squared deviation in the last layer and "
        f"{asked:.0%} of the question's, so it helps the question {kinder} than the context."
    )


def changed_by_preparation(change: float, counts: pd.DataFrame, data: str) -> str:
    """Return sentences on how preprocessing changes the mean deviation: on `data`, and on the other data of `counts`.

    `counts` are of the experiment "deviation", measured at layer 1.
    """
    said = f"Caching after similar passages {_change([change])} on {data}."
    rows = counts[(counts.measure == "change_by_preparation") & (counts.data != data)].dropna(subset="value")
    if rows.empty:
        return said
    models, names = (join_words(list(dict.fromkeys(rows[name]))) for name in ("model", "data"))
    return f"{said} In the results that were read ({models} on {names}, layer 1), it {_change(rows.value)}."


def _change(changes: Sequence[float]) -> str:
    low, high = min(changes), max(changes)
    if low < 0 < high:
        return f"changes the mean deviation by {low:+.0%} to {high:+.0%}"
    ends = dict.fromkeys(f"{size:.0%}" for size in sorted((abs(low), abs(high))))
    return f"{'lowers' if high <= 0 else 'raises'} the mean deviation by {' to '.join(ends)}"

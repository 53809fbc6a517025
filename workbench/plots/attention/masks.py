"""Attention masks side by side: which tokens attend to which, coloured by the key's block."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, Unpack

import numpy as np
import plotly.graph_objects as go
import torch
from plotly.subplots import make_subplots

from workbench.core.blocks import Prompt
from workbench.core.masks import causal
from workbench.data.prompt_view import PromptView
from workbench.plots.marks.elements import block_axis, block_edges, steps
from workbench.plots.marks.theme import (
    FAINT,
    PAPER,
    RULE,
    FigureTexts,
    block_colour,
    escape_text,
    finish,
    lighten,
    panel_titles,
)
from workbench.plots.tiles.reduce import MaskRule, cell_starts, shares, visible_pairs

COLUMNS, GAP = 3, 0.05


@dataclass(frozen=True)
class MaskPanel:
    """One mask.

    `shares` uint8 [N, N]: how much of each cell is visible (0 to 255). `cached` bool [N]: rows whose keys and values
    are read from a cache instead of computed for this request.
    """

    name: str
    shares: np.ndarray
    cached: np.ndarray | None = None


def masks(
    panels: Sequence[MaskPanel], tokens: Sequence[str], block_of: np.ndarray, **notes: Unpack[FigureTexts]
) -> go.Figure:
    """Draw masks side by side; `tokens` [N] text of each cell, `block_of` [N] its block (the last: the question)."""
    lines = ceil(len(panels) / COLUMNS)
    titles = [panel.name for panel in panels]
    spacing = {"horizontal_spacing": GAP, "vertical_spacing": 0.085 if lines > 1 else 0}
    fig = make_subplots(lines, min(COLUMNS, len(panels)), subplot_titles=titles, **spacing)
    labels = names(tokens, block_of)
    for index, panel in enumerate(panels):
        place = {"row": index // COLUMNS + 1, "col": index % COLUMNS + 1}
        for trace in _traces(panel, labels, block_of):
            fig.add_trace(trace, **place)
    _axes(fig, block_of, len(panels))
    panel_titles(fig)
    height = (292 if lines == 1 else 208) * lines + 26 * (lines - 1)
    title = "Which tokens attend to which"
    return finish(fig, title=title, height=height, above=34, below=58, left=64, right=16, **notes)


def names(tokens: Sequence[str], block_of: np.ndarray) -> list[str]:
    """Return one hover line per position; unique, as the axes are categorical."""
    last = int(block_of.max())
    blocks = ["question" if block == last else f"block {block}" for block in block_of]
    return [f"{i} “{token_label(t)}” ({block})" for i, (t, block) in enumerate(zip(tokens, blocks, strict=True))]


def token_label(token: str, most: int = 24) -> str:
    """Return a token's text, safe for a plotly label."""
    text = token.replace("\n", "⏎")
    return escape_text(text if len(text) <= most else text[: most - 1] + "…")


def _traces(panel: MaskPanel, labels: list[str], block_of: np.ndarray) -> tuple[go.Heatmap, go.Heatmap]:
    """Return masked cells in grey, and attended cells over them: pale where rows come from a cache."""
    blocks = int(block_of.max()) + 1
    seen = panel.shares > 0
    past = np.tri(len(labels), dtype=bool)
    hidden = (past & ~seen).astype(np.uint8)
    cached = np.zeros(len(labels), bool) if panel.cached is None else panel.cached
    colour = np.where(seen, block_of[None, :] + blocks * cached[:, None], np.nan).astype(np.float32)
    full = [block_colour(b, blocks) for b in range(blocks)]
    where = "row %{y}<br>column %{x}<extra></extra>"
    axes = {"x": labels, "y": labels, "showscale": False}
    ground = go.Heatmap(z=hidden, zmin=0, zmax=1, colorscale=[[0, PAPER], [1, FAINT]], **axes)
    top = go.Heatmap(z=colour, zmin=-0.5, zmax=2 * blocks - 0.5, colorscale=steps([*full, *map(lighten, full)]), **axes)
    return (
        ground.update(hovertemplate=f"<b>hidden</b><br>{where}"),
        top.update(hovertemplate=f"<b>sees</b><br>{where}", hoverongaps=False),
    )


def _axes(fig: go.Figure, block_of: np.ndarray, panels: int) -> None:
    ticks = block_axis(block_of, tickangle=0, type="category")
    low, high = ticks["range"]
    fig.update_xaxes(**ticks)
    fig.update_yaxes(**{**ticks, "range": [high, low]})
    for index in range(panels):
        end = "" if index == 0 else str(index + 1)
        if index:
            fig.update_layout({f"xaxis{end}.matches": "x", f"yaxis{end}.matches": "y"})
        line = {"line": {"color": RULE, "width": 0.7}, "layer": "above", "type": "line"}
        place = {"xref": f"x{end}", "yref": f"y{end}"}
        for edge in block_edges(block_of):
            fig.add_shape(x0=edge, x1=edge, y0=low, y1=high, **place, **line)
            fig.add_shape(y0=edge, y1=edge, x0=low, x1=high, **place, **line)
        if index % COLUMNS == 0:
            fig.update_layout({f"yaxis{end}.title": {"text": "query token (by block)"}})
        if index >= panels - COLUMNS:
            fig.update_layout({f"xaxis{end}.title": {"text": "key token (by block)"}})


def compare_masks(rules: Mapping[str, MaskRule], view: PromptView, *, cached: Collection[str], own: str) -> go.Figure:
    """Draw every mask rule over one prompt, at most 512² cells each.

    `cached` names the rules under which passages come from a cache; `own` is the text of the user's rule, or "".
    """
    length = len(view.prompt)
    cells = cell_starts(length)
    block_of = view.block_of[cells]
    context = block_of < len(view.prompt.blocks) - 1
    reduced = "" if length == len(cells) else f"; {len(cells)}² cells, coloured if any pair in the cell is attended to"
    return masks(
        [MaskPanel(name, shares(rule, length), context if name in cached else None) for name, rule in rules.items()],
        [view.tokens[i] for i in cells],
        block_of,
        notice="Colour: the key's block; grey: masked by the rule.",
        caption=f"Blank: future tokens. Text: {view.source}, {length} tokens; shapes only, no model involved{reduced}"
        + (f". Your rule: {own}. Drag to zoom all panels; hover to see the two tokens." if own else "."),
    )


def count_pairs(rules: Mapping[str, MaskRule], prompt: Prompt, cached: Collection[str]) -> list[dict[str, Any]]:
    """Count visible pairs under every rule: all, and those `computed` for a request; all causal ones, rows and tokens.

    Under the rules named in `cached` a request computes the question only.
    """
    length = len(prompt)
    records = []
    for name, rule in rules.items():
        rows = prompt.question if name in cached else torch.arange(length)
        pairs = {"pairs": visible_pairs(rule, length), "computed": visible_pairs(rule, length, rows)}
        sizes = {"causal": visible_pairs(causal, length), "rows": len(rows), "length": length}
        records.append({"mask": name.split(" (")[0], **pairs, **sizes})
    return records

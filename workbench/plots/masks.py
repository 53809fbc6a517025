"""Attention masks side by side: who sees whom, coloured by the block that is looked at."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from workbench.data.prompt_view import Reading
from workbench.plots.bars import question_of
from workbench.plots.reduce import MaskRule, firsts, shares
from workbench.plots.table import table, verdict
from workbench.plots.theme import FAINT, PAPER, RULE, block_colour, finish, pale, panel_titles

COLUMNS, GAP = 3, 0.05


@dataclass(frozen=True)
class Panel:
    """One mask. `shares` uint8 [N, N]: how much of each cell is visible (0 to 255). `cached` bool [N]: rows whose
    keys and
    values are read from a cache instead of being computed for this request."""

    name: str
    shares: np.ndarray
    cached: np.ndarray | None = None


def masks(
    panels: Sequence[Panel], tokens: Sequence[str], block_of: np.ndarray, *, caption: str, notice: str
) -> go.Figure:
    """`tokens` [N] text of each cell, `block_of` [N] its block; the last block is the question."""
    lines = ceil(len(panels) / COLUMNS)
    fig = make_subplots(
        lines, min(COLUMNS, len(panels)), subplot_titles=[panel.name for panel in panels],
        horizontal_spacing=GAP, vertical_spacing=0.085 if lines > 1 else 0,
    )  # fmt: skip
    labels = names(tokens, block_of)
    for index, panel in enumerate(panels):
        place = {"row": index // COLUMNS + 1, "col": index % COLUMNS + 1}
        for trace in _traces(panel, labels, block_of):
            fig.add_trace(trace, **place)
    _axes(fig, block_of, len(panels))
    panel_titles(fig)
    return finish(
        fig, title="Who sees whom", notice=notice, caption=caption, height=292 * lines + 26 * (lines - 1),
        above=34, below=58, left=64, right=16,
    )  # fmt: skip


def names(tokens: Sequence[str], block_of: np.ndarray) -> list[str]:
    """One hover line per position; unique, because the axes are categories."""
    last = int(block_of.max())
    where = lambda block: "question" if block == last else f"block {block}"  # noqa: E731
    return [f"{i} “{shown(t)}” ({where(int(b))})" for i, (t, b) in enumerate(zip(tokens, block_of, strict=True))]


def shown(token: str, most: int = 24) -> str:
    """A token's text, safe for a plotly label."""
    text = token.replace("\n", "⏎").replace("<", "&lt;").replace(">", "&gt;")
    return text if len(text) <= most else text[: most - 1] + "…"


def _traces(panel: Panel, labels: list[str], block_of: np.ndarray) -> tuple[go.Heatmap, go.Heatmap]:
    blocks = int(block_of.max()) + 1
    seen = panel.shares > 0
    past = np.tri(len(labels), dtype=bool)
    ground = go.Heatmap(
        z=(past & ~seen).astype(np.uint8), x=labels, y=labels, zmin=0, zmax=1, showscale=False,
        colorscale=[[0, PAPER], [1, FAINT]], hovertemplate="<b>hidden</b><br>row %{y}<br>column %{x}<extra></extra>",
    )  # fmt: skip
    cached = np.zeros(len(labels), bool) if panel.cached is None else panel.cached
    colour = block_of[None, :] + blocks * cached[:, None]
    top = go.Heatmap(
        z=np.where(seen, colour, np.nan).astype(np.float32), x=labels, y=labels, zmin=-0.5, zmax=2 * blocks - 0.5,
        showscale=False, hoverongaps=False, colorscale=_steps(blocks),
        hovertemplate="<b>sees</b><br>row %{y}<br>column %{x}<extra></extra>",
    )  # fmt: skip
    return ground, top


def _steps(blocks: int) -> list[list]:
    """A stepped colour scale: full colours for computed rows, then pale ones for cached rows."""
    full = [block_colour(b, blocks) for b in range(blocks)]
    colours = full + [pale(c) for c in full]
    count = len(colours)
    return [[edge / count, colour] for i, colour in enumerate(colours) for edge in (i, i + 1)]


def _axes(fig: go.Figure, block_of: np.ndarray, panels: int) -> None:
    edges = np.flatnonzero(np.diff(block_of)) + 0.5
    bounds = np.concatenate(([-0.5], edges, [len(block_of) - 0.5]))
    middles, last = (bounds[:-1] + bounds[1:]) / 2, int(block_of.max())
    texts = ["Q" if block_of[int(m)] == last else str(block_of[int(m)]) for m in middles]
    ticks: dict[str, Any] = {
        "tickvals": middles,
        "ticktext": texts,
        "range": [-0.5, len(block_of) - 0.5],
        "showgrid": False,
        "tickangle": 0,
        "ticks": "",
        "type": "category",
    }
    fig.update_xaxes(**ticks)
    fig.update_yaxes(**{**ticks, "range": ticks["range"][::-1]})
    for index in range(panels):
        end = "" if index == 0 else str(index + 1)
        if index:
            fig.update_layout({f"xaxis{end}.matches": "x", f"yaxis{end}.matches": "y"})
        for edge in edges:
            line = {"line": {"color": RULE, "width": 0.7}, "layer": "above", "type": "line"}
            fig.add_shape(x0=edge, x1=edge, y0=-0.5, y1=len(block_of) - 0.5, xref=f"x{end}", yref=f"y{end}", **line)
            fig.add_shape(y0=edge, y1=edge, x0=-0.5, x1=len(block_of) - 0.5, xref=f"x{end}", yref=f"y{end}", **line)
        if index % COLUMNS == 0:
            fig.update_layout({f"yaxis{end}.title": {"text": "row: the token that looks (by block)"}})
        if index >= panels - COLUMNS:
            fig.update_layout({f"xaxis{end}.title": {"text": "column: the token looked at (by block)"}})


def compare_masks(rules: Mapping[str, MaskRule], view: Reading, *, cached: Collection[str], own: str) -> go.Figure:
    """Draw every mask rule over one prompt, at most 512² cells each.

    `cached` names the rules under which the passages come from a cache; `own` is the text of the reader's own rule.
    """
    length = len(view.prompt)
    cells = firsts(length)
    block_of = view.block_of[cells]
    context = block_of < len(view.prompt.blocks) - 1
    reduced = "" if length == len(cells) else f"; {len(cells)}² cells, coloured where any pair of a cell is visible"
    return masks(
        [Panel(name, shares(rule, length), context if name in cached else None) for name, rule in rules.items()],
        [view.tokens[i] for i in cells],
        block_of,
        notice="Colour is the block looked at, grey is hidden by the rule, white is the future. Under block attention "
        "only the question (Q) crosses the boundaries of blocks.",
        caption=f"Text: {view.source}, {length} tokens; shapes only, no model involved{reduced}. Your rule: {own}. "
        "Drag to zoom, all panels follow; hover for the two tokens.",
    )


def answers_table(records: Sequence[Mapping[str, Any]], view: Reading, *, about: str, device: str) -> go.Figure:
    """Draw what the model answers under every mask: `records` as of `metrics.attention_mass.answers_under`."""
    return table(
        ["mask", "answer", "right", "KL from full (nats)"],
        [[r["mask"], r["answer"], verdict(r["right"]), f"{r['kl']:.3f}"] for r in records],
        widths=[2.2, 4, 0.8, 1.4],
        words=3,
        title="What the model answers",
        notice=question_of(view),
        caption=f"{about}, greedy decoding, one prompt; KL divergence of the first token's distribution from that of "
        f"full attention. {device}.",
    )

"""The blocks of a prompt: their lengths and texts."""

from collections.abc import Collection, Sequence
from textwrap import wrap
from typing import Unpack

import numpy as np
import plotly.graph_objects as go

from workbench.data.prompt_view import PromptView
from workbench.plots.marks.bars import EDGE, Bars, bar_chart
from workbench.plots.marks.theme import PAPER, FigureTexts, block_colour


def strip(
    block_of: np.ndarray, pieces: Sequence[str], *, marked: Collection[int] = (), **notes: Unpack[FigureTexts]
) -> go.Figure:
    """Draw the prompt as a strip of blocks with their lengths and texts.

    `block_of` [T] block of every token; `pieces` the text of every block; `marked` blocks (needed for the answer) get a
    star.
    """
    sizes = np.bincount(block_of)
    count = len(sizes)
    label = {"textposition": "inside", "insidetextanchor": "middle", "textangle": 0, "constraintext": "none"}
    drawn = []
    for block, (size, piece) in enumerate(zip(sizes, pieces, strict=True)):
        last = block == count - 1
        text = "<br>".join(wrap(piece.replace("<", "&lt;"), 70))
        name = "question" if last else f"block {block}"
        hover = f"<b>{name}, {size} tokens</b><br>{text}<extra></extra>"
        sign = "Q" if last else f"{block}{'★' if block in marked else ''}"
        font = {"color": PAPER, "size": 12}
        more = {**label, "text": sign, "textfont": font, "showlegend": False, "marker": EDGE}
        drawn.append(Bars("", block_colour(block, count), [""], [int(size)], hover, more=more))
    return bar_chart(
        drawn,
        height=46,
        gap=0,
        above=14,
        below=52,
        left=24,
        x={"title_text": "position (tokens)", "range": [0, int(sizes.sum())], "showgrid": False},
        y={"visible": False},
        title="The prompt and its blocks",
        **notes,
    )


def question_of(view: PromptView) -> str:
    """Return the question of `view`, and its expected answers if known."""
    expected = f" Expected: {', '.join(view.answers)}." if view.answers else ""
    return f"“{view.question}”{expected}"


def prompt_strip(view: PromptView) -> go.Figure:
    """Draw the blocks of one prompt under its question."""
    prompt = view.prompt
    return strip(
        view.block_of,
        view.pieces,
        marked=view.supporting,
        notice=question_of(view),
        caption=f"Text: {view.source}, {len(prompt)} tokens in {len(prompt.blocks)} blocks. "
        "★: needed for the answer; Q: the question. Hover to read a block.",
    )

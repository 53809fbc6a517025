"""The prompt as a strip of blocks: how long each is and what it says."""

from collections.abc import Collection, Sequence
from textwrap import wrap

import numpy as np
import plotly.graph_objects as go

from workbench.data.prompt_view import Reading
from workbench.plots.theme import PAPER, block_colour, finish, with_title


def strip(
    block_of: np.ndarray, pieces: Sequence[str], *, caption: str, notice: str, marked: Collection[int] = ()
) -> go.Figure:
    """`block_of` [T] block of every token; `pieces` the text of every block; `marked` blocks (needed for the answer)
    get a star."""
    sizes = np.bincount(block_of)
    count = len(sizes)
    fig = go.Figure()
    for block, (size, piece) in enumerate(zip(sizes, pieces, strict=True)):
        name = "question" if block == count - 1 else f"block {block}"
        label = "Q" if block == count - 1 else f"{block}{'★' if block in marked else ''}"
        text = "<br>".join(wrap(piece.replace("<", "&lt;"), 70))
        fig.add_bar(
            x=[size],
            y=[""],
            orientation="h",
            marker={"color": block_colour(block, count), "line": {"color": PAPER, "width": 1}},
            text=label,
            textposition="inside",
            textangle=0,
            insidetextanchor="middle",
            textfont={"color": PAPER, "size": 12},
            showlegend=False,
            hovertemplate=f"<b>{name}, {size} tokens</b><br>{text}<extra></extra>",
            constraintext="none",
        )
    fig.update_layout(barmode="stack", bargap=0)
    fig.update_xaxes(with_title("position (tokens)", range=[0, int(sizes.sum())], showgrid=False))
    fig.update_yaxes(visible=False)
    return finish(
        fig, title="The prompt and its blocks", notice=notice, caption=caption, height=46, above=14, below=52, left=24
    )


def question_of(view: Reading) -> str:
    """Return the question of `view`, and the expected answers where they are known."""
    expected = f" Expected: {', '.join(view.answers)}." if view.answers else ""
    return f"“{view.question}”{expected}"


def prompt_strip(view: Reading) -> go.Figure:
    """Draw the blocks of one prompt under its question."""
    prompt = view.prompt
    return strip(
        view.block_of,
        view.pieces,
        marked=view.supporting,
        notice=question_of(view),
        caption=f"Text: {view.source}, {len(prompt)} tokens in {len(prompt.blocks)} blocks. "
        "★ is needed for the answer, Q is the question. Hover to read a block.",
    )

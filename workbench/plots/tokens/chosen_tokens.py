"""A prompt's text with tokens coloured by selector score, recomputed ones framed; and the agreement of selectors."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Unpack
from unicodedata import combining, east_asian_width

import numpy as np
import plotly.graph_objects as go
from torch import Tensor

from workbench.data.prompt_view import PromptView
from workbench.plots.attention.masks import token_label
from workbench.plots.attention.token_axes import TokenAxes, counts_tokens
from workbench.plots.marks.elements import button, menu, switch
from workbench.plots.marks.styles import SELECTORS
from workbench.plots.marks.theme import BLUE, INK, MUTED, PAPER, RULE, Texts, clear, finish, mixed

COLUMNS, LINE = 110, 20  # characters per line, px per line
MOST = 4000  # maximum tokens drawn
MONO = "'DejaVu Sans Mono', Menlo, Consolas, monospace"
SCALE = ((0, PAPER), (0.5, "#fdf0d5"), (0.8, "#f9cf84"), (1, "#f0a125"))


@dataclass(frozen=True)
class Choice:
    """A selection: `scores` [T] of the context's tokens (-inf: not selected), `rows` the recomputed positions."""

    scores: np.ndarray
    rows: np.ndarray


def coloured(
    choices: Mapping[str, Choice],
    tokens: Sequence[str],
    block_of: np.ndarray,
    *,
    marked: Collection[int] = (),
    first: int = 0,
    most: int = MOST,
    **texts: Unpack[Texts],
) -> go.Figure:
    """Draw the prompt's text, every token coloured by a selector's score, selected ones framed.

    `tokens` [N] text of all tokens, `block_of` [N] their blocks, the last of which is the question. The colour is the
    rank of a token's score among selectable ones. A menu selects one of `choices`. At most `most` tokens from token
    `first` on are drawn, and the notice says so.
    """
    part = slice(min(first, max(0, len(tokens) - 1)), first + most)
    words, of_words = list(tokens[part]), block_of[part]
    widths = [max(1, width_of(token)) for token in words]
    line, column, heads = _layout(widths, of_words)
    last = int(block_of.max())
    height = max(3 * LINE, LINE * (max(line) + 1))
    looks = {name: _look(choice, len(tokens), part) for name, choice in choices.items()}
    fig = go.Figure()
    fig.add_bar(
        orientation="h",
        y=line,
        x=widths,
        base=column,
        width=0.86,
        showlegend=False,
        hovertemplate="%{customdata}<extra></extra>",
        **next(iter(looks.values())),
    )
    font = {"family": MONO, "size": 12, "color": INK}
    letters = {"x": column, "y": line, "text": [token_label(token, 40) for token in words], "textfont": font}
    # after all tokens' boxes, so that none covers text
    fig.add_scatter(**letters, mode="text", textposition="middle right", hoverinfo="skip", showlegend=False)
    fig.update_traces(cliponaxis=False)
    choice_of = menu([_button(*each) for each in looks.items()], height, 8, active=0, font={"size": 12, "color": MUTED})
    fig.update_layout(bargap=0, barmode="overlay", updatemenus=[choice_of])
    fig.update_xaxes(visible=False, range=[-0.6, COLUMNS])
    names_of = {b: "question" if b == last else f"{b}{'★' if b in marked else ''}" for b in heads}
    ticks = {"tickvals": list(heads.values()), "ticktext": list(names_of.values()), "ticks": ""}
    fig.update_yaxes(range=[max(line) + 0.6, -0.6], showgrid=False, showline=False, **ticks)
    for begin in list(heads.values())[1:]:
        fig.add_hline(begin - 0.5, line={"color": RULE, "width": 0.7})
    if len(words) < len(tokens):
        texts["notice"] += f" Shown: tokens {part.start:,} to {part.start + len(words) - 1:,} of {len(tokens):,}."
    counts_tokens(fig, TokenAxes(len(tokens), len(tokens), text=True, first=part.start))
    return finish(fig, height=height, above=46, below=12, right=16, **texts)


def _button(name: str, look: Mapping[str, Any]) -> dict[str, Any]:
    """Return the button that shows a selection."""
    marker, edge = look["marker"], look["marker"]["line"]
    changed = {"marker.color": [marker["color"]], "customdata": [look["customdata"]]}
    changed |= {f"marker.line.{key}": [edge[key]] for key in ("color", "width")}
    return {"label": name, "method": "restyle", "args": [changed, [0]]}


def width_of(token: str) -> int:
    """Return how many columns a token takes.

    Two per wide character (Chinese, Japanese, Korean), none per combining character.
    """
    return sum((east_asian_width(x) in "WF") + (combining(x) == 0) for x in token)


def _layout(lengths: Sequence[int], block_of: np.ndarray) -> tuple[list[int], list[int], dict[int, int]]:
    """Return line and column of every token, and the first line of every block; blocks start on a new line."""
    line: list[int] = []
    column: list[int] = []
    first: dict[int, int] = {}
    at, here = 0, -1
    for length, block in zip(lengths, block_of.tolist(), strict=True):
        if block not in first or at + length > COLUMNS:
            here, at = here + 1, 0
            first.setdefault(block, here)
        line.append(here)
        column.append(at)
        at += length
    return line, column, first


def _look(choice: Choice, count: int, part: slice) -> dict[str, Any]:
    """Return colours, frames and hover texts of the tokens in `part`, of `count`."""
    scores = np.full(count, -np.inf)
    scores[: len(choice.scores)] = choice.scores
    finite = np.isfinite(scores)
    rank = np.zeros(count)
    if finite.any():
        order = np.argsort(np.argsort(scores[finite], kind="stable"), kind="stable")
        rank[finite] = order / max(finite.sum() - 1, 1)
    picked = np.isin(np.arange(count), choice.rows)
    notes = []
    for i in range(count)[part]:
        if i >= len(choice.scores):
            notes.append(f"position {i}: the question is always computed")
        elif not finite[i]:
            notes.append(f"position {i}: " + ("recomputed" if picked[i] else "never chosen"))
        else:
            chosen = "recomputed" if picked[i] else "reused"
            notes.append(f"position {i}: {chosen}<br>score {scores[i]:.3g}, above {rank[i]:.0%} of the others")
    framed = picked[part]
    edge = {"color": np.where(framed, INK, PAPER).tolist(), "width": np.where(framed, 1.6, 0).tolist()}
    return {"marker": {"color": [_colour(each) for each in rank[part]], "line": edge}, "customdata": notes}


def _colour(rank: float) -> str:
    """Return the colour of a token's rank from 0 to 1."""
    (low, pale), (high, strong) = next(pair for pair in pairwise(SCALE) if rank <= pair[1][0])
    return mixed(pale, strong, (rank - low) / (high - low))


def chosen_text(
    view: PromptView, scores: Mapping[str, Tensor], choices: Mapping[str, Tensor], *, ratio: float, about: str
) -> go.Figure:
    """Draw one prompt's text with every selector's scores [T], and frame its selected rows [R]."""
    answers = f"({', '.join(view.answers)}) " if view.answers else ""
    return coloured(
        {SELECTORS.name_of(spec): Choice(scores[spec].numpy(), choices[spec].numpy()) for spec in scores},
        view.tokens,
        view.block_of,
        marked=view.supporting,
        title=f"Tokens recomputed at {ratio:.0%}",
        notice=f"“{view.question}” ★: passages that the answer {answers}needs.",
        caption=f"{view.opening}. {about}. Colour: rank of the score; framed: recomputed; the question always is.",
    )


def agreement(matrices: Mapping[str, np.ndarray], names: Sequence[str], **texts: Unpack[Texts]) -> go.Figure:
    """Draw how much methods' selections agree: measure → [M, M] shares from 0 to 1; a menu selects the measure."""
    fig = go.Figure()
    columns = [name.replace(" (", "<br>(").replace(": ", "<br>") for name in names]
    for i, matrix in enumerate(matrices.values()):
        fig.add_heatmap(
            z=np.where(np.eye(len(names), dtype=bool), np.nan, matrix).astype(np.float32),
            x=columns,
            y=list(names),
            zmin=0,
            zmax=1,
            colorscale=[[0, PAPER], [1, clear(BLUE, 0.75)]],
            **{"showscale": False, "hoverongaps": False, "xgap": 2, "ygap": 2},
            visible=i == 0,
            texttemplate="%{z:.0%}",
            hovertemplate="%{y}<br>%{x}<br>%{z:.1%} in common<extra></extra>",
        )
    height = 46 * len(names)
    buttons = [button(label, [other == label for other in matrices]) for label in matrices]
    fig.update_layout(updatemenus=[switch(buttons, height, 8)])
    fig.update_xaxes(showgrid=False, ticks="", showline=False, tickangle=0)
    fig.update_yaxes(autorange="reversed", showgrid=False, ticks="", showline=False)
    return finish(fig, height=height, above=46, below=56, left=24 + 7 * max(map(len, names)), **texts)

"""The prompt's own text, every token coloured by a selector's score, the chosen ones framed."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go

from workbench.plots.masks import shown
from workbench.plots.theme import INK, MUTED, PAPER, RULE, finish

COLUMNS, ROW = 124, 23  # characters a line, px a line
MONO = "'DejaVu Sans Mono', Menlo, Consolas, monospace"
SCALE = [[0, PAPER], [0.5, "#fdf0d5"], [0.8, "#f9cf84"], [1, "#f0a125"]]


@dataclass(frozen=True)
class Choice:
    """`scores` [T] of the context's tokens (-inf: never chosen), `rows` the positions that are computed again."""

    scores: np.ndarray
    rows: np.ndarray


def coloured(
    choices: Mapping[str, Choice], tokens: Sequence[str], block_of: np.ndarray, *, title: str, caption: str,
    notice: str, marked: Collection[int] = (),
) -> go.Figure:  # fmt: skip
    """`tokens` [N] text of all tokens of the prompt, `block_of` [N] their blocks, the last of which is the question.

    A menu picks one of `choices`. The colour is the rank of a token's score among all that can be chosen.
    """
    texts = [shown(token, 40).replace(" ", " ") for token in tokens]
    line, column, first = _layout([len(token) for token in tokens], block_of)
    last, count = int(block_of.max()), len(tokens)
    fig = go.Figure()
    looks = [_look(choice, count) for choice in choices.values()]
    fig.add_bar(
        orientation="h", y=line, x=[max(len(token), 1) for token in tokens], base=column, text=texts, width=0.86,
        textposition="inside", insidetextanchor="start", textangle=0, constraintext="none", cliponaxis=False,
        textfont={"family": MONO, "size": 11.5, "color": INK}, showlegend=False,
        marker=looks[0]["marker"], customdata=looks[0]["customdata"],
        hovertemplate="%{customdata}<extra></extra>",
    )  # fmt: skip
    height = ROW * (max(line) + 1)
    fig.update_layout(bargap=0, barmode="overlay", updatemenus=[_menu(list(choices), looks, height)])
    fig.update_xaxes(visible=False, range=[0, COLUMNS])
    heads = [("question" if b == last else f"{b}{'★' if b in marked else ''}") for b in range(last + 1)]
    fig.update_yaxes(
        range=[max(line) + 0.6, -0.6], tickvals=[first[b] for b in range(last + 1)], ticktext=heads, showgrid=False,
        ticks="", showline=False,
    )  # fmt: skip
    for b in range(1, last + 1):
        fig.add_hline(first[b] - 0.5, line={"color": RULE, "width": 0.7})
    return finish(fig, title=title, notice=notice, caption=caption, height=height, above=46, below=12, right=16)


def _layout(lengths: Sequence[int], block_of: np.ndarray) -> tuple[list[int], list[int], dict[int, int]]:
    """Line and column of every token, and the first line of every block; a block begins a line."""
    line: list[int] = []
    column: list[int] = []
    first: dict[int, int] = {}
    at, here = 0, -1
    for length, block in zip(lengths, block_of.tolist(), strict=True):
        if block not in first or at + max(length, 1) > COLUMNS:
            here, at = here + 1, 0
            first.setdefault(block, here)
        line.append(here)
        column.append(at)
        at += max(length, 1)
    return line, column, first


def _look(choice: Choice, count: int) -> dict:
    """Colours, frames and hover texts of all tokens."""
    scores = np.full(count, -np.inf)
    scores[: len(choice.scores)] = choice.scores
    finite = np.isfinite(scores)
    rank = np.zeros(count)
    if finite.any():
        order = np.argsort(np.argsort(scores[finite], kind="stable"), kind="stable")
        rank[finite] = order / max(finite.sum() - 1, 1)
    picked = np.isin(np.arange(count), choice.rows)
    notes = []
    for i in range(count):
        if i >= len(choice.scores):
            notes.append(f"position {i}: the question is always computed")
        elif not finite[i]:
            notes.append(f"position {i}: " + ("computed again" if picked[i] else "never chosen"))
        else:
            chosen = "computed again" if picked[i] else "reused"
            notes.append(f"position {i}: {chosen}<br>score {scores[i]:.3g}, above {rank[i]:.0%} of the others")
    return {
        "marker": {
            "color": rank.round(3), "colorscale": SCALE, "cmin": 0, "cmax": 1,
            "line": {"color": np.where(picked, INK, PAPER).tolist(), "width": np.where(picked, 1.6, 0).tolist()},
        },
        "customdata": notes,
    }  # fmt: skip


def _menu(names: Sequence[str], looks: Sequence[dict], height: int) -> dict:
    buttons = [
        {
            "label": name, "method": "restyle",
            "args": [{
                "marker.color": [look["marker"]["color"]], "marker.line.color": [look["marker"]["line"]["color"]],
                "marker.line.width": [look["marker"]["line"]["width"]], "customdata": [look["customdata"]],
            }, [0]],
        }
        for name, look in zip(names, looks, strict=True)
    ]  # fmt: skip
    return {
        "buttons": buttons, "active": 0, "x": 1, "xanchor": "right", "y": 1 + 8 / height, "yanchor": "bottom",
        "bgcolor": PAPER, "bordercolor": RULE, "font": {"size": 12, "color": MUTED}, "pad": {"t": 0, "b": 0},
    }  # fmt: skip

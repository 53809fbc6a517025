"""A table of texts, in groups of rows."""

from collections.abc import Mapping, Sequence
from textwrap import wrap
from typing import Any, Unpack

import plotly.graph_objects as go

from workbench.plots.theme import FAINT, INK, MUTED, PAPER, RULE, WIDTH, Texts, finish, plain

ROW, LINE = 26, 16  # px, of a row and of each further line of the head
PADDING, CHARACTER, DIGIT = 17, 6.7, 7.6  # px, of a cell, of a character on average, and of a digit
ROOM, NARROWEST = WIDTH - 24, 70  # px, of the table, and of a column of texts


def table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    groups: Sequence[int] = (),
    widths: Sequence[float] = (),
    words: int = 1,
    **texts: Unpack[Texts],
) -> go.Figure:
    """Draw `rows` of texts under `head`.

    groups    indices of rows that begin a new group (drawn as a bar)
    widths    of the columns, in any unit
    words     the first columns that hold texts, set to the left; the others hold numbers, set to the right

    A text too long for its line is cut, a number never.
    """
    shares = _pixels(list(widths) or [2.9, *[1] * (len(head) - 1)], rows, words)
    most = [int((share - PADDING) / CHARACTER) for share in shares]
    cut = [_cut([row[column] for row in rows], most[column]) for column in range(min(words, len(most)))]
    lines = [
        [*texts, *row[words:]]
        for texts, row in zip(zip(*cut, strict=True) if cut else [()] * len(rows), rows, strict=True)
    ]
    lines = [list(map(plain, row)) for row in lines]
    wrapped = [len(wrap(text, max(4, n - 1))) for text, n in zip(head, most, strict=True)]  # bold is wider
    above = ROW + LINE * max(0, max(wrapped) - 1)
    fill = [FAINT if i in groups else PAPER for i in range(len(rows))]
    colours = [MUTED if i in groups else INK for i in range(len(rows))]
    look = {"align": ["left"] * words + ["right"] * (len(head) - words), "line": {"color": RULE}}
    header = {"values": [f"<b>{text}</b>" for text in head], "fill": {"color": PAPER}, "height": above}
    cells = {"values": list(zip(*lines, strict=True)), "fill": {"color": [fill]}, "height": ROW}
    header |= {"font": {"size": 12, "color": INK}, **look}
    cells |= {"font": {"size": 12, "color": [colours]}, **look}
    fig = go.Figure(go.Table(columnwidth=shares, header=header, cells=cells))
    return finish(fig, height=ROW * len(rows) + above + 6, above=14, below=8, left=10, right=14, **texts)


def _cut(texts: Sequence[str], most: int) -> list[str]:
    """Cut texts to `most` letters at their ends; in the middle where that would make two of them the same."""
    short = [text if len(text) <= most else text[: most - 1] + "…" for text in texts]
    twice = {each for each in short if len({text for text, cut in zip(texts, short, strict=True) if cut == each}) > 1}
    half = max(2, most // 2)
    return [
        f"{text[: most - half - 1]}…{text[-half:]}" if cut in twice else cut
        for text, cut in zip(texts, short, strict=True)
    ]


def _pixels(widths: Sequence[float], rows: Sequence[Sequence[str]], words: int) -> list[float]:
    """Return the px of columns: as `widths` say, but numbers get what the longest one needs, from columns of texts."""
    pixels = [ROOM * width / sum(widths) for width in widths]
    for column in range(words, len(pixels)):
        needed = max((len(row[column]) for row in rows), default=0) * DIGIT + PADDING
        pixels[column] = max(pixels[column], needed)
    texts = sum(pixels[:words])
    left = max(NARROWEST * words, ROOM - sum(pixels[words:]))
    return [width * min(1, left / texts) if at < words else width for at, width in enumerate(pixels)]


def scored(row: Mapping[str, Any], name: str = "em", form: str = ".1%") -> str:
    """Return a score with its interval, as a cell of a table: "91.2% (88%–93%)"."""
    return f"{row[name]:{form}} ({row[f'{name}_low']:.0%}–{row[f'{name}_high']:.0%})"


def verdict(right: bool | None) -> str:
    """Return whether an answer is right, as a cell of a table; a dash where no answer is known."""
    return {True: "yes", False: "no", None: "–"}[right]

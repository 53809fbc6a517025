"""A table of texts, in groups of rows."""

from collections.abc import Mapping, Sequence
from textwrap import wrap
from typing import Any, Unpack

import plotly.graph_objects as go

from workbench.plots.theme import FAINT, INK, MUTED, PAPER, RULE, WIDTH, Texts, finish, plain

ROW, LINE = 26, 16  # px, of a row and of each further line of the head
SECOND, MOST_LINES = 21, 3  # px, of the second line of a row, and how many lines a text takes
PADDING, CHARACTER, DIGIT, BOLD = 17, 7.2, 7.6, 8.2  # px, of a cell; of a letter on average, a digit, a bold letter
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

    A text too long for its line goes on in the next, at most three; a number takes one.
    """
    shares = _pixels(head, rows, list(widths) or [2.9, *[1] * (len(head) - 1)], words)
    most = [int((share - PADDING) / CHARACTER) for share in shares]
    broken = [[_broken(text, most[at]) if at < words else [text] for at, text in enumerate(row)] for row in rows]
    taken = [max(len(lines) for lines in row) for row in broken]
    lines = [
        [_shown(text, cell, most[at]) for at, (text, cell) in enumerate(zip(row, each, strict=True))]
        for row, each in zip(rows, broken, strict=True)
    ]
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
    tall = sum(ROW + (SECOND + LINE * (count - 2) if count > 1 else 0) for count in taken)
    return finish(fig, height=tall + above + 6, above=14, below=8, left=10, right=14, **texts)


def _broken(text: str, most: int) -> list[str]:
    """Break a text into lines of `most` letters; the last line that is shown ends where more would follow."""
    return wrap(text, max(6, most), max_lines=MOST_LINES, placeholder="…", break_on_hyphens=False) or [text]


def _shown(text: str, lines: Sequence[str], most: int) -> str:
    """Return a cell: its text, which plotly breaks between words; its lines where a word is too long or some lack."""
    breaks = len(lines) > 1 and (lines[-1].endswith("…") or max(map(len, text.split())) > most)
    return "<br>".join(map(plain, lines)) if breaks else plain(text)


def _pixels(head: Sequence[str], rows: Sequence[Sequence[str]], widths: Sequence[float], words: int) -> list[float]:
    """Return the px of columns: as `widths` say, but numbers get what the longest one needs, and texts what others
    have over."""
    pixels = [ROOM * width / sum(widths) for width in widths]
    longest = [max((len(row[column]) for row in rows), default=0) for column in range(len(pixels))]
    named = [max(map(len, name.split()), default=0) * BOLD for name in head]
    needed = [
        PADDING + max(count * (CHARACTER if at < words else DIGIT), named[at]) for at, count in enumerate(longest)
    ]
    pixels = [
        max(width, least) if at >= words else width
        for at, (width, least) in enumerate(zip(pixels, needed, strict=True))
    ]
    spare = [width - least if at >= words else 0 for at, (width, least) in enumerate(zip(pixels, needed, strict=True))]
    left = ROOM - sum(pixels[words:])
    lacking = max(0, sum(needed[:words]) - left)
    taken = min(1, lacking / sum(spare)) if sum(spare) else 0
    pixels = [width - taken * over for width, over in zip(pixels, spare, strict=True)]
    left = max(NARROWEST * words, ROOM - sum(pixels[words:]))
    wanted = needed[:words] if lacking else pixels[:words]
    return [width * left / sum(wanted) for width in wanted] + pixels[words:]


def scored(row: Mapping[str, Any], name: str = "em", form: str = ".1%") -> str:
    """Return a score with its interval, as a cell of a table: "91.2% (88%–93%)"."""
    return f"{row[name]:{form}} ({row[f'{name}_low']:.0%}–{row[f'{name}_high']:.0%})"


def verdict(right: bool | None) -> str:
    """Return whether an answer is right, as a cell of a table; a dash where no answer is known."""
    return {True: "yes", False: "no", None: "–"}[right]

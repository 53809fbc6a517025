"""Tables of texts with groups of rows, measured text widths and line breaks.

A character's width is its largest in DejaVu Sans, Arial and Noto Sans, as the browser's font is unknown.
"""

from collections.abc import Iterator, Sequence
from math import ceil
from typing import Unpack
from unicodedata import combining, east_asian_width

import plotly.graph_objects as go

from workbench.plots.marks.theme import FAINT, INK, MUTED, PAPER, RULE, WIDTH, Texts, finish, plain

_EM = {  # width in em → characters
    0.29: "ijlI'",
    0.34: " ,.·/:;\\",
    0.40: "f-()[]t!",
    0.46: 'r"',
    0.50: "*_`–J|",
    0.54: "szc?",
    0.60: "LFkvxyP",
    0.64: "TYaoeESbdghnpqu$0123456789{}µK",
    0.70: "AVBRXZC",
    0.76: "UHNDG",
    0.80: "&OQw",
    0.86: "M#+<=>^~×≈±−≥≤",
    1.00: "%mW@…→",
}
_WIDTHS = {letter: width for width, letters in _EM.items() for letter in letters}
WITHIN = "\u200b"  # zero-width space after a word's piece that continues on the next line
_OTHER, _SQUARE = 0.66, 1.0  # em of an unlisted character; of a Chinese, Japanese or Korean one
_BOLD = 1.14
SPACE, ROUNDING = _WIDTHS[" "], 0.01  # em; px


def drawn_width(text: str, size: int = 12, bold: bool = False) -> float:
    """Return the width of a line in px, at font size `size`."""
    return sum(map(_em, text)) * size * (_BOLD if bold else 1)


def _em(letter: str) -> float:
    if known := _WIDTHS.get(letter):
        return known
    return 0.0 if combining(letter) or letter == WITHIN else _SQUARE if east_asian_width(letter) in "WF" else _OTHER


def broken(text: str, room: float, size: int = 12, bold: bool = False) -> list[str]:
    """Break a text into lines of at most `room` px.

    Lines break between words as in plotly's tables, and inside wider words, whose pieces but the last end in WITHIN.
    An empty text is one line.
    """
    lines: list[str] = []
    line: list[str] = []
    taken = 0.0
    for word in _pieces(text, room, size, bold):
        width = drawn_width(word + " ", size, bold)  # plotly counts a line's trailing space too
        if line and taken + width > room + ROUNDING:
            lines.append(" ".join(line))
            line, taken = [], 0.0
        line.append(word)
        taken += width
    return [*lines, " ".join(line)]


def original_text(cell: str) -> str:
    """Return the original text of a cell that `table` broke into lines."""
    return cell.replace(f"{WITHIN}<br>", "").replace("<br>", " ")


def _pieces(text: str, room: float, size: int, bold: bool) -> Iterator[str]:
    """Yield the words of a text; words wider than `room` in pieces."""
    for word in text.split():
        begin, taken = 0, SPACE * size
        for at, letter in enumerate(word):
            width = drawn_width(letter, size, bold)
            if at > begin and taken + width > room + ROUNDING:
                yield word[begin:at] + WITHIN
                begin, taken = at, SPACE * size
            taken += width
        yield word[begin:]


ROW, SECOND, LINE = 26, 19.6, 15.6  # px of a one-line row, of its second line, of each further line
MOST_LINES = 3  # of a text
PADDING = 17  # px of a cell, left plus right
ROOM, NARROWEST, WIDEST = WIDTH - 24, 70, 240  # px of the table; of a text column; of an unbroken word


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

    groups    indices of rows that are group headings (drawn as a bar)
    widths    of the columns, in any unit, used if all texts fit on one line
    words     number of leading text columns, left-aligned; the others are numbers, right-aligned

    A long text takes at most three lines (a heading any number); numbers break only if the table is too narrow. Lines
    are broken here and not by plotly, so the height of the figure is known.
    """
    columns = _pixels(head, rows, list(widths) or [2.9, *[1] * (len(head) - 1)], words)
    room = [column - PADDING for column in columns]
    cells = [
        [_lines(text, room[at], cut=at < words, whole=number in groups) for at, text in enumerate(row)]
        for number, row in enumerate(rows)
    ]
    heads = [broken(text, px, bold=True) for text, px in zip(head, room, strict=True)]
    above = ceil(_height(max(map(len, heads))))
    fill = [FAINT if i in groups else PAPER for i in range(len(rows))]
    colours = [MUTED if i in groups else INK for i in range(len(rows))]
    look = {"align": ["left"] * words + ["right"] * (len(head) - words), "line": {"color": RULE}}
    header = {"values": ["<br>".join(lines) for lines in heads], "fill": {"color": PAPER}, "height": above}
    shown = list(zip(*(["<br>".join(map(plain, lines)) for lines in row] for row in cells), strict=True))
    body = {"values": shown, "fill": {"color": [fill]}, "height": ROW}
    header |= {"font": {"size": 12, "color": INK, "weight": "bold"}, **look}  # tags render wrongly on narrow pages
    body |= {"font": {"size": 12, "color": [colours]}, **look}
    fig = go.Figure(go.Table(columnwidth=columns, header=header, cells=body))
    tall = ceil(sum(_height(max(map(len, row))) for row in cells))
    return finish(fig, height=tall + above + 6, above=14, below=8, left=10, right=14, **texts)


def _lines(text: str, room: float, cut: bool, whole: bool) -> list[str]:
    """Break a text into lines of `room` px: with `cut` into at most three (unless `whole`), else between words."""
    lines = broken(text, room if cut else max([room, *map(_px, text.split())]))
    if cut and not whole and len(lines) > MOST_LINES:
        return [*lines[: MOST_LINES - 1], _ended(lines[MOST_LINES - 1], room)]
    return lines


def _px(text: str, bold: bool = False) -> float:
    """Return the px of a line in plotly's tables, which add a space after every word."""
    return drawn_width(text + " ", bold=bold)


def _ended(line: str, room: float) -> str:
    """Return a line that ends in …, for a cut text."""
    line = line.removesuffix(WITHIN)
    while line and _px(f"{line}…") > room:
        line = line[:-1]
    return f"{line.rstrip()}…"


def _height(lines: int) -> float:
    """Return the height of a row in px."""
    return ROW + (SECOND + LINE * (lines - 2) if lines > 1 else 0)


def _pixels(head: Sequence[str], rows: Sequence[Sequence[str]], widths: Sequence[float], words: int) -> list[float]:
    """Return column widths in px.

    If every text fits on one line, they follow `widths`, with at least the longest text's width. Else numbers get their
    width and texts share the rest; if that is too little, numbers break too.
    """
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(head)
    least = [PADDING + _longest_word(name, texts) for name, texts in zip(head, columns, strict=True)]
    least = [max(NARROWEST, min(px, WIDEST)) if at < words else px for at, px in enumerate(least)]
    full = [max(low, PADDING + max(map(_px, texts), default=0)) for low, texts in zip(least, columns, strict=True)]
    if sum(full) <= ROOM:
        return _filled([ROOM * width / sum(widths) for width in widths], full)
    floor = [*least[:words], *full[words:]]
    floor = floor if sum(floor) <= ROOM else least
    if sum(floor) > ROOM:
        left = ROOM - NARROWEST * words
        return [NARROWEST] * words + [px * left / sum(floor[words:]) for px in floor[words:]]
    share = (ROOM - sum(floor)) / (sum(full) - sum(floor))
    return [low + share * (high - low) for low, high in zip(floor, full, strict=True)]


def _longest_word(name: str, texts: Sequence[str]) -> float:
    named = [_px(word, bold=True) for word in name.split()]
    return max([*named, *(_px(word) for text in texts for word in text.split())], default=0)


def _filled(wanted: Sequence[float], least: Sequence[float]) -> list[float]:
    """Return widths that fill the table: `wanted`, at least `least`, the others reduced."""
    short: set[int] = set()
    while True:
        free = [at for at in range(len(wanted)) if at not in short]
        scale = (ROOM - sum(least[at] for at in short)) / (sum(wanted[at] for at in free) or 1)
        more = {at for at in free if wanted[at] * scale < least[at]}
        if not more:
            return [least[at] if at in short else px * scale for at, px in enumerate(wanted)]
        short |= more


def verdict(right: bool | None) -> str:
    """Return a table cell that says whether an answer is right; a dash if the expected answer is unknown."""
    return {True: "yes", False: "no", None: "–"}[right]

"""How wide a text is drawn, and how it breaks into lines.

The width of a letter is its widest advance in DejaVu Sans, Arial and Noto Sans: a figure is laid out before it is known
which of them a browser has.
"""

from collections.abc import Iterator
from unicodedata import combining, east_asian_width

_EM = {  # width by the size of the font: the letters that have it
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
_OTHER, _SQUARE = 0.66, 1.0  # of a letter that is not listed; of one of Chinese, Japanese, Korean
_BOLD = 1.14
SPACE, ROUNDING = _WIDTHS[" "], 0.01  # width by the size of the font; px


def drawn_width(text: str, size: int = 12, bold: bool = False) -> float:
    """Return how many px a line takes in letters of `size` px."""
    return sum(map(_em, text)) * size * (_BOLD if bold else 1)


def _em(letter: str) -> float:
    if known := _WIDTHS.get(letter):
        return known
    return 0.0 if combining(letter) else _SQUARE if east_asian_width(letter) in "WF" else _OTHER


def broken(text: str, room: float, size: int = 12, bold: bool = False) -> list[str]:
    """Break a text into lines of at most `room` px.

    Between words as plotly's tables do, and inside a word that is wider. An empty text is one line.
    """
    lines: list[str] = []
    line: list[str] = []
    taken = 0.0
    for word in _pieces(text, room, size, bold):
        width = drawn_width(word + " ", size, bold)  # plotly counts the space behind the last word of a line too
        if line and taken + width > room + ROUNDING:
            lines.append(" ".join(line))
            line, taken = [], 0.0
        line.append(word)
        taken += width
    return [*lines, " ".join(line)]


def _pieces(text: str, room: float, size: int, bold: bool) -> Iterator[str]:
    """Yield the words of a text, one that is wider than `room` in pieces that fit."""
    for word in text.split():
        begin, taken = 0, SPACE * size
        for at, letter in enumerate(word):
            width = drawn_width(letter, size, bold)
            if at > begin and taken + width > room + ROUNDING:
                yield word[begin:at]
                begin, taken = at, SPACE * size
            taken += width
        yield word[begin:]

"""A table of texts, in groups of rows."""

from collections.abc import Sequence
from textwrap import wrap

import plotly.graph_objects as go

from workbench.plots.theme import FAINT, INK, MUTED, PAPER, RULE, WIDTH, finish

ROW, LINE = 26, 16  # px, of a row and of each further line of the head
PADDING, CHARACTER = 17, 6.7  # px, of a cell and of a character on average


def table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    title: str,
    caption: str,
    notice: str,
    groups: Sequence[int] = (),
    widths: Sequence[float] = (),
    words: int = 1,
) -> go.Figure:
    """`rows` of texts under `head`; `groups` are the indices of rows that begin a new group (drawn as a bar). The first
    `words` columns are texts, the others numbers, set to the right. A text too long for its line is cut,
    a number never."""
    shares = list(widths) or [2.9, *[1] * (len(head) - 1)]
    room = [(WIDTH - 24) * share / sum(shares) - PADDING for share in shares]
    most = [int(each / CHARACTER) for each in room]
    lines = [
        [text if len(text) <= n else text[: n - 1] + "…" for text, n in zip(row[:words], most, strict=False)]
        + list(row[words:])
        for row in rows
    ]
    columns = list(zip(*lines, strict=True))
    fill = [FAINT if i in groups else PAPER for i in range(len(rows))]
    colours = [MUTED if i in groups else INK for i in range(len(rows))]
    align = ["left"] * words + ["right"] * (len(head) - words)
    size, above = ROW, ROW
    for text, n in zip(head, most, strict=True):
        above = max(above, ROW + LINE * (len(wrap(text, max(4, n - 1))) - 1))  # bold is wider
    fig = go.Figure(go.Table(
        columnwidth=shares,
        header={"values": [f"<b>{text}</b>" for text in head], "align": align, "fill": {"color": PAPER},
                "line": {"color": RULE}, "height": above, "font": {"size": 12, "color": INK}},
        cells={"values": columns, "align": align, "fill": {"color": [fill]}, "line": {"color": RULE},
               "height": size, "font": {"size": 12, "color": [colours]}},
    ))  # fmt: skip
    return finish(
        fig,
        title=title,
        notice=notice,
        caption=caption,
        height=size * len(rows) + above + 6,
        above=14,
        below=8,
        left=10,
        right=14,
    )


def verdict(right: bool | None) -> str:
    """Return whether an answer is right, as a cell of a table; a dash where no answer is known."""
    return {True: "yes", False: "no", None: "–"}[right]

"""The paper's Table 3 beside ours."""

from collections.abc import Sequence

import plotly.graph_objects as go

from workbench.plots.theme import FAINT, INK, MUTED, PAPER, RULE, finish


def table(
    head: Sequence[str], rows: Sequence[Sequence[str]], *, groups: Sequence[int], title: str, caption: str, notice: str
):
    """`rows` of texts under `head`; `groups` are the indices of rows that begin a new group (drawn as a bar)."""
    columns = list(zip(*rows, strict=True))
    fill = [FAINT if i in groups else PAPER for i in range(len(rows))]
    colours = [MUTED if i in groups else INK for i in range(len(rows))]
    size = 26
    fig = go.Figure(go.Table(
        columnwidth=[2.9, *[1] * (len(head) - 1)],
        header={"values": [f"<b>{text}</b>" for text in head], "align": ["left", "right"], "fill": {"color": PAPER},
                "line": {"color": RULE}, "height": size, "font": {"size": 12, "color": INK}},
        cells={"values": columns, "align": ["left", "right"], "fill": {"color": [fill]}, "line": {"color": RULE},
               "height": size, "font": {"size": 12, "color": [colours]}},
    ))  # fmt: skip
    return finish(
        fig, title=title, notice=notice, caption=caption, height=size * (len(rows) + 1) + 6, above=14, below=8, left=10, right=14,
    )  # fmt: skip

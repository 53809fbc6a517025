"""Prompts that follow one another, one bar each: which of their blocks were kept, moved, recalled or encoded."""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import plotly.graph_objects as go

from workbench.plots.looks import REUSE_STATUSES, Look, block_hovers
from workbench.plots.theme import PAPER, finish, legend_over, with_title


def history(records: Sequence[Mapping[str, Any]], *, title: str, unit: str, caption: str, notice: str) -> go.Figure:
    """`records` as of `turnover.follow` (fates, moves, sizes, labels, question); `unit` is what a bar is."""
    ticks = [str(record["step"] + 1) for record in records]
    parts: dict[str, list[tuple]] = {name: [] for name in (*REUSE_STATUSES, "question")}
    for at, record in enumerate(records):
        starts = [0, *accumulate(record["sizes"])]
        for status, start, size, text in zip(
            record["fates"], starts, record["sizes"], block_hovers(record), strict=False
        ):
            parts[status].append((at, start, size, text))
        asked = f"<b>question, {record['question']} tokens</b><br>{record['label'].replace('<', '&lt;')}"
        parts["question"].append((at, starts[-1], record["question"], asked))
    fig = go.Figure()
    for status, bars in parts.items():
        fig.add_bar(
            y=[at for at, *_ in bars] or [None],
            base=[start for _, start, *_ in bars],
            x=[size for *_, size, _ in bars] or [None],
            orientation="h",
            name=REUSE_STATUSES.get(status, Look(name="question")).name,
            marker={"color": REUSE_STATUSES.get(status, Look("#1b1e23")).colour, "line": {"color": PAPER, "width": 1}},
            customdata=[text for *_, text in bars],
            hovertemplate="%{customdata}<extra></extra>",
        )
    height = max(90, 24 * len(records))
    fig.update_xaxes(with_title("position (tokens)", showgrid=False))
    fig.update_yaxes(
        with_title(unit, tickvals=list(range(len(records))), ticktext=ticks, showgrid=False, ticks=""),
        range=[len(records) - 0.5, -0.5],
    )
    fig.update_layout(barmode="overlay", bargap=0.25, legend=legend_over(height, 6, traceorder="normal"))
    return finish(fig, title=title, notice=notice, caption=caption, height=height, above=40, below=58, left=84)

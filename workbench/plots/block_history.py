"""Prompts that follow one another: which of their blocks were kept, moved, recalled or encoded."""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, Unpack

import plotly.graph_objects as go

from workbench.plots.bars import EDGE, Bars, bar_chart
from workbench.plots.looks import REUSE_STATUSES, Look, block_hovers
from workbench.plots.theme import INK, Texts


def history(records: Sequence[Mapping[str, Any]], *, unit: str, **texts: Unpack[Texts]) -> go.Figure:
    """Draw prompts that follow one another, a bar each: which of their blocks were kept, moved, recalled or encoded.

    `records` as of `session_replay.follow` (fates, moves, sizes, labels, question); `unit` is what a bar is.
    """
    bars: dict[str, list[tuple]] = {status: [] for status in (*REUSE_STATUSES, "question")}
    for at, record in enumerate(records):
        *starts, end = accumulate(record["sizes"], initial=0)
        statuses = zip(record["fates"], starts, record["sizes"], block_hovers(record), strict=True)
        for status, *place in statuses:
            bars[status].append((at, *place))
        label = record["label"].replace("<", "&lt;")
        text = f"<b>question, {record['question']} tokens</b><br>{label}"
        bars["question"].append((at, end, record["question"], text))
    drawn = []
    for status, placed in bars.items():
        rows, sizes = ([bar[i] for bar in placed] or [None] for i in (0, 2))
        starts, hovers = ([bar[i] for bar in placed] for i in (1, 3))
        look = REUSE_STATUSES.get(status, Look(INK, name=status))
        more = {"base": starts, "marker": EDGE}
        drawn.append(Bars(look.name, look.colour, rows, sizes, "%{customdata}<extra></extra>", hovers, more))
    count = len(records)
    ticks = {"tickvals": list(range(count)), "ticktext": [str(record["step"] + 1) for record in records]}
    return bar_chart(
        drawn,
        height=max(90, 24 * count),
        mode="overlay",
        gap=0.25,
        left=84,
        x={"title_text": "position (tokens)", "showgrid": False},
        y={"title_text": unit, "showgrid": False, "ticks": "", "range": [count - 0.5, -0.5], **ticks},
        **texts,
    )

"""Prompts that follow one another: which of their blocks were kept, moved, recalled or encoded, and what that took."""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, Unpack

import plotly.graph_objects as go

from workbench.plots.marks.bars import EDGE, Bars, bar_chart
from workbench.plots.marks.lines import Panel, Series, line_chart
from workbench.plots.marks.styles import REUSE_STATUSES, SECONDS, TOKENS, Look, block_hovers
from workbench.plots.marks.theme import INK, Texts


def history(records: Sequence[Mapping[str, Any]], *, unit: str, **texts: Unpack[Texts]) -> go.Figure:
    """Draw prompts that follow one another, a bar each: which of their blocks were kept, moved, recalled or encoded.

    `records` as of `session_replay.follow` (fates, moves, sizes, labels, question); `unit` is what a bar is.
    """
    bars: dict[str, list[tuple[Any, ...]]] = {status: [] for status in (*REUSE_STATUSES, "question")}
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


def turnover(records: Sequence[Mapping[str, Any]], *, unit: str, **texts: Unpack[Texts]) -> go.Figure:
    """Draw tokens and time of every prompt: `records` of `session_replay.follow`, `unit` what they are (a turn)."""
    ticks = [digit * 10**power for power in range(6) for digit in (1, 2, 5)]
    values = {"type": "log", "tickvals": ticks, "ticktext": [f"{tick:,}" for tick in ticks]}
    panels = []
    for title, fields, scale, form in (
        ("tokens through the model", TOKENS, 1, ",d"),
        ("time to the first token (ms)", SECONDS, 1e3, ",.1f"),
    ):
        lines = []
        for key, look in fields.items():
            taken = [r for r in records if r[key] is not None]
            x, y = [r["step"] + 1 for r in taken], [r[key] * scale for r in taken]
            hover = f"{unit} %{{x}}: %{{y:{form}}}<br>%{{customdata}}"
            lines.append(Series(look.name, x, y, hover=hover, data=[r["label"] for r in taken], look=look))
        panels.append(Panel(title, lines, {"title_text": unit, "tickformat": "d"}, values))
    return line_chart(panels, **texts)

"""Sessions over cached blocks: states of a game frame by frame, and answer scores."""

from collections.abc import Mapping, Sequence
from typing import Any, Unpack

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from workbench.plots.marks import chart, elements
from workbench.plots.marks.elements import steps, swatches
from workbench.plots.marks.styles import MODES, REUSE_STATUSES, block_hovers
from workbench.plots.marks.theme import FigureTexts, finish, legend_over


def frames(
    records: Sequence[Mapping[str, Any]], *, columns: int, rows: Sequence[str], **notes: Unpack[FigureTexts]
) -> go.Figure:
    """Draw one frame per record of `sessions.follow`; the slider starts at the record with most kinds of blocks.

    The first block (the rules) is left out; the others fill rows of `columns` cells, one for each name of `rows`. The
    legend lists the kinds of blocks that occur.
    """
    pictures = [_picture(record, columns, len(rows)) for record in records]
    kinds = [set(record["fates"][1:]) for record in records]
    active = max(range(len(records)), key=lambda at: len(kinds[at]))
    colours = [look.colour for look in REUSE_STATUSES.values()]
    scale = {"zmin": -0.5, "zmax": len(colours) - 0.5, "colorscale": steps(colours), "showscale": False}
    cells = go.Heatmap(pictures[active], **scale, xgap=1.5, ygap=1.5, hoverongaps=False)
    cells.update(x=list(range(1, columns + 1)), y=list(rows), hovertemplate="%{text}<extra></extra>")
    fig = go.Figure(cells)
    swatches(
        fig,
        {
            REUSE_STATUSES[kind].name: REUSE_STATUSES[kind].colour
            for kind in REUSE_STATUSES
            if kind in set().union(*kinds)
        },
    )
    numbers = [str(record["step"] + 1) for record in records]
    titles = [f"block within the table<br>{describe_frame(record)}" for record in records]
    fig.frames = [
        frame.update(layout={"xaxis": {"title": {"text": title}}})
        for frame, title in zip(
            elements.frames({n: [one] for n, one in zip(numbers, pictures, strict=True)}), titles, strict=True
        )
    ]
    height = max(120, 30 * len(rows))
    slider = elements.frame_slider(numbers, active, "frame ", pad=76)
    fig.update_layout(sliders=[slider], legend=legend_over(height, 6, itemclick=False))
    ticks = {"tickvals": [1, *range(8, columns + 1, 8)], "ticks": "", "range": [0.4, columns + 0.6]}
    fig.update_xaxes(title_text=titles[active], showgrid=False, **ticks)
    fig.update_yaxes(autorange="reversed", showgrid=False, ticks="", type="category")
    return finish(fig, title="Blocks by frame", height=height, above=40, below=160, left=60, **notes)


def describe_frame(record: Mapping[str, Any]) -> str:
    """Describe a frame in one line: the event and its cost."""
    numbers = {status: record[f"blocks_{status}"] for status in REUSE_STATUSES}
    counts = ", ".join(f"{number} {status}" for status, number in numbers.items() if number)
    return f"{record['label'].replace('<', '&lt;')} — blocks: {counts}"


def _picture(record: Mapping[str, Any], columns: int, rows: int) -> go.Heatmap:
    """Return the reuse status [rows, columns] (nan: no block) and hover text of every cell."""
    number = {status: i for i, status in enumerate(REUSE_STATUSES)}
    statuses, hovers = record["fates"][1:], block_hovers(record)[1:]
    z, texts = np.full(rows * columns, np.nan, np.float32), np.full(rows * columns, "", object)
    z[: len(statuses)] = [number[status] for status in statuses]
    texts[: len(hovers)] = hovers
    return go.Heatmap(z=z.reshape(rows, columns), text=texts.reshape(rows, columns))


def quality(
    answers: pd.DataFrame, scores: pd.DataFrame, panels: Mapping[str, Mapping[str, Any]], *, title: str, caption: str
) -> go.Figure | None:
    """Draw mean `scores` of `answers` by kind and mode, one panel per measure; None without scores.

    Measures equal to exact match in every answer are not drawn again, and the figure says so. If all answers are right,
    they are counted in a table.
    """
    if len(answers) and answers.em.eq(1).all():
        return _all_right(answers, title=title, caption=caption)
    alike = [about["title"] for name, about in panels.items() if name != "em" and (answers[name] == answers.em).all()]
    shown = {name: about for name, about in panels.items() if about["title"] not in alike}
    more = f" Equal to exact match in every answer: {' and '.join(alike)}." if alike else ""
    how: dict[str, Any] = {"y": "kind", "by": "mode", "panel": "measure", "panels": shown, "look": MODES.of}
    return chart.dot_plot(scores, **how, title=title, caption=caption + more)


def _all_right(answers: pd.DataFrame, *, title: str, caption: str) -> go.Figure | None:
    """Count right answers by kind and mode."""
    modes = list(dict.fromkeys(answers["mode"]))
    counts = answers.groupby(["source", "kind", "mode"], sort=False).em.agg(["sum", "size"])
    right = counts.apply(lambda row: f"{row['sum']:.0f} of {row['size']:.0f}", axis=1).unstack("mode").reset_index()
    return chart.table(
        right,
        {"kind": "question", **{mode: MODES.name_of(mode) for mode in modes}},
        title=title,
        notice="Every answer is right (exact match): these questions cannot distinguish the modes.",
        caption=caption,
    )

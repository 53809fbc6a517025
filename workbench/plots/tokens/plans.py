"""Figures of what methods compute, from their plans: tokens before and during the request, and the mask."""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, Unpack

import numpy as np
import plotly.graph_objects as go
import torch

from workbench.core.blocks import Prompt
from workbench.core.masks import visible
from workbench.core.plan import Plan
from workbench.metrics.kv.selection import TokenStages
from workbench.plots.marks.bars import EDGE, Bars, bar_chart
from workbench.plots.marks.elements import block_axis, block_edges, steps, swatches
from workbench.plots.marks.lines import Panel, Series, line_chart
from workbench.plots.marks.styles import REUSE_STATUSES, SECONDS, TOKENS, SeriesStyle, block_hovers
from workbench.plots.marks.theme import BLUE, FAINT, INK, ORANGE, PAPER, RED, RULE, Texts, finish, lighten


def history(records: Sequence[Mapping[str, Any]], *, unit: str, **texts: Unpack[Texts]) -> go.Figure:
    """Draw successive prompts, one bar each: which blocks were kept, moved, recalled or encoded.

    `records` are from `sessions.follow` (fates, moves, sizes, labels, question); `unit` names what a bar is.
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
        if not placed:
            continue
        rows, starts, sizes, hovers = ([bar[i] for bar in placed] for i in range(4))
        look = REUSE_STATUSES.get(status, SeriesStyle(INK, name=status))
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
    """Draw tokens and time of every prompt: `records` of `sessions.follow`; `unit` names them ("turn")."""
    ticks = [digit * 10**power for power in range(6) for digit in (1, 2, 5)]
    values = {"type": "log", "tickvals": ticks, "ticktext": [f"{tick:,}" for tick in ticks]}
    panels = []
    for title, fields, scale, form in (
        ("tokens computed", TOKENS, 1, ",d"),
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


STAGES = {  # numbered from 1
    "cached before the request": BLUE,
    "scored by the selector, in some layers": lighten(ORANGE, 0.55),
    "computed at the request": RED,
}
ROW = 34  # px


def timelines(found: Mapping[str, TokenStages], prompt: Prompt, *, ratio: float, about: str) -> go.Figure:
    """Draw which tokens every method computes, before and during the request (FusionRAG, figures 1 and 4)."""
    lines, names, gap = [], [], np.zeros(len(prompt), np.uint8)
    for name, one in found.items():
        at_request = torch.where(one.online, 3, one.scored.int() * 2).numpy()
        lines += [one.offline.numpy().astype(np.uint8), at_request.astype(np.uint8), gap]
        names += [f"{name}: before", "at the request", " " * len(lines)]
    grid = np.stack(lines[:-1])
    fig = go.Figure(
        go.Heatmap(
            z=grid,
            zmin=-0.5,
            zmax=3.5,
            colorscale=steps([FAINT, *STAGES.values()]),
            showscale=False,
            hovertemplate="token %{x}<extra></extra>",
        )
    )
    for number in range(2, len(grid), 3):  # a blank line between methods
        fig.add_hrect(number - 0.5, number + 0.5, fillcolor=PAPER, line_width=0)
    for edge in block_edges(prompt.block_of.numpy()):
        fig.add_vline(edge, line={"color": PAPER, "width": 1})
    kept = [number for number in range(len(grid)) if number % 3 != 2]
    fig.update_yaxes(autorange="reversed", tickvals=kept, ticktext=[names[i] for i in kept], showgrid=False, ticks="")
    fig.update_xaxes(title_text="block", **block_axis(prompt.block_of.numpy()))
    swatches(fig, STAGES)
    return finish(
        fig,
        title="Tokens computed before and during a request",
        caption=f"From the plans of one request. {ratio:.0%} of the tokens of passages are recomputed where a selector "
        f"chooses. Block 0 is the system prompt, Q the question. {about}.",
        height=ROW * len(grid) * 2 // 3,
        left=190,
        legend=6,
    )


def fusion_mask(prompt: Prompt, chosen: Sequence[int]) -> go.Figure:
    """Draw the mask of recomputed tokens and question over the cache, from their plan (FusionRAG, figure 6)."""
    plan = Plan(torch.cat((torch.tensor(chosen), prompt.question)))
    mask = visible(plan.sees, plan.rows, torch.arange(len(prompt))).numpy()
    fresh = np.isin(np.arange(len(prompt)), plan.rows.numpy())
    shown = np.where(mask, np.where(fresh, 2, 1), 0)
    looks = {"hidden": FAINT, "read from the cache": lighten(BLUE, 0.6), "computed in this pass": RED}
    fig = go.Figure(
        go.Heatmap(
            z=shown, zmin=-0.5, zmax=2.5, colorscale=steps(list(looks.values())), showscale=False, xgap=3, ygap=3
        )
    )
    of, asked = prompt.block_of, len(prompt.blocks) - 1
    parts = ["S" if block == 0 else "Q" if block == asked else f"C{block}" for block in of.tolist()]
    columns = [f"{number + 1}<br>{part}" for number, part in enumerate(parts)]
    rows = [f"token {row + 1}" for row in plan.rows.tolist()]
    fig.update_xaxes(tickvals=list(range(len(columns))), ticktext=columns, showgrid=False, ticks="")
    fig.update_yaxes(autorange="reversed", tickvals=list(range(len(rows))), ticktext=rows, showgrid=False, ticks="")
    for edge in block_edges(of.numpy()):
        fig.add_vline(edge, line={"color": INK, "width": 1})
    swatches(fig, {name: colour for name, colour in looks.items() if name != "hidden"} | {"hidden": RULE})
    return finish(
        fig,
        title=f"Cache-fusion mask: {len(rows)} query tokens × {len(columns)} key tokens",
        caption="The example of FusionRAG, figure 6: system prompt S, chunks C1 and C2, question Q; tokens count from "
        "1. Drawn from the plan that computes these rows.",
        height=44 * len(rows),
        left=90,
        legend=6,
    )

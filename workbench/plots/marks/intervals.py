"""Scores with 95% intervals: one mark a method in rows, by kind of question, or against baselines."""

from collections.abc import Sequence
from typing import Any, Unpack

import plotly.graph_objects as go

from workbench.plots.marks.controls import button, switch
from workbench.plots.marks.elements import interval
from workbench.plots.marks.styles import MODES
from workbench.plots.marks.theme import RULE, Notes, finish

SCORES = {"em": "exact match", "f1": "F1"}
KINDS = ("all", "single-hop", "continuation", "two-hop", "comparison", "order")  # other kinds follow
TICKS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


def quality(records: Sequence[dict[str, Any]], **notes: Unpack[Notes]) -> go.Figure:
    """Draw scores by kind: {mode, kind, n, em, em_low, em_high, f1, f1_low, f1_high}; a menu picks the score."""
    counts = {r["kind"]: r["n"] for r in records}
    kinds = sorted(counts, key=lambda kind: KINDS.index(kind) if kind in KINDS else len(KINDS))
    modes = list(dict.fromkeys(r["mode"] for r in records))
    fig = go.Figure()
    for score, title in SCORES.items():
        for index, mode in enumerate(modes):
            look = MODES[mode]
            rows = sorted((r for r in records if r["mode"] == mode), key=lambda r: kinds.index(r["kind"]))
            values, low, high = ([r[key] for r in rows] for key in (score, f"{score}_low", f"{score}_high"))
            shift = (index - (len(modes) - 1) / 2) * 0.2
            fig.add_scatter(
                x=[kinds.index(r["kind"]) + shift for r in rows],
                y=values,
                error_y=interval(values, low, high, 2, 5),
                name=look.name,
                mode="markers",
                visible=score == "em",
                marker={"color": look.colour, "symbol": look.symbol, "size": 11},
                customdata=[[r["kind"], r["n"], *ends] for r, *ends in zip(rows, low, high, strict=True)],
                hovertemplate=f"<b>%{{customdata[0]}}</b>: {title} %{{y:.1%}}<br>95% interval %{{customdata[2]:.1%}} "
                f"to %{{customdata[3]:.1%}}, n = %{{customdata[1]}}<extra>{look.name}</extra>",
            )
    for edge in range(len(kinds) - 1):
        fig.add_vline(edge + 0.5, line={"color": RULE, "width": 0.7})
    heads = [f"{kind}<br>n = {counts[kind]}" for kind in kinds]
    ends = [-0.5, len(kinds) - 0.5]
    fig.update_xaxes(tickvals=list(range(len(kinds))), ticktext=heads, range=ends, tickfont={"size": 12})
    fig.update_xaxes(showgrid=False, ticks="")
    fig.update_yaxes(title_text="exact match", tickformat=".0%", range=[-0.03, 1.03], dtick=0.2)
    buttons = [
        button(title, [each == score for each in SCORES for _ in modes], {"yaxis.title.text": title})
        for score, title in SCORES.items()
    ]
    fig.update_layout(updatemenus=[switch(buttons, 340, 6)])
    return finish(fig, title="How well the model answers", height=340, above=48, below=56, legend=8, **notes)

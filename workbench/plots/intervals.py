"""Scores with 95% intervals: one mark a method in rows, by kind of question, or against baselines."""

from collections.abc import Mapping, Sequence
from math import log10
from typing import Any, Unpack

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from workbench.experiments.record import Record
from workbench.plots.controls import button, switch
from workbench.plots.elements import interval
from workbench.plots.styles import BASELINES, MODES
from workbench.plots.theme import BLUE, FAINT, INK, MUTED, RULE, Notes, Texts, finish, legend_lines, panel_titles

SCORES = {"em": "exact match", "f1": "F1"}
KINDS = ("all", "single-hop", "continuation", "two-hop", "comparison", "order")  # other kinds follow
TICKS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


def forest(
    records: Sequence[dict[str, Any]],
    *,
    score: str = "em",
    unit: str = "exact match",
    colours: Mapping[str, str] | None = None,
    marks: Mapping[str, str] | None = None,
    reference: str = "",
    **texts: Unpack[Texts],
) -> go.Figure:
    """Draw scores of many methods: one row a method, one panel a kind of question.

    `records`: {name, kind, n, <score>, <score>_low, <score>_high}, in the order in which names shall stand. A dotted
    line marks the score of the method named `reference` in every panel. `colours` and `marks` (plotly symbols) are by
    name.
    """
    names = list(dict.fromkeys(r["name"] for r in records))
    counts = {r["kind"]: r["n"] for r in records}
    heads = [f"{kind}<br>n = {count:,}" for kind, count in counts.items()]
    fig = make_subplots(1, len(counts), shared_yaxes=True, horizontal_spacing=0.012, subplot_titles=heads)
    for col, kind in enumerate(counts, 1):
        rows = [r for r in records if r["kind"] == kind]
        values, low, high = ([r[key] for r in rows] for key in (score, f"{score}_low", f"{score}_high"))
        colour = [(colours or {}).get(r["name"], BLUE) for r in rows]
        symbol = [(marks or {}).get(r["name"], "circle") for r in rows]
        fig.add_scatter(
            x=values,
            y=[r["name"] for r in rows],
            error_x={**interval(values, low, high), "color": INK},
            mode="markers",
            marker={"size": 9, "color": colour, "symbol": symbol},
            customdata=[[r["n"], *ends] for r, *ends in zip(rows, low, high, strict=True)],
            hovertemplate=f"<b>%{{y}}</b><br>{unit} %{{x:.1%}}<br>95% interval %{{customdata[1]:.1%}} to "
            f"%{{customdata[2]:.1%}}, n = %{{customdata[0]:,}}<extra>{kind}</extra>",
            showlegend=False,
            row=1,
            col=col,
        )
        if level := [r[score] for r in rows if r["name"] == reference]:
            fig.add_vline(level[0], line={"color": INK, "width": 1, "dash": "dot"}, row=1, col=col)
    fig.update_xaxes(range=[-0.06, 1.06], tickvals=[0, 0.5, 1], ticktext=["", "50%", "100%"], gridcolor=FAINT)
    fig.update_yaxes(categoryorder="array", categoryarray=names[::-1], showgrid=True, ticks="")
    panel_titles(fig)
    left = 40 + 7 * max(map(len, names))
    return finish(fig, height=26 * len(names) + 12, above=56, below=46, left=left, **texts)


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


def reuse_quality(records: Mapping[str, Record], *, about: str) -> go.Figure:
    """Draw the scores of trials with full attention, blocks and naive positions ("full", "block", "naive")."""
    return quality(
        [row for record in records.values() for row in record.rows()],
        notice=f"Independent blocks answer {records['block'].em:.0%} where full attention answers "
        f"{records['full'].em:.0%}; with naive positions they answer {records['naive'].em:.0%}. {_most_lost(records)}",
        caption=f"{about}, greedy decoding. Exact match and F1 after SQuAD's normalisation, best over aliases. Bars "
        f"are 95% intervals (Wilson's for exact match, bootstrap for F1). {records['full'].device}.",
    )


def _most_lost(records: Mapping[str, Record]) -> str:
    """Say which kind of question independent blocks lose most of beside full attention."""
    full, block = (records[mode].by_kind for mode in ("full", "block"))
    gaps = {kind: (full[kind].em or 0.0) - (block[kind].em or 0.0) for kind in full if kind in block}
    if not gaps:
        return ""
    most = max(gaps, key=gaps.__getitem__)
    if gaps[most] <= 0:
        return "No kind of question answers less with them."
    return f"They lose most on {most}: {gaps[most] * 100:.0f} points (n = {full[most].n})."


def baseline_ratios(records: Sequence[Mapping[str, Any]], **texts: Unpack[Texts]) -> go.Figure:
    """Draw how many times as fast a kernel is as its baselines: one row a workload, one mark a baseline.

    `records`: {work, who, ratio, low, high, ms}: median of the baseline over the median of the kernel, and the same of
    the baseline's 5th and 95th percentile. Right of the line at 1 the kernel is faster.
    """
    works = list(dict.fromkeys(r["work"] for r in records))
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for r in records:
        groups.setdefault(BASELINES.start_of(r["who"]) or r["who"], []).append(r)
    fig = go.Figure()
    for start, rows in groups.items():
        look = BASELINES.of(start)
        ratios, low, high = ([r[key] for r in rows] for key in ("ratio", "low", "high"))
        symbols = ["circle-open" if "dense" in r["who"] or "full" in r["who"] else "circle" for r in rows]
        fig.add_scatter(
            x=ratios,
            y=[r["work"] for r in rows],
            error_x=interval(ratios, low, high),
            mode="markers",
            name=look.name,
            marker={"color": look.colour, "size": 10, "symbol": symbols, "line": {"width": 2, "color": look.colour}},
            customdata=[[BASELINES.name_of(r["who"]), r["ms"]] for r in rows],
            hovertemplate="<b>%{y}</b><br>%{customdata[0]}: %{customdata[1]:.3g} ms, ours is %{x:.2f} times as fast"
            "<extra></extra>",
        )
    ends = [log10(edge) for r in records for edge in (r["low"], r["high"])] + [0.0]
    first, last = min(ends) - 0.12, max(ends) + 0.12
    ticks = [tick for tick in TICKS if first <= log10(tick) <= last]
    fig.add_vline(1, line={"color": INK, "width": 1})
    fig.update_xaxes(title_text="ours is so many times as fast", type="log", range=[first, last])
    fig.update_xaxes(tickvals=ticks, ticktext=[f"{tick:g}×" for tick in ticks])
    fig.update_yaxes(categoryorder="array", categoryarray=works[::-1], showgrid=True, gridcolor=FAINT, ticks="")
    fig.update_yaxes(tickfont={"color": MUTED, "size": 11})
    left = 36 + round(6.2 * max(map(len, works)))
    above = 26 + 20 * legend_lines(groups)
    return finish(fig, height=24 * len(works) + 20, above=above, below=52, left=left, legend=6, **texts)

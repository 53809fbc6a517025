"""How many times faster a kernel is than its peers: one row a workload, one mark a peer."""

from collections.abc import Mapping, Sequence
from math import log10

import plotly.graph_objects as go

from workbench.plots.looks import BASELINES
from workbench.plots.theme import FAINT, INK, MUTED, finish, legend_over, with_title

ROW = 24  # px
TICKS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


def peers(records: Sequence[Mapping], *, title: str, caption: str, notice: str) -> go.Figure:
    """`records`: {work, who, ratio, low, high, ms}: median of the peer over the median of ours, and the same of the
    peer's 5th and 95th percentile. Right of the line at 1 ours is faster."""
    works = list(dict.fromkeys(r["work"] for r in records))
    fig = go.Figure()
    seen: list[str] = []
    for r in records:
        if (start := BASELINES.start_of(r["who"]) or r["who"]) not in seen:
            seen.append(start)
    for start in seen:
        part = [r for r in records if (BASELINES.start_of(r["who"]) or r["who"]) == start]
        fig.add_scatter(
            x=[r["ratio"] for r in part],
            y=[r["work"] for r in part],
            error_x={
                "array": [r["high"] - r["ratio"] for r in part],
                "arrayminus": [r["ratio"] - r["low"] for r in part],
                "thickness": 1.6,
                "width": 3,
            },
            mode="markers",
            name=BASELINES.name_of(start),
            marker={
                "color": BASELINES.colour_of(start), "size": 10,
                "symbol": ["circle-open" if "dense" in r["who"] or "full" in r["who"] else "circle" for r in part],
                "line": {"width": 2, "color": BASELINES.colour_of(start)},
            },
            customdata=[[BASELINES.name_of(r["who"]), r["ms"]] for r in part],
            hovertemplate="<b>%{y}</b><br>%{customdata[0]}: %{customdata[1]:.3g} ms, ours is %{x:.2f} times as fast"
            "<extra></extra>",
        )  # fmt: skip
    edges = [edge for r in records for edge in (r["low"], r["high"])] + [1.0]
    low, high = log10(min(edges)) - 0.12, log10(max(edges)) + 0.12
    fig.add_vline(1, line={"color": INK, "width": 1})
    ticks = [tick for tick in TICKS if low <= log10(tick) <= high]
    fig.update_xaxes(
        with_title("ours is so many times as fast", type="log", range=[low, high], tickvals=ticks,
                   ticktext=[f"{tick:g}×" for tick in ticks])
    )  # fmt: skip
    fig.update_yaxes(categoryorder="array", categoryarray=works[::-1], showgrid=True, gridcolor=FAINT, ticks="")
    fig.update_yaxes(tickfont={"color": MUTED, "size": 11})
    height = ROW * len(works) + 20
    fig.update_layout(legend=legend_over(height, 6))
    return finish(
        fig, title=title, notice=notice, caption=caption, height=height, above=40, below=52,
        left=36 + round(6.2 * max(map(len, works))),
    )  # fmt: skip

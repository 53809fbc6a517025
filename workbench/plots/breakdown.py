"""Where the time goes: one bar a way, a part a stage."""

from collections.abc import Mapping

import plotly.graph_objects as go

from workbench.plots.looks import BROWN, VIOLET
from workbench.plots.theme import INK, MUTED, PAPER, SKY, finish, legend_over, pale, with_title

COLOURS = {"place": SKY, "choose": BROWN, "attend": VIOLET, "rest": pale(MUTED, 0.5)}  # by stage
ROW = 34  # px


def breakdown(
    bars: Mapping[str, Mapping[str, float]],
    stages: Mapping[str, str],
    *,
    title: str,
    caption: str,
    notice: str,
) -> go.Figure:
    """`bars`: way → stage → seconds; `stages`: stage → what it is called, in the order in which they are drawn."""
    names, totals = list(bars), {name: sum(parts.values()) * 1e3 for name, parts in bars.items()}
    fig = go.Figure()
    for stage, said in stages.items():
        colour = COLOURS[stage]
        values = [bars[name].get(stage, 0.0) * 1e3 for name in names]
        shares = [value / totals[name] if totals[name] else 0.0 for name, value in zip(names, values, strict=True)]
        wide = max(totals.values())
        fig.add_bar(
            y=names,
            x=values,
            orientation="h",
            name=said,
            marker={"color": colour, "line": {"color": PAPER, "width": 1}},
            text=[spoken(value, "") if value > 0.06 * wide else "" for value in values],
            textposition="inside",
            insidetextanchor="middle",
            textangle=0,
            textfont={"size": 11, "color": PAPER if stage in ("choose", "attend") else INK},
            customdata=shares,
            hovertemplate="<b>%{y}</b><br>" + said + ": %{x:.3g} ms, %{customdata:.0%}<extra></extra>",
        )
    for name in names:
        fig.add_annotation(
            x=totals[name], y=name, text=f"<b>{spoken(totals[name])}</b>", xanchor="left", xshift=6, showarrow=False
        )
    height = ROW * len(names) + 16
    fig.update_layout(barmode="stack", bargap=0.28, legend=legend_over(height, 6, traceorder="normal"))
    fig.update_xaxes(with_title("milliseconds to the first token", range=[0, 1.14 * max(totals.values())]))
    fig.update_yaxes(categoryorder="array", categoryarray=names[::-1], ticks="", showgrid=False)
    return finish(
        fig, title=title, notice=notice, caption=caption, height=height, above=40, below=52,
        left=40 + 7 * max(map(len, names)), right=40,
    )  # fmt: skip


def listed(stages: Mapping[str, str], seconds: Mapping[str, float]) -> str:
    """The stages by how much they take, for a sentence: "attention 62%, …"."""
    total = sum(seconds.values()) or 1.0
    ordered = sorted(stages, key=lambda stage: -seconds.get(stage, 0.0))
    return ", ".join(f"{stages[stage]} {seconds.get(stage, 0.0) / total:.0%}" for stage in ordered)


def spoken(milliseconds: float, unit: str = " ms") -> str:
    """Three digits: "7.87 ms", "1,430 ms"."""
    return (f"{milliseconds:,.0f}" if milliseconds >= 100 else f"{milliseconds:.3g}") + unit

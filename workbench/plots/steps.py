"""Accuracy while a model is trained: one line a way to answer, with 95% bands (Block-Attention, figure 4)."""

from collections.abc import Sequence

import plotly.graph_objects as go

from workbench.plots.theme import MODE_NAMES, MODE_SYMBOLS, MODES, clear, finish, legend_over, with_title


def steps(records: Sequence[dict], *, title: str, caption: str, notice: str) -> go.Figure:
    """`records`: {mode, step, n, em, em_low, em_high}."""
    fig = go.Figure()
    for mode in dict.fromkeys(r["mode"] for r in records):
        rows = sorted((r for r in records if r["mode"] == mode), key=lambda r: r["step"])
        at = [r["step"] for r in rows]
        fig.add_scatter(
            x=[*at, *reversed(at)],
            y=[*(r["em_high"] for r in rows), *(r["em_low"] for r in reversed(rows))],
            fill="toself",
            fillcolor=clear(MODES[mode], 0.14),
            line={"width": 0},
            mode="lines",
            hoverinfo="skip",
            showlegend=False,
        )
        fig.add_scatter(
            x=at,
            y=[r["em"] for r in rows],
            name=MODE_NAMES[mode],
            mode="lines+markers",
            line={"color": MODES[mode], "width": 2},
            marker={"symbol": MODE_SYMBOLS[mode], "size": 7},
            customdata=[[r["n"], r["em_low"], r["em_high"]] for r in rows],
            hovertemplate="step %{x:,}: %{y:.1%}<br>95% interval %{customdata[1]:.1%} to %{customdata[2]:.1%}, "
            "n = %{customdata[0]:,}<extra>" + MODE_NAMES[mode] + "</extra>",
        )
    fig.update_xaxes(with_title("step of fine-tuning", rangemode="tozero"))
    fig.update_yaxes(with_title("exact match", tickformat=".0%", range=[0, 1.02]))
    fig.update_layout(legend=legend_over(300, 8))
    return finish(fig, title=title, notice=notice, caption=caption, height=300, above=42, below=58)

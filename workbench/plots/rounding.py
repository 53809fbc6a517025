"""Rounding error of moved keys, by scheme and distance."""

from collections.abc import Sequence

import plotly.graph_objects as go

from workbench.plots.theme import BLUE, GREEN, INK, MUTED, ORANGE, PINK, RED, SKY, finish, with_title

STYLES = {  # scheme: colour, dash
    "naive: not moved": (RED, "solid"),
    "20 chained bf16 shifts": (ORANGE, "dash"),
    "20 chained fp32 shifts": (ORANGE, "solid"),
    "bf16 cache, bf16 shift": (PINK, "dash"),
    "bf16 cache, to zero and on": (PINK, "solid"),
    "bf16 cache, fp32 shift": (BLUE, "solid"),
    "computed in place in bf16": (INK, "solid"),
    "stored un-rotated, rotated once": (SKY, "solid"),
    "fp32 cache, fp32 shift": (GREEN, "solid"),
}


def rounding(records: Sequence[dict], explained: dict[str, str], *, caption: str, notice: str) -> go.Figure:
    """`records`: {scheme, distance (tokens), error (relative L2)}; `explained`: scheme to one line for the hover."""
    fig = go.Figure()
    for scheme, (colour, dash) in STYLES.items():
        points = [r for r in records if r["scheme"] == scheme]
        fig.add_scatter(
            x=[r["distance"] for r in points],
            y=[r["error"] for r in points],
            name=scheme,
            mode="lines+markers",
            line={"color": colour, "dash": dash, "width": 3 if scheme == "bf16 cache, fp32 shift" else 1.8},
            marker={"size": 6},
            hovertemplate=f"<b>{scheme}</b><br>{explained.get(scheme, '')}<br>moved %{{x:,}} tokens: "
            "relative L2 error %{y:.2e}<extra></extra>",
        )
    fig.update_xaxes(with_title("distance moved (tokens)", type="log", dtick=1, tickformat=",d"))
    fig.update_yaxes(with_title("relative L2 error of the moved keys", type="log", dtick=1, exponentformat="power"))
    fig.update_layout(
        legend={"orientation": "v", "x": 1.01, "y": 1, "yanchor": "top", "font": {"color": MUTED, "size": 11}}
    )
    return finish(
        fig, title="What a move costs in rounding", notice=notice, caption=caption, height=400, above=22, below=62,
        right=250,
    )  # fmt: skip

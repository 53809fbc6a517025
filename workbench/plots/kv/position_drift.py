"""How far reused keys and values drift from full attention, with re-encoded and with naive positions."""

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from workbench.plots.marks.elements import interval
from workbench.plots.marks.styles import MODES
from workbench.plots.marks.theme import MUTED, finish, panel_titles

POSITIONS = {"block": "re-encoded", "naive": "naive"}  # of keys, by mode


def positions_drift(records: Sequence[dict[str, Any]], logits: Sequence[dict[str, Any]], *, about: str) -> go.Figure:
    """Draw the drift of the question's own keys and values by layer, and of its next-token distribution.

    `records`: {mode, layer, error: relative L2 distance to full attention per sample}; `logits`: {mode, kl (nats per
    sample), agree (share of samples whose first token is the one of full attention), low, high (95% interval of
    agree)}.
    """
    titles = ["drift of the question's keys and values", "next-token distribution", "same first token"]
    fig = make_subplots(1, 3, column_widths=[0.46, 0.27, 0.27], horizontal_spacing=0.085, subplot_titles=titles)
    _errors(fig, records)
    for r in logits:
        _divergence(fig, r)
        _agreement(fig, r)
    fig.update_xaxes(title_text="layer", dtick=1, row=1, col=1)
    fig.update_yaxes(title_text="relative L2 distance to full attention", rangemode="tozero", row=1, col=1)
    powers = {"type": "log", "exponentformat": "power", "dtick": 1}
    fig.update_yaxes(title_text="KL from full attention (nats)", **powers, row=1, col=2)
    fig.update_yaxes(title_text="share of samples", tickformat=".0%", range=[-0.04, 1.04], row=1, col=3)
    fig.update_xaxes(range=[-0.6, 1.6], row=1, col=3)
    fig.update_layout(legend_font={"color": MUTED})
    panel_titles(fig)
    title = "What naive positions do to the question"
    caption = (
        f"{about}. Left: mean and quartiles over prompts of the relative L2 distance of the question's keys and "
        "values. Right: 95% Wilson intervals. fp32."
    )
    return finish(fig, title=title, height=300, above=66, below=58, legend=24, caption=caption)


def _errors(fig: go.Figure, records: Sequence[dict[str, Any]]) -> None:
    """Add the error of every mode by layer, mean and quartiles over samples, to the first panel."""
    for mode in dict.fromkeys(r["mode"] for r in records):
        rows = [r for r in records if r["mode"] == mode]
        means = [sum(r["error"]) / len(r["error"]) for r in rows]
        ordered = [sorted(r["error"]) for r in rows]
        low = [errors[len(errors) // 4] for errors in ordered]
        high = [errors[(3 * len(errors) - 1) // 4] for errors in ordered]
        look = MODES[mode]
        fig.add_scatter(
            x=[r["layer"] for r in rows],
            y=means,
            mode="lines+markers",
            name=look.name,
            line={"color": look.colour},
            legendgroup=mode,
            error_y=interval(means, low, high, 1),
            hovertemplate=f"layer %{{x}}: %{{y:.3f}} of the norm<extra>{look.name}</extra>",
            row=1,
            col=1,
        )


def _divergence(fig: go.Figure, r: Mapping[str, Any]) -> None:
    """Add the KL of every sample of one mode to the second panel."""
    fig.add_box(
        y=[max(x, 1e-6) for x in r["kl"]],
        name=POSITIONS[r["mode"]],
        marker={"color": MODES[r["mode"]].colour, "size": 4},
        boxpoints="all",
        jitter=0.5,
        pointpos=0,
        fillcolor="rgba(0,0,0,0)",
        line={"width": 1.5},
        hovertemplate="%{y:.3g} nats<extra></extra>",
        showlegend=False,
        row=1,
        col=2,
    )


def _agreement(fig: go.Figure, r: Mapping[str, Any]) -> None:
    """Add the share of samples with the same first token of one mode to the third panel."""
    fig.add_scatter(
        x=[POSITIONS[r["mode"]]],
        y=[r["agree"]],
        mode="markers",
        marker={"color": MODES[r["mode"]].colour, "size": 11},
        error_y=interval([r["agree"]], [r["low"]], [r["high"]], 2, 6),
        hovertemplate="%{y:.1%} of samples<extra></extra>",
        showlegend=False,
        row=1,
        col=3,
    )

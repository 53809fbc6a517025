"""What wrong positions do: drift of the question's own keys and values by layer, and of its next-token distribution."""

from collections.abc import Sequence

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from workbench.plots.theme import MODE_NAMES, MODES, MUTED, finish, legend_over, panel_titles


def naive(records: Sequence[dict], logits: Sequence[dict], *, caption: str, notice: str) -> go.Figure:
    """`records`: {mode, layer, error: relative L2 distance to full attention per sample}; `logits`: {mode, kl (nats per
    sample), agree (share of samples whose first token is the one of full attention), low, high (95% interval of
    agree)}."""
    fig = make_subplots(
        1,
        3,
        column_widths=[0.46, 0.27, 0.27],
        horizontal_spacing=0.085,
        subplot_titles=["drift of the question's keys and values", "next-token distribution", "same first token"],
    )
    for mode in dict.fromkeys(r["mode"] for r in records):
        rows = [r for r in records if r["mode"] == mode]
        mean = [sum(r["error"]) / len(r["error"]) for r in rows]
        low, high = zip(*[_middle(r["error"]) for r in rows], strict=True)
        layers = [r["layer"] for r in rows]
        colour = MODES[mode]
        fig.add_scatter(
            x=layers, y=mean, mode="lines+markers", name=MODE_NAMES[mode], line={"color": colour}, legendgroup=mode,
            error_y={"array": [h - m for h, m in zip(high, mean, strict=True)], "thickness": 1, "width": 3,
                     "arrayminus": [m - lo for lo, m in zip(low, mean, strict=True)]},
            hovertemplate="layer %{x}: %{y:.3f} of the norm<extra>" + MODE_NAMES[mode] + "</extra>", row=1, col=1,
        )  # fmt: skip
    names = {"block": "re-encoded", "naive": "naive"}
    for r in logits:
        mode = r["mode"]
        fig.add_box(
            y=[max(x, 1e-6) for x in r["kl"]],
            name=names[mode],
            marker={"color": MODES[mode], "size": 4},
            showlegend=False,
            boxpoints="all",
            jitter=0.5,
            pointpos=0,
            fillcolor="rgba(0,0,0,0)",
            line={"width": 1.5},
            hovertemplate="%{y:.3g} nats<extra></extra>",
            row=1,
            col=2,
        )
        fig.add_scatter(
            x=[names[mode]],
            y=[r["agree"]],
            mode="markers",
            marker={"color": MODES[mode], "size": 11},
            showlegend=False,
            error_y={"array": [r["high"] - r["agree"]], "arrayminus": [r["agree"] - r["low"]], "width": 6},
            hovertemplate="%{y:.1%} of samples<extra></extra>",
            row=1,
            col=3,
        )
    fig.update_xaxes(title_text="layer", dtick=1, row=1, col=1)
    fig.update_yaxes(title_text="relative L2 distance to full attention", rangemode="tozero", row=1, col=1)
    fig.update_yaxes(
        title_text="KL from full attention (nats)", type="log", exponentformat="power", dtick=1, row=1, col=2
    )
    fig.update_yaxes(title_text="share of samples", tickformat=".0%", range=[-0.04, 1.04], row=1, col=3)
    fig.update_xaxes(range=[-0.6, 1.6], row=1, col=3)
    fig.update_layout(legend=legend_over(300, 24, font={"color": MUTED}))
    panel_titles(fig)
    return finish(
        fig,
        title="What naive positions do to the question",
        notice=notice,
        caption=caption,
        height=300,
        above=66,
        below=58,
    )


def _middle(values: Sequence[float]) -> tuple[float, float]:
    """The middle half of `values`: its quartiles."""
    ordered = sorted(values)
    return ordered[len(ordered) // 4], ordered[(3 * len(ordered) - 1) // 4]


def positions_drift(records: Sequence[dict], logits: Sequence[dict], *, about: str) -> go.Figure:
    """Draw what `metrics.kv_deviation.drift` measured of re-encoded and naive positions."""
    agree = {r["mode"]: r["agree"] for r in logits}
    return naive(
        records,
        logits,
        notice=f"The first token stays that of full attention in {agree['block']:.0%} of the prompts with re-encoded "
        f"positions and in {agree['naive']:.0%} with naive ones. What the first loses, it loses because cached "
        "passages never saw each other. The rest is the price of wrong positions.",
        caption=f"{about}. Left: mean and quartiles over prompts of the relative L2 distance of the question's keys "
        "and values. Right: 95% Wilson intervals. fp32.",
    )

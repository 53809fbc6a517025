"""How far cached keys and values are from full attention, token by token, and what naive positions do to a question."""

from collections.abc import Collection, Mapping, Sequence
from typing import Unpack

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from workbench.plots.elements import block_axis, block_edges, interval
from workbench.plots.looks import MODES
from workbench.plots.masks import names
from workbench.plots.theme import INK, MUTED, PAPER, SEQUENTIAL, Notes, finish, legend_over, panel_titles

FLOOR = 1e-4  # squared deviation that counts as none: rounding


def deviation(
    gaps: Mapping[str, np.ndarray],
    tokens: Sequence[str],
    block_of: np.ndarray,
    *,
    marked: Collection[int] = (),
    **notes: Unpack[Notes],
) -> go.Figure:
    """Draw squared deviations over tokens and layers, one panel each over one logarithmic colour scale.

    `gaps` name → [T, L]; what deviates by less than rounding is left white. `tokens` and `block_of` are of the T
    tokens; `marked` blocks get a star.
    """
    shown = {name: np.where(gap > FLOOR, np.log10(np.maximum(gap, FLOOR)), np.nan).T for name, gap in gaps.items()}
    every = np.concatenate([z[~np.isnan(z)] for z in shown.values()])
    low, high = (float(np.quantile(every, 0.02)), float(every.max())) if len(every) else (-1.0, 0.0)
    fig = make_subplots(len(shown), 1, shared_xaxes=True, vertical_spacing=0.12, subplot_titles=list(shown))
    labels = names([*tokens, ""], np.append(block_of, block_of.max() + 1))[:-1]  # no block of these is the question
    layers = next(iter(shown.values())).shape[0]
    for row, (name, z) in enumerate(shown.items(), 1):
        fig.add_heatmap(
            z=z.astype(np.float32),
            x=np.arange(z.shape[1]),
            y=list(range(layers)),
            coloraxis="coloraxis",
            customdata=np.broadcast_to(np.array(labels, dtype=object), z.shape),
            xgap=0,
            ygap=1,
            hovertemplate=f"%{{customdata}}<br>layer %{{y}}: squared deviation 10^%{{z:.2f}}<extra>{name}</extra>",
            row=row,
            col=1,
        )
        for edge in block_edges(block_of):
            fig.add_vline(edge, line={"color": INK, "width": 0.8}, row=row, col=1)
    fig.update_xaxes(block_axis(block_of, marked, question=False))
    fig.update_xaxes(title_text="token (by block)", row=len(shown), col=1)
    fig.update_yaxes(title_text="layer", showgrid=False, dtick=max(1, layers // 8))
    ticks = np.arange(np.ceil(low), np.floor(high) + 1)
    powers = {"tickvals": ticks, "ticktext": [f"10<sup>{int(t)}</sup>" for t in ticks]}
    title = {"text": "squared<br>deviation", "font": {"size": 11, "color": MUTED}}
    bar = {"title": title, "thickness": 12, "outlinewidth": 0, **powers}
    axis = {"colorscale": SEQUENTIAL, "cmin": low, "cmax": high, "colorbar": bar}
    fig.update_layout(coloraxis=axis, plot_bgcolor=PAPER)
    panel_titles(fig)
    title_text = "How far cached keys and values are from full attention"
    return finish(fig, title=title_text, height=170 * len(shown), above=34, below=56, right=90, **notes)


def drift(records: Sequence[dict], logits: Sequence[dict], **notes: Unpack[Notes]) -> go.Figure:
    """Draw the drift of the question's own keys and values by layer, and of its next-token distribution.

    `records`: {mode, layer, error: relative L2 distance to full attention per sample}; `logits`: {mode, kl (nats per
    sample), agree (share of samples whose first token is the one of full attention), low, high (95% interval of
    agree)}.
    """
    titles = ["drift of the question's keys and values", "next-token distribution", "same first token"]
    fig = make_subplots(1, 3, column_widths=[0.46, 0.27, 0.27], horizontal_spacing=0.085, subplot_titles=titles)
    for mode in dict.fromkeys(r["mode"] for r in records):
        rows = [r for r in records if r["mode"] == mode]
        means = [sum(r["error"]) / len(r["error"]) for r in rows]
        low, high = zip(*[_quartiles(r["error"]) for r in rows], strict=True)
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
    names = {"block": "re-encoded", "naive": "naive"}
    for r in logits:
        colour = MODES[r["mode"]].colour
        fig.add_box(
            y=[max(x, 1e-6) for x in r["kl"]],
            name=names[r["mode"]],
            marker={"color": colour, "size": 4},
            showlegend=False,
            **{"boxpoints": "all", "jitter": 0.5, "pointpos": 0},
            fillcolor="rgba(0,0,0,0)",
            line={"width": 1.5},
            hovertemplate="%{y:.3g} nats<extra></extra>",
            row=1,
            col=2,
        )
        fig.add_scatter(
            x=[names[r["mode"]]],
            y=[r["agree"]],
            mode="markers",
            marker={"color": colour, "size": 11},
            showlegend=False,
            error_y=interval([r["agree"]], [r["low"]], [r["high"]], 2, 6),
            hovertemplate="%{y:.1%} of samples<extra></extra>",
            row=1,
            col=3,
        )
    fig.update_xaxes(title_text="layer", dtick=1, row=1, col=1)
    fig.update_yaxes(title_text="relative L2 distance to full attention", rangemode="tozero", row=1, col=1)
    powers = {"type": "log", "exponentformat": "power", "dtick": 1}
    fig.update_yaxes(title_text="KL from full attention (nats)", **powers, row=1, col=2)
    fig.update_yaxes(title_text="share of samples", tickformat=".0%", range=[-0.04, 1.04], row=1, col=3)
    fig.update_xaxes(range=[-0.6, 1.6], row=1, col=3)
    fig.update_layout(legend=legend_over(300, 24, font={"color": MUTED}))
    panel_titles(fig)
    return finish(fig, title="What naive positions do to the question", height=300, above=66, below=58, **notes)


def _quartiles(values: Sequence[float]) -> tuple[float, float]:
    """Return the ends of the middle half of `values`."""
    ordered = sorted(values)
    return ordered[len(ordered) // 4], ordered[(3 * len(ordered) - 1) // 4]


def positions_drift(records: Sequence[dict], logits: Sequence[dict], *, about: str) -> go.Figure:
    """Draw what `metrics.kv_deviation.drift` measured of re-encoded and naive positions."""
    agree = {r["mode"]: r["agree"] for r in logits}
    return drift(
        records,
        logits,
        notice=f"The first token stays that of full attention in {agree['block']:.0%} of the prompts with re-encoded "
        f"positions and in {agree['naive']:.0%} with naive ones. What the first loses, it loses because cached "
        "passages never saw each other. The rest is the price of wrong positions.",
        caption=f"{about}. Left: mean and quartiles over prompts of the relative L2 distance of the question's keys "
        "and values. Right: 95% Wilson intervals. fp32.",
    )

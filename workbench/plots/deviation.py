"""Deviation of cached keys and values from full attention: where it sits, what causes it, what recomputing repairs.

Preparations are named as `methods.prepare` names them; `about` says model, data and device.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Unpack

import numpy as np
import plotly.graph_objects as go
import torch
from plotly.colors import sample_colorscale
from plotly.subplots import make_subplots
from torch import Tensor

from workbench.data.prompt_view import Reading
from workbench.metrics.kv_deviation import CAUSES, Repair, mean_causes, typical_causes
from workbench.metrics.selection import summary
from workbench.plots import deviation_findings as findings
from workbench.plots.elements import block_axis, block_edges, interval
from workbench.plots.lines import profile, profiles
from workbench.plots.looks import MODES, SELECTORS, selector_looks
from workbench.plots.masks import names
from workbench.plots.reduce import blocks as reduce_cells
from workbench.plots.reduce import firsts
from workbench.plots.theme import BLUE, GREEN, INK, MUTED, ORANGE, PAPER, RED, SEQUENTIAL, Notes, finish, panel_titles
from workbench.plots.token_axes import TokenAxes, counts_tokens

Records = Sequence[Mapping[str, Any]]
Gaps = Mapping[str, np.ndarray]  # name → squared deviations [T, L]
PARTS = {  # field of `Repair` → title
    "context": "left in the context",
    "chosen": "left in the recomputed tokens",
    "asked": "left in the question",
}
CELLS = 1024  # most cells across
FLOOR = 1e-4  # squared deviation that counts as none: rounding


def deviation(
    gaps: Gaps,
    tokens: Sequence[str],
    block_of: np.ndarray,
    *,
    marked: Collection[int] = (),
    **notes: Unpack[Notes],
) -> go.Figure:
    """Draw squared deviations over tokens and layers, one panel each over one logarithmic colour scale.

    What deviates by less than rounding is left white. `block_of` is of the T tokens; `marked` blocks get a star. Over
    1,024 tokens, a cell is the largest of some neighbours.
    """
    count = len(block_of)
    at = firsts(count, CELLS)
    gaps = {name: reduce_cells(gap, CELLS) for name, gap in gaps.items()}
    tokens, block_of = [tokens[i] for i in at], block_of[at]
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
    counts_tokens(fig, TokenAxes(count, len(at)))
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
        ordered = [sorted(r["error"]) for r in rows]
        low = [errors[len(errors) // 4] for errors in ordered]  # quartiles
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
            **{"row": 1, "col": 1},
        )
    names = {"block": "re-encoded", "naive": "naive"}
    for r in logits:
        colour = MODES[r["mode"]].colour
        fig.add_box(
            y=[max(x, 1e-6) for x in r["kl"]],
            name=names[r["mode"]],
            marker={"color": colour, "size": 4},
            **{"boxpoints": "all", "jitter": 0.5, "pointpos": 0, "fillcolor": "rgba(0,0,0,0)", "line": {"width": 1.5}},
            hovertemplate="%{y:.3g} nats<extra></extra>",
            **{"showlegend": False, "row": 1, "col": 2},
        )
        fig.add_scatter(
            x=[names[r["mode"]]],
            y=[r["agree"]],
            mode="markers",
            marker={"color": colour, "size": 11},
            error_y=interval([r["agree"]], [r["low"]], [r["high"]], 2, 6),
            hovertemplate="%{y:.1%} of samples<extra></extra>",
            **{"showlegend": False, "row": 1, "col": 3},
        )
    fig.update_xaxes(title_text="layer", dtick=1, row=1, col=1)
    fig.update_yaxes(title_text="relative L2 distance to full attention", rangemode="tozero", row=1, col=1)
    powers = {"type": "log", "exponentformat": "power", "dtick": 1}
    fig.update_yaxes(title_text="KL from full attention (nats)", **powers, row=1, col=2)
    fig.update_yaxes(title_text="share of samples", tickformat=".0%", range=[-0.04, 1.04], row=1, col=3)
    fig.update_xaxes(range=[-0.6, 1.6], row=1, col=3)
    fig.update_layout(legend_font={"color": MUTED})
    panel_titles(fig)
    title = "What naive positions do to the question"
    return finish(fig, title=title, height=300, above=66, below=58, legend=24, **notes)


def positions_drift(records: Sequence[dict], logits: Sequence[dict], *, about: str) -> go.Figure:
    """Draw what `metrics.kv_deviation.drift` measured of re-encoded and naive positions."""
    agree = {r["mode"]: r["agree"] for r in logits}
    return drift(
        records,
        logits,
        notice=f"The first token stays that of full attention in {agree['block']:.0%} of the prompts with re-encoded "
        f"positions and in {agree['naive']:.0%} with naive ones. {findings.price_of_positions(records)}",
        caption=f"{about}. Left: mean and quartiles over prompts of the relative L2 distance of the question's keys "
        "and values. Right: 95% Wilson intervals. fp32.",
    )


def token_map(gaps: Mapping[str, Tensor], view: Reading, *, about: str) -> go.Figure:
    """Draw the squared deviation [T of the context, L] of one prompt by preparation, token by token."""
    end = view.prompt.starts[-1]
    return deviation(
        {name: gap.numpy() for name, gap in gaps.items()},
        view.tokens[:end],
        view.block_of[:end],
        marked=view.supporting,
        notice=findings.of_first_passage({name: gap.numpy() for name, gap in gaps.items()}, view.block_of[:end], FLOOR),
        caption=f"{view.source}. {about}. Blank: less than rounding. ★ marks passages that the answer needs.",
    )


def outside(curve: Tensor, ratio: float) -> Tensor:
    """Return the share [L] of a `mean_concentration` that the most deviating `ratio` of the tokens do not hold."""
    return 1 - curve[round(ratio * (len(curve) - 1))]


def concentration_records(curves: Mapping[str, Tensor]) -> list[dict[str, Any]]:
    """Return `mean_concentration` by preparation as records {preparation, name, at, mean}; layer 0 is left out."""
    return [
        {"preparation": name, "name": f"layer {layer}", "at": x / (len(curve) - 1), "mean": float(curve[x, layer])}
        for name, curve in curves.items()
        for layer in range(1, curve.shape[1])
        for x in range(len(curve))
    ]


def concentration_curves(curves: Mapping[str, Tensor], *, ratio: float, about: str) -> go.Figure:
    """Draw `mean_concentration` by preparation, a line a layer; `ratio` is marked."""
    records = concentration_records(curves)
    count = next(iter(curves.values())).shape[1]
    shades = sample_colorscale(SEQUENTIAL, [0.95 * i / max(count - 2, 1) for i in range(count - 1)])
    left = outside(curves["after_system"], ratio)
    by = {name: [r for r in records if r["preparation"] == name] for name in curves}
    return profiles(
        [profile(name, points, "share of the tokens", percent=True, percent_x=True) for name, points in by.items()],
        title="Share of the deviation that the most deviating tokens hold",
        notice=f"A post-mortem choice of {ratio:.0%} of the tokens (dotted) leaves {float(left[1]):.0%} of the "
        f"deviation in layer 1, and {float(left[-1]):.0%} in the last layer, outside the choice. "
        f"{findings.outside_as_published(float(left[1]), ratio)}",
        caption=f"Mean over {about}.",
        colours={f"layer {layer}": shade for layer, shade in enumerate(shades, 1)},
        mark=ratio,
        share=True,
    )


def where_it_sits(records: Records, mean: Mapping[str, float], *, layer: int, prompts: int, about: str) -> go.Figure:
    """Draw `selection.places` of one layer by preparation; `mean`: preparation → mean deviation of the documents."""
    by = {kind: [r for r in records if r["by"] == kind] for kind in ("offset", "rank")}
    first, *rest = (r["mean"] for r in by["offset"] if r["name"] == "after_system")
    ranks = {name: [r["mean"] for r in by["rank"] if r["name"] == name] for name in mean}
    behind_system, similar = ranks["after_system"], ranks["with_neighbours"]
    change = mean["with_neighbours"] / mean["after_system"] - 1
    across = "position in the block (0 start, 1 end)"
    return profiles(
        [
            profile("by position in the block", by["offset"], across, "squared deviation"),
            profile("by rank of the block", by["rank"], "rank of the block"),
        ],
        title=f"Where layer {layer} deviates",
        notice=findings.where(first / max(sum(rest) / len(rest), 1e-9), behind_system[-1] / behind_system[1])
        + f" Preparation changes the last passage by {similar[-1] / behind_system[-1] - 1:+.0%}, all tokens by "
        f"{change:+.0%}. {findings.change_as_published(change)}",
        caption=f"Mean over {prompts} prompts and 95% bootstrap interval. {about}.",
        colours={"after_system": BLUE, "with_neighbours": ORANGE},
        symbols={"with_neighbours": "square"},
    )


def what_causes_it(records: Sequence[dict[str, Any]], *, about: str) -> go.Figure:
    """Draw the relative error of keys and values by layer and cause: `records` as of `cause_records`."""
    means = mean_causes(records).query("mean > 1e-5").to_dict("records")
    typical = typical_causes(records)
    prompts = len({r["prompt"] for r in records})
    parts = {part: [r for r in means if r["part"] == part] for part in ("keys", "values")}
    titles = {"keys": "relative L2 error", "values": ""}
    return profiles(
        [profile(part, points, "layer", titles[part], log=True) for part, points in parts.items()],
        title="What the deviation is made of",
        notice=f"Keys that are not re-encoded are off by {typical['position']:.0%} of their length; missing context "
        f"leaves {typical['context']:.0%}: this is what selection and preparation work on. Storing in bf16 costs "
        f"{typical['precision']:.2%}. {findings.largest_cause(typical)}",
        caption=f"Relative L2 error per token and head, mean over the passages behind the first of {prompts} prompts; "
        f"what is below 10⁻⁵ (fp32 rounding) is not drawn. {about}.",
        colours=dict(zip(CAUSES.values(), (RED, BLUE, GREEN), strict=True)),
        share=True,
        symbols={CAUSES["position"]: "diamond", CAUSES["precision"]: "square"},
    )


def repair_records(repairs: Mapping[str, Sequence[Repair]]) -> list[dict[str, Any]]:
    """Return the share of the deviation that is left, mean over prompts: records {name, at (layer from 1), mean, low,
    high, n, selector, part}."""
    records = []
    for spec, measured in repairs.items():
        for part in PARTS:
            left = torch.stack([getattr(each, part) for each in measured]).cpu().numpy()[:, 1:]
            layers = range(1, left.shape[1] + 1)
            of = {"selector": spec, "part": part}
            records += [record | of for record in summary(left, SELECTORS.name_of(spec), layers)]
    return records


def left_in_last_layer(records: Records) -> dict[tuple[str, str], float]:
    """Return the share that is left in the last layer, by selector and part."""
    last = max(record["at"] for record in records)
    return {(record["selector"], record["part"]): record["mean"] for record in records if record["at"] == last}


def what_is_repaired(records: Records, *, ratio: float, prompts: int, about: str) -> go.Figure:
    """Draw what recomputing `ratio` of the tokens leaves of the deviation: `records` as of `repair_records`."""
    final = left_in_last_layer(records)
    selectors = list(dict.fromkeys(record["selector"] for record in records))
    real = [spec for spec in selectors if not spec.startswith("oracle")] or selectors
    best = {part: min((final[spec, part], spec) for spec in real)[1] for part in ("context", "asked")}
    by = {title: [r for r in records if r["part"] == part] for part, title in PARTS.items()}
    return profiles(
        [profile(title, points, "layer", percent=True) for title, points in by.items()],
        title=f"What recomputing {ratio:.0%} of the tokens repairs",
        notice=f"Oracle aside, {SELECTORS.name_of(best['asked'])} leaves least in the last layer of the question "
        f"({final[best['asked'], 'asked']:.0%}), and {final[best['asked'], 'context']:.0%} in the context, where "
        f"{SELECTORS.name_of(best['context'])} leaves {final[best['context'], 'context']:.0%}. "
        f"{findings.context_or_question(final, best['asked'])}",
        caption=f"Share of the squared deviation from full attention that is left; mean over {prompts} prompts and 95% "
        f"bootstrap interval; passages cached behind the system prompt. {about}.",
        share=True,
        **selector_looks(selectors),
    )

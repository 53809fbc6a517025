"""Deviation of cached keys and values from full attention: where it sits, by token, layer and place.

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
from workbench.metrics.kv.kv_deviation import CAUSES, Repair, mean_causes
from workbench.metrics.kv.selection import summary
from workbench.plots.attention.masks import names
from workbench.plots.attention.token_axes import TokenAxes, counts_tokens
from workbench.plots.marks.elements import block_axis, block_edges
from workbench.plots.marks.lines import profile, profiles
from workbench.plots.marks.styles import SELECTORS, selector_looks
from workbench.plots.marks.theme import (
    BLUE,
    GREEN,
    INK,
    MUTED,
    ORANGE,
    PAPER,
    RED,
    SEQUENTIAL,
    SHADES,
    Notes,
    finish,
    panel_titles,
)
from workbench.plots.tiles.reduce import blocks as reduce_cells
from workbench.plots.tiles.reduce import firsts

Records = Sequence[Mapping[str, Any]]
Gaps = Mapping[str, np.ndarray]  # name → squared deviations [T, L]
CELLS = 1024  # most cells across
MOST_APART = 12  # layers; of more, the lines between them would hide what they hold
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
            ygap=1 if layers <= MOST_APART else 0,
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


def token_map(gaps: Mapping[str, Tensor], view: Reading, *, about: str) -> go.Figure:
    """Draw the squared deviation [T of the context, L] of one prompt by preparation, token by token."""
    end = view.prompt.starts[-1]
    return deviation(
        {name: gap.numpy() for name, gap in gaps.items()},
        view.tokens[:end],
        view.block_of[:end],
        marked=view.supporting,
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
    shades = sample_colorscale(SHADES, [0.95 * i / max(count - 2, 1) for i in range(count - 1)])
    by = {name: [r for r in records if r["preparation"] == name] for name in curves}
    return profiles(
        [profile(name, points, "share of the tokens", percent=True, percent_x=True) for name, points in by.items()],
        title="Share of the deviation that the most deviating tokens hold",
        caption=f"Mean over {about}. Dotted: a post-mortem choice of {ratio:.0%}.",
        colours={f"layer {layer}": shade for layer, shade in enumerate(shades, 1)},
        mark=ratio,
        share=True,
    )


def where_it_sits(records: Records, *, layer: int, prompts: int, about: str) -> go.Figure:
    """Draw `selection.places` of one layer by preparation."""
    by = {kind: [r for r in records if r["by"] == kind] for kind in ("offset", "rank")}
    across = "position in the block (0 start, 1 end)"
    return profiles(
        [
            profile("by position in the block", by["offset"], across, "squared deviation"),
            profile("by rank of the block", by["rank"], "rank of the block"),
        ],
        title=f"Where layer {layer} deviates",
        caption=f"Mean over {prompts} prompts and 95% bootstrap interval. {about}.",
        colours={"after_system": BLUE, "with_neighbours": ORANGE},
        symbols={"with_neighbours": "square"},
    )


PARTS = {  # field of `Repair` → title
    "context": "left in the context",
    "chosen": "left in the recomputed tokens",
    "asked": "left in the question",
}


def what_causes_it(records: Sequence[dict[str, Any]], *, about: str) -> go.Figure:
    """Draw the relative error of keys and values by layer and cause: `records` as of `cause_records`."""
    means = mean_causes(records).query("mean > 1e-5").to_dict("records")
    prompts = len({r["prompt"] for r in records})
    parts = {part: [r for r in means if r["part"] == part] for part in ("keys", "values")}
    titles = {"keys": "relative L2 error", "values": ""}
    return profiles(
        [profile(part, points, "layer", titles[part], log=True) for part, points in parts.items()],
        title="What the deviation is made of",
        caption=f"Relative L2 error per token and head, mean over the passages behind the first of {prompts} prompts; "
        f"what is below 10⁻⁵ (fp32 rounding) is not drawn. {about}.",
        colours=dict(zip(CAUSES.values(), (RED, BLUE, GREEN), strict=True)),
        share=True,
        symbols={CAUSES["position"]: "diamond", CAUSES["precision"]: "square"},
    )


def repair_records(repairs: Mapping[str, Sequence[Repair]]) -> list[dict[str, Any]]:
    """Return the share of the deviation that is left, mean over prompts.

    Records {name, at (layer from 1), mean, low, high, n, selector, part}.
    """
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
    selectors = list(dict.fromkeys(record["selector"] for record in records))
    by = {title: [r for r in records if r["part"] == part] for part, title in PARTS.items()}
    return profiles(
        [profile(title, points, "layer", percent=True) for title, points in by.items()],
        title=f"What recomputing {ratio:.0%} of the tokens repairs",
        caption=f"Share of the squared deviation from full attention that is left; mean over {prompts} prompts and 95% "
        f"bootstrap interval; passages cached behind the system prompt. {about}.",
        share=True,
        **selector_looks(selectors),
    )


def of_repair(selector: str, ratio: float, left: Repair) -> str:
    """Say what recomputing leaves in the last layer, of the context and of the question."""
    if not len(left.rows):
        return "Nothing is recomputed: both panels are the same."
    context, asked = float(left.context[-1]), float(left.asked[-1])
    kinder = "more" if asked < context else "no more"
    return (
        f"{selector} at {ratio:.0%} leaves {context:.0%} of the context's squared deviation in the last layer and "
        f"{asked:.0%} of the question's: it helps the question {kinder} than the context."
    )

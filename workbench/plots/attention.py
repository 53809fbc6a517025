"""Where the answering token looks, token by token, under several ways to answer, with layer and head selectors."""

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from workbench.data.prompt_view import Reading
from workbench.metrics.attention_mass import AttentionMass, overlap
from workbench.plots.controls import head_menu, layer_slider, of_head
from workbench.plots.masks import names
from workbench.plots.theme import MODE_NAMES, RULE, block_colour, finish, panel_titles


def attention(
    mass: dict[str, np.ndarray], tokens: Sequence[str], block_of: np.ndarray, *, caption: str, notice: str,
    layer: int = -1, head: int = -1, marked: Collection[int] = (),
) -> go.Figure:  # fmt: skip
    """`mass` mode → float32 [L, H, T]: attention of the prompt's last token to every token, rows summing to 1.

    One line of bars per mode; a menu picks the head (or the mean over heads), a slider the layer. `layer` and
    `head` (-1: the mean) are shown first; `marked` blocks get a star.
    """
    modes, labels, places = list(mass), names(tokens, block_of), np.arange(len(block_of), dtype=np.int32)
    layers, heads = next(iter(mass.values())).shape[:2]
    layer %= layers
    blocks = int(block_of.max()) + 1
    fig = make_subplots(
        len(modes), 1, shared_xaxes=True, vertical_spacing=0.09, subplot_titles=[MODE_NAMES.get(m, m) for m in modes]
    )
    colours = [block_colour(int(b), blocks) for b in block_of]
    for h in range(heads + 1):
        for row, mode in enumerate(modes):
            fig.add_bar(
                x=places, y=of_head(mass[mode], layer, h), marker={"color": colours, "line": {"width": 0}},
                showlegend=False, visible=h == head + 1, customdata=labels, row=row + 1, col=1,
                hovertemplate="%{customdata}<br>%{y:.1%} of the attention<extra></extra>",
            )  # fmt: skip
    fig.frames = [
        go.Frame(
            name=str(at), traces=list(range(len(fig.data))),
            data=[go.Bar(y=of_head(mass[mode], at, h)) for h in range(heads + 1) for mode in modes],
        )
        for at in range(layers)
    ]  # fmt: skip
    _axes(fig, block_of, len(modes), marked)
    scales = [_scale(mass, h, len(modes)) for h in range(heads + 1)]
    menu = head_menu(heads, len(modes), 140 * len(modes), scales, head + 1)
    fig.update_layout(bargap=0, sliders=[layer_slider(layers, layer)], updatemenus=[menu], **scales[head + 1])
    panel_titles(fig)
    return finish(
        fig, title="Where the answering token looks", notice=notice, caption=caption, height=140 * len(modes), above=62,
        below=128,
    )  # fmt: skip


def _scale(mass: dict[str, np.ndarray], head: int, panels: int) -> dict:
    """One range for all modes and layers of a head, so that bars can be compared."""
    top = max(float(of_head(m, at, head).max()) for m in mass.values() for at in range(len(m)))
    return {f"yaxis{end or ''}.range": [0, 1.05 * top] for end in (0, *range(2, panels + 1))}


def _axes(fig: go.Figure, block_of: np.ndarray, panels: int, marked: Collection[int]) -> None:
    edges = np.flatnonzero(np.diff(block_of)) + 0.5
    bounds = np.concatenate(([-0.5], edges, [len(block_of) - 0.5]))
    middles, last = (bounds[:-1] + bounds[1:]) / 2, int(block_of.max())
    numbers = [int(block_of[int(m)]) for m in middles]
    texts = [("Q" if b == last else str(b)) + ("★" if b in marked else "") for b in numbers]
    fig.update_xaxes(
        tickvals=middles, ticktext=texts, tickangle=0, showgrid=False, ticks="",
        range=[-0.5, len(block_of) - 0.5],
    )  # fmt: skip
    fig.update_xaxes(title_text="token looked at (by block; Q is the question)", row=panels, col=1)
    fig.update_yaxes(tickformat=".2~%", nticks=4, title_text="share")
    for edge in edges:
        for end in ["", *map(str, range(2, panels + 1))]:
            fig.add_shape(
                type="line", x0=edge, x1=edge, y0=0, y1=1, xref=f"x{end}", yref=f"y{end} domain", layer="below",
                line={"color": RULE, "width": 0.7},
            )  # fmt: skip


def attention_under_masks(
    found: Mapping[str, AttentionMass], view: Reading, layer: int, head: int, *, chosen: bool, about: str
) -> go.Figure:
    """Draw where the last token of one prompt looks under several mask rules, the first of which is full attention.

    `layer` and `head` are shown first; `chosen` says that a reader named the layer.
    """
    (_, truth), *others = found.items()
    kept = {name: overlap(truth.tokens, mass.tokens)[layer, head].item() for name, mass in others}
    looked_at = "what the answer needs (★)" if view.supporting else "the passages"
    which = "one head" if chosen else f"the head that looks most at {looked_at}"
    shares = ", ".join(f"{share:.0%} under {name[0].lower()}{name[1:]}" for name, share in kept.items())
    return attention(
        {name: mass.tokens.numpy() for name, mass in found.items()},
        view.tokens,
        view.block_of,
        layer=layer,
        head=head,
        marked=view.supporting,
        notice=f"Where the prompt's last token looks, the one that predicts the answer, in {which}. Of its attention "
        f"this stays where full attention has it: {shares}.",
        caption=f"{about}, {len(view.prompt)} tokens, softmax of the model's own queries and keys in fp32. Pick a head "
        "above, a layer below.",
    )


def attention_by_positions(
    found: Mapping[str, AttentionMass], view: Reading, layer: int, head: int, *, about: str
) -> go.Figure:
    """Draw where the last token of one prompt looks with full attention, re-encoded and naive positions.

    `found` has the modes "full", "block" and "naive"; `layer` and `head` are shown first.
    """
    kept = {mode: overlap(found["full"].tokens, mass.tokens)[layer, head].item() for mode, mass in found.items()}
    return attention(
        {mode: mass.tokens.numpy() for mode, mass in found.items()},
        view.tokens,
        view.block_of,
        layer=layer,
        head=head,
        marked=view.supporting,
        notice=f"“{view.question}” Of the heads that look at what the answer needs (★), the one that naive positions "
        f"change most: {kept['block']:.0%} of its attention stays where full attention has it with re-encoded "
        f"positions, {kept['naive']:.0%} with naive ones.",
        caption=f"{about}, {len(view.prompt)} tokens; passages cached independently in the two lower rows. Pick a head "
        "above, a layer below. fp32 softmax.",
    )

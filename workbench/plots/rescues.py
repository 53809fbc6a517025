"""Why BFLA keeps a tile: its mass, or one of the rules that rescue tiles; and what each rule adds."""

from collections.abc import Mapping, Sequence

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from workbench.metrics.tile_recall import BflaRules
from workbench.plots.controls import choice_menu, layer_slider
from workbench.plots.reduce import blocks
from workbench.plots.theme import BLUE, FAINT, GREEN, MUTED, ORANGE, PAPER, PINK, SKY, finish, legend_over, panel_titles
from workbench.plots.tiles import CELLS, Span, axes

CAUSES = {"mass": BLUE, "local": GREEN, "sink": ORANGE, "stride": PINK, "random": SKY}  # in the order of the rules
SIDE = 410


def first_cause(found: BflaRules, head: int, most: int = CELLS) -> np.ndarray:
    """uint8 [n, m] of one KV head: 0 the future, 1 dropped, from 2 on the first of CAUSES that keeps a tile. In a
    picture of fewer cells the latest cause shows: rescues are few."""
    first = found.causal.cpu().numpy().astype(np.uint8)
    for number, name in reversed(list(enumerate(CAUSES, 2))):
        first[found.kept[name][head].cpu().numpy()] = number
    return blocks(first, most).astype(np.uint8)


def rescues(
    maps: Sequence[Sequence[np.ndarray]], span: Span, added: Mapping[str, tuple[float, float]], *,
    layers: Sequence[int], heads: Sequence[int], caption: str, notice: str, layer: int = 0, head: int = 0,
) -> go.Figure:  # fmt: skip
    """`maps` [layer][KV head]: `first_cause`. `added` cause → (density, attention) that it adds to those before it, of
    all heads together. A slider picks the layer, a menu the KV head."""
    wide = SIDE / 860
    fig = make_subplots(
        1, 2, subplot_titles=["the first rule that keeps a tile", "what each rule adds to those before it"],
        column_widths=[wide, 0.86 - wide], horizontal_spacing=0.14,
    )  # fmt: skip
    for h in range(len(heads)):
        fig.add_trace(_map(maps[layer][h], span, h == head), row=1, col=1)
    for number, (what, colour) in enumerate((("tiles (share of the causal pairs)", MUTED), ("attention", BLUE))):
        values = [value[number] for value in added.values()]
        fig.add_bar(
            x=values, y=list(added), orientation="h", name=what, marker={"color": colour}, legend="legend2",
            text=[f"{value:.1%}" for value in values], textposition="outside", cliponaxis=False,
            hovertemplate="%{y} adds %{x:.2%}<extra>" + what + "</extra>", row=1, col=2,
        )  # fmt: skip
    for name, colour in {**{c: CAUSES[c] for c in added}, "dropped": FAINT}.items():
        square = {"color": colour, "symbol": "square", "size": 11}
        fig.add_scatter(x=[None], y=[None], mode="markers", marker=square, name=name, hoverinfo="skip")
    fig.frames = [
        go.Frame(name=str(number), traces=list(range(len(heads))), data=[go.Heatmap(z=z) for z in maps[at]])
        for at, number in enumerate(layers)
    ] if len(layers) > 1 else []  # fmt: skip
    axes(fig, span, row=1, col=1)
    fig.update_xaxes(title_text="key (token)", row=1, col=1)
    fig.update_yaxes(title_text="row (token)", row=1, col=1)
    top = max((max(value) for value in added.values()), default=1.0)
    fig.update_xaxes(tickformat=".0%", range=[0, 1.18 * max(top, 0.01)], row=1, col=2)
    fig.update_yaxes(autorange="reversed", showgrid=False, ticks="", row=1, col=2)
    if len(layers) > 1:
        fig.update_layout(sliders=[layer_slider(layers, layer)])
    if len(heads) > 1:
        labels = [f"KV head {number}" for number in heads]
        menu = choice_menu(labels, 1, SIDE, (), head, 3 + len(added))
        fig.update_layout(updatemenus=[menu])
    panel_titles(fig)
    inside = {"x": 1, "xanchor": "right", "y": 0.02, "yanchor": "bottom", "orientation": "v", "traceorder": "normal"}
    fig.update_layout(legend=legend_over(SIDE, 26, itemclick=False), legend2=inside, bargap=0.3)
    return finish(
        fig, title="Why BFLA keeps a tile", notice=notice, caption=caption, height=SIDE, above=62,
        below=128 if len(layers) > 1 else 56, left=76,
    )  # fmt: skip


def _map(z: np.ndarray, span: Span, visible: bool) -> go.Heatmap:
    colours = [PAPER, FAINT, *CAUSES.values()]
    scale = [[edge / len(colours), c] for i, c in enumerate(colours) for edge in (i, i + 1)]
    dy, dx = len(span.rows) / z.shape[0], len(span.keys) / z.shape[1]
    return go.Heatmap(
        z=z, x0=span.keys.start + dx / 2, dx=dx, y0=span.rows.start + dy / 2, dy=dy, zmin=-0.5, zmax=len(colours) - 0.5,
        colorscale=scale, showscale=False, visible=visible,
        hovertemplate="rows near %{y:,d}, keys near %{x:,d}<extra></extra>",
    )  # fmt: skip

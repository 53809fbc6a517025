"""Why BFLA keeps a tile: its mass, or one of the rules that rescue tiles; and what each rule adds."""

from collections.abc import Mapping, Sequence
from typing import Unpack

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from workbench.metrics.tiles.tile_recall import BflaRules
from workbench.plots.marks.controls import choice_menu, layer_slider, steered
from workbench.plots.marks.elements import steps, swatches
from workbench.plots.marks.theme import BLUE, FAINT, GREEN, MUTED, ORANGE, PAPER, PINK, SKY, Notes
from workbench.plots.tiles.reduce import blocks
from workbench.plots.tiles.tile_recall import CELLS, Span, axes, image

RULES = {"mass": BLUE, "local": GREEN, "sink": ORANGE, "stride": PINK, "random": SKY}  # in their order
SIDE = 410  # px


def first_rule(rules: BflaRules, head: int, most: int = CELLS) -> np.ndarray:
    """Return a picture of one KV head, uint8 [n, m] of at most `most` cells a side.

    0 is the future, 1 dropped, from 2 on the first of RULES that keeps a tile. In a picture of fewer cells the latest
    rule shows: rescues are few.
    """
    first = rules.causal.cpu().numpy().astype(np.uint8)
    for number, name in reversed(list(enumerate(RULES, 2))):
        first[rules.kept[name][head].cpu().numpy()] = number
    return blocks(first, most).astype(np.uint8)


def bfla_rules(
    maps: Sequence[Sequence[np.ndarray]],
    span: Span,
    added: Mapping[str, tuple[float, float]],
    *,
    layers: Sequence[int],
    heads: Sequence[int],
    layer: int = 0,
    head: int = 0,
    **notes: Unpack[Notes],
) -> go.Figure:
    """Draw which rule keeps a tile; a slider picks the layer, a menu the KV head.

    `maps` [layer][KV head]: `first_rule`. `added` rule → (density, attention) that it adds to those before it, of all
    heads together.
    """
    wide = SIDE / 860
    titles = ["the first rule that keeps a tile", "what each rule adds to those before it"]
    fig = make_subplots(1, 2, subplot_titles=titles, column_widths=[wide, 0.86 - wide], horizontal_spacing=0.14)
    colours = [PAPER, FAINT, *RULES.values()]
    look = {"zmin": -0.5, "zmax": len(colours) - 0.5, "colorscale": steps(colours)}
    hover = "rows near %{y:,d}, keys near %{x:,d}<extra></extra>"
    for h in range(len(heads)):
        fig.add_trace(image(maps[layer][h], span, hovertemplate=hover, visible=h == head, **look), row=1, col=1)
    for number, (name, colour) in enumerate((("tiles (share of the causal pairs)", MUTED), ("attention", BLUE))):
        values = [value[number] for value in added.values()]
        label = {"text": [f"{value:.1%}" for value in values], "textposition": "outside", "cliponaxis": False}
        hover = f"%{{y}} adds %{{x:.2%}}<extra>{name}</extra>"
        bars = go.Bar(x=values, y=list(added), orientation="h", name=name, hovertemplate=hover, **label)
        fig.add_trace(bars.update(marker={"color": colour}, legend="legend2"), row=1, col=2)
    swatches(fig, {**{rule: RULES[rule] for rule in added}, "dropped": FAINT})
    axes(fig, span, row=1, col=1)
    top = max((max(value) for value in added.values()), default=1.0)
    fig.update_xaxes(tickformat=".0%", range=[0, 1.18 * max(top, 0.01)], row=1, col=2)
    fig.update_yaxes(autorange="reversed", showgrid=False, ticks="", row=1, col=2)
    inside = {"x": 1, "xanchor": "right", "y": 0.02, "yanchor": "bottom", "orientation": "v", "traceorder": "normal"}
    fig.update_layout(legend2=inside, bargap=0.3)
    pictures = {str(n): [go.Heatmap(z=z) for z in maps[at]] for at, n in enumerate(layers)}
    menu = choice_menu([f"KV head {number}" for number in heads], 1, SIDE, (), head, 3 + len(added))
    slider = layer_slider(layers, layer) if len(layers) > 1 else None
    return steered(fig, SIDE, pictures, slider, menu, title="Why BFLA keeps a tile", **notes)

"""CompactAttention's union step by step: query blocks → head → execution group → list of pages (section 3.2, 3.3)."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Unpack

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from workbench.metrics.tiles.tile_recall import BflaRules
from workbench.metrics.tiles.tile_states import Union
from workbench.plots.marks.elements import choice_menu, finish_with_slider, frame_slider, layer_slider, swatches
from workbench.plots.marks.elements import steps as scale
from workbench.plots.marks.theme import BLUE, FAINT, GREEN, MUTED, ORANGE, PAPER, PINK, RULE, SKY, SMALLEST, FigureTexts
from workbench.plots.tiles.reduce import blocks
from workbench.plots.tiles.tile_recall import CELLS, Span, axes, image

RULES = {"mass": BLUE, "local": GREEN, "sink": ORANGE, "stride": PINK, "random": SKY}  # in their order
SIDE = 410  # px


def first_rule(rules: BflaRules, head: int, most: int = CELLS) -> np.ndarray:
    """Return a picture of one KV head, uint8 [n, m] of at most `most` cells a side.

    0 is the future, 1 dropped, from 2 on the first of RULES that keeps a tile. A reduced cell shows the last such rule,
    as rescues are few.
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
    **notes: Unpack[FigureTexts],
) -> go.Figure:
    """Draw which rule keeps a tile; a slider selects the layer, a menu the KV head.

    `maps` [layer][KV head]: `first_rule`. `added` rule → (density, attention) that it adds to the previous ones, over
    all heads.
    """
    wide = SIDE / 860
    titles = ["first rule that keeps a tile", "tiles added by each rule"]
    fig = make_subplots(1, 2, subplot_titles=titles, column_widths=[wide, 0.86 - wide], horizontal_spacing=0.14)
    colours = [PAPER, FAINT, *RULES.values()]
    look = {"zmin": -0.5, "zmax": len(colours) - 0.5, "colorscale": scale(colours)}
    hover = "queries near %{y:,d}, keys near %{x:,d}<extra></extra>"
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
    return finish_with_slider(fig, SIDE, pictures, slider, menu, title="Why BFLA keeps a tile", **notes)


PAGES = {  # numbered from 2; 0 is the future, 1 not selected
    "selected by every query block": BLUE,
    "selected by some, read by all": ORANGE,
    "the chunk itself": GREEN,
}
LOOK = {"zmin": -0.5, "zmax": 4.5, "colorscale": scale([PAPER, FAINT, *PAGES.values()]), "showscale": False}
GAP, LIST = 40, 19  # px between panels; of a row of the page list
TITLES = (
    "1. selection of every query block, by head",
    "2. union over query blocks: one row per head",
    "3. union over the heads of a KV head: one row",
    "4. with the chunk itself: pages read (page number)",
    "5. page lists of all KV heads, as passed to a paged kernel: list position and page number",
)


def steps(measured: Union, group: int) -> list[np.ndarray]:
    """Return panels 1 to 4 of one execution group: uint8 [lines, J], indices of PAGES."""
    of = slice(group * measured.group, (group + 1) * measured.group)
    kept, heads, sees = measured.kept[of], measured.heads[of], measured.pairs > 0
    unanimous = (kept | ~sees).all(1)  # [heads, J]
    first = np.where(kept.flatten(0, 1).cpu(), 2, sees.repeat(len(kept), 1).cpu())
    second = np.where(heads.cpu(), np.where(unanimous.cpu(), 2, 3), 1)
    third = np.where(measured.groups[group].cpu(), np.where(unanimous.all(0).cpu(), 2, 3), 1)[None]
    return [x.astype(np.uint8) for x in (first, second, third, _pages(measured, group)[None])]


def page_lists(measured: Union) -> tuple[np.ndarray, np.ndarray]:
    """Return panel 5: statuses [G, slots] (0: no page) and page numbers, left-aligned."""
    ends = measured.indptr.tolist()
    statuses = np.zeros((len(ends) - 1, max(1, *np.diff(ends))), np.uint8)
    numbers = np.full(statuses.shape, -1, np.int32)
    for group, (start, end) in enumerate(pairwise(ends)):
        listed = measured.indices[start:end].cpu().numpy()
        numbers[group, : end - start], statuses[group, : end - start] = listed, _pages(measured, group)[listed]
    return statuses, numbers


def union(
    unions: Sequence[Union], *, layers: Sequence[int], layer: int = 0, group: int = 0, **notes: Unpack[FigureTexts]
) -> go.Figure:
    """Draw the union of one chunk step by step; a slider selects the layer, a menu the execution group."""
    groups, now = len(unions[0].groups), unions[layer]
    heights = [max(60, min(7 * now.kept.shape[1] * now.group, 260)), 16 * now.group, 20, 20, LIST * groups]
    total = sum(heights) + GAP * (len(heights) - 1)
    fig = make_subplots(len(heights), 1, row_heights=heights, vertical_spacing=GAP / total, subplot_titles=TITLES)
    pictures = [[steps(each, g) for g in range(groups)] for each in unions]
    hover = "%{customdata}<br>page %{x}<extra></extra>"
    for g in range(groups):
        for row, z in enumerate(pictures[layer][g], 1):
            heat = go.Heatmap(z=z, **LOOK, xgap=1, ygap=1 if len(z) < 9 else 0, hovertemplate=hover)
            labels = np.tile(_lines(now, g, row), (1, z.shape[1]))
            fig.add_trace(heat.update(visible=g == group, customdata=labels), row=row, col=1)
    lists = [page_lists(each) for each in unions]
    fig.add_trace(_list(*lists[layer]), row=5, col=1)
    swatches(fig, PAGES)
    _axes(fig, now, heights, max(z.shape[1] for z, _ in lists))
    heats = [[go.Heatmap(z=z) for each in of_layer for z in each] for of_layer in pictures]
    replaced = {str(at): [*heat, _list(*lists[at])] for at, heat in enumerate(heats)}
    shares = [" → ".join(f"{x:.0%}" for x in each.densities()) for each in unions]
    sentences = [f"{n}: {share} of causal pairs after steps 1 to 4" for n, share in zip(layers, shares, strict=True)]
    slider = frame_slider(sentences, layer, "layer ", spoken=True, pad=48) if len(unions) > 1 else None
    menu = choice_menu(_names(now), 4, total, (), group, 1 + len(PAGES))
    title = "From a mask to a list of pages"
    return finish_with_slider(fig, total, replaced, slider, menu, below=132, title=title, **notes)


def _names(measured: Union) -> list[str]:
    """Name the execution groups: by KV head, or by number if several share one."""
    word = "KV head" if len(measured.groups) == measured.kv_heads else "group"
    return [f"{word} {group}" for group in range(len(measured.groups))]


def _pages(measured: Union, group: int) -> np.ndarray:
    """Return the statuses [J] of a group's pages: joined ones before the chunk's own."""
    of = slice(group * measured.group, (group + 1) * measured.group)
    everyone = (measured.kept[of] | (measured.pairs == 0)).all(0).all(0)
    joined = np.where(measured.groups[group].cpu(), np.where(everyone.cpu(), 2, 3), 1)
    return np.where(measured.own.cpu(), 4, joined).astype(np.uint8)


def _lines(measured: Union, group: int, row: int) -> np.ndarray:
    """Name the lines of a panel, [lines, 1]."""
    heads = [f"head {group * measured.group + h}" for h in range(measured.group)]
    if row == 1:
        starts = [measured.first + i * measured.size for i in range(measured.kept.shape[1])]
        heads = [f"{head}, rows from {start:,d}" for head in heads for start in starts]
    return np.array(heads if row < 3 else [f"{_names(measured)[group]}"], dtype=object)[:, None]


def _list(statuses: np.ndarray, numbers: np.ndarray) -> go.Heatmap:
    few = numbers.shape[1] <= 48
    text = np.where(numbers < 0, "", numbers.astype(str)) if few else None
    written = {"text": text, "texttemplate": "%{text}" if few else None, "textfont": {"size": SMALLEST, "color": PAPER}}
    hover = "list of %{y}, position %{x}: page %{customdata}<extra></extra>"
    return go.Heatmap(z=statuses, **LOOK, xgap=1, ygap=2, customdata=numbers, hovertemplate=hover, **written)


def _axes(fig: go.Figure, measured: Union, heights: Sequence[int], slots: int) -> None:
    pages = measured.own.shape[0]
    fig.update_yaxes(autorange="reversed", showgrid=False, ticks="", showticklabels=False, showline=False)
    fig.update_xaxes(range=[-0.5, pages - 0.5], showgrid=False, ticks="", showticklabels=False, showline=False)
    fig.update_xaxes(showticklabels=True, row=4)
    ends = [-0.5, max(slots, pages) - 0.5]
    fig.update_xaxes(title_text="position in the list", range=ends, showticklabels=True, row=5)
    tiles, group = measured.kept.shape[1], measured.group
    heads, lists = [f"head +{h}" for h in range(group)], _names(measured)
    middles = [tiles * (h + 0.5) - 0.5 for h in range(group)]
    fig.update_yaxes(tickvals=middles, ticktext=heads, showticklabels=True, row=1)
    fig.update_yaxes(tickvals=list(range(group)), ticktext=heads, showticklabels=True, row=2)
    fig.update_yaxes(tickvals=list(range(len(lists))), ticktext=lists, showticklabels=True, row=5)
    for h in range(1, group):
        fig.add_hline(tiles * h - 0.5, line={"color": RULE, "width": 2}, row=1, col=1)

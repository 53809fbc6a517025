"""A long prompt: an overview of the selection, and a window of tiles over true attention, computed on demand."""

from collections.abc import Sequence
from functools import lru_cache

import plotly.graph_objects as go
from ipywidgets import VBox

from workbench.app.explore.live import explorer, menu, slider
from workbench.app.explore.panels.tiles import Threshold, method_and_threshold, method_of
from workbench.core.tiling.tiles import Tiles
from workbench.data.prompt_view import PromptView
from workbench.metrics.tiles.tile_recall import TileWindow, choice, window
from workbench.metrics.tiles.tile_states import States
from workbench.plots.attention.token_axes import TokenAxes, counts_tokens
from workbench.plots.marks.styles import SPARSE_METHODS
from workbench.plots.tiles.tile_overview import REDUCTIONS, overview_figure, reduce_tiles
from workbench.plots.tiles.tile_recall import Span, in_window, span_of


def long_explorer(
    states: States,
    specs: Sequence[str],
    *,
    cells: int = 512,
    side: int = 64,
    share: float = 0.8,
    caption: str = "",
    view: PromptView | None = None,
) -> VBox:
    """Explore the first layer of `states`; the overview has at most `cells` a side, the window `side` tiles.

    True attention is computed for the window's query tokens only.
    """
    layer = states.layers[0]

    @lru_cache(maxsize=4)
    def tiles_of(spec: str, value: Threshold) -> Tiles:
        return choice(states, layer, method_of(None, spec, value))

    @lru_cache(maxsize=4)
    def rows_of(spec: str, value: Threshold, head: int, row: int) -> TileWindow:
        return window(states, layer, head, tiles_of(spec, value), slice(row, row + side), share)

    def draw(spec: str, value: Threshold, how: str, head: int, row: int, key: int) -> go.Figure:
        tiles = tiles_of(spec, value)
        count = tiles.kept.shape[2]
        row, key = min(row, max(0, count - side)), min(key, max(0, count - side))
        rows = rows_of(spec, value, head, row)
        detail = rows.over_keys(slice(key, key + side))
        drawn = overview_figure(
            reduce_tiles(tiles.kept[head].cpu().numpy(), cells, how),
            Span.whole(states),
            in_window(detail, count),
            span_of(detail),
            title=f"{SPARSE_METHODS.name_of(spec)}, head {head}",
            names=[f"all {len(states):,} tokens: {REDUCTIONS[how]}", "the frame, tile by tile"],
            notice=f"{tiles.size}-token tiles; in the frame it keeps {rows.mass_kept():.0%} of the queries' attention; "
            f"{rows.mass_missed():.0%} is in tiles dropped although needed for {share:.0%}.",
            caption=caption,
        )
        return counts_tokens(drawn, TokenAxes(len(states), len(states), y=True))

    methods, threshold = method_and_threshold(specs)
    last = tiles_of(specs[0], threshold.value).kept.shape[2] - 1
    overview = menu({name: how for how, name in REDUCTIONS.items()}, "overview")
    row = slider("frame: first query (tile)", (last + 1) // 2, 0, last)
    key = slider("frame: first key (tile)", 0, 0, last)
    controls = [methods, threshold, overview, slider("head", 1, 0, states.heads - 1), row, key]
    return explorer(controls, draw, view)

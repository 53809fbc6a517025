"""A long prompt: the whole choice at a glance, and the tiles of a window over true attention, asked for on demand."""

from collections.abc import Sequence
from functools import lru_cache

import ipywidgets as widgets
import plotly.graph_objects as go

from workbench.app.explore.live import explorer, slider
from workbench.app.explore.tiles import method_and_threshold, method_of
from workbench.core.tiles import Tiles
from workbench.metrics.tile_recall import States, TileWindow, choice, window
from workbench.plots.looks import SPARSE_METHODS
from workbench.plots.tile_overview import REDUCTIONS, reduced, zoomed
from workbench.plots.tile_recall import Span, in_window, span_of


def long_explorer(
    states: States, specs: Sequence[str], *, cells: int = 512, side: int = 64, share: float = 0.8, caption: str = ""
) -> widgets.VBox:
    """Layer 0 of `states`; the overview has at most `cells` a side, the window `side` tiles. True attention is worked
    out for the rows of the window only."""

    @lru_cache(maxsize=4)
    def found(spec: str, value: float | None) -> Tiles:
        return choice(states, 0, method_of(None, spec, value))

    @lru_cache(maxsize=4)
    def looked(spec: str, value: float | None, head: int, row: int) -> TileWindow:
        return window(states, 0, head, found(spec, value), slice(row, row + side), share)

    def draw(spec: str, value: float | None, how: str, head: int, row: int, key: int) -> list[go.Figure]:
        tiles = found(spec, value)
        count = tiles.kept.shape[2]
        row, key = min(row, max(0, count - side)), min(key, max(0, count - side))
        part = looked(spec, value, head, row)
        seen = part.at(slice(key, key + side))
        whole = Span(range(len(states)), range(len(states)))
        overview = reduced(tiles.kept[head].cpu().numpy(), cells, how)
        name = SPARSE_METHODS.name_of(spec)
        figure = zoomed(
            overview, whole, in_window(seen, count), span_of(seen), title=f"{name}, head {head}",
            names=[f"all {len(states):,} tokens: {REDUCTIONS[how]}", "the frame, tile by tile"],
            notice=f"{tiles.size}-token tiles; of the rows in the frame it keeps {part.held():.0%} of the attention, "
            f"{part.missed():.0%} is in tiles that are dropped though needed for {share:.0%}.",
            caption=caption,
        )  # fmt: skip
        return [figure]

    method, turn = method_and_threshold(specs)
    first = found(specs[0], turn.value).kept.shape[2]
    reductions = [(name, how) for how, name in REDUCTIONS.items()]
    controls = [
        method, turn, widgets.Dropdown(options=reductions, description="overview"),
        slider("head", 1, 0, states.heads - 1), slider("frame: first row (tile)", first // 2, 0, first - 1),
        slider("frame: first key (tile)", 0, 0, first - 1),
    ]  # fmt: skip
    return explorer(controls, draw)

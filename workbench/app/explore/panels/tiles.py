"""Choose method, threshold, layer and head; see kept tiles over true attention, and the union or rules behind them."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import plotly.graph_objects as go
from ipywidgets import Checkbox, Dropdown, Layout, SelectionSlider, VBox
from transformers import PreTrainedModel

from workbench.app.explore.live import explorer, menu, number_slider, slider
from workbench.core.errors import BadInput
from workbench.data.prompt_view import PromptView
from workbench.methods import sparse
from workbench.methods.sparse import Sparse
from workbench.methods.sparse._small import for_tile_size
from workbench.methods.sparse.bfla import Bfla
from workbench.metrics.tiles.tile_recall import SelectedTiles, bfla_rules, select_by, select_by_oracle
from workbench.metrics.tiles.tile_states import States, union
from workbench.plots.attention.token_axes import TokenAxes, counts_tokens
from workbench.plots.marks.styles import SPARSE_METHODS
from workbench.plots.tiles.tile_recall import Span, maps, of_head
from workbench.plots.tiles.union import bfla_rules as rules_figure
from workbench.plots.tiles.union import first_rule
from workbench.plots.tiles.union import union as union_figure

SECOND = {"union to pages": "union", "which rule keeps a tile (BFLA)": "rules"}


def other_methods(specs: Sequence[str], tile: int, model: PreTrainedModel) -> list[str]:
    """Return specs of the methods that `specs` lacks, with tiles of `tile` tokens; without those that need fitting."""
    given, left = {spec.partition("(")[0] for spec in specs}, []
    for name in sparse.names():
        spec = for_tile_size(name, tile)
        try:
            sparse.from_spec(spec).for_model(model)
        except BadInput:
            continue
        left += [] if name in given else [spec]
    return left


Threshold = float | str  # "" for a method without one: a slider accepts no None


def thresholds_of(spec: str) -> tuple[list[tuple[str, Threshold]], Threshold]:
    """Return the method's labelled threshold values, from few tiles to many, and the one in `spec`."""
    method = sparse.from_spec(spec)
    option, steps = method.threshold_steps
    if not option:
        return [("–", "")], ""
    inner = getattr(method, "inner", method)
    own = getattr(inner, option)
    if not isinstance(own, float | int):  # a file of thresholds
        own = steps[len(steps) // 2]
    values = sorted({*steps, own}, reverse=steps[0] > steps[-1])
    return [(f"{option} = {value:g}", value) for value in values], own


def method_and_threshold(specs: Sequence[str]) -> tuple[Dropdown, SelectionSlider]:
    """Return a menu of methods, and a slider over the chosen one's threshold."""
    methods = menu([(SPARSE_METHODS.name_of(spec), spec) for spec in specs], "method", value=specs[0])
    options, own = thresholds_of(specs[0])
    form = {"description": "threshold", "continuous_update": False, "layout": Layout(width="430px")}
    threshold = SelectionSlider(options=options, value=own, **form)

    def follow(change: dict[str, Any]) -> None:
        options, own = thresholds_of(change["new"])
        threshold.options = options
        threshold.value = own

    methods.observe(follow, "value")
    return methods, threshold


def method_of(model: PreTrainedModel | None, spec: str, value: Threshold) -> Sparse:
    """Return the method with this threshold, bound to the model if one is given."""
    method = sparse.from_spec(spec).with_threshold(value) if isinstance(value, float | int) else sparse.from_spec(spec)
    return method if model is None else method.for_model(model)


def tiles_explorer(
    model: PreTrainedModel,
    states: States,
    specs: Sequence[str],
    *,
    share: float = 0.8,
    chunk: int = 512,
    caption: str = "",
    layer: int = 0,
    head: int = 0,
    view: PromptView | None = None,
) -> VBox:
    """Explore `states` of one prompt, from `layer` and `head` (indices in the lists).

    Below the tiles: the union of one chunk, or the rules of BFLA.
    """
    length = len(states)

    @lru_cache(maxsize=8)
    def choice_of(spec: str, value: Threshold, layer: int, chunks: bool) -> SelectedTiles:
        return select_by(states, layer, method_of(model, spec, value), share, chunk if chunks else None)

    def draw(
        spec: str, value: Threshold, at: int, head: int, second: str, chunks: bool, number: int
    ) -> list[go.Figure]:
        layer, method = states.layers[at], method_of(model, spec, value)
        choice = choice_of(spec, value, layer, chunks)
        best = select_by_oracle(states, layer, method.size, share)
        tiles = maps(
            {
                f"needed for {share:.0%}": [[of_head(best, head)]],
                SPARSE_METHODS.name_of(spec): [[of_head(choice, head)]],
            },
            Span.whole(states),
            layers=[layer],
            heads=[head],
            columns=2,
            title="Kept tiles over true attention",
            notice=describe_selection(choice, head),
            caption=caption,
        )
        counts_tokens(tiles, TokenAxes(length, length, y=True))
        if second == "rules":
            return [tiles, rules(states, layer, method, head, caption)]
        rows = slice(number * chunk, min((number + 1) * chunk, length))
        steps = union(states, layer, method, rows)
        shares = " → ".join(f"{value:.0%}" for value in steps.densities())
        pages = union_figure(
            [steps],
            layers=[layer],
            group=head // steps.group,
            caption=caption,
            notice=f"Rows {rows.start:,} to {rows.stop - 1:,}, layer {layer}: {shares} of the causal pairs after steps "
            "1 to 4, mean over heads.",
        )
        return [tiles, pages]

    layers, heads = number_slider("layer", states.layers, layer), slider("head", head, 0, states.heads - 1)
    below = menu(SECOND, "below")
    chunks = Checkbox(value=False, description=f"select in chunks of {chunk}")
    last = (length - 1) // chunk
    methods = method_and_threshold([*specs, *other_methods(specs, sparse.from_spec(specs[0]).size, model)])
    controls = [*methods, layers, heads, below, chunks, slider("chunk", last, 0, last)]
    return explorer(controls, draw, view)


def describe_selection(choice: SelectedTiles, head: int) -> str:
    """Describe one head's selection in a sentence."""
    missed = int(choice.missed[head].sum())
    return (
        f"Head {head} keeps {choice.density()[head]:.0%} of the causal pairs and {choice.mass_kept()[head]:.0%} of the "
        f"attention; {missed} {'tile is' if missed == 1 else 'tiles are'} dropped although needed, holding "
        f"{choice.mass_kept(choice.missed)[head]:.0%} of it. Chosen in {1000 * choice.seconds:.0f} ms."
    )


def rules(states: States, layer: int, method: Sparse, head: int, caption: str) -> go.Figure:
    """Draw which of BFLA's rules keeps a tile, of one KV head. BadInput for other methods."""
    if not isinstance(method, Bfla):
        raise BadInput("only BFLA has rescue rules: choose BFLA above, or another view below")
    measured = bfla_rules(states, layer, method)
    kv_head = head // (states.heads // states.kv_heads)
    return rules_figure(
        [[first_rule(measured, kv_head)]],
        Span.whole(states),
        measured.added,
        layers=[layer],
        heads=[kv_head],
        caption=caption,
        notice=f"Layer {layer}, KV head {kv_head}; bars: all heads of the layer.",
    )

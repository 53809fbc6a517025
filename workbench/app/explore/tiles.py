"""Choose method, threshold, layer and head: kept tiles over true attention, and the union or the rules behind them."""

from collections.abc import Sequence
from functools import lru_cache

import ipywidgets as widgets
import plotly.graph_objects as go
from transformers import PreTrainedModel

from workbench.app.explore.live import explorer, slider
from workbench.core.errors import BadInput
from workbench.methods import sparse
from workbench.methods.sparse import Sparse
from workbench.methods.sparse._small import small
from workbench.methods.sparse.bfla import Bfla
from workbench.metrics.tile_recall import Chosen, States, bfla_rules, chosen, needed, union
from workbench.plots.bfla_rules import bfla_rules as rules_figure
from workbench.plots.bfla_rules import first_rule
from workbench.plots.looks import SPARSE_METHODS
from workbench.plots.tile_recall import Span, maps, of_head
from workbench.plots.union import union as union_figure

SECOND = {"union to pages": "union", "which rule keeps a tile (BFLA)": "rules"}


def others(specs: Sequence[str], tile: int, model: PreTrainedModel) -> list[str]:
    """Specs of the methods that `specs` leave out, in tiles of `tile` tokens; those that have nothing fitted to the
    model are left out too."""
    there, found = {spec.partition("(")[0] for spec in specs}, []
    for name in sparse.names():
        try:
            sparse.named(spec := small(name, tile)).ready(model)
        except BadInput:
            continue
        found += [] if name in there else [spec]
    return found


def thresholds_of(spec: str) -> tuple[list[tuple[str, float | None]], float | None]:
    """(values of the method's threshold with their labels, from few tiles to many; the one that `spec` sets)"""
    method = sparse.named(spec)
    option, steps = method.threshold_steps
    if not option:
        return [("–", None)], None
    inner = getattr(method, "inner", method)
    own = getattr(inner, option)
    if not isinstance(own, float | int):  # a file of thresholds
        own = steps[len(steps) // 2]
    values = sorted({*steps, own}, reverse=steps[0] > steps[-1])
    return [(f"{option} = {value:g}", value) for value in values], own


def method_and_threshold(specs: Sequence[str]) -> tuple[widgets.Dropdown, widgets.SelectionSlider]:
    """A menu of methods, and the slider of the threshold of the one that is chosen."""
    menu = widgets.Dropdown(
        options=[(SPARSE_METHODS.name_of(spec), spec) for spec in specs], value=specs[0], description="method"
    )
    options, own = thresholds_of(specs[0])
    wide = widgets.Layout(width="380px")
    turn = widgets.SelectionSlider(
        options=options, value=own, description="threshold", continuous_update=False, layout=wide
    )

    def follow(change: dict) -> None:
        options, own = thresholds_of(change["new"])
        turn.options = options
        turn.value = own

    menu.observe(follow, "value")
    return menu, turn


def method_of(model: PreTrainedModel | None, spec: str, value: float | None) -> Sparse:
    """The method at this value of its threshold, ready for the model where there is one."""
    method = sparse.named(spec)
    chosen_method = method if value is None else method.with_threshold(value)
    return chosen_method if model is None else chosen_method.ready(model)


def tiles_explorer(
    model: PreTrainedModel, states: States, specs: Sequence[str], *, share: float = 0.8, chunk: int = 512,
    caption: str = "", layer: int = 0, head: int = 0,
) -> widgets.VBox:  # fmt: skip
    """`states` of one prompt; `layer` and `head` are their places in the lists and begin. Below the tiles: the union of
    one chunk, or the rules of BFLA."""
    length, span = len(states), Span(range(len(states)), range(len(states)))

    @lru_cache(maxsize=8)
    def found(spec: str, value: float | None, layer: int, chunks: bool) -> Chosen:
        return chosen(states, layer, method_of(model, spec, value), share, chunk if chunks else None)

    def draw(
        spec: str, value: float | None, at: int, head: int, second: str, chunks: bool, number: int
    ) -> list[go.Figure]:
        layer, method = states.layers[at], method_of(model, spec, value)
        now = found(spec, value, layer, chunks)
        best = needed(states, layer, method.size, share)
        tiles = maps(
            {f"needed for {share:.0%}": [[of_head(best, head)]], SPARSE_METHODS.name_of(spec): [[of_head(now, head)]]},
            span, layers=[layer], heads=[head], columns=2, title="Kept tiles over true attention",
            notice=said(now, head), caption=caption,
        )  # fmt: skip
        if second == "rules":
            return [tiles, rules(states, layer, method, head, caption)]
        rows = slice(number * chunk, min((number + 1) * chunk, length))
        steps = union(states, layer, method, rows)
        shares = " → ".join(f"{value:.0%}" for value in steps.densities())
        return [
            tiles,
            union_figure([steps], layers=[layer], group=head // steps.group, caption=caption,
                         notice=f"Rows {rows.start:,} to {rows.stop - 1:,}, layer {layer}: {shares} of the causal "
                         "pairs after steps 1 to 4, mean over heads."),
        ]  # fmt: skip

    method, turn = method_and_threshold([*specs, *others(specs, sparse.named(specs[0]).size, model)])
    controls = [
        method, turn, slider("layer", layer, 0, len(states.layers) - 1), slider("head", head, 0, states.heads - 1),
        widgets.Dropdown(options=list(SECOND.items()), description="below"),
        widgets.Checkbox(value=False, description=f"choose in chunks of {chunk}"),
        slider("chunk", (length - 1) // chunk, 0, (length - 1) // chunk),
    ]  # fmt: skip
    return explorer(controls, draw)


def said(choice: Chosen, head: int) -> str:
    """One head of a choice in a sentence."""
    missed = int(choice.missed[head].sum())
    return (
        f"Head {head} keeps {choice.density()[head]:.0%} of the causal pairs and {choice.held()[head]:.0%} of the "
        f"attention; {missed} tiles are dropped though needed, with "
        f"{choice.held(choice.missed)[head]:.0%} of it. Chosen in {1000 * choice.seconds:.0f} ms."
    )


def rules(states: States, layer: int, method: Sparse, head: int, caption: str) -> go.Figure:
    """Which of BFLA's rules keeps a tile, of one KV head. BadInput for other methods."""
    if not isinstance(method, Bfla):
        raise BadInput("only BFLA has rules that rescue tiles: choose BFLA above, or another picture below")
    found = bfla_rules(states, layer, method)
    kv_head = head // (states.heads // states.kv_heads)
    span = Span(range(len(states)), range(len(states)))
    return rules_figure(
        [[first_rule(found, kv_head)]], span, found.added, layers=[layer], heads=[kv_head], caption=caption,
        notice=f"Layer {layer}, KV head {kv_head}; the bars are of all heads of the layer.",
    )  # fmt: skip

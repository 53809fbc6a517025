"""Tile selections of sparse methods on one prompt as figures; see notebooks/09_sparse_masks.ipynb."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from workbench.core.errors import BadInput
from workbench.methods import sparse
from workbench.methods.registry import spec_of
from workbench.methods.sparse import Sparse
from workbench.methods.sparse._small import for_tile_size
from workbench.methods.sparse.bfla import Bfla
from workbench.metrics.tiles.tile_recall import ORACLE, BflaRules, SelectedTiles, rule_records, select_by
from workbench.metrics.tiles.tile_states import States
from workbench.plots.marks.elements import pick_evenly
from workbench.plots.marks.styles import SPARSE_METHODS
from workbench.plots.tiles.tile_recall import (
    DensityCurve,
    Span,
    ThresholdStep,
    by_threshold,
    maps,
    of_head,
)
from workbench.plots.tiles.union import bfla_rules, first_rule

Choices = Mapping[str, Mapping[int, SelectedTiles]]  # method → layer → selection
Records = Sequence[Mapping[str, Any]]


def named_specs(methods: Sequence[str], tile: int) -> dict[str, str]:
    """Return the specs of `methods` by their names in figures; a bare name gets settings for tiles of `tile` tokens.

    Raises BadInput for none, and for duplicates.
    """
    specs = {SPARSE_METHODS.name_of(spec): for_tile_size(spec, tile) for spec in methods}
    if not methods or len(specs) < len(methods):
        raise BadInput(f"methods are {methods}: name at least one, and each only once")
    return specs


def unfitted(specs: Mapping[str, str]) -> dict[str, Sparse]:
    """Return the methods that need nothing fitted to a model, by name. Raises BadInput if all do."""
    methods = {name: sparse.from_spec(spec) for name, spec in specs.items()}
    free = {name: method for name, method in methods.items() if not method.needs_fitting}
    if not free:
        raise BadInput(f"methods are {list(specs.values())}: at least one must need nothing that was fitted to a model")
    return free


def kept_maps(
    choices: Choices, best: Mapping[int, SelectedTiles], *, share: float, layer: int, head: int, caption: str
) -> go.Figure:
    """Draw the tiles that methods keep over true attention, and the fewest that hold `share` of it (`best`)."""
    layers, heads = pick_evenly(list(best), layer), pick_evenly(range(len(best[layer].mass)), head)
    panels = {f"needed for {share:.0%} of the attention": best, **choices}
    return maps(
        {name: [[of_head(panel[i], h) for h in heads] for i in layers] for name, panel in panels.items()},
        Span.whole(best[layer].grid.rows),
        layers=layers,
        heads=heads,
        layer=layers.index(layer),
        head=heads.index(head),
        title="Kept tiles over true attention",
        caption=f"{caption} Orange: dropped although needed.",
    )


def threshold_slider(
    states: States,
    methods: Mapping[str, Sparse],
    specs: Mapping[str, str],
    records: Records,
    *,
    share: float,
    layer: int,
    head: int,
    about: str,
) -> go.Figure | None:
    """Draw one head under the threshold of the first method that has one, and all methods' curves.

    `records` are from `threshold_records`. None if no method has a threshold.
    """
    main = next((name for name, method in methods.items() if method.threshold_steps[0]), None)
    if main is None:
        return None
    size = next(iter(methods.values())).size
    steps = []
    for r in (r for r in records[: -len(ORACLE)] if r["method"] == main):
        choice = select_by(states, layer, methods[main].with_threshold(r["value"]), share)
        sentence = (
            f"{r['option']} = {r['value']:g}: this head keeps {choice.density()[head]:.0%} of the pairs and "
            f"{choice.mass_kept()[head]:.0%} of the attention, "
            f"{int(choice.missed[head].sum())} needed tiles are dropped; "
            f"over all heads: {r['density']:.0%} and {r['mass']:.0%}"
        )
        steps.append(ThresholdStep(of_head(choice, head), sentence, r["density"], r["mass"]))
    return by_threshold(
        steps,
        Span.whole(states),
        threshold_curves(records, specs),
        {"map": f"{main}, layer {layer}, head {head}", "curves": "mean over all layers and heads"},
        active=len(steps) // 2,
        caption=f"{about}. Tiles of {size} tokens; each point is one value of the method's threshold option.",
    )


def threshold_curves(records: Records, specs: Mapping[str, str]) -> list[DensityCurve]:
    """Return one curve per method of `threshold_records`; the oracle, last, is black."""
    ideal = "ideal selection"
    curves = []
    for name, points in {**_by_method(records[: -len(ORACLE)]), ideal: records[-len(ORACLE) :]}.items():
        look = SPARSE_METHODS.of("oracle" if name == ideal else specs[name])
        labels = [f"{r['value']:.0%} target" if name == ideal else f"{r['option']} = {r['value']:g}" for r in points]
        density, mass = ([r[key] for r in points] for key in ("density", "mass"))
        curves.append(DensityCurve(name, look.colour, look.symbol, density, mass, labels))
    return curves


def kept_by_rule(
    states: States, causes: Mapping[int, BflaRules], method: Bfla, *, layer: int, head: int, about: str
) -> go.Figure:
    """Draw which of BFLA's rules keeps a tile, by layer; the KV head of the query head `head` is shown first."""
    group = states.heads // states.kv_heads
    layers, heads = pick_evenly(list(causes), layer), pick_evenly(range(states.kv_heads), head // group)
    added = pd.DataFrame(rule_records(causes)).groupby("rule", sort=False)[["density", "attention"]].mean()
    return bfla_rules(
        [[first_rule(causes[i], h) for h in heads] for i in layers],
        Span.whole(states),
        {row.Index: (row.density, row.attention) for row in added.itertuples()},
        layers=layers,
        heads=heads,
        layer=layers.index(layer),
        head=heads.index(head // group),
        caption=f"{about}. {spec_of(method)}. A tile kept for one head of a KV head is kept for all of them. Bars: "
        "mean over all layers and heads; each rule counts what those before it did not keep.",
    )


def _by_method(records: Records) -> dict[str, list[Mapping[str, Any]]]:
    return {name: [r for r in records if r["method"] == name] for name in dict.fromkeys(r["method"] for r in records)}

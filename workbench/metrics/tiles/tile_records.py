"""Tables of `tile_recall` over layers, heads, methods and thresholds; choices for prompts too long to show whole."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from workbench.core.errors import BadInput
from workbench.core.tiling.tiles import Tiles
from workbench.methods.sparse import Sparse
from workbench.metrics.answers import Records
from workbench.metrics.attention_mass import peak
from workbench.metrics.tiles.sparsity import Methods
from workbench.metrics.tiles.tile_recall import BflaRules, Chosen, TileWindow, choice, chosen, needed, window
from workbench.metrics.tiles.tile_states import States
from workbench.metrics.tiles.tile_union import Union

Layers = Mapping[int, Chosen]  # by number of the layer
ORACLE = (0.2, 0.4, 0.6, 0.8, 0.9, 0.95, 0.99)  # shares of the attention that the oracle of a curve keeps
UNION_STEPS = ("choice", "query blocks", "heads", "chunk")  # of CompactAttention, see `Union.densities`


def by_layer(states: States, methods: Methods, share: float = 0.8) -> dict[str, dict[int, Chosen]]:
    """Choose for the whole prompt with every method, in every layer: {method: {layer: choice}}."""
    return {name: {i: chosen(states, i, method, share) for i in states.layers} for name, method in methods.items()}


def shares(choices: Mapping[str, Layers]) -> dict[str, dict[str, Tensor]]:
    """Return {"density", "attention" (kept) and "missed" (needed and dropped): {method: [L, Hq] fp64}}."""
    measures = {"density": Chosen.density, "attention": Chosen.held, "missed": Chosen.lost}
    return {
        measure: {name: torch.stack([of(choice) for choice in layers.values()]) for name, layers in choices.items()}
        for measure, of in measures.items()
    }


def head_records(by_measure: Mapping[str, Mapping[str, Tensor]], layers: Sequence[int]) -> Records:
    """List `shares` by head: {method, layer, head, density, attention, missed}."""
    return [
        {"method": name, "layer": layer, "head": head}
        | {measure: float(of[name][at, head]) for measure, of in by_measure.items()}
        for name, table in by_measure["density"].items()
        for at, layer in enumerate(layers)
        for head in range(table.shape[1])
    ]


def summary(choices: Mapping[str, Layers]) -> dict[str, dict[str, float]]:
    """Average `shares` over layers and heads, and sum the seconds of all layers: {measure: {method: number}}."""
    names = {"density": "density", "attention": "attention_kept", "missed": "attention_missed"}
    averages = {names[m]: {name: float(x.mean()) for name, x in of.items()} for m, of in shares(choices).items()}
    seconds = {name: sum(choice.seconds for choice in layers.values()) for name, layers in choices.items()}
    return averages | {"seconds_to_choose": seconds}


def most_missed(
    choices: Mapping[str, Layers], best: Layers, layer: int | None = None, head: int | None = None
) -> tuple[int, int]:
    """Find the layer and head in which few tiles are needed (`best`, by layer) and many of them are missed.

    `layer` and `head` are taken where they are given. BadInput where there is none of that number.
    """
    lost = shares(choices)["missed"].values()
    needs = torch.stack([choice.density() for choice in best.values()])
    at, most = peak(sum(lost) / len(lost) / needs)
    layers, heads = list(best), needs.shape[1]
    layer, head = layers[at] if layer is None else layer, most if head is None else head
    if layer not in layers or head >= heads:
        raise BadInput(f"layer {layer}, head {head}: there are layers {layers} of {heads} heads")
    return layer, head


def threshold_records(states: States, methods: Methods, size: int, share: float = 0.8) -> Records:
    """Move the threshold of every method from few tiles to many: records {method, option, value} and `Chosen.record`.

    Numbers are means over layers. Last comes the oracle in tiles of `size`, which takes the tiles that hold most.
    """
    records = []
    for name, method in methods.items():
        option, values = method.threshold_steps
        for value in values:
            choices = [chosen(states, i, method.with_threshold(value), share) for i in states.layers]
            records.append({"method": name, "option": option, "value": value, **_mean(choices)})
    for held in ORACLE:
        choices = [needed(states, i, size, held) for i in states.layers]
        records.append({"method": "oracle", "option": "mass", "value": held, **_mean(choices)})
    return records


def _mean(choices: Sequence[Chosen]) -> dict[str, float]:
    records = [choice.record() for choice in choices]
    return {name: float(np.mean([r[name] for r in records])) for name in records[0]}


def rule_records(causes: Mapping[int, BflaRules]) -> Records:
    """List what each of BFLA's rules adds to those before it, by layer: {layer, rule, density, attention}."""
    return [
        {"layer": layer, "rule": rule, "density": density, "attention": attention}
        for layer, of in causes.items()
        for rule, (density, attention) in of.added.items()
    ]


def union_records(unions: Mapping[int, Union]) -> Records:
    """List the density after each of CompactAttention's steps, by layer: {layer, step, density}."""
    return [
        {"layer": layer, "step": step, "density": density}
        for layer, of in unions.items()
        for step, density in zip(UNION_STEPS, of.densities(), strict=True)
    ]


def means(records: Sequence[Mapping[str, Any]], by: str, measures: Sequence[str]) -> dict[str, dict[str, float]]:
    """Average `measures` over the records of the same `by`: {value of `by`: {measure: mean}}."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for r in records:
        groups.setdefault(r[by], []).append(r)
    return {name: {m: fmean(r[m] for r in part) for m in measures} for name, part in groups.items()}


def last_chunk(length: int, chunk: int) -> slice:
    """Return the rows of the last whole chunk of a prompt; of a prompt shorter than a chunk, all rows."""
    start = max(0, length - chunk) // chunk * chunk
    return slice(start, min(start + chunk, length))


@dataclass(frozen=True, eq=False)
class Framed:
    """A choice for a long prompt, and the true attention of some of its rows."""

    tiles: Tiles
    seconds: float  # to choose
    frames: list[TileWindow]  # one a head: the same query tiles, over all key tiles

    def record(self, head: int) -> dict[str, Any]:
        """Return {head, seconds, tiles, density, attention, missed}; the last two are of the rows in the frame."""
        kept, side = int(self.tiles.kept[head].sum()), self.tiles.kept.shape[1]
        record = {"head": head, "seconds": self.seconds, "tiles": kept, "density": kept / (side * (side + 1) / 2)}
        return record | {"attention": self.frames[head].held(), "missed": self.frames[head].missed()}


def framed(states: States, method: Sparse, tokens: int, share: float = 0.8) -> Framed:
    """Choose in layer 0 of a long prompt, and look at the attention of `tokens` rows around nine tenths of it."""
    began = perf_counter()
    tiles = choice(states, 0, method)
    seconds = perf_counter() - began
    count = tiles.kept.shape[1]
    side = min(tokens // tiles.size, count)
    first = max(0, min(int(count * 0.9) - side // 2, count - side))
    rows = slice(first, first + side)
    return Framed(tiles, seconds, [window(states, 0, head, tiles, rows, share) for head in range(states.heads)])

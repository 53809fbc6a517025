"""Compare selected tiles with exact attention: the attention they keep, and the needed tiles they drop."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from workbench.core.errors import BadInput
from workbench.core.plan import Site
from workbench.core.tiling.tile_selection import fewest_reaching
from workbench.core.tiling.tiles import Grid, Tiles
from workbench.methods.sparse import Sparse
from workbench.methods.sparse.bfla import Bfla
from workbench.metrics.answers import Records
from workbench.metrics.attention_mass import peak
from workbench.metrics.tiles.sparsity import Methods
from workbench.metrics.tiles.tile_states import States, Union


@dataclass(frozen=True, eq=False)
class SelectedTiles:
    """Tiles selected in one layer of a prompt. Single columns (vertical-slash, QUOKA) count as their tiles."""

    tiles: Tiles
    grid: Grid
    mass: Tensor  #: [Hq, I, J] fp32: attention of a tile, mean over the tokens of its query tile
    needed: Tensor  #: [Hq, I, J] bool: the fewest tiles with a given share of the mass, the query tile's own first
    seconds: float  #: of the selection

    @property
    def kept(self) -> Tensor:
        """[Hq, I, J] bool: kept tiles with causal pairs."""
        return self.tiles.kept & self.grid.causal

    @property
    def missed(self) -> Tensor:
        """[Hq, I, J] bool: tiles that are needed and dropped."""
        return self.needed & ~self.kept

    def density(self) -> Tensor:
        """Return [Hq]: share of the causal (query, key) pairs in kept tiles."""
        pairs = self.grid.pairs()
        return (self.kept * pairs).sum((1, 2)).double() / pairs.sum()

    def mass_kept(self, some: Tensor | None = None) -> Tensor:
        """Return [Hq]: attention within the kept tiles (or within `some` [Hq, I, J] bool), mean over queries."""
        count = self.grid.rows_to_tiles(torch.ones(len(self.grid.rows), 1, device=self.grid.rows.device)).sum((1, 2))
        share = (self.mass * (self.kept if some is None else some)).sum(-1).double()
        return (share * count).sum(1) / count.sum()

    def mass_lost(self) -> Tensor:
        """Return [Hq]: attention within tiles that are needed and dropped, mean over queries."""
        return self.mass_kept(self.missed)

    def record(self) -> dict[str, float]:
        """Return the means over heads; `lowest` is of the head that keeps the least attention."""
        held = self.mass_kept()
        values = {"density": self.density().mean(), "mass": held.mean(), "lowest": held.min()}
        missed = self.missed.sum((1, 2)) / self.grid.causal.sum()
        values |= {"missed": missed.mean(), "missed_mass": self.mass_lost().mean()}
        return {name: float(value) for name, value in values.items()} | {"seconds": self.seconds}


def select_by(
    states: States, layer: int, method: Sparse, share: float = 0.8, chunk: int | None = None
) -> SelectedTiles:
    """Select tiles for the whole prompt with `method` (ready for the model), at once or in chunks of whole tiles.

    Needed tiles (`select_by_oracle`) hold `share` of the attention. Raises BadInput for a chunk that is not a
    multiple of the tile.
    """
    if chunk is not None and (chunk < 1 or chunk % method.size):
        raise BadInput(f"chunk {chunk} is no multiple of {method.size}, the tile of the method")
    start = perf_counter()
    tiles = choice(states, layer, method, chunk)
    seconds = perf_counter() - start
    best = select_by_oracle(states, layer, tiles.size, share)
    return replace(best, tiles=tiles, seconds=seconds)


def select_by_oracle(states: States, layer: int, size: int, share: float = 0.8) -> SelectedTiles:
    """Select as an oracle: the fewest tiles of `size` that hold `share` of the attention of each query tile."""
    truth, grid = states.mass(layer, size), states.grid(size)
    best = fewest_reaching(truth, share, grid.own_tiles) & grid.causal
    return SelectedTiles(Tiles(best, size), grid, truth, best, 0.0)


def choice(states: States, layer: int, method: Sparse, chunk: int | None = None) -> Tiles:
    """Select whole tiles with `method`, at once or chunk by chunk."""
    queries, keys = states.queries[layer], states.keys[layer]
    key_tiles = -(-len(states) // method.size)
    chunks = []
    for rows in torch.arange(len(states), device=keys.device).split(chunk or len(states)):
        end = int(rows[-1]) + 1
        kept = method(queries[:, rows], keys[:, :end], rows, Site(layer, len(states))).paged().kept
        chunks.append(pad(kept, (0, key_tiles - kept.shape[2])))
    return Tiles(torch.cat(chunks, 1), method.size)


@dataclass(frozen=True, eq=False)
class TileWindow:
    """Some query tiles of one head, over all key tiles or some."""

    rows: slice  #: query tiles
    keys: slice  #: key tiles
    size: int
    mass: Tensor  #: [i, j] fp32
    kept: Tensor  #: [i, j] bool, causal
    needed: Tensor  #: [i, j] bool
    causal: Tensor  #: [i, j] bool

    def over_keys(self, keys: slice) -> "TileWindow":
        """Return the same rows over the key tiles `keys`."""
        tensors = (x[:, keys] for x in (self.mass, self.kept, self.needed, self.causal))
        return TileWindow(self.rows, keys, self.size, *tensors)

    def mass_kept(self) -> float:
        """Return the attention within kept tiles, mean over query tiles."""
        return float((self.mass * self.kept).sum(1).mean())

    def mass_missed(self) -> float:
        """Return the attention within tiles that are needed and dropped."""
        return float((self.mass * (self.needed & ~self.kept)).sum(1).mean())


def window(states: States, layer: int, head: int, tiles: Tiles, rows: slice, share: float = 0.8) -> TileWindow:
    """Compare the exact attention of the query tiles `rows` of one head with `tiles`; no other tiles are computed."""
    grid, truth = states.grid(tiles.size, rows), states.mass_of(layer, head, rows, tiles.size)
    best, kept = fewest_reaching(truth, share, grid.own_tiles), tiles.kept[head, rows] & grid.causal
    return TileWindow(rows, slice(0, grid.shape[1]), tiles.size, truth, kept, best, grid.causal)


@dataclass(frozen=True, eq=False)
class BflaRules:
    """Which rules of BFLA keep the tiles of one layer, in its order."""

    kept: dict[str, Tensor]  #: rule → [H, I, J] bool, causal tiles only; the rules overlap
    causal: Tensor  #: [I, J] bool
    added: dict[str, tuple[float, float]]  #: rule → (density, attention) beyond the preceding rules


def bfla_rules(states: States, layer: int, method: Bfla) -> BflaRules:
    """Find the rules that keep each tile, and what each adds to the preceding ones, mean over query heads."""
    group = states.heads // states.kv_heads
    grid, truth = states.grid(method.size), states.mass(layer, method.size)
    by_rule = method.tiles_by_reason(states.queries[layer], states.keys[layer], grid.rows)
    before, added = torch.zeros_like(truth, dtype=torch.bool), {}
    for name, kept in by_rule.items():
        new = SelectedTiles(Tiles(kept & ~before, method.size), grid, truth, before, 0.0)
        added[name] = float(new.density().mean()), float(new.mass_kept().mean())
        before = before | kept
    return BflaRules({name: kept[::group] for name, kept in by_rule.items()}, grid.causal, added)


Layers = Mapping[int, SelectedTiles]  # by layer number
ORACLE = (0.2, 0.4, 0.6, 0.8, 0.9, 0.95, 0.99)  # shares of attention that the oracle curve keeps
UNION_STEPS = ("choice", "query blocks", "heads", "chunk")  # of CompactAttention, see `Union.densities`


def by_layer(states: States, methods: Methods, share: float = 0.8) -> dict[str, dict[int, SelectedTiles]]:
    """Select tiles for the whole prompt with each method, in each layer: {method: {layer: choice}}."""
    return {name: {i: select_by(states, i, method, share) for i in states.layers} for name, method in methods.items()}


def shares(choices: Mapping[str, Layers]) -> dict[str, dict[str, Tensor]]:
    """Return {"density", "attention" (kept) and "missed" (needed and dropped): {method: [L, Hq] fp64}}."""
    measures = {
        "density": SelectedTiles.density,
        "attention": SelectedTiles.mass_kept,
        "missed": SelectedTiles.mass_lost,
    }
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

    `layer` and `head`, if given, are returned unchanged. Raises BadInput if the model has no such layer or head.
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
    """Sweep each method's threshold from few tiles to many: records {method, option, value} and `Chosen.record`.

    Values are means over layers. The last records are the oracle's, which takes the tiles of `size` with the most mass.
    """
    records = []
    for name, method in methods.items():
        option, values = method.threshold_steps
        for value in values:
            choices = [select_by(states, i, method.with_threshold(value), share) for i in states.layers]
            records.append({"method": name, "option": option, "value": value, **_mean(choices)})
    for held in ORACLE:
        choices = [select_by_oracle(states, i, size, held) for i in states.layers]
        records.append({"method": "oracle", "option": "mass", "value": held, **_mean(choices)})
    return records


def _mean(choices: Sequence[SelectedTiles]) -> dict[str, float]:
    records = [choice.record() for choice in choices]
    return {name: float(np.mean([r[name] for r in records])) for name in records[0]}


def rule_records(causes: Mapping[int, BflaRules]) -> Records:
    """List what each of BFLA's rules adds to the preceding ones, by layer: {layer, rule, density, attention}."""
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


@dataclass(frozen=True, eq=False)
class WindowSelection:
    """Tiles selected for a long prompt, and the exact attention of some of its queries."""

    tiles: Tiles
    seconds: float  #: of the selection
    frames: list[TileWindow]  #: one per head: the same query tiles, over all key tiles

    def record(self, head: int) -> dict[str, Any]:
        """Return {head, seconds, tiles, density, attention, missed}; the last two are of the queries in the frame."""
        kept, side = int(self.tiles.kept[head].sum()), self.tiles.kept.shape[1]
        record = {"head": head, "seconds": self.seconds, "tiles": kept, "density": kept / (side * (side + 1) / 2)}
        return record | {"attention": self.frames[head].mass_kept(), "missed": self.frames[head].mass_missed()}


def measure_window(states: States, method: Sparse, tokens: int, share: float = 0.8) -> WindowSelection:
    """Select tiles in layer 0 of a long prompt, and compute the exact attention of `tokens` queries at 90% of it."""
    start = perf_counter()
    tiles = choice(states, 0, method)
    seconds = perf_counter() - start
    count = tiles.kept.shape[1]
    side = min(tokens // tiles.size, count)
    first = max(0, min(int(count * 0.9) - side // 2, count - side))
    rows = slice(first, first + side)
    return WindowSelection(
        tiles, seconds, [window(states, 0, head, tiles, rows, share) for head in range(states.heads)]
    )

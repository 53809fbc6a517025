"""A choice of tiles beside the attention that they truly get: what it keeps, and what it drops though needed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from workbench.core.errors import BadInput
from workbench.core.plan import Site
from workbench.core.tile_grid import Grid
from workbench.core.tiles import Tiles
from workbench.methods.sparse import Sparse, smallest
from workbench.methods.sparse.bfla import Bfla
from workbench.methods.sparse.compact import Compact
from workbench.metrics.mass import peak
from workbench.metrics.states import States

ORACLE = (0.2, 0.4, 0.6, 0.8, 0.9, 0.95, 0.99)  # shares of the attention that the oracle of a curve keeps
UNION_STEPS = ("choice", "query blocks", "heads", "chunk")  # of CompactAttention, see `Union.densities`


@dataclass(frozen=True, eq=False)
class Chosen:
    """One layer of a whole prompt. Single columns (vertical-slash, QUOKA) count as the tiles that they are in."""

    tiles: Tiles
    grid: Grid
    mass: Tensor  # [Hq, I, J] fp32: attention of a tile, mean over the rows of its query tile
    needed: Tensor  # [Hq, I, J] bool: fewest tiles that hold a share of it, a row's own tile first
    seconds: float  # to choose

    @property
    def kept(self) -> Tensor:
        """[Hq, I, J] bool"""
        return self.tiles.kept & self.grid.causal

    @property
    def missed(self) -> Tensor:
        """[Hq, I, J] bool: needed and dropped."""
        return self.needed & ~self.kept

    def density(self) -> Tensor:
        """[Hq]: share of the causal pairs (row, key) in kept tiles."""
        pairs = self.grid.pairs()
        return (self.kept * pairs).sum((1, 2)).double() / pairs.sum()

    def held(self, some: Tensor | None = None) -> Tensor:
        """[Hq]: attention within the kept tiles (or within `some` [Hq, I, J] bool), mean over rows."""
        count = self.grid.folded(torch.ones(len(self.grid.rows), 1, device=self.grid.rows.device)).sum((1, 2))
        share = (self.mass * (self.kept if some is None else some)).sum(-1).double()
        return (share * count).sum(1) / count.sum()

    def lost(self) -> Tensor:
        """[Hq]: attention within tiles that are needed and dropped, mean over rows."""
        return self.held(self.missed)

    def record(self) -> dict[str, float]:
        """Means over heads; `lowest`: the head that keeps least."""
        held = self.held()
        found = {"density": self.density().mean(), "mass": held.mean(), "lowest": held.min()}
        missed, causal = self.missed.sum((1, 2)), self.grid.causal.sum()
        found |= {"missed": (missed / causal).mean(), "missed_mass": self.held(self.missed).mean()}
        return {name: float(value) for name, value in found.items()} | {"seconds": self.seconds}


def chosen(states: States, layer: int, method: Sparse, share: float = 0.8, chunk: int | None = None) -> Chosen:
    """What `method` (ready for the model) chooses for the whole prompt, at once or in chunks of whole tiles; `share` is
    what the `needed` tiles hold."""
    if chunk is not None and (chunk < 1 or chunk % method.size):
        raise BadInput(f"chunk {chunk} is no multiple of {method.size}, the tile of the method")
    began = perf_counter()
    tiles = choice(states, layer, method, chunk)
    seconds = perf_counter() - began
    best = needed(states, layer, tiles.size, share)
    return replace(best, tiles=tiles, seconds=seconds)


def needed(states: States, layer: int, size: int, share: float = 0.8) -> Chosen:
    """The fewest tiles of `size` that hold `share` of the attention of every query tile, as a choice: the oracle's."""
    truth, grid = states.mass(layer, size), states.grid(size)
    best = smallest(truth, share, grid.own) & grid.causal
    return Chosen(Tiles(best, size), grid, truth, best, 0.0)


def choice(states: States, layer: int, method: Sparse, chunk: int | None = None) -> Tiles:
    """Whole tiles that `method` chooses, at once or chunk by chunk."""
    queries, keys = states.queries[layer], states.keys[layer]
    wide, parts = -(-len(states) // method.size), []
    for rows in torch.arange(len(states), device=keys.device).split(chunk or len(states)):
        end = int(rows[-1]) + 1
        kept = method(queries[:, rows], keys[:, :end], rows, Site(layer, len(states))).paged().kept
        parts.append(pad(kept, (0, wide - kept.shape[2])))
    return Tiles(torch.cat(parts, 1), method.size)


@dataclass(frozen=True, eq=False)
class Union:
    """CompactAttention's steps for one chunk: query blocks of a head → the head → the execution group → its pages."""

    kept: Tensor  # [Hq, I, J] bool: the method's choice for every query tile of the chunk
    heads: Tensor  # [Hq, J] bool: for any query tile
    groups: Tensor  # [G, J] bool: for any head of the group
    pages: Tensor  # [G, J] bool: with the chunk itself, the last step
    own: Tensor  # [J] bool: pages of the chunk
    pairs: Tensor  # [I, J] int64: causal pairs (row, key)
    indptr: Tensor  # [G + 1] int32
    indices: Tensor  # int32
    first: int  # position of the first row
    size: int
    kv_heads: int

    @property
    def group(self) -> int:
        """Query heads of an execution group."""
        return len(self.heads) // len(self.groups)

    def densities(self) -> list[float]:
        """Share of the causal pairs after the choice, each union, and the chunk in whole; mean over heads."""
        steps = [self.kept, self.heads[:, None], self.groups[:, None], self.pages[:, None]]
        return [float((step * self.pairs).sum() / (self.pairs.sum() * len(step))) for step in steps]


def union(states: States, layer: int, method: Sparse, rows: slice, heads: int = 0) -> Union:
    """`method` over the chunk `rows` of the prompt; `heads` query heads share a page list (0: a GQA group);
    CompactAttention brings its own method and group."""
    if isinstance(method, Compact):
        heads = method.group(states.heads, states.kv_heads)
        method = method.inner
    queries, keys = states.queries[layer][:, rows], states.keys[layer][:, : rows.stop]
    at = torch.arange(rows.start, rows.stop, device=keys.device)
    tiles = method(queries, keys, at, Site(layer, len(states))).paged()
    group, grid = heads or len(queries) // len(keys), Grid(at, rows.stop, tiles.size)
    kept, own = tiles.kept & grid.causal, grid.own.any(0)
    by_head = tiles.over_queries().kept[:, 0]
    by_group = tiles.union(group).kept[::group, 0]
    pages = by_group | own
    indptr, indices = grid.tiles(pages.repeat_interleave(group, 0)[:, None].expand_as(kept), len(kept)).pages(group)
    return Union(kept, by_head, by_group, pages, own, grid.pairs(), indptr, indices, rows.start, tiles.size, len(keys))


@dataclass(frozen=True, eq=False)
class Window:
    """Some query tiles of one head, over all key tiles or some."""

    rows: slice  # query tiles
    keys: slice  # key tiles
    size: int
    mass: Tensor  # [i, j] fp32
    kept: Tensor  # [i, j] bool, causal
    needed: Tensor  # [i, j] bool
    causal: Tensor  # [i, j] bool

    def at(self, keys: slice) -> "Window":
        """The same rows over the key tiles `keys`."""
        parts = (x[:, keys] for x in (self.mass, self.kept, self.needed, self.causal))
        return Window(self.rows, keys, self.size, *parts)

    def held(self) -> float:
        """Attention within kept tiles, mean over query tiles."""
        return float((self.mass * self.kept).sum(1).mean())

    def missed(self) -> float:
        """Attention within tiles that are needed and dropped."""
        return float((self.mass * (self.needed & ~self.kept)).sum(1).mean())


def window(states: States, layer: int, head: int, tiles: Tiles, rows: slice, share: float = 0.8) -> Window:
    """True attention of the query tiles `rows` of one head beside what `tiles` (of the whole prompt) keeps of them; the
    attention of other rows is not computed."""
    grid, truth = states.grid(tiles.size, rows), states.mass_of(layer, head, rows, tiles.size)
    best, kept = smallest(truth, share, grid.own), tiles.kept[head, rows] & grid.causal
    return Window(rows, slice(0, grid.shape[1]), tiles.size, truth, kept, best, grid.causal)


@dataclass(frozen=True, eq=False)
class Causes:
    """Why BFLA keeps the tiles of one layer."""

    kept: dict[str, Tensor]  # cause → [H, I, J] bool, causal tiles only; the rules overlap
    causal: Tensor  # [I, J] bool
    added: dict[str, tuple[float, float]]  # cause → (density, attention) that the causes before it do not hold


def causes(states: States, layer: int, method: Bfla) -> Causes:
    """The rules that keep a tile, in BFLA's order, and what each adds; shares are means over the query heads."""
    group = states.heads // states.kv_heads
    grid, truth = states.grid(method.size), states.mass(layer, method.size)
    found = method.causes(states.queries[layer], states.keys[layer], grid.rows)
    before, added = torch.zeros_like(truth, dtype=torch.bool), {}
    for name, kept in found.items():
        new = Chosen(Tiles(kept & ~before, method.size), grid, truth, before, 0.0)
        added[name] = float(new.density().mean()), float(new.held().mean())
        before = before | kept
    return Causes({name: kept[::group] for name, kept in found.items()}, grid.causal, added)


def by_layer(states: States, methods: Mapping[str, Sparse], share: float = 0.8) -> dict[str, dict[int, Chosen]]:
    """Choose for the whole prompt with every method, in every layer: {method: {layer: choice}}."""
    return {name: {i: chosen(states, i, method, share) for i in states.layers} for name, method in methods.items()}


def shares(choices: Mapping[str, Mapping[int, Chosen]]) -> dict[str, dict[str, Tensor]]:
    """Share of the pairs kept, of the attention kept, and of the attention that is needed and dropped:
    {"density", "attention" and "missed": {method: [L, Hq] fp64}}."""
    measures = {"density": Chosen.density, "attention": Chosen.held, "missed": Chosen.lost}
    return {
        measure: {name: torch.stack([of(choice) for choice in layers.values()]) for name, layers in choices.items()}
        for measure, of in measures.items()
    }


def head_records(by_measure: Mapping[str, Mapping[str, Tensor]], layers: Sequence[int]) -> list[dict[str, Any]]:
    """List `shares` by head: {method, layer, head, density, attention, missed}."""
    return [
        {"method": name, "layer": layer, "head": head}
        | {measure: float(of[name][at, head]) for measure, of in by_measure.items()}
        for name, table in by_measure["density"].items()
        for at, layer in enumerate(layers)
        for head in range(table.shape[1])
    ]


def summary(choices: Mapping[str, Mapping[int, Chosen]]) -> dict[str, dict[str, float]]:
    """Average `shares` over layers and heads, and sum the seconds of all layers: {measure: {method: number}}."""
    names = {"density": "density", "attention": "attention_kept", "missed": "attention_missed"}
    found = {names[m]: {name: float(x.mean()) for name, x in of.items()} for m, of in shares(choices).items()}
    seconds = {name: sum(choice.seconds for choice in layers.values()) for name, layers in choices.items()}
    return found | {"seconds_to_choose": seconds}


def most_missed(
    choices: Mapping[str, Mapping[int, Chosen]],
    best: Mapping[int, Chosen],
    layer: int | None = None,
    head: int | None = None,
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


def threshold_records(
    states: States, methods: Mapping[str, Sparse], size: int, share: float = 0.8
) -> list[dict[str, Any]]:
    """Move the threshold of every method from few tiles to many: {method, option, value} and `Chosen.record`, means
    over layers. Last comes the oracle in tiles of `size`, which takes those that hold most."""
    found = []
    for name, method in methods.items():
        option, values = method.threshold_steps
        for value in values:
            turned = method.with_threshold(value)
            records = [chosen(states, i, turned, share).record() for i in states.layers]
            found.append({"method": name, "option": option, "value": value, **_mean(records)})
    for part in ORACLE:
        records = [needed(states, i, size, part).record() for i in states.layers]
        found.append({"method": "oracle", "option": "mass", "value": part, **_mean(records)})
    return found


def _mean(records: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: float(np.mean([r[name] for r in records])) for name in records[0]}


def rule_records(causes: Mapping[int, Causes]) -> list[dict[str, Any]]:
    """List what each of BFLA's rules adds to those before it, by layer: {layer, rule, density, attention}."""
    return [
        {"layer": layer, "rule": rule, "density": density, "attention": attention}
        for layer, of in causes.items()
        for rule, (density, attention) in of.added.items()
    ]


def union_records(unions: Mapping[int, Union]) -> list[dict[str, Any]]:
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


@dataclass(frozen=True, eq=False)
class Framed:
    """A choice for a long prompt, and the true attention of some of its rows."""

    tiles: Tiles
    seconds: float  # to choose
    frames: list[Window]  # one a head: the same query tiles, over all key tiles

    def record(self, head: int) -> dict[str, Any]:
        """{head, seconds, tiles, density, attention, missed}; the last two are of the rows in the frame."""
        kept, side = int(self.tiles.kept[head].sum()), self.tiles.kept.shape[1]
        found = {"head": head, "seconds": self.seconds, "tiles": kept, "density": kept / (side * (side + 1) / 2)}
        return found | {"attention": self.frames[head].held(), "missed": self.frames[head].missed()}


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

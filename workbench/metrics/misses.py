"""A choice of tiles beside the attention that they truly get: what it keeps, and what it drops though needed."""

from dataclasses import dataclass
from time import perf_counter

import torch
from torch import Tensor

from workbench.grid import Grid, mass
from workbench.metrics.states import States
from workbench.plan import Site
from workbench.sparse import Sparse, smallest
from workbench.tiles import Tiles


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

    def record(self) -> dict[str, float]:
        """Means over heads; `lowest`: the head that keeps least."""
        held = self.held()
        found = {"density": self.density().mean(), "mass": held.mean(), "lowest": held.min()}
        missed, causal = self.missed.sum((1, 2)), self.grid.causal.sum()
        found |= {"missed": (missed / causal).mean(), "missed_mass": self.held(self.missed).mean()}
        return {name: float(value) for name, value in found.items()} | {"seconds": self.seconds}


def chosen(states: States, layer: int, method: Sparse, share: float = 0.8) -> Chosen:
    """What `method` (ready for the model) chooses for the whole prompt at once; `share` is what `needed` tiles hold."""
    queries, keys = states.queries[layer], states.keys[layer]
    rows = torch.arange(len(states), device=keys.device)
    began = perf_counter()
    tiles = method(queries, keys, rows, Site(layer, len(states)))
    seconds = perf_counter() - began
    grid, truth = Grid(rows, len(states), tiles.size), states.mass(layer, tiles.size)
    return Chosen(tiles.paged(), grid, truth, smallest(truth, share, grid.own), seconds)


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

    @property
    def group(self) -> int:
        """Query heads of an execution group."""
        return len(self.heads) // len(self.groups)

    def densities(self) -> list[float]:
        """Share of the causal pairs after the choice, each union, and the chunk in whole; mean over heads."""
        steps = [self.kept, self.heads[:, None], self.groups[:, None], self.pages[:, None]]
        return [float((step * self.pairs).sum() / (self.pairs.sum() * len(step))) for step in steps]


def union(states: States, layer: int, method: Sparse, rows: slice, heads: int = 0) -> Union:
    """`method` over the chunk `rows` of the prompt; `heads` query heads share a page list (0: a GQA group)."""
    queries, keys = states.queries[layer][:, rows], states.keys[layer][:, : rows.stop]
    at = torch.arange(rows.start, rows.stop, device=keys.device)
    choice = method(queries, keys, at, Site(layer, len(states))).paged()
    group, grid = heads or len(queries) // len(keys), Grid(at, rows.stop, choice.size)
    kept, own = choice.kept & grid.causal, grid.own.any(0)
    by_head = choice.over_queries().kept[:, 0]
    by_group = choice.union(group).kept[::group, 0]
    pages = by_group | own
    indptr, indices = grid.tiles(pages.repeat_interleave(group, 0)[:, None].expand_as(kept), len(kept)).pages(group)
    return Union(kept, by_head, by_group, pages, own, grid.pairs(), indptr, indices, rows.start, choice.size)


def true_mass(states: States, layer: int, head: int, tiles: slice, size: int) -> Tensor:
    """[i, J] fp32: what key tiles truly get from some query tiles of one head, the others left alone."""
    group, device = states.heads // states.kv_heads, states.keys[layer].device
    rows = torch.arange(tiles.start * size, min(tiles.stop * size, len(states)), device=device)
    queries, keys = states.queries[layer][head, rows], states.keys[layer][head // group]
    return mass(queries[None], keys[None], Grid(rows, len(states), size))[0]

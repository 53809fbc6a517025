"""A choice of tiles beside the attention that they truly get: what it keeps, and what it drops though needed."""

from dataclasses import dataclass, replace
from time import perf_counter

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
from workbench.metrics.states import States


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

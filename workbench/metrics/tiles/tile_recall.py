"""A choice of tiles beside the attention that they truly get: which it keeps, and which needed ones it drops."""

from dataclasses import dataclass, replace
from time import perf_counter

import torch
from torch import Tensor
from torch.nn.functional import pad

from workbench.core.errors import BadInput
from workbench.core.plan import Site
from workbench.core.tiling.tile_grid import Grid
from workbench.core.tiling.tile_selection import smallest
from workbench.core.tiling.tiles import Tiles
from workbench.methods.sparse import Sparse
from workbench.methods.sparse.bfla import Bfla
from workbench.metrics.tiles.tile_states import States


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
        """[Hq, I, J] bool: kept tiles that a row may see."""
        return self.tiles.kept & self.grid.causal

    @property
    def missed(self) -> Tensor:
        """[Hq, I, J] bool: needed and dropped."""
        return self.needed & ~self.kept

    def density(self) -> Tensor:
        """Return [Hq]: share of the causal pairs (row, key) in kept tiles."""
        pairs = self.grid.pairs()
        return (self.kept * pairs).sum((1, 2)).double() / pairs.sum()

    def held(self, some: Tensor | None = None) -> Tensor:
        """Return [Hq]: attention within the kept tiles (or within `some` [Hq, I, J] bool), mean over rows."""
        count = self.grid.folded(torch.ones(len(self.grid.rows), 1, device=self.grid.rows.device)).sum((1, 2))
        share = (self.mass * (self.kept if some is None else some)).sum(-1).double()
        return (share * count).sum(1) / count.sum()

    def lost(self) -> Tensor:
        """Return [Hq]: attention within tiles that are needed and dropped, mean over rows."""
        return self.held(self.missed)

    def record(self) -> dict[str, float]:
        """Return the means over heads; `lowest`: the head that keeps least."""
        held = self.held()
        values = {"density": self.density().mean(), "mass": held.mean(), "lowest": held.min()}
        missed = self.missed.sum((1, 2)) / self.grid.causal.sum()
        values |= {"missed": missed.mean(), "missed_mass": self.lost().mean()}
        return {name: float(value) for name, value in values.items()} | {"seconds": self.seconds}


def chosen(states: States, layer: int, method: Sparse, share: float = 0.8, chunk: int | None = None) -> Chosen:
    """Choose with `method` (ready for the model) for the whole prompt, at once or in chunks of whole tiles.

    `share` of the attention is what the `needed` tiles hold. Raises BadInput for a chunk of no whole tiles.
    """
    if chunk is not None and (chunk < 1 or chunk % method.size):
        raise BadInput(f"chunk {chunk} is no multiple of {method.size}, the tile of the method")
    began = perf_counter()
    tiles = choice(states, layer, method, chunk)
    seconds = perf_counter() - began
    best = needed(states, layer, tiles.size, share)
    return replace(best, tiles=tiles, seconds=seconds)


def needed(states: States, layer: int, size: int, share: float = 0.8) -> Chosen:
    """Choose as the oracle does: the fewest tiles of `size` that hold `share` of the attention of every query tile."""
    truth, grid = states.mass(layer, size), states.grid(size)
    best = smallest(truth, share, grid.own) & grid.causal
    return Chosen(Tiles(best, size), grid, truth, best, 0.0)


def choice(states: States, layer: int, method: Sparse, chunk: int | None = None) -> Tiles:
    """Choose whole tiles with `method`, at once or chunk by chunk."""
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

    rows: slice  # query tiles
    keys: slice  # key tiles
    size: int
    mass: Tensor  # [i, j] fp32
    kept: Tensor  # [i, j] bool, causal
    needed: Tensor  # [i, j] bool
    causal: Tensor  # [i, j] bool

    def at(self, keys: slice) -> "TileWindow":
        """Return the same rows over the key tiles `keys`."""
        tensors = (x[:, keys] for x in (self.mass, self.kept, self.needed, self.causal))
        return TileWindow(self.rows, keys, self.size, *tensors)

    def held(self) -> float:
        """Return the attention within kept tiles, mean over query tiles."""
        return float((self.mass * self.kept).sum(1).mean())

    def missed(self) -> float:
        """Return the attention within tiles that are needed and dropped."""
        return float((self.mass * (self.needed & ~self.kept)).sum(1).mean())


def window(states: States, layer: int, head: int, tiles: Tiles, rows: slice, share: float = 0.8) -> TileWindow:
    """Compare true attention of query tiles `rows` of one head, and no others, with what `tiles` (of all) keep."""
    grid, truth = states.grid(tiles.size, rows), states.mass_of(layer, head, rows, tiles.size)
    best, kept = smallest(truth, share, grid.own), tiles.kept[head, rows] & grid.causal
    return TileWindow(rows, slice(0, grid.shape[1]), tiles.size, truth, kept, best, grid.causal)


@dataclass(frozen=True, eq=False)
class BflaRules:
    """The rules by which BFLA keeps the tiles of one layer, in its order."""

    kept: dict[str, Tensor]  # rule → [H, I, J] bool, causal tiles only; the rules overlap
    causal: Tensor  # [I, J] bool
    added: dict[str, tuple[float, float]]  # rule → (density, attention) that the rules before it do not hold


def bfla_rules(states: States, layer: int, method: Bfla) -> BflaRules:
    """Find the rules that keep a tile, and what each adds to those before it; shares are means over the query heads."""
    group = states.heads // states.kv_heads
    grid, truth = states.grid(method.size), states.mass(layer, method.size)
    by_rule = method.causes(states.queries[layer], states.keys[layer], grid.rows)
    before, added = torch.zeros_like(truth, dtype=torch.bool), {}
    for name, kept in by_rule.items():
        new = Chosen(Tiles(kept & ~before, method.size), grid, truth, before, 0.0)
        added[name] = float(new.density().mean()), float(new.held().mean())
        before = before | kept
    return BflaRules({name: kept[::group] for name, kept in by_rule.items()}, grid.causal, added)

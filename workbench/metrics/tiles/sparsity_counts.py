"""Count what sparse choices keep, by head, on the queries, keys and values of dense attention."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import reduce
from operator import add
from time import perf_counter

import torch
from torch import Tensor
from torch.nn.functional import pad

from workbench.core.kv import KV
from workbench.core.plan import Site
from workbench.core.tiling.tile_grid import Grid, attention
from workbench.core.tiling.tiles import Tiles
from workbench.methods.sparse import Sparse
from workbench.methods.sparse.compact import Compact, united
from workbench.metrics.latency import wait


@dataclass(frozen=True)
class Head:
    """One head of one layer, over all rows of all prompts; the states are those of dense attention in every layer."""

    layer: int
    head: int
    density: float  # share of the (row, key) pairs with key ≤ row that the method's own choice attends to
    union: float  # the same after CompactAttention's union: of the chunk, over its execution group, the chunk in whole
    tiles: float  # share of the tiles with such pairs that is kept, before the union (BFLA's κ)
    mass: float  # attention that is kept (by CompactAttention: after the union), mean over rows
    lowest: float  # attention that is kept, of the row that keeps least
    recall: float  # of the tiles that truly hold most, as many as are kept: the share that is kept
    error: float  # relative L2 of the head's output


@dataclass(frozen=True)
class Counts:
    """Sums over rows, per head: [Hq] fp64 each. Counts of parts are added."""

    pairs: Tensor  # (row, key) with key ≤ row
    kept: Tensor  # of those, attended by the choice
    union: Tensor  # and after the union
    causal: Tensor  # tiles with such pairs
    tiles: Tensor  # of those, kept
    wanted: Tensor  # of the kept, how many are among as many that truly hold most
    rows: Tensor
    mass: Tensor
    lowest: Tensor
    gap: Tensor  # squared distance of the outputs
    norm: Tensor  # squared length of the dense output
    seconds: float

    def __add__(self, other: "Counts") -> "Counts":
        values = {f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)}
        return Counts(**values | {"lowest": torch.minimum(self.lowest, other.lowest)})

    def heads(self, layer: int) -> Iterator[Head]:
        shares = [self.kept / self.pairs, self.union / self.pairs, self.tiles / self.causal, self.mass / self.rows]
        measures = [*shares, self.lowest, self.wanted / self.tiles, (self.gap / self.norm).sqrt()]
        for head, values in enumerate(torch.stack(measures, 1).tolist()):
            yield Head(layer, head, *values)


def of_layer(queries: Tensor, kv: KV, layer: int, method: Sparse, chunk: int | None = None) -> Counts:
    """Count what a method keeps in one layer: queries [Hq, T, D] of a whole prompt, by `chunk` rows or at once."""
    parts = []
    for rows in torch.arange(len(kv), device=queries.device).split(chunk or len(kv)):
        first, end = int(rows[0]), int(rows[-1]) + 1
        states = (queries[:, first:end], kv.keys[layer][:, :end], kv.values[layer][:, :end])
        parts.append(of_rows(*states, rows, method, Site(layer, len(kv))))
    return reduce(add, parts)


def of_rows(queries: Tensor, keys: Tensor, values: Tensor, rows: Tensor, method: Sparse, site: Site) -> Counts:
    """Count what a method keeps: queries [Hq, R, D] at `rows`, chosen for together, over keys and values [H, T, D]."""
    compact = method if isinstance(method, Compact) else Compact(method, heads=0)
    wait(queries.device)
    began = perf_counter()
    tiles = compact.inner(queries, keys, rows, site)
    attended = compact.merged(tiles, len(keys), rows, keys.shape[1]) if compact is method else tiles
    wait(queries.device)
    seconds, grid = perf_counter() - began, Grid(rows, keys.shape[1], tiles.size)
    paged, pairs = tiles.paged().kept, grid.pairs()
    kept, union = paged & grid.causal, united(paged, compact.group(len(queries), len(keys)), grid)
    sums = {"pairs": pairs.sum(), "causal": grid.causal.sum(), "rows": torch.tensor(len(rows))}
    shared = {name: x.to(pairs.device).double().expand(len(queries)) for name, x in sums.items()}
    measures = {"tiles": kept.sum((1, 2)), "union": (union * pairs).sum((1, 2))}
    measures |= _outcomes(queries, keys, values, grid, attended, kept)
    own = {name: x.double() for name, x in measures.items()}
    return Counts(**shared, **own, kept=_pairs(tiles, grid, pairs), seconds=seconds)


def _pairs(tiles: Tiles, grid: Grid, pairs: Tensor) -> Tensor:
    """Return [Hq] how many causal pairs a choice attends to."""
    total = (tiles.kept * pairs).sum((1, 2)).double()
    if tiles.columns is None:
        return total
    keys = torch.arange(grid.length, device=grid.rows.device)
    for part in grid.chunks(len(tiles.kept) * -(-grid.length // grid.size)):  # columns outside the kept tiles
        above = grid.folded((grid.rows[part, None] >= keys).int()).sum(1)  # [i, T] rows that see a key
        kept = tiles.kept[:, part.start // grid.size :][:, : len(above)].repeat_interleave(grid.size, 2)
        total += ((tiles.columns[:, None] & ~kept[..., : grid.length]) * above).sum((1, 2))
    return total


def _outcomes(
    queries: Tensor, keys: Tensor, values: Tensor, grid: Grid, choice: Tiles, kept: Tensor
) -> dict[str, Tensor]:
    """Compute wanted, mass, gap, norm and lowest of `Counts` [Hq]; `kept` [Hq, I, J]: its causal tiles in pages."""
    sums = torch.zeros(4, len(kept), dtype=torch.float64, device=queries.device)
    lowest = torch.ones(len(kept), dtype=torch.float64, device=queries.device)
    wide = values.float().repeat_interleave(len(queries) // len(keys), 0)
    for part, share in attention(queries, keys, grid):
        dense = share @ wide
        by_tile = pad(share, (0, -grid.length % grid.size)).unflatten(-1, (-1, grid.size)).sum(-1)
        order = grid.folded(by_tile).sum(2).sort(dim=-1, descending=True, stable=True).indices  # [Hq, i, J]
        tiles = slice(part.start // grid.size, part.start // grid.size + order.shape[1])
        held = share * _visible(choice, tiles, part.stop - part.start, grid)
        mass, some = held.sum(-1), kept[:, tiles]
        most = torch.zeros_like(some)
        most.scatter_(-1, order, grid.columns < some.sum(-1, keepdim=True))
        gap = (dense - held @ wide / mass[..., None]).square().sum((1, 2))
        found = ((some & most).sum((1, 2)), mass.sum(1), gap, dense.square().sum((1, 2)))
        sums += torch.stack([x.double() for x in found])
        lowest = lowest.minimum(mass.amin(1).double())
    return dict(zip(("wanted", "mass", "gap", "norm"), sums, strict=True)) | {"lowest": lowest}


def _visible(choice: Tiles, tiles: slice, rows: int, grid: Grid) -> Tensor:
    """[Hq, r, T] bool: keys that `rows` rows, from the first of some query tiles on, attend to."""
    at = torch.arange(max(rows, grid.length), device=choice.kept.device) // grid.size
    seen = choice.kept[:, tiles][..., at[: grid.length]][:, at[:rows]]
    return seen if choice.columns is None else seen | choice.columns[:, None, : grid.length]

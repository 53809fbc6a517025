"""What a sparse choice keeps and loses by layer and head, counted row by row on the states of dense attention."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from time import perf_counter

import torch
from torch import Tensor
from torch.nn.functional import pad

from workbench.core.kv import KV
from workbench.core.plan import Site
from workbench.core.tile_grid import Grid, attention
from workbench.core.tiles import Tiles
from workbench.methods.sparse import Sparse
from workbench.methods.sparse.compact import Compact, united

SEVERAL = 1 << 27  # most elements of the attention that choices keep, made at a time on a GPU


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
        found = {
            "density": self.kept / self.pairs, "union": self.union / self.pairs, "tiles": self.tiles / self.causal,
            "mass": self.mass / self.rows, "lowest": self.lowest, "recall": self.wanted / self.tiles,
            "error": (self.gap / self.norm).sqrt(),
        }  # fmt: skip
        for head, values in enumerate(torch.stack(list(found.values()), 1).tolist()):
            yield Head(layer, head, **dict(zip(found, values, strict=True)))


def of_layer(queries: Tensor, kv: KV, layer: int, methods: Sequence[Sparse], chunk: int | None = None) -> list[Counts]:
    """One layer under several methods: queries [Hq, T, D] of the whole prompt, chosen for in chunks of so many rows."""
    totals: list[Counts] = []
    for first in range(0, len(kv), chunk or len(kv)):
        end = min(len(kv), first + (chunk or len(kv)))
        states = (queries[:, first:end], kv.keys[layer][:, :end], kv.values[layer][:, :end])
        rows = torch.arange(first, end, device=queries.device)
        found = of_rows(*states, rows, methods, Site(layer, len(kv)))
        totals = [total + part for total, part in zip(totals, found, strict=True)] if totals else found
    return totals


@dataclass(frozen=True)
class _Chosen:
    """What a method chose for some rows, and by how many heads CompactAttention would have it executed together."""

    choice: Tiles
    attended: Tiles  # the choice; by CompactAttention its union
    heads: int
    seconds: float


def of_rows(
    queries: Tensor, keys: Tensor, values: Tensor, rows: Tensor, methods: Sequence[Sparse], site: Site
) -> list[Counts]:
    """Queries [Hq, R, D] at `rows` over keys and values [H, T, D], chosen for together by each of the methods."""
    chosen = [_chosen(queries, keys, rows, method, site) for method in methods]
    found: dict[int, Counts] = {}
    for alike in sorted({(one.choice.size, one.heads) for one in chosen}):
        at = [i for i, one in enumerate(chosen) if (one.choice.size, one.heads) == alike]
        counts = _counted(queries, keys, values, Grid(rows, keys.shape[1], alike[0]), [chosen[i] for i in at])
        found |= dict(zip(at, counts, strict=True))
    return [found[i] for i in range(len(chosen))]


def _chosen(queries: Tensor, keys: Tensor, rows: Tensor, method: Sparse, site: Site) -> _Chosen:
    compact = method if isinstance(method, Compact) else Compact(method, heads=0)
    _wait(queries)
    began = perf_counter()
    choice = compact.inner(queries, keys, rows, site)
    merged = compact.merged(choice, len(keys), rows, keys.shape[1]) if compact is method else None
    _wait(queries)
    return _Chosen(choice, merged or choice, compact.group(len(queries), len(keys)), perf_counter() - began)


def _counted(queries: Tensor, keys: Tensor, values: Tensor, grid: Grid, chosen: Sequence[_Chosen]) -> list[Counts]:
    """Choices on tiles of one size, executed by as many heads."""
    paged = torch.stack([one.choice.paged().kept for one in chosen])
    kept, pairs = paged & grid.causal, grid.pairs()
    every = {"pairs": pairs.sum(), "causal": grid.causal.sum(), "rows": torch.tensor(len(grid.rows))}
    shared = {name: x.to(pairs.device).double().expand(len(queries)) for name, x in every.items()}
    found = {"tiles": kept.sum((2, 3)).double(), "union": (united(paged, chosen[0].heads, grid) * pairs).sum((2, 3))}
    found |= _outcomes(queries, keys, values, grid, [one.attended for one in chosen], kept)
    return [
        Counts(
            **shared, **{name: x[i].double() for name, x in found.items()},
            kept=_pairs(one.choice, grid, pairs), seconds=one.seconds,
        )
        for i, one in enumerate(chosen)
    ]  # fmt: skip


def _pairs(tiles: Tiles, grid: Grid, pairs: Tensor) -> Tensor:
    """[Hq] how many causal pairs a choice attends to."""
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
    queries: Tensor, keys: Tensor, values: Tensor, grid: Grid, choices: Sequence[Tiles], kept: Tensor
) -> dict[str, Tensor]:
    """wanted, mass, gap, norm and lowest of `Counts` [M, Hq] for M choices; `kept` [M, Hq, I, J]: causal tiles of each
    in pages. Dense attention is computed once for all of them."""
    sums = torch.zeros(4, *kept.shape[:2], dtype=torch.float64, device=queries.device)
    lowest = torch.ones(kept.shape[:2], dtype=torch.float64, device=queries.device)
    wide = values.float().repeat_interleave(len(queries) // len(keys), 0)
    for part, share in attention(queries, keys, grid):
        dense = share @ wide
        norm = dense.square().sum((1, 2))
        by_tile = pad(share, (0, -grid.length % grid.size)).unflatten(-1, (-1, grid.size)).sum(-1)
        order = grid.folded(by_tile).sum(2).sort(dim=-1, descending=True, stable=True).indices  # [Hq, i, J]
        tiles = slice(part.start // grid.size, part.start // grid.size + order.shape[1])
        for few in _together(len(choices), share):
            held = share * _visible(choices[few], tiles, part.stop - part.start, grid)
            mass = held.sum(-1)
            gap = (dense - held @ wide / mass[..., None]).square().sum((2, 3))
            some = kept[few, :, tiles]
            most = torch.zeros_like(some)
            most.scatter_(-1, order.expand_as(most), grid.columns < some.sum(-1, keepdim=True))
            wanted = (some & most).sum((2, 3))
            sums[:, few] += torch.stack([x.double() for x in (wanted, mass.sum(2), gap, norm.expand_as(gap))])
            lowest[few] = lowest[few].minimum(mass.amin(2).double())
    return dict(zip(("wanted", "mass", "gap", "norm"), sums, strict=True)) | {"lowest": lowest}


def _together(count: int, share: Tensor) -> Iterator[slice]:
    """So many choices at a time: one on a CPU, where what is made should stay in the cache."""
    step = max(1, SEVERAL // share.numel()) if share.is_cuda else 1
    for at in range(0, count, step):
        yield slice(at, at + step)


def _visible(choices: Sequence[Tiles], tiles: slice, rows: int, grid: Grid) -> Tensor:
    """[M, Hq, r, T] bool: what `rows` rows, from the first of some query tiles on, attend to under every choice."""
    kept = torch.stack([choice.kept[:, tiles] for choice in choices])
    at = torch.arange(max(rows, grid.length), device=kept.device) // grid.size
    seen = kept[..., at[: grid.length]][:, :, at[:rows]]
    if all(choice.columns is None for choice in choices):
        return seen
    none = torch.zeros(len(kept[0]), grid.length, dtype=torch.bool, device=kept.device)
    columns = [none if choice.columns is None else choice.columns[:, : grid.length] for choice in choices]
    return seen | torch.stack(columns)[:, :, None]


def _wait(x: Tensor) -> None:
    if x.is_cuda:
        torch.cuda.synchronize(x.device)

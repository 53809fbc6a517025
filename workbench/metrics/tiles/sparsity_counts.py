"""Count what sparse choices keep, by head, on the queries, keys and values of dense attention."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
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
        shares = [self.kept / self.pairs, self.union / self.pairs, self.tiles / self.causal, self.mass / self.rows]
        measures = [*shares, self.lowest, self.wanted / self.tiles, (self.gap / self.norm).sqrt()]
        for head, values in enumerate(torch.stack(measures, 1).tolist()):
            yield Head(layer, head, *values)


def of_layer(queries: Tensor, kv: KV, layer: int, methods: Sequence[Sparse], chunk: int | None = None) -> list[Counts]:
    """Count what each method keeps in one layer: queries [Hq, T, D] of a whole prompt, by `chunk` rows or at once."""
    totals: list[Counts] = []
    for rows in torch.arange(len(kv), device=queries.device).split(chunk or len(kv)):
        first, end = int(rows[0]), int(rows[-1]) + 1
        states = (queries[:, first:end], kv.keys[layer][:, :end], kv.values[layer][:, :end])
        counts = of_rows(*states, rows, methods, Site(layer, len(kv)))
        totals = [total + more for total, more in zip(totals, counts, strict=True)] if totals else counts
    return totals


@dataclass(frozen=True)
class _TimedChoice:
    """A method's choice for some rows."""

    tiles: Tiles
    attended: Tiles  # the same tiles; by CompactAttention their union
    heads: int  # how many query heads CompactAttention would execute together
    seconds: float


def of_rows(
    queries: Tensor, keys: Tensor, values: Tensor, rows: Tensor, methods: Sequence[Sparse], site: Site
) -> list[Counts]:
    """Count what each method keeps: queries [Hq, R, D] at `rows`, chosen for together, over keys and values [H, T, D].

    Choices on tiles of one size, executed by as many heads, share the dense attention that they are compared with.
    """
    choices = [_choose(queries, keys, rows, method, site) for method in methods]
    counts: dict[int, Counts] = {}
    for size, heads in sorted({(choice.tiles.size, choice.heads) for choice in choices}):
        same = [i for i, choice in enumerate(choices) if (choice.tiles.size, choice.heads) == (size, heads)]
        grid = Grid(rows, keys.shape[1], size)
        counts |= dict(zip(same, _counted(queries, keys, values, grid, [choices[i] for i in same]), strict=True))
    return [counts[i] for i in range(len(choices))]


def _choose(queries: Tensor, keys: Tensor, rows: Tensor, method: Sparse, site: Site) -> _TimedChoice:
    compact = method if isinstance(method, Compact) else Compact(method, heads=0)
    wait(queries.device)
    began = perf_counter()
    tiles = compact.inner(queries, keys, rows, site)
    union = compact.merged(tiles, len(keys), rows, keys.shape[1]) if compact is method else tiles
    wait(queries.device)
    return _TimedChoice(tiles, union, compact.group(len(queries), len(keys)), perf_counter() - began)


def _counted(
    queries: Tensor, keys: Tensor, values: Tensor, grid: Grid, choices: Sequence[_TimedChoice]
) -> list[Counts]:
    """Return counts of choices on tiles of one size, executed by as many heads."""
    paged = torch.stack([choice.tiles.paged().kept for choice in choices])
    kept = paged & grid.causal
    pairs = grid.pairs()
    sums = {"pairs": pairs.sum(), "causal": grid.causal.sum(), "rows": torch.tensor(len(grid.rows))}
    shared = {name: x.to(pairs.device).double().expand(len(queries)) for name, x in sums.items()}
    measures = {"tiles": kept.sum((2, 3)), "union": (united(paged, choices[0].heads, grid) * pairs).sum((2, 3))}
    measures |= _outcomes(queries, keys, values, grid, [choice.attended for choice in choices], kept)
    counts = []
    for i, choice in enumerate(choices):
        own = {name: x[i].double() for name, x in measures.items()}
        counts.append(Counts(**shared, **own, kept=_pairs(choice.tiles, grid, pairs), seconds=choice.seconds))
    return counts


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
    queries: Tensor, keys: Tensor, values: Tensor, grid: Grid, choices: Sequence[Tiles], kept: Tensor
) -> dict[str, Tensor]:
    """Compute wanted, mass, gap, norm and lowest of `Counts` [M, Hq] for M choices, with dense attention only once.

    `kept` [M, Hq, I, J]: causal tiles of each choice in pages.
    """
    sums = torch.zeros(4, *kept.shape[:2], dtype=torch.float64, device=queries.device)
    lowest = torch.ones(kept.shape[:2], dtype=torch.float64, device=queries.device)
    wide = values.float().repeat_interleave(len(queries) // len(keys), 0)
    for part, share in attention(queries, keys, grid):
        dense = share @ wide
        norm = dense.square().sum((1, 2))
        by_tile = pad(share, (0, -grid.length % grid.size)).unflatten(-1, (-1, grid.size)).sum(-1)
        order = grid.folded(by_tile).sum(2).sort(dim=-1, descending=True, stable=True).indices  # [Hq, i, J]
        tiles = slice(part.start // grid.size, part.start // grid.size + order.shape[1])
        # one choice at a time on a CPU, whose cache should hold the intermediate tensors
        step = max(1, SEVERAL // share.numel()) if share.is_cuda else 1
        for few in (slice(at, at + step) for at in range(0, len(choices), step)):
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


def _visible(choices: Sequence[Tiles], tiles: slice, rows: int, grid: Grid) -> Tensor:
    """[M, Hq, r, T] bool: keys that `rows` rows, from the first of some query tiles on, attend to by every choice."""
    kept = torch.stack([choice.kept[:, tiles] for choice in choices])
    at = torch.arange(max(rows, grid.length), device=kept.device) // grid.size
    seen = kept[..., at[: grid.length]][:, :, at[:rows]]
    if all(choice.columns is None for choice in choices):
        return seen
    none = torch.zeros(len(kept[0]), grid.length, dtype=torch.bool, device=kept.device)
    columns = [none if choice.columns is None else choice.columns[:, : grid.length] for choice in choices]
    return seen | torch.stack(columns)[:, :, None]

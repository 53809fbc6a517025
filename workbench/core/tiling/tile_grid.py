"""Rows and keys cut into tiles: which tiles a row can see at all, and how much attention a tile truly gets.

Rows may stand anywhere: a whole prompt, one chunk of it, or scattered tokens that are recomputed.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import pad

from workbench.core.tiling.tiles import Tiles

ELEMENTS = 1 << 24  # most elements of a tensor that is made for a part of the rows at a time


@dataclass(frozen=True, eq=False)
class Grid:
    """`rows` [R] positions in rising order, in I query tiles of `size` in their order; `length` keys in J key tiles."""

    rows: Tensor
    length: int
    size: int

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of query tiles and key tiles, (I, J)."""
        return -(-len(self.rows) // self.size), -(-self.length // self.size)

    @cached_property
    def first(self) -> Tensor:
        """[I] position of the first row of every query tile."""
        return self.rows[:: self.size]

    @cached_property
    def last(self) -> Tensor:
        """[I] position of the last row of every query tile."""
        ends = torch.arange(1, self.shape[0] + 1, device=self.rows.device) * self.size - 1
        return self.rows[ends.clamp(max=len(self.rows) - 1)]

    @cached_property
    def columns(self) -> Tensor:
        """[J] numbers of the key tiles."""
        return torch.arange(self.shape[1], device=self.rows.device)

    @cached_property
    def causal(self) -> Tensor:
        """[I, J] bool: some row of the tile sees some key of it."""
        return self.columns * self.size <= self.last[:, None]

    @cached_property
    def own(self) -> Tensor:
        """[I, J] bool: the key tile holds a row of the query tile. (Two where a chunk begins inside a tile.)"""
        own = torch.zeros(self.shape, dtype=torch.bool, device=self.rows.device)
        tile = torch.arange(len(self.rows), device=self.rows.device) // self.size
        own.view(-1).index_fill_(0, tile * self.shape[1] + self.rows // self.size, True)  # waits for nothing
        return own

    @cached_property
    def held(self) -> Tensor:
        """[J] bool: the key tile holds a row of any query tile."""
        return self.own.any(0)

    def near(self, count: int) -> Tensor:
        """Return [I, J] bool: own tiles and the `count` before each of them."""
        sums = pad(self.own.int().cumsum(1), (1, 0))  # own tiles before tile j
        ends = (self.columns + count + 1).clamp(max=self.shape[1])
        return sums[:, ends] > sums[:, :-1]

    def tail(self, count: int, length: int | None = None) -> Tensor:
        """Return [I, 1] bool: query tiles with a row in the last `count` tiles of a prompt of `length` tokens."""
        whole = self.length if length is None else length
        return (self.last >= (-(-whole // self.size) - count) * self.size)[:, None] & (count > 0)

    def chunks(self, width: int) -> Iterator[slice]:
        """Slices of rows, whole query tiles each, so that [rows, width] stays within ELEMENTS where one tile does."""
        step = max(1, ELEMENTS // max(1, width * self.size)) * self.size
        for at in range(0, len(self.rows), step):
            yield slice(at, min(at + step, len(self.rows)))

    def folded(self, x: Tensor, fill: float = 0.0) -> Tensor:
        """Return […, r, X] of whole query tiles (the last may be short) as […, i, size, X]."""
        return pad(x, (0, 0, 0, -x.shape[-2] % self.size), value=fill).unflatten(-2, (-1, self.size))

    def tiles(self, kept: Tensor, heads: int, columns: Tensor | None = None) -> Tiles:
        """Return a choice for `heads` query heads from `kept` [Hq | H | 1, I, J] bool (and `columns` [Hq | H, T]).

        What no row can see is dropped, and every row keeps its own tile: without it a row might see nothing at all.
        """
        kept = (kept | self.own) & self.causal
        wide = columns if columns is None else columns.repeat_interleave(heads // len(columns), 0)
        group = heads // len(kept)
        return Tiles(kept.repeat_interleave(group, 0), self.size, wide, group if columns is None else 1)

    def pairs(self) -> Tensor:
        """Return [I, J] int64: how many (row, key) pairs of a tile are causal."""
        starts, found = self.columns * self.size, []
        ends = (starts + self.size).clamp(max=self.length)
        for part in self.chunks(self.shape[1]):
            seen = (self.rows[part, None] + 1).minimum(ends) - starts
            found.append(self.folded(seen.clamp(min=0)).sum(1))
        return torch.cat(found)


_RECENT: deque[tuple[int, Grid]] = deque(maxlen=8)  # with the version of the rows


def grid_of(rows: Tensor, length: int, size: int) -> Grid:
    """Return the grid of these very rows: that of the layer before, with all it has found, while they are as they were.

    Rows whose changes torch does not count (inference tensors), and captured ones, get a grid of their own.
    """
    if rows.is_inference() or (rows.is_cuda and torch.cuda.is_current_stream_capturing()):
        return Grid(rows, length, size)
    for version, grid in tuple(_RECENT):
        if grid.rows is rows and version == rows._version and (grid.length, grid.size) == (length, size):
            return grid
    _RECENT.append((rows._version, Grid(rows, length, size)))
    return _RECENT[-1][1]


def means(keys: Tensor, size: int) -> Tensor:
    """Return [H, J, D] fp32: mean of every tile of keys [H, T, D]; of the last one over the keys that it has."""
    count = torch.full((-(-keys.shape[1] // size), 1), size, device=keys.device)
    count[-1] -= -keys.shape[1] % size
    return folded(keys, size).sum(2) / count


def folded(x: Tensor, size: int) -> Tensor:
    """Return [H, T, D] as [H, J, size, D] fp32, padded with zeros."""
    return pad(x.float(), (0, 0, 0, -x.shape[1] % size)).unflatten(1, (-1, size))


def attention(queries: Tensor, keys: Tensor, grid: Grid) -> Iterator[tuple[slice, Tensor]]:
    """Causal softmax of queries [Hq, R, D] over keys [H, T, D], scale 1/sqrt(D): (rows, [Hq, r, T] fp32) by parts."""
    cols, wide = torch.arange(keys.shape[1], device=keys.device), keys.float()[:, None].mT
    for part in grid.chunks(len(queries) * keys.shape[1]):
        logits = (queries[:, part].float().unflatten(0, (len(keys), -1)) @ wide).flatten(0, 1) * keys.shape[-1] ** -0.5
        yield part, logits.masked_fill_(cols > grid.rows[part, None], -torch.inf).softmax(-1)


def lines(queries: Tensor, keys: Tensor, grid: Grid) -> tuple[Tensor, Tensor]:
    """Return the attention that columns and diagonals get from all rows: [Hq, T] fp32 each.

    Diagonal d holds the keys d positions before their row.
    """
    columns = queries.new_zeros(len(queries), grid.length, dtype=torch.float32)
    diagonals, keyed = columns.clone(), torch.arange(grid.length, device=keys.device)
    for part, share in attention(queries, keys, grid):
        columns += share.sum(1)
        key = grid.rows[part, None] - keyed  # [r, T] of every row, the key on diagonal d
        lying = share.gather(2, key.clamp(min=0).expand(len(share), -1, -1)).masked_fill_(key < 0, 0.0)
        diagonals += lying.sum(1)
    return columns, diagonals


def mass(queries: Tensor, keys: Tensor, grid: Grid) -> Tensor:
    """[Hq, I, J] fp32: the attention that a tile truly gets, mean over the rows of the query tile; sums to 1 over J."""
    total = _by_tile(queries, keys, grid, torch.sum)
    return total / total.sum(-1, keepdim=True)


def peaks(queries: Tensor, keys: Tensor, grid: Grid) -> Tensor:
    """Return [Hq, I, J] fp32: the largest attention of any row of the query tile to any key of the key tile."""
    return _by_tile(queries, keys, grid, torch.amax)


def _by_tile(queries: Tensor, keys: Tensor, grid: Grid, reduce: Callable[[Tensor, int], Tensor]) -> Tensor:
    """Attention within every tile, reduced over its keys and then over its rows; one KV head after the other."""
    group, found = len(queries) // len(keys), []
    for head, one in enumerate(keys):
        parts = []
        for _, share in attention(queries[head * group : (head + 1) * group], one[None], grid):
            wide = pad(share, (0, -share.shape[-1] % grid.size)).unflatten(-1, (-1, grid.size))
            parts.append(reduce(grid.folded(reduce(wide, -1)), 2))
        found.append(torch.cat(parts, 1))
    return torch.cat(found)

"""Tiles of queries and keys: the grid, block-sparse selections with their unions, and exact attention per tile.

Rows (query tokens) may be a whole prompt, a chunk of it, or scattered recomputed tokens.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import pad

from workbench.core.errors import BadInput, format_value
from workbench.core.utils import annotations, html_views


@dataclass(frozen=True)
class Tiles:
    """Selected tiles: `kept[h, i, j]` is whether queries of tile i, head h, attend to keys of tile j.

    Query tile i has the i-th `size` computed tokens, key tile j the positions from j · size on; the last tiles may be
    short. Within a kept tile the attention mask still applies.

    kept     [Hq, I, J] bool
    size     tokens of a tile
    columns  [Hq, T] bool: single keys that all rows attend to in addition (selected tokens, vertical lines)
    shared   groups of this many neighbouring heads keep the same tiles: one list serves a group
    alike    all query tiles keep the same tiles, except tiles in their future: the list of the last serves all
             (CompactAttention)
    listed   [K] the `columns` as rising positions, if nothing else is kept and all heads agree; or [H, K], one list per
             KV head, if each row has equally many of them before it in all heads

    Raises BadInput for tensors of another shape or dtype.
    """

    kept: Tensor
    size: int
    columns: Tensor | None = None
    shared: int = 1
    alike: bool = False
    listed: Tensor | None = None

    def check_fits(self, heads: int, rows: int, keys: int) -> None:
        """Raise BadInput unless these are tiles of `heads` query heads that cover `rows` rows and `keys` keys."""
        needed = (heads, -(-rows // self.size), -(-keys // self.size))
        shape = tuple(self.kept.shape)
        if shape[0] != heads or shape[1] < needed[1] or shape[2] < needed[2]:
            raise BadInput(
                f"tiles of {shape} for {rows} rows and {keys} keys in tiles of {self.size}: "
                f"[heads, query tiles, key tiles] is {needed}"
            )

    def __post_init__(self) -> None:
        if not isinstance(self.kept, torch.Tensor):
            raise BadInput(f"kept is {format_value(self.kept)}: tiles are [heads, query tiles, key tiles] bool")
        annotations.check("size", self.size, int)
        if self.kept.ndim != 3 or self.kept.dtype != torch.bool:
            raise BadInput(
                f"tiles are [heads, query tiles, key tiles] bool, got {tuple(self.kept.shape)} {self.kept.dtype}"
            )
        if self.size < 1:
            raise BadInput(f"tile size {self.size}: it is 1 or more")
        if self.shared < 1 or len(self.kept) % self.shared:
            raise BadInput(f"{len(self.kept)} heads cannot share tiles in groups of {self.shared}")
        columns = self.columns
        if columns is not None and (columns.ndim != 2 or columns.dtype != torch.bool or len(columns) != len(self.kept)):
            raise BadInput(
                f"columns are [heads, keys] bool for {len(self.kept)} heads, got {tuple(columns.shape)} {columns.dtype}"
            )

    def _repr_html_(self) -> str:
        """Show the share of kept tiles, and a map of them (mean over heads), in a notebook."""
        heads, i, j = self.kept.shape
        by_head = self.kept.float().flatten(1).mean(1)
        low, high = float(by_head.min()), float(by_head.max())
        rows: list[tuple[str, object]] = [
            ("heads", heads),
            ("tiles", f"{i:,} query tiles × {j:,} key tiles of {self.size} tokens"),
            ("kept", f"{float(by_head.mean()):.1%} of all tiles (by head {low:.1%} to {high:.1%})"),
        ]
        rows += (
            [("columns", f"{float(self.columns.float().mean()):.1%} of the keys")] if self.columns is not None else []
        )
        rows += [("one choice", f"for every {self.shared} heads")] if self.shared > 1 else []
        return html_views.table("Tiles", rows) + html_views.picture(self.kept.float().mean(0))

    def visible(self, rows: int, length: int, first: int = 0) -> Tensor:
        """Return the selection as a mask [Hq, R, T] (bool) for `rows` rows from row `first` on, over `length` keys."""
        self._check(first + rows, length)
        row_tile = torch.arange(first, first + rows, device=self.kept.device) // self.size
        col_tile = torch.arange(length, device=self.kept.device) // self.size
        seen = self.kept[:, row_tile][:, :, col_tile]
        return seen if self.columns is None else seen | self.columns[:, None, :length]

    def paged(self) -> "Tiles":
        """Return the selection in whole tiles: a tile with a selected column is kept."""
        if self.columns is None:
            return self
        width = self.kept.shape[2] * self.size
        wide = pad(self.columns, (0, width - self.columns.shape[1]))
        return Tiles(self.kept | wide.unflatten(1, (-1, self.size)).any(-1)[:, None], self.size)

    def covering(self, rows: int, length: int) -> Tensor:
        """Return the selection [Hq / shared, I, J] (bool) of one head per group, for `rows` over `length` keys.

        Raises BadInput if tiles are missing.
        """
        self._check(rows, length)
        return self.kept[:: self.shared, : -(-rows // self.size), : -(-length // self.size)]

    def lists(self, rows: int, length: int) -> tuple[Tensor, Tensor]:
        """Return the key tiles of each query tile as rising lists in CSR form: (indptr [N + 1], indices), int32.

        The N lists are ordered by group of `shared` heads, then by query tile. Raises BadInput if tiles are missing.
        """
        return ragged(self.covering(rows, length))

    def over_queries(self) -> "Tiles":
        """Return the union over query tiles (CompactAttention's Q-block union); `alike` is not set."""
        return Tiles(self.kept.any(1, keepdim=True).expand_as(self.kept), self.size, self.columns, self.shared)

    def over_heads(self, heads: int) -> "Tiles":
        """Return the union over groups of `heads` neighbouring heads (CompactAttention's intra-group union).

        Raises BadInput unless `heads` divides the number of heads.
        """
        if heads < 1 or self.kept.shape[0] % heads:
            raise BadInput(f"{self.kept.shape[0]} heads cannot be split into groups of {heads}")
        kept, columns = (None if x is None else _shared(x, heads) for x in (self.kept, self.columns))
        assert kept is not None
        return Tiles(kept, self.size, columns, max(heads, self.shared) if _nested(heads, self.shared) else heads)

    def union(self, heads: int) -> "Tiles":
        """Return the union over query tiles and over groups of `heads` neighbouring heads (CompactAttention)."""
        return self.over_heads(heads).over_queries()

    def pages(self, heads: int) -> tuple[Tensor, Tensor]:
        """Return `union(heads)` as one CSR list of key tiles per group of heads: (indptr [G + 1], indices), int32."""
        return ragged(self.paged().union(heads).kept[::heads, :1])

    @property
    def density(self) -> float:
        """Share of all tiles that are kept, 0 to 1; tiles ahead of the queries count as not kept."""
        return self.kept.float().mean().item()

    def _check(self, rows: int, length: int) -> None:
        needed = (-(-rows // self.size), -(-length // self.size))
        if self.kept.shape[1] < needed[0] or self.kept.shape[2] < needed[1]:
            raise BadInput(
                f"tiles {tuple(self.kept.shape[1:])} of size {self.size} do not cover {rows} rows and {length} keys: "
                f"{needed} needed"
            )
        if self.columns is not None and self.columns.shape[1] < length:
            raise BadInput(f"columns for {self.columns.shape[1]} keys do not cover {length}")


def _shared(x: Tensor, heads: int) -> Tensor:
    """Return the union [Hq, …] (bool) over each group of `heads` neighbouring heads."""
    return x.unflatten(0, (-1, heads)).any(1, keepdim=True).expand(-1, heads, *x.shape[1:]).flatten(0, 1)


def _nested(one: int, other: int) -> bool:
    return max(one, other) % min(one, other) == 0


def ragged(kept: Tensor, first: int = 0, share: int = 1) -> tuple[Tensor, Tensor]:
    """Convert a mask [G, I, J] (bool) to CSR lists: (indptr [G · I + 1], indices), int32.

    Indices of list n are offset by n // share · first.
    """
    flat = kept.flatten(0, 1)
    indptr = torch.cat((flat.new_zeros(1, dtype=torch.int32), flat.sum(1).cumsum(0).int()))
    at, tile = flat.nonzero().unbind(1)
    return indptr, (tile + at // share * first).int()


ELEMENTS = 1 << 24  # maximum elements of a temporary tensor; more rows are processed in chunks


@dataclass(frozen=True, eq=False)
class Grid:
    """Rows at rising positions `rows` [R] in I query tiles of `size` rows; `length` keys in J key tiles of `size`."""

    rows: Tensor
    length: int
    size: int

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of query tiles and key tiles, (I, J)."""
        return -(-len(self.rows) // self.size), -(-self.length // self.size)

    @cached_property
    def first_positions(self) -> Tensor:
        """[I] position of the first row of each query tile."""
        return self.rows[:: self.size]

    @cached_property
    def last_positions(self) -> Tensor:
        """[I] position of the last row of each query tile."""
        ends = torch.arange(1, self.shape[0] + 1, device=self.rows.device) * self.size - 1
        return self.rows[ends.clamp(max=len(self.rows) - 1)]

    @cached_property
    def columns(self) -> Tensor:
        """[J] indices of the key tiles."""
        return torch.arange(self.shape[1], device=self.rows.device)

    @cached_property
    def causal(self) -> Tensor:
        """[I, J] bool: some row of the query tile may attend to some key of the key tile."""
        return self.columns * self.size <= self.last_positions[:, None]

    @cached_property
    def own_tiles(self) -> Tensor:
        """[I, J] bool: the key tile contains the position of a row of the query tile; there may be several."""
        own = torch.zeros(self.shape, dtype=torch.bool, device=self.rows.device)
        tile = torch.arange(len(self.rows), device=self.rows.device) // self.size
        own.view(-1).index_fill_(0, tile * self.shape[1] + self.rows // self.size, True)  # no synchronization
        return own

    @cached_property
    def tiles_with_rows(self) -> Tensor:
        """[J] bool: the key tile contains the position of any row."""
        return self.own_tiles.any(0)

    def near_tiles(self, count: int) -> Tensor:
        """Return [I, J] bool: own tiles, and `count` tiles before each of them."""
        sums = pad(self.own_tiles.int().cumsum(1), (1, 0))  # number of own tiles before tile j
        ends = (self.columns + count + 1).clamp(max=self.shape[1])
        return sums[:, ends] > sums[:, :-1]

    def tail(self, count: int, length: int | None = None) -> Tensor:
        """Return [I, 1] bool: query tiles with a row in the last `count` tiles of a prompt of `length` tokens."""
        whole = self.length if length is None else length
        return (self.last_positions >= (-(-whole // self.size) - count) * self.size)[:, None] & (count > 0)

    def union_over_groups(self, kept: Tensor, heads: int) -> Tensor:
        """Return [..., Hq, I, J] bool: the union over query tiles and over groups of `heads` neighbouring heads.

        It includes the tiles of the rows themselves, as far as the causal mask allows (CompactAttention, section 3.2).
        """
        groups = kept.unflatten(-3, (-1, heads))
        union = groups.flatten(-3, -2).any(-2)[..., None, None, :] | self.tiles_with_rows  # […, G, 1, 1, J]
        return (union & self.causal).expand_as(groups).flatten(-4, -3)

    def chunks(self, width: int) -> Iterator[slice]:
        """Yield slices of whole query tiles such that [rows, width] has at most ELEMENTS elements, or is one tile."""
        step = max(1, ELEMENTS // max(1, width * self.size)) * self.size
        for at in range(0, len(self.rows), step):
            yield slice(at, min(at + step, len(self.rows)))

    def rows_to_tiles(self, x: Tensor, fill: float = 0.0) -> Tensor:
        """Return rows […, r, X] as query tiles […, i, size, X], the last one padded with `fill`."""
        return pad(x, (0, 0, 0, -x.shape[-2] % self.size), value=fill).unflatten(-2, (-1, self.size))

    def tiles(self, kept: Tensor, heads: int, columns: Tensor | None = None) -> Tiles:
        """Return the selection for `heads` query heads from `kept` [Hq | H | 1, I, J] bool (and `columns` [Hq | H, T]).

        Tiles in the future of all rows are dropped. Each row's own tile is kept, so no row is left without keys.
        """
        kept = (kept | self.own_tiles) & self.causal
        wide = columns if columns is None else columns.repeat_interleave(heads // len(columns), 0)
        group = heads // len(kept)
        return Tiles(kept.repeat_interleave(group, 0), self.size, wide, group if columns is None else 1)

    def pairs(self) -> Tensor:
        """Return [I, J] int64: number of (row, key) pairs of a tile that the causal mask allows."""
        starts, found = self.columns * self.size, []
        ends = (starts + self.size).clamp(max=self.length)
        for part in self.chunks(self.shape[1]):
            seen = (self.rows[part, None] + 1).minimum(ends) - starts
            found.append(self.rows_to_tiles(seen.clamp(min=0)).sum(1))
        return torch.cat(found)


_RECENT: deque[tuple[int, Grid]] = deque(maxlen=8)  # (version of the rows, grid)


def grid_of(rows: Tensor, length: int, size: int, replayed: bool = False) -> Grid:
    """Return the grid of these rows; layers that pass the same tensor share one grid and its cached properties.

    A new grid is returned for inference tensors, which have no version counter, and during the capture of a CUDA graph,
    unless all layers are captured together (`replayed`).
    """
    capturing = rows.is_cuda and torch.cuda.is_current_stream_capturing()
    if rows.is_inference() or (capturing and not replayed):
        return Grid(rows, length, size)
    version = -1 if capturing else rows._version
    for known, grid in tuple(_RECENT):
        if grid.rows is rows and version == known and (grid.length, grid.size) == (length, size):
            return grid
    _RECENT.append((version, Grid(rows, length, size)))
    return _RECENT[-1][1]


def means(keys: Tensor, size: int) -> Tensor:
    """Return the mean key [H, J, D] (fp32) of each tile of keys [H, T, D]; the last tile may be short."""
    count = torch.full((-(-keys.shape[1] // size), 1), size, device=keys.device)
    count[-1] -= -keys.shape[1] % size
    return tokens_to_tiles(keys, size).sum(2) / count


def tokens_to_tiles(x: Tensor, size: int) -> Tensor:
    """Return [H, T, D] as tiles [H, J, size, D] (fp32), padded with zeros."""
    return pad(x.float(), (0, 0, 0, -x.shape[1] % size)).unflatten(1, (-1, size))


def attention(queries: Tensor, keys: Tensor, grid: Grid) -> Iterator[tuple[slice, Tensor]]:
    """Yield the causal softmax of queries [Hq, R, D] over keys [H, T, D], scale 1/sqrt(D), in chunks of rows.

    Each item is (slice of rows, [Hq, r, T] fp32).
    """
    cols, wide = torch.arange(keys.shape[1], device=keys.device), keys.float()[:, None].mT
    for part in grid.chunks(len(queries) * keys.shape[1]):
        logits = (queries[:, part].float().unflatten(0, (len(keys), -1)) @ wide).flatten(0, 1) * keys.shape[-1] ** -0.5
        yield part, logits.masked_fill_(cols > grid.rows[part, None], -torch.inf).softmax(-1)


def lines(queries: Tensor, keys: Tensor, grid: Grid) -> tuple[Tensor, Tensor]:
    """Return the attention on columns and on diagonals, summed over all rows: [Hq, T] fp32 each.

    Diagonal d has the keys d positions before their row.
    """
    columns = queries.new_zeros(len(queries), grid.length, dtype=torch.float32)
    diagonals, keyed = columns.clone(), torch.arange(grid.length, device=keys.device)
    for part, share in attention(queries, keys, grid):
        columns += share.sum(1)
        key = grid.rows[part, None] - keyed  # [r, T]: for each row, the key on diagonal d
        on_diagonals = share.gather(2, key.clamp(min=0).expand(len(share), -1, -1)).masked_fill_(key < 0, 0.0)
        diagonals += on_diagonals.sum(1)
    return columns, diagonals


def mass(queries: Tensor, keys: Tensor, grid: Grid) -> Tensor:
    """Return the attention [Hq, I, J] (fp32) on each tile, mean over the query tile's rows; sums to 1 over J."""
    total = _by_tile(queries, keys, grid, torch.sum)
    return total / total.sum(-1, keepdim=True)


def peaks(queries: Tensor, keys: Tensor, grid: Grid) -> Tensor:
    """Return the maximum attention weight [Hq, I, J] (fp32) in each tile."""
    return _by_tile(queries, keys, grid, torch.amax)


def _by_tile(queries: Tensor, keys: Tensor, grid: Grid, reduce: Callable[[Tensor, int], Tensor]) -> Tensor:
    """Return attention per tile, reduced over its keys and then over its rows; one KV head at a time."""
    group, found = len(queries) // len(keys), []
    for head, one in enumerate(keys):
        parts = []
        for _, share in attention(queries[head * group : (head + 1) * group], one[None], grid):
            wide = pad(share, (0, -share.shape[-1] % grid.size)).unflatten(-1, (-1, grid.size))
            parts.append(reduce(grid.rows_to_tiles(reduce(wide, -1)), 2))
        found.append(torch.cat(parts, 1))
    return torch.cat(found)

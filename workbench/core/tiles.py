"""A block-sparse choice of keys, and the ways to carry it out."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec

import torch
from torch import Tensor
from torch.nn.functional import pad

from workbench.core.errors import BadInput


@dataclass(frozen=True)
class Tiles:
    """`kept` [Hq, I, J] bool: the queries of tile i, head h, attend to the keys of tile j.

    Query tiles count the rows that are computed now (in their order), key tiles count positions; the last tile of
    either may be short. What a query may see inside a kept tile is still ruled by the mask.

    `columns` [Hq, T] bool: single keys that all rows attend to besides (a choice of tokens, a vertical line).

    `shared`: every so many neighbouring heads are known to keep the same tiles, so one list serves them all.

    `alike`: all query tiles are known to keep the same tiles, but for those that none of their rows can see, so the
    list of the last serves them all (CompactAttention).
    """

    kept: Tensor
    size: int
    columns: Tensor | None = None
    shared: int = 1
    alike: bool = False

    def __post_init__(self) -> None:
        if self.kept.ndim != 3 or self.kept.dtype != torch.bool:
            raise BadInput(
                f"tiles are [heads, query tiles, key tiles] bool, got {tuple(self.kept.shape)} {self.kept.dtype}"
            )
        if self.size < 1:
            raise BadInput(f"tile size {self.size}: it is 1 or more")
        if self.shared < 1 or len(self.kept) % self.shared:
            raise BadInput(f"{len(self.kept)} heads cannot choose alike in groups of {self.shared}")
        found = self.columns
        if found is not None and (found.ndim != 2 or found.dtype != torch.bool or len(found) != len(self.kept)):
            raise BadInput(
                f"columns are [heads, keys] bool for {len(self.kept)} heads, got {tuple(found.shape)} {found.dtype}"
            )

    def visible(self, rows: int, length: int, first: int = 0) -> Tensor:
        """[Hq, R, T] bool for rows `first` to `first + rows`, for the reference path."""
        self._check(first + rows, length)
        row_tile = torch.arange(first, first + rows, device=self.kept.device) // self.size
        col_tile = torch.arange(length, device=self.kept.device) // self.size
        seen = self.kept[:, row_tile][:, :, col_tile]
        return seen if self.columns is None else seen | self.columns[:, None, :length]

    def paged(self) -> "Tiles":
        """The same choice in whole tiles: a tile of which one column is chosen is kept."""
        if self.columns is None:
            return self
        width = self.kept.shape[2] * self.size
        wide = pad(self.columns, (0, width - self.columns.shape[1]))
        return Tiles(self.kept | wide.unflatten(1, (-1, self.size)).any(-1)[:, None], self.size)

    def lists(self, rows: int, length: int) -> tuple[Tensor, Tensor]:
        """Rising lists of key tiles for `rows` over `length` keys: (indptr [N + 1], indices), int32.

        N goes by group of `shared` heads, then query tile. On a GPU nothing waits for it, and `indices` has room for
        everything: it is unwritten behind indptr[N].
        """
        self._check(rows, length)
        return _ragged(self.kept[:: self.shared, : -(-rows // self.size), : -(-length // self.size)])

    def over_queries(self) -> "Tiles":
        """One choice for all query tiles: what any of them keeps (CompactAttention's Q-block union)."""
        return Tiles(self.kept.any(1, keepdim=True).expand_as(self.kept), self.size, self.columns, self.shared)

    def over_heads(self, heads: int) -> "Tiles":
        """One choice for every `heads` neighbouring heads: what any of them keeps (intra-group union)."""
        if heads < 1 or self.kept.shape[0] % heads:
            raise BadInput(f"{self.kept.shape[0]} heads cannot be split into groups of {heads}")
        kept, columns = (None if x is None else _shared(x, heads) for x in (self.kept, self.columns))
        assert kept is not None
        return Tiles(kept, self.size, columns, max(heads, self.shared) if _nested(heads, self.shared) else heads)

    def union(self, heads: int) -> "Tiles":
        """One choice for all query tiles of `heads` neighbouring heads (CompactAttention): it only ever adds."""
        return self.over_heads(heads).over_queries()

    def pages(self, heads: int) -> tuple[Tensor, Tensor]:
        """The union as a ragged list of key tiles per group of `heads`: (indptr [G + 1], indices), int32."""
        return _ragged(self.paged().union(heads).kept[::heads, :1])

    @property
    def density(self) -> float:
        """Share of all tiles that is kept."""
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


@dataclass(frozen=True)
class Pages:
    """What a paged attention kernel is told, for a batch (CompactAttention, section 3.3).

    Keys [B, Hkv, L, D] are read in place as [B · Hkv · L / page, page, 1, D]: page j of KV head h of request b is
    number (b · Hkv + h) · L / page + j. One row of the table serves `heads` query heads of one request; rows go by
    request, KV head, execution group.
    """

    indptr: Tensor  # [B · Hkv · groups + 1] int32
    indices: Tensor  # [pages read] int32, rising within a row
    size: int  # tokens of a page
    heads: int  # query heads of an execution group


def pages(choices: Sequence[Tiles], kv_heads: int, heads: int, capacity: int) -> Pages:
    """The page table of a batch: the union of each request's choice over its rows and over every `heads` query heads.

    `capacity`: pages that the cache holds for one KV head. BadInput where a choice does not fit the cache, or a group
    of `heads` would read two KV heads.
    """
    for choice in choices:
        group = choice.kept.shape[0] // kv_heads
        if choice.kept.shape[0] % kv_heads or group % heads:
            raise BadInput(
                f"{heads} heads cannot share a page list: {choice.kept.shape[0]} query heads read {kv_heads} KV heads"
            )
        if choice.kept.shape[2] > capacity:
            raise BadInput(f"a choice over {choice.kept.shape[2]} pages does not fit a cache of {capacity} for a head")
    whole = [choice.paged().kept for choice in choices]
    if len({kept.shape for kept in whole}) == 1:
        union = union_of(torch.stack(whole), heads)
    else:
        widest = max(kept.shape[2] for kept in whole)
        union = torch.cat([union_of(pad(kept, (0, widest - kept.shape[2]))[None], heads) for kept in whole])
    return page_table(union, kv_heads, heads, capacity, choices[0].size)


def union_of(kept: Tensor, heads: int) -> Tensor:
    """[B, G, J] bool of choices [B, Hq, I, J]: what any query tile of any of `heads` neighbouring heads keeps."""
    return kept.unflatten(1, (-1, heads)).any(3).any(2)


def page_table(union: Tensor, kv_heads: int, heads: int, capacity: int, size: int) -> Pages:
    """Unions [B, G, J] bool of execution groups of `heads` query heads as a page table, J at most `capacity`.

    On a GPU nothing waits for it, and `indices` has room for everything: it is unwritten behind indptr[B · G].
    """
    indptr, indices = _ragged(union.flatten(0, 1)[:, None], capacity, union.shape[1] // kv_heads)
    return Pages(indptr, indices, size, heads)


def _shared(x: Tensor, heads: int) -> Tensor:
    """[Hq, …]: any of every `heads` neighbouring heads, for each of them."""
    return x.unflatten(0, (-1, heads)).any(1, keepdim=True).expand(-1, heads, *x.shape[1:]).flatten(0, 1)


def _nested(one: int, other: int) -> bool:
    return max(one, other) % min(one, other) == 0


def _ragged(kept: Tensor, first: int = 0, share: int = 1) -> tuple[Tensor, Tensor]:
    """[G, I, J] bool as (indptr [G · I + 1], indices), int32. Tiles of list n are counted from n // share · first."""
    if kept.is_cuda and kept.numel() and find_spec("triton"):
        found: tuple[Tensor, Tensor] = import_module("workbench.kernels._tiles_lists").launch(kept, first, share)
        return found
    flat = kept.flatten(0, 1)
    indptr = torch.cat((flat.new_zeros(1, dtype=torch.int32), flat.sum(1).cumsum(0).int()))
    at, tile = flat.nonzero().unbind(1)
    return indptr, (tile + at // share * first).int()

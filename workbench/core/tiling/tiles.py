"""A block-sparse choice of keys, and its unions over queries and heads."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from workbench.core.errors import BadInput, shown
from workbench.core.utils import annotations, html_views


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

    def check_fits(self, heads: int, rows: int, keys: int) -> None:
        """Refuse tiles of other than `heads` query heads, and too few for this many rows and keys."""
        needed = (heads, -(-rows // self.size), -(-keys // self.size))
        shape = tuple(self.kept.shape)
        if shape[0] != heads or shape[1] < needed[1] or shape[2] < needed[2]:
            raise BadInput(
                f"tiles of {shape} for {rows} rows and {keys} keys in tiles of {self.size}: "
                f"[heads, query tiles, key tiles] is {needed}"
            )

    def __post_init__(self) -> None:
        if not isinstance(self.kept, torch.Tensor):
            raise BadInput(f"kept is {shown(self.kept)}: tiles are [heads, query tiles, key tiles] bool")
        annotations.check("size", self.size, int)
        if self.kept.ndim != 3 or self.kept.dtype != torch.bool:
            raise BadInput(
                f"tiles are [heads, query tiles, key tiles] bool, got {tuple(self.kept.shape)} {self.kept.dtype}"
            )
        if self.size < 1:
            raise BadInput(f"tile size {self.size}: it is 1 or more")
        if self.shared < 1 or len(self.kept) % self.shared:
            raise BadInput(f"{len(self.kept)} heads cannot choose alike in groups of {self.shared}")
        columns = self.columns
        if columns is not None and (columns.ndim != 2 or columns.dtype != torch.bool or len(columns) != len(self.kept)):
            raise BadInput(
                f"columns are [heads, keys] bool for {len(self.kept)} heads, got {tuple(columns.shape)} {columns.dtype}"
            )

    def _repr_html_(self) -> str:
        """Show how many tiles are kept, and where, mean over heads, in a notebook."""
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
        """Return [Hq, R, T] bool for rows `first` to `first + rows`, for the reference path."""
        self._check(first + rows, length)
        row_tile = torch.arange(first, first + rows, device=self.kept.device) // self.size
        col_tile = torch.arange(length, device=self.kept.device) // self.size
        seen = self.kept[:, row_tile][:, :, col_tile]
        return seen if self.columns is None else seen | self.columns[:, None, :length]

    def paged(self) -> "Tiles":
        """Return the same choice in whole tiles: a tile of which one column is chosen is kept."""
        if self.columns is None:
            return self
        width = self.kept.shape[2] * self.size
        wide = pad(self.columns, (0, width - self.columns.shape[1]))
        return Tiles(self.kept | wide.unflatten(1, (-1, self.size)).any(-1)[:, None], self.size)

    def covering(self, rows: int, length: int) -> Tensor:
        """Return [G, I, J] bool of `rows` over `length` keys, one of `shared` heads.

        BadInput where tiles are missing.
        """
        self._check(rows, length)
        return self.kept[:: self.shared, : -(-rows // self.size), : -(-length // self.size)]

    def lists(self, rows: int, length: int) -> tuple[Tensor, Tensor]:
        """Return rising lists of key tiles for `rows` over `length` keys: (indptr [N + 1], indices), int32.

        N goes by group of `shared` heads, then query tile.
        """
        return ragged(self.covering(rows, length))

    def over_queries(self) -> "Tiles":
        """Return one choice for all query tiles: what any of them keeps (CompactAttention's Q-block union)."""
        return Tiles(self.kept.any(1, keepdim=True).expand_as(self.kept), self.size, self.columns, self.shared)

    def over_heads(self, heads: int) -> "Tiles":
        """Return one choice for every `heads` neighbouring heads: what any of them keeps (intra-group union)."""
        if heads < 1 or self.kept.shape[0] % heads:
            raise BadInput(f"{self.kept.shape[0]} heads cannot be split into groups of {heads}")
        kept, columns = (None if x is None else _shared(x, heads) for x in (self.kept, self.columns))
        assert kept is not None
        return Tiles(kept, self.size, columns, max(heads, self.shared) if _nested(heads, self.shared) else heads)

    def union(self, heads: int) -> "Tiles":
        """Return one choice for all query tiles of `heads` neighbouring heads (CompactAttention): it only ever adds."""
        return self.over_heads(heads).over_queries()

    def pages(self, heads: int) -> tuple[Tensor, Tensor]:
        """Return the union as a ragged list of key tiles per group of `heads`: (indptr [G + 1], indices), int32."""
        return ragged(self.paged().union(heads).kept[::heads, :1])

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


def _shared(x: Tensor, heads: int) -> Tensor:
    """Return [Hq, …]: any of every `heads` neighbouring heads, for each of them."""
    return x.unflatten(0, (-1, heads)).any(1, keepdim=True).expand(-1, heads, *x.shape[1:]).flatten(0, 1)


def _nested(one: int, other: int) -> bool:
    return max(one, other) % min(one, other) == 0


def ragged(kept: Tensor, first: int = 0, share: int = 1) -> tuple[Tensor, Tensor]:
    """Return lists of [G, I, J] bool: (indptr [G · I + 1], indices), int32. List n counts from n // share · first."""
    flat = kept.flatten(0, 1)
    indptr = torch.cat((flat.new_zeros(1, dtype=torch.int32), flat.sum(1).cumsum(0).int()))
    at, tile = flat.nonzero().unbind(1)
    return indptr, (tile + at // share * first).int()

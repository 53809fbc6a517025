"""A block-sparse choice of keys, and the ways to carry it out."""

from dataclasses import dataclass

import torch

from workbench.errors import BadInput


@dataclass(frozen=True)
class Tiles:
    """`kept` [Hq, I, J] bool: the queries of tile i, head h, attend to the keys of tile j.

    Query tiles count the rows that are computed now (in their order), key tiles count positions; the last tile of
    either may be short. What a query may see inside a kept tile is still ruled by the mask.
    """

    kept: torch.Tensor
    size: int

    def __post_init__(self) -> None:
        if self.kept.ndim != 3 or self.kept.dtype != torch.bool:
            raise BadInput(
                f"tiles are [heads, query tiles, key tiles] bool, got {tuple(self.kept.shape)} {self.kept.dtype}"
            )
        if self.size < 1:
            raise BadInput(f"tile size {self.size}: it is 1 or more")

    def visible(self, rows: int, length: int, first: int = 0) -> torch.Tensor:
        """[Hq, R, T] bool for rows `first` to `first + rows`, for the reference path."""
        self._check(first + rows, length)
        row_tile = torch.arange(first, first + rows, device=self.kept.device) // self.size
        col_tile = torch.arange(length, device=self.kept.device) // self.size
        return self.kept[:, row_tile][:, :, col_tile]

    def union(self, heads: int) -> "Tiles":
        """One choice for all query tiles of `heads` neighbouring heads (CompactAttention): it only ever adds."""
        if self.kept.shape[0] % heads:
            raise BadInput(f"{self.kept.shape[0]} heads cannot be split into groups of {heads}")
        merged = self.kept.any(1, keepdim=True).unflatten(0, (-1, heads)).any(1, keepdim=True)
        return Tiles(merged.expand(-1, heads, *self.kept.shape[1:]).flatten(0, 1), self.size)

    def pages(self, heads: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The union as a ragged list of key tiles per group of `heads`: (indptr [G + 1], indices), int32."""
        table = self.union(heads).kept[::heads, 0]  # [G, J]
        indptr = torch.cat((table.new_zeros(1, dtype=torch.int32), table.sum(1).cumsum(0).int()))
        return indptr, table.nonzero()[:, 1].int()

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

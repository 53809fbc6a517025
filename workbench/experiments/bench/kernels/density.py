"""How much a sparse method keeps while it is timed."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from workbench.core.plan import Site
from workbench.core.tiling.tile_grid import Grid
from workbench.core.tiling.tiles import Tiles


@dataclass
class Counted:
    """A sparse method that counts the tiles it keeps, on the device."""

    over: Any
    counts: list[Tensor] = field(default_factory=list)  # [2] of a call: kept and causal tiles

    @property
    def size(self) -> int:
        return int(self.over.size)

    @property
    def rows_together(self) -> int:
        return int(getattr(self.over, "rows_together", 0))

    def __call__(self, queries: Tensor, keys: Tensor, rows: Tensor, site: Site) -> Tiles:
        tiles: Tiles = self.over(queries, keys, rows, site)
        causal = Grid(rows.to(keys.device), keys.shape[1], self.size).causal.sum() * len(queries)
        self.counts.append(torch.stack((tiles.kept.sum(), causal)))
        return tiles

    @property
    def density(self) -> float:
        """Return the share of the causal tiles that was kept, and begin to count afresh."""
        kept, causal = torch.stack(self.counts).sum(0).tolist()
        self.counts = []
        return kept / causal

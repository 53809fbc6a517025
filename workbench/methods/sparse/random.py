"""Random tiles in addition to a sink and a local band (BigBird, arXiv:2007.14062): the baseline for any selection."""

from dataclasses import dataclass

import torch
from torch import Tensor

from workbench.methods.sparse import Grid, Site, Sparse, Tiles, count, fraction


@dataclass(frozen=True)
class RandomTiles(Sparse):
    """Each tile with probability `share`, independently per head.

    *Follows a description: BigBird's random blocks.*

    The draw depends on `seed` and the tile's position in the prompt, not on chunks. The first `sink` tiles and the
    `local` tiles before a row's own are also kept.
    """

    THRESHOLD = "share"
    REPLAYS = True
    STEPS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 0.9)

    block: int = count(64, least=1)
    share: float = fraction(0.1, zero=True)
    sink: int = count(1)
    local: int = count(1)
    seed: int = count(0)

    def choose(self, queries: Tensor, keys: Tensor, grid: Grid, site: Site) -> Tiles:
        device = grid.rows.device
        head = torch.arange(len(queries), device=device)[:, None, None]
        place = (grid.first_positions[:, None] // self.block << 24) + grid.columns
        drawn = _hash(_hash(place + self.seed * 7919) + head + 1009 * site.layer) >> 1 & 0xFFFFFFFF
        kept = drawn < self.share * (1 << 32)
        return grid.tiles(kept | (grid.columns < self.sink) | grid.near_tiles(self.local), len(queries))


def _hash(x: Tensor) -> Tensor:
    """Hash int64 numbers (the finaliser of splitmix64, with wrapping products)."""
    x = (x ^ (x >> 30 & 0x3FFFFFFFF)) * -0x40A7B892E31B1A47
    x = (x ^ (x >> 27 & 0x1FFFFFFFFF)) * -0x6B2FB644ECCEEE15
    return x ^ (x >> 31 & 0x1FFFFFFFF)

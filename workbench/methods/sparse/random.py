"""Tiles drawn at random, within a sink and a band (BigBird, arXiv:2007.14062): what any choice has to beat."""

from dataclasses import dataclass

import torch
from torch import Tensor

from workbench.core.plan import Site
from workbench.core.tile_grid import Grid
from workbench.core.tiles import Tiles
from workbench.methods.sparse import Sparse, check_count, check_share


@dataclass(frozen=True)
class Random(Sparse):
    """Every tile with probability `share`, for each head apart, drawn by `seed` and the tile's place in the prompt: the
    same tiles whatever the chunks. `sink` tiles at the front and `local` tiles before a row's own are kept besides."""

    DIAL = "share"
    STEPS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 0.9)

    block: int = 64
    share: float = 0.1
    sink: int = 1
    local: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        check_count("block", self.block, 1)
        check_share("share", self.share, zero=True)
        for name in ("sink", "local", "seed"):
            check_count(name, getattr(self, name))

    @property
    def size(self) -> int:
        return self.block

    def choose(self, queries: Tensor, keys: Tensor, grid: Grid, site: Site) -> Tiles:
        device = grid.rows.device
        head = torch.arange(len(queries), device=device)[:, None, None]
        place = (grid.first[:, None] // self.block << 24) + grid.columns
        drawn = _mixed(_mixed(place + self.seed * 7919) + head + 1009 * site.layer) >> 1 & 0xFFFFFFFF
        kept = drawn < self.share * (1 << 32)
        return grid.tiles(kept | (grid.columns < self.sink) | grid.near(self.local), len(queries))


def _mixed(x: Tensor) -> Tensor:
    """A hash of int64 numbers (the finaliser of splitmix64; products wrap around)."""
    x = (x ^ (x >> 30 & 0x3FFFFFFFF)) * -0x40A7B892E31B1A47
    x = (x ^ (x >> 27 & 0x1FFFFFFFFF)) * -0x6B2FB644ECCEEE15
    return x ^ (x >> 31 & 0x1FFFFFFFF)

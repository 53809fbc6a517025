"""Strided attention (Sparse Transformer, arXiv:1904.10509, section 4.3): a static baseline."""

from dataclasses import dataclass

import torch
from torch import Tensor

from workbench.methods.sparse import Grid, Site, Sparse, Tiles, count


@dataclass(frozen=True)
class Strided(Sparse):
    r"""Tiles whose distance from a row's own is a multiple of `stride`, and the `local` tiles before its own.

    *Follows the paper, in tiles.*

    $$(i - j) \bmod \text{stride} = 0 \quad \text{or} \quad i - \text{local} \le j \le i$$
    """

    THRESHOLD = "stride"
    REPLAYS = True
    STEPS = (64, 32, 16, 12, 8, 6, 4, 3, 2)

    block: int = count(64, least=1)
    stride: int = count(8, least=1)
    local: int = count(1)

    def choose(self, queries: Tensor, keys: Tensor, grid: Grid, site: Site) -> Tiles:
        remainder = grid.columns % self.stride
        own = torch.zeros(grid.shape[0], self.stride, dtype=torch.int32, device=grid.rows.device)
        kept = (
            own.index_add_(1, remainder, grid.own_tiles.int())[:, remainder] > 0
        )  # remainders of the query tile itself
        return grid.tiles((kept | grid.near_tiles(self.local))[None], len(queries))

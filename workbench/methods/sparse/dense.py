"""Every tile: what every other method is compared with, on the same path."""

from dataclasses import dataclass

from torch import Tensor

from workbench.methods.sparse import Grid, Site, Sparse, Tiles, count


@dataclass(frozen=True)
class Dense(Sparse):
    """Every tile that a row can see; `block` tokens a tile."""

    REPLAYS = True

    block: int = count(64, least=1)

    def choose(self, queries: Tensor, keys: Tensor, grid: Grid, site: Site) -> Tiles:
        return grid.tiles(grid.causal[None], len(queries))

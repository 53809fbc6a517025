"""All tiles: what every other method is compared with, on the same path."""

from dataclasses import dataclass

from torch import Tensor

from workbench.core.plan import Site
from workbench.core.tile_grid import Grid
from workbench.core.tiles import Tiles
from workbench.methods.sparse import Sparse, check_count


@dataclass(frozen=True)
class Dense(Sparse):
    """Every tile that a row can see; `block` tokens a tile."""

    block: int = 64

    def __post_init__(self) -> None:
        check_count("block", self.block, 1)

    @property
    def size(self) -> int:
        return self.block

    def choose(self, queries: Tensor, keys: Tensor, grid: Grid, site: Site) -> Tiles:
        return grid.tiles(grid.causal[None], len(queries))

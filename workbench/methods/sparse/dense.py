"""Keep every tile: the baseline for other methods, on the same code path."""

from dataclasses import dataclass

from torch import Tensor

from workbench.methods.sparse import Grid, Site, Sparse, Tiles, count


@dataclass(frozen=True)
class Dense(Sparse):
    """Every causal tile; a tile has `block` tokens."""

    REPLAYS = True

    block: int = count(64, least=1)

    def choose(self, queries: Tensor, keys: Tensor, grid: Grid, site: Site) -> Tiles:
        return grid.tiles(grid.causal[None], len(queries))

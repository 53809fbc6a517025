"""Select tiles by their true attention: the smallest set with a share of it, at the cost of dense attention."""

from dataclasses import dataclass

from torch import Tensor

from workbench.core.tiling import tiles as grids
from workbench.core.tiling.tile_selection import fewest_reaching
from workbench.methods.sparse import Grid, Site, Sparse, Tiles, count, fraction


@dataclass(frozen=True)
class OracleTiles(Sparse):
    r"""The fewest tiles with `mass` of the attention of a query tile, per head.

    A row's own tile is counted first. A tile has `block` tokens.

    With $a$ the attention of the rows of a query tile: the fewest $j$ for which

    $$\sum_j m_j \ge \text{mass}, \qquad
    m_j = \frac{\sum_{r \in i} \sum_{c \in j} a_{rc}}{\sum_{r \in i} \sum_c a_{rc}}$$
    """

    THRESHOLD = "mass"
    STEPS = (0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.999)

    block: int = count(64, least=1)
    mass: float = fraction(0.95)

    def choose(self, queries: Tensor, keys: Tensor, grid: Grid, site: Site) -> Tiles:
        kept = fewest_reaching(grids.mass(queries, keys, grid), self.mass, grid.own_tiles)
        return grid.tiles(kept, len(queries))

    def operations(self, heads: int, rows: int, length: int, width: int) -> int:
        return heads * rows * length * width

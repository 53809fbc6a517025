"""Sink and sliding window (StreamingLLM, arXiv:2309.17453): the static baseline."""

from dataclasses import dataclass

from torch import Tensor

from workbench.methods.sparse import Grid, Site, Sparse, Tiles, count


@dataclass(frozen=True)
class Window(Sparse):
    r"""The first `sink` tiles, a row's own tile and the `local` tiles before it; a tile has `block` tokens.

    *Follows the paper, in tiles.*

    $$j < \text{sink} \quad \text{or} \quad i - \text{local} \le j \le i$$
    """

    THRESHOLD = "local"
    REPLAYS = True
    STEPS = (0, 1, 2, 4, 8, 12, 16, 24, 32)

    block: int = count(64, least=1)
    sink: int = count(1)
    local: int = count(8)

    def choose(self, queries: Tensor, keys: Tensor, grid: Grid, site: Site) -> Tiles:
        return grid.tiles(((grid.columns < self.sink) | grid.near_tiles(self.local))[None], len(queries))

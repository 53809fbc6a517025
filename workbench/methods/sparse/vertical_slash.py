"""MInference's vertical-slash heads (arXiv:2407.02490, section 3): a few columns and a few diagonals."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from workbench.core.tiling.tiles import Grid, lines
from workbench.methods.sparse import Site, Sparse, Tiles, count


@dataclass(frozen=True)
class VerticalSlash(Sparse):
    r"""Columns and diagonals that the last rows attend to most; columns are single keys, diagonals take whole tiles.

    *Follows released code: `minference/modules/minference_forward.py` of microsoft/MInference,* whose table for a
    model gives each head its own counts, or another pattern; here the same counts apply to all heads.

    vertical, slash   number of columns and diagonals (the published search: 30 to 3,000 and 200 to 2,048)
    last              number of last rows that vote (of every chunk, in chunked prefill)
    front, near       number of first columns, and of diagonals nearest to the row, that are included in any case
    block             tokens of a tile

    With $a$ the attention of the last rows $R$: scores of column $j$ and of the diagonal at distance $o$.

    $$v_j = \sum_{i \in R} a_{ij}, \qquad d_o = \sum_{i \in R} a_{i,\, i-o}$$
    """

    THRESHOLD = "slash"
    STEPS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)

    vertical: int = count(1000)
    slash: int = count(2048)
    last: int = count(64, least=1)
    front: int = count(30)
    near: int = count(100)
    block: int = count(64, least=1)

    def choose(self, queries: Tensor, keys: Tensor, grid: Grid, site: Site) -> Tiles:
        vertical, slash = self.lines(queries, keys, grid)
        return grid.tiles(self._tiles(slash, grid), len(queries), vertical)

    def lines(self, queries: Tensor, keys: Tensor, grid: Grid) -> tuple[Tensor, Tensor]:
        """Return the selected columns and diagonals, [Hq, T] bool each; diagonal d has the keys d before their row."""
        end = Grid(grid.rows[-self.last :], grid.length, self.block)
        columns, diagonals = lines(queries[:, -self.last :], keys, end)
        keyed = torch.arange(grid.length, device=keys.device)
        front, near = keyed < self.front, keyed < self.near
        return _most(columns, self.vertical, front), _most(diagonals, self.slash, near)

    def operations(self, heads: int, rows: int, length: int, width: int) -> int:
        return heads * min(self.last, rows) * length * width

    def _tiles(self, slash: Tensor, grid: Grid) -> Tensor:
        """Return [Hq, I, J] bool: tiles crossed by a selected diagonal in any row of the query tile."""
        rows, size = grid.rows, self.block
        begins = torch.ones(len(rows), dtype=torch.bool, device=rows.device)  # starts of runs of adjacent rows
        begins[1:] = (rows[1:] != rows[:-1] + 1) | (torch.arange(1, len(rows), device=rows.device) % size == 0)
        at = begins.nonzero()[:, 0]
        ends = torch.cat((at[1:], at.new_tensor([len(rows)]))) - 1
        starts = grid.columns * size
        low = (rows[at][:, None] - starts - size + 1).clamp(0, grid.length)  # minimum distance; `high`: maximum + 1
        high = (rows[ends][:, None] - starts + 1).clamp(0, grid.length)
        kept = torch.zeros(len(slash), *grid.shape, dtype=torch.bool, device=rows.device)
        for head, counted in zip(kept, pad(slash.int().cumsum(-1), (1, 0)), strict=True):
            crossed = torch.zeros(grid.shape, dtype=torch.int32, device=rows.device)
            head |= crossed.index_add_(0, at // size, (counted[high] > counted[low]).int()) > 0
        return kept


def _most(score: Tensor, count: int, forced: Tensor) -> Tensor:
    """Return [Hq, T] bool: the `count` highest scores, `forced` [T] before all others."""
    order = score.masked_fill(forced, torch.inf).sort(dim=-1, descending=True, stable=True).indices[:, :count]
    return torch.zeros_like(score, dtype=torch.bool).scatter_(1, order, True)

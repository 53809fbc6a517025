"""FlexPrefill (arXiv:2502.20766): pooled scores for heads where they are accurate, else columns and diagonals."""

from dataclasses import dataclass

import torch
from torch import Tensor

from workbench.core.tiling.tile_selection import fewest_reaching
from workbench.core.tiling.tiles import Grid, lines, means, tokens_to_tiles
from workbench.methods.sparse import Site, Sparse, Tiles, count, fraction


@dataclass(frozen=True)
class FlexPrefill(Sparse):
    r"""The last rows determine the pattern per head: if mean query times mean keys estimates the true share of every
    block well, blocks of the whole prompt are selected by such products, else by columns and diagonals of these rows.

    gamma   share of the scores that is kept
    tau     a head is query-aware if the root of the Jensen-Shannon divergence of both shares is below this; 0: none
    least   minimum number of columns, and of diagonals, of blocks per head; includes the first and the nearest (the
            README has 512 tokens, its experiments 1,024: 4 and 8 blocks)
    block   tokens of a block, and number of last rows that decide (of every chunk, in chunked prefill)

    *Follows released code: `flex_prefill/ops/flex_prefill_attention.py` of bytedance/FlexPrefill at a24b27b, where γ is
    0.9, τ 0.1 and a block 128 tokens.* That code omits the pooled block with which γ is reached, and takes n // 128 + 1
    blocks for the n tokens of columns or diagonals that reach γ; here both are the smallest sets that reach it.

    With $\bar q_i$, $\bar k_j$ the means of blocks, and $a$, $\hat a$ true and estimated shares of the last rows:

    $$\sqrt{\mathrm{JS}(a \,\Vert\, \hat a)} < \tau: \quad
    \text{fewest } (i, j) \text{ with } \sum \mathrm{softmax}_j(\bar q_i \cdot \bar k_j / \sqrt{D}) \ge \gamma I$$
    """

    THRESHOLD = "gamma"
    STEPS = (0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.99)

    block: int = count(128, least=1)
    gamma: float = fraction(0.9)
    tau: float = fraction(0.1, zero=True)
    least: int = count(1, least=1)

    def choose(self, queries: Tensor, keys: Tensor, grid: Grid, site: Site) -> Tiles:
        end = Grid(grid.rows[-self.block :], grid.length, self.block)
        columns, diagonals = lines(queries[:, -self.block :], keys, end)
        columns, diagonals = columns / len(end.rows), diagonals / len(end.rows)  # each sums to 1
        true = tokens_to_tiles(columns[..., None], self.block).sum((2, 3))
        mean_query = queries[:, -self.block :].float().mean(1, keepdim=True)
        pooled = self._pooled(mean_query, keys, grid.causal[-1:])
        aware = divergence(true, pooled[:, 0]).sqrt() < self.tau
        kept = self._lines(true, columns, diagonals, aware, grid)
        if self.tau:
            kept = kept | aware[:, None, None] & self._blocks(queries, keys, grid)
        return grid.tiles(kept, len(queries))

    def _pooled(self, queries: Tensor, keys: Tensor, visible: Tensor) -> Tensor:
        """Return [Hq, I, J]: softmax of mean queries [Hq, I, D] over the mean keys visible to them."""
        grouped = queries.unflatten(0, (len(keys), -1)) * keys.shape[-1] ** -0.5
        logits = (grouped @ means(keys, self.block)[:, None].mT).flatten(0, 1)
        return logits.masked_fill(~visible, -torch.inf).softmax(-1)

    def _blocks(self, queries: Tensor, keys: Tensor, grid: Grid) -> Tensor:
        """Return [Hq, I, J] bool: the blocks with the largest shares, over all query blocks together."""
        each = means(queries, self.block)
        shares = self._pooled(each, keys, grid.causal) / grid.shape[0]
        return fewest_reaching(shares.flatten(1), self.gamma).view_as(shares)

    def _lines(self, true: Tensor, columns: Tensor, diagonals: Tensor, aware: Tensor, grid: Grid) -> Tensor:
        """Return [Hq, I, J] bool: columns and diagonals of blocks, as many as the tokens that sum to gamma would fill.

        Query-`aware` heads [Hq] get the minimum number.
        """
        slash = tokens_to_tiles(diagonals[..., None], self.block).sum((2, 3))
        vertical, near = (self._most(*each, aware) for each in ((true, columns), (slash, diagonals)))
        tiles = grid.columns
        crossed = near[:, (tiles[:, None] - tiles).clamp(min=0)] & (tiles <= tiles[:, None])  # [Hq, P, J]
        return (grid.own_tiles.float() @ crossed.float() > 0) | vertical[:, None]

    def _most(self, blocks: Tensor, tokens: Tensor, aware: Tensor) -> Tensor:
        """Return [Hq, J] bool: the first block and the largest `blocks`, as many as `tokens` [Hq, T] require."""
        needed = fewest_reaching(tokens, self.gamma).sum(-1, keepdim=True).masked_fill(aware[:, None], 0)
        count = (-(-needed // self.block)).clamp(min=self.least)
        numbers = torch.arange(blocks.shape[1], device=blocks.device)
        order = blocks.masked_fill(numbers == 0, torch.inf).sort(dim=-1, descending=True, stable=True).indices
        return torch.zeros_like(blocks, dtype=torch.bool).scatter_(1, order, numbers < count)

    def operations(self, heads: int, rows: int, length: int, width: int) -> int:
        blocks = -(-rows // self.block) * -(-length // self.block)
        return heads * width * (min(self.block, rows) * length + blocks)


def divergence(one: Tensor, other: Tensor) -> Tensor:
    """Return the Jensen-Shannon divergence [H] of shares [H, J], in nats."""
    middle = (one + other) / 2
    parts = [torch.special.xlogy(x, x / middle.clamp(min=1e-30)).sum(-1) for x in (one, other)]
    return ((parts[0] + parts[1]) / 2).clamp(min=0)

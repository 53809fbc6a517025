"""Heads whose pooled scores tell the truth go by them, others by columns and diagonals (FlexPrefill, 2502.20766)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from workbench.core.tiling.tile_selection import smallest
from workbench.core.tiling.tiles import Grid, folded, lines, means
from workbench.methods.sparse import Site, Sparse, Tiles, count, fraction


@dataclass(frozen=True)
class FlexPrefill(Sparse):
    r"""The last rows decide, head by head: where mean query times mean keys gives the true share of every block, blocks
    are chosen by such products for the whole prompt; elsewhere by the columns and diagonals of the last rows.

    gamma   share of the scores that what is kept holds
    tau     a head is query-aware where the root of the Jensen-Shannon divergence of both shares is below it; 0: none
    least   columns of blocks, and diagonals of blocks, that every head keeps at least, the first and the nearest among
            them (the README has 512 tokens, its experiments 1,024: 4 and 8 blocks)
    block   tokens of a block, and how many last rows decide (of every chunk, where a prompt is prefilled in chunks)

    *Follows released code: `flex_prefill/ops/flex_prefill_attention.py` of bytedance/FlexPrefill at a24b27b, where γ is
    0.9, τ 0.1 and a block 128 tokens.* Of pooled blocks that code leaves out the one with which γ is reached, and it
    takes n // 128 + 1 blocks for the n tokens of columns or diagonals that reach γ; here both are the fewest that do.

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
        true = folded(columns[..., None], self.block).sum((2, 3))
        asked = queries[:, -self.block :].float().mean(1, keepdim=True)
        pooled = self._pooled(asked, keys, grid.causal[-1:])
        aware = divergence(true, pooled[:, 0]).sqrt() < self.tau
        kept = self._lines(true, columns, diagonals, aware, grid)
        if self.tau:
            kept = kept | aware[:, None, None] & self._blocks(queries, keys, grid)
        return grid.tiles(kept, len(queries))

    def _pooled(self, queries: Tensor, keys: Tensor, seen: Tensor) -> Tensor:
        """Return [Hq, I, J]: softmax of mean queries [Hq, I, D] over the mean keys visible to them."""
        grouped = queries.unflatten(0, (len(keys), -1)) * keys.shape[-1] ** -0.5
        logits = (grouped @ means(keys, self.block)[:, None].mT).flatten(0, 1)
        return logits.masked_fill(~seen, -torch.inf).softmax(-1)

    def _blocks(self, queries: Tensor, keys: Tensor, grid: Grid) -> Tensor:
        """Return [Hq, I, J] bool: the blocks of largest share, taken over all query blocks together."""
        each = means(queries, self.block)
        shares = self._pooled(each, keys, grid.causal) / grid.shape[0]
        return smallest(shares.flatten(1), self.gamma).view_as(shares)

    def _lines(self, true: Tensor, columns: Tensor, diagonals: Tensor, aware: Tensor, grid: Grid) -> Tensor:
        """Return [Hq, I, J] bool: columns and diagonals of blocks, as many as the tokens that sum to gamma would fill.

        Heads that are query-`aware` [Hq] get the minimum number.
        """
        slash = folded(diagonals[..., None], self.block).sum((2, 3))
        vertical, near = (self._most(*each, aware) for each in ((true, columns), (slash, diagonals)))
        tiles = grid.columns
        crossed = near[:, (tiles[:, None] - tiles).clamp(min=0)] & (tiles <= tiles[:, None])  # [Hq, P, J]
        return (grid.own.float() @ crossed.float() > 0) | vertical[:, None]

    def _most(self, blocks: Tensor, tokens: Tensor, aware: Tensor) -> Tensor:
        """Return [Hq, J] bool: the first block and the largest `blocks`, as many as `tokens` [Hq, T] require."""
        needed = smallest(tokens, self.gamma).sum(-1, keepdim=True).masked_fill(aware[:, None], 0)
        wanted = (-(-needed // self.block)).clamp(min=self.least)
        numbers = torch.arange(blocks.shape[1], device=blocks.device)
        order = blocks.masked_fill(numbers == 0, torch.inf).sort(dim=-1, descending=True, stable=True).indices
        return torch.zeros_like(blocks, dtype=torch.bool).scatter_(1, order, numbers < wanted)

    def operations(self, heads: int, rows: int, length: int, width: int) -> int:
        blocks = -(-rows // self.block) * -(-length // self.block)
        return heads * width * (min(self.block, rows) * length + blocks)


def divergence(one: Tensor, other: Tensor) -> Tensor:
    """Return the Jensen-Shannon divergence [H] of shares [H, J], in nats."""
    middle = (one + other) / 2
    parts = [torch.special.xlogy(x, x / middle.clamp(min=1e-30)).sum(-1) for x in (one, other)]
    return ((parts[0] + parts[1]) / 2).clamp(min=0)

"""FlashPrefill: blocks that score near the best block of their row."""

from dataclasses import dataclass

import torch
from torch import Tensor

from workbench.grid import Grid, means
from workbench.plan import Site
from workbench.sparse import Sparse, check_count, check_share
from workbench.tiles import Tiles


@dataclass(frozen=True)
class FlashPrefill(Sparse):
    """A block is kept where its score is at least `alpha` times the largest of its row.

    Every query is scored against the mean key of every block that it sees in whole; scores of a query block are summed.

    block    tokens of a block
    alpha    published: 0.01 (Llama-3.1-8B) and 0.12 (Qwen3-30B-A3B) alone, 0.06 under CompactAttention
    sink     blocks kept at the front
    window   blocks kept that end with a row's own
    tail     query blocks at the end of the prompt that keep everything
    """

    DIAL = "alpha"
    STEPS = (0.9, 0.7, 0.5, 0.3, 0.2, 0.1, 0.05, 0.02, 0.01, 0.001)

    block: int = 128
    alpha: float = 0.01
    sink: int = 2
    window: int = 4
    tail: int = 2

    def __post_init__(self) -> None:
        check_count("block", self.block, 1)
        check_share("alpha", self.alpha, zero=True)
        check_count("window", self.window, 1)
        check_count("sink", self.sink)
        check_count("tail", self.tail)

    @property
    def size(self) -> int:
        return self.block

    def choose(self, queries: Tensor, keys: Tensor, grid: Grid, site: Site) -> Tiles:
        score = self.scores(queries, keys, grid)
        kept = (score >= self.alpha * score.amax(-1, keepdim=True)) & (score >= 0)
        always = (grid.columns < self.sink) | grid.near(self.window - 1) | grid.tail(self.tail, site.length)
        return grid.tiles(kept | always, len(queries))

    def scores(self, queries: Tensor, keys: Tensor, grid: Grid) -> Tensor:
        """[Hq, I, J] fp32: S normalised over j; -1 where no row of the block sees the key block in whole."""
        wide, ends = means(keys, self.block)[:, None].mT, (grid.columns + 1) * self.block - 1
        best, sums = [], []
        for part in grid.chunks(len(queries) * grid.shape[1]):
            logits = (queries[:, part].float().unflatten(0, (len(keys), -1)) @ wide).flatten(0, 1)
            logits = (logits * keys.shape[-1] ** -0.5).masked_fill_(ends > grid.rows[part, None], -torch.inf)
            blocks = grid.folded(logits, -torch.inf)  # [Hq, i, b, J]
            best.append(blocks.amax(2))
            sums.append((blocks - best[-1].nan_to_num(neginf=0.0)[:, :, None]).exp_().sum(2))
        top = torch.cat(best, 1)
        seen = top > -torch.inf
        highest = top.amax(-1, keepdim=True).nan_to_num(neginf=0.0)
        score = torch.cat(sums, 1) * (top - highest).exp()
        return (score / score.sum(-1, keepdim=True).clamp(min=1e-9)).masked_fill_(~seen, -1.0)

    def operations(self, heads: int, rows: int, length: int, width: int) -> int:
        return heads * rows * -(-length // self.block) * width

"""FlashPrefill: keep blocks whose score is near the maximum of their row."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from workbench.core.kv import Derived
from workbench.core.tiling import tile_selection
from workbench.methods.sparse import Grid, Site, Sparse, TileRule, Tiles, count, fraction, fused


@dataclass(frozen=True)
class FlashPrefill(Sparse):
    r"""Keep a block if its score is at least `alpha` times the largest of its row.

    *Follows released code: `ops/flashprefill_native_forward.py` of qhfan/FlashPrefill.*

    Each query is scored against the mean key of every block that lies completely before it; scores are summed over a
    query block.

    block    tokens of a block
    alpha    published: 0.01 (Llama-3.1-8B) and 0.12 (Qwen3-30B-A3B) alone, 0.06 with CompactAttention
    sink     number of first blocks kept
    window   number of blocks kept that end with a row's own
    tail     number of last query blocks of the prompt that keep every block

    With $\bar k_j$ the mean key of block $j$, kept if $S_{ij} \ge \alpha \max_{j'} S_{ij'}$:

    $$S_{ij} = \sum_{q \in i} \exp \left( \frac{q \cdot \bar k_j}{\sqrt{D}} \right)$$
    """

    REPLAYS = True
    THRESHOLD = "alpha"
    STEPS = (0.9, 0.7, 0.5, 0.3, 0.2, 0.1, 0.05, 0.02, 0.01, 0.001)

    block: int = count(128, least=1)
    alpha: float = fraction(0.01, zero=True)
    sink: int = count(2)
    window: int = count(4, least=1)
    tail: int = count(2)

    def rule(self, length: int) -> TileRule:
        """Return the selection rule for a prompt of `length` tokens."""
        tail = (-(-length // self.block) - self.tail) * self.block if self.tail else None
        return TileRule(
            self.block, self.block, part=self.alpha, whole=True, local=self.window - 1, sink=self.sink, tail=tail
        )

    @property
    def rows_together(self) -> int:
        return self.block

    def choose(self, queries: Tensor, keys: Tensor, grid: Grid, site: Site) -> Tiles:
        rule = self.rule(grid.length if site.length is None else site.length)
        means = {"means": partial(self._means, keys, grid, site, site.derived)} if site.derived else {}
        kept = fused("choose_flash_prefill", queries, keys, grid.rows, rule, **means)
        if kept is None:
            score = tile_selection.flash_prefill(queries, keys, grid.rows, self.block)
            kept = tile_selection.tiles_kept_by(score, grid.rows, grid.length, rule, logits=True)
        return Tiles(kept, self.block)

    def _means(self, keys: Tensor, grid: Grid, site: Site, derived: Derived, kernel: Any) -> Any:
        """Return the kernel's mean keys of all blocks; those of earlier chunks are cached with the keys."""
        length, name = keys.shape[1], ("mean keys", self.block)
        if site.replayed:
            means = derived.get_buffer(name, lambda: kernel.pooled(keys[None], self.block))
            return kernel.pooled(keys[None], self.block, means, grid.rows)

        def complete(means: Any, first: int) -> Any:
            if means is not None and means.high.shape[2] * self.block < length:  # longer than announced
                means, first = None, 0
            return kernel.pooled(keys[None], self.block, means, first, capacity=site.length or length)

        return derived.get_updated(name, length, complete)

    def scores(self, queries: Tensor, keys: Tensor, grid: Grid) -> Tensor:
        """Return S normalised over j, [Hq, I, J] fp32; -1 if no row of the query block is after the whole key block."""
        logits = tile_selection.flash_prefill(queries, keys, grid.rows, self.block)
        return logits.softmax(-1).masked_fill_(logits == -torch.inf, -1.0)

    def operations(self, heads: int, rows: int, length: int, width: int) -> int:
        return heads * rows * -(-length // self.block) * width

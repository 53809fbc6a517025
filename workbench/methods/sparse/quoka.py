"""QUOKA (arXiv:2602.08722): tokens that a few unlike queries of the chunk look at; for chunked prefill."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from workbench.core import tile_grid as grids
from workbench.methods.sparse import Grid, Site, Sparse, Tiles, count, fraction, word


@dataclass(frozen=True)
class Quoka(Sparse):
    r"""Per KV head, the share `keep` of the past tokens; the chunk itself is seen in whole.

    Of each head the share `queries` of the chunk's rows with the lowest cosine to their mean query vote.

    group    what is averaged over the heads of a GQA group. "queries": the voting queries, made unit vectors, the n-th
             most unlike of each head with the n-th of the others; a past token scores the largest product of any of
             these means with its unit key. So the paper (algorithm 1, lines 6 to 8), as CompactAttention's released
             code carries it out. "scores": every head's own largest cosine, what `quoka` meant in earlier versions

    The past is what is not computed now: of a whole prompt nothing, so that only chunked prefill (or cached blocks)
    is made sparse. `block` tokens are a page, where the choice is carried out in pages.

    With $V$ the voting queries, means over the heads of a group of unit vectors:

    $$s_t = \max_{q \in V} \frac{q \cdot k_t}{\lVert k_t \rVert}$$
    """

    THRESHOLD = "keep"
    STEPS = (0.05, 0.1, 0.15, 0.25, 0.35, 0.5, 0.7, 0.9)

    queries: float = fraction(0.25)
    keep: float = fraction(0.25, zero=True)
    block: int = count(128, least=1)
    group: str = word("queries", "scores")

    def choose(self, queries: Tensor, keys: Tensor, grid: Grid, site: Site) -> Tiles:
        chosen = torch.zeros(len(keys), grid.length, dtype=torch.bool, device=keys.device)
        past = ~chosen[0].index_fill(0, grid.rows, True)
        count = round(self.keep * int(past.sum()))
        score = self.scores(queries, keys).masked_fill(~past, -torch.inf)
        best = score.sort(dim=-1, descending=True, stable=True).indices[:, :count]
        chosen.scatter_(1, best, True)
        nothing = torch.zeros(1, *grid.shape, dtype=torch.bool, device=keys.device)
        return grid.tiles(nothing, len(queries), chosen | ~past)

    def scores(self, queries: Tensor, keys: Tensor) -> Tensor:
        """[H, T] fp32: what every key scores with the best of the votes, one of the GQA group's or of each head's."""
        unit, theirs = normalize(queries.float(), dim=-1), normalize(keys.float(), dim=-1)
        alike = (unit @ normalize(queries.float().mean(1), dim=-1)[..., None])[..., 0]  # [Hq, R]
        votes = max(1, round(self.queries * queries.shape[1]))
        unlike = alike.sort(dim=-1, stable=True).indices[:, :votes]
        ours = unit.gather(1, unlike[..., None].expand(-1, -1, unit.shape[-1])).unflatten(0, (len(keys), -1))
        if self.group == "queries":
            ours = ours.mean(1, keepdim=True)  # [H, 1, votes, D]
        best = unit.new_full((*ours.shape[:2], keys.shape[1]), -torch.inf)
        for some in ours.split(max(1, grids.ELEMENTS // (len(queries) * keys.shape[1])), 2):
            best = torch.maximum(best, (some @ theirs[:, None].mT).amax(2))
        return best.mean(1)

    def operations(self, heads: int, rows: int, length: int, width: int) -> int:
        """As if every head voted by itself; votes of a GQA group cost as many times less as it has heads."""
        return heads * width * (rows + round(self.queries * rows) * length)

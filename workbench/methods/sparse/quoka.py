"""QUOKA (arXiv:2602.08722): tokens that a few unlike queries of the chunk look at; for chunked prefill."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import normalize

from workbench.core.tiling import tiles as grids
from workbench.engine.attention_backends import choice as backends
from workbench.engine.attention_backends.listed_columns import rising
from workbench.methods.sparse import Grid, Site, Sparse, Tiles, count, fraction, on_gpu, word


@dataclass(frozen=True)
class Quoka(Sparse):
    r"""Per KV head, the share `keep` of the past tokens; the chunk itself is seen in whole.

    *Follows the paper, and where it leaves choices open a reimplementation: `compact_attn/modules/quoka_prefill.py` of
    jiwonsong-dev/CompactAttention at 4ed4d7d; no code of its authors was found.*

    Of each head the share `queries` of the chunk's rows with the lowest cosine to their mean query vote.

    group    what is averaged over the heads of a GQA group. "queries": the voting queries, made unit vectors, the n-th
             most unlike of each head with the n-th of the others; a past token scores the largest product of any of
             these means with its unit key. So the paper (algorithm 1, lines 6 to 8), as that code carries it out.
             "scores": every head's own largest cosine, what `quoka` meant in earlier versions

    On a GPU the tokens of a chunk are attended to in a copy, where the chunk begins with a page.

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

    @property
    def replays(self) -> bool:
        return self.group == "queries"

    def choose(self, queries: Tensor, keys: Tensor, grid: Grid, site: Site) -> Tiles:
        if site.replayed:
            return self._in_replay(queries, keys, grid)
        past = ~torch.zeros(grid.length, dtype=torch.bool, device=keys.device).index_fill_(0, grid.rows, True)
        count = round(self.keep * (grid.length - len(grid.rows)))  # known on the host without synchronization
        module = backends.kernel("choose_quoka")
        votes = self.votes(queries, len(keys))
        places: Tensor | None = None
        if self.group == "queries" and on_gpu(keys) and module.takes(votes, keys):
            places, chosen = (x[0] for x in module.listed(votes[None, :, 0], keys[None], past[None], count))
        else:
            chosen = module.best(self.scores(queries, keys)[None], past[None], count)[0]
        nothing = torch.zeros(1, *grid.shape, dtype=torch.bool, device=keys.device)
        seen, own = chosen | ~past, len(grid.rows)
        tiles = grid.tiles(nothing, len(queries), seen)
        if site.last and (grid.length - own) % self.block == 0:  # no tile has both rows and past tokens
            if places is None:
                return replace(tiles, listed=rising(seen, count + own))
            return replace(tiles, listed=torch.cat((places.long(), grid.rows.expand(len(places), -1)), 1))
        return tiles

    def _in_replay(self, queries: Tensor, keys: Tensor, grid: Grid) -> Tiles:
        """Choose in a replay: the number of past tokens is on the device only, so lists have room for a whole prompt.

        Behind the chosen tokens and the rows themselves, entries are filled with tokens beyond the prompt.
        """
        module, first = backends.kernel("choose_quoka"), grid.rows[:1]
        past = (torch.arange(grid.length, device=keys.device) < first)[None]
        needed = (self.keep * first.double()).round().int()
        room = round(self.keep * grid.length) + len(grid.rows)
        votes = self.votes(queries, len(keys))[None, :, 0]
        places = module.listed(votes, keys[None], past, room, needed)[0][0]
        nothing = torch.zeros(1, 1, 1, dtype=torch.bool, device=keys.device).expand(len(queries), *grid.shape)
        return Tiles(nothing, grid.size, listed=module.with_rows(places, needed, grid.rows, grid.length))

    def votes(self, queries: Tensor, kv_heads: int) -> Tensor:
        """Return the votes for tokens of each KV head: [H, 1, V, D] or [H, Hq / H, V, D] (fp32)."""
        count = max(1, round(self.queries * queries.shape[1]))
        if self.group == "queries" and on_gpu(queries):
            made: Tensor = backends.kernel("choose_quoka").votes_of(queries, kv_heads, count)
            return made[:, None]
        unit = normalize(queries.float(), dim=-1)
        alike = (unit @ normalize(queries.float().mean(1), dim=-1)[..., None])[..., 0]  # [Hq, R]
        unlike = alike.sort(dim=-1, stable=True).indices[:, :count]
        ours = unit.gather(1, unlike[..., None].expand(-1, -1, unit.shape[-1])).unflatten(0, (kv_heads, -1))
        return ours.mean(1, keepdim=True) if self.group == "queries" else ours

    def scores(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Return the score [H, T] (fp32) of every key: its largest product with a vote."""
        ours, theirs = self.votes(queries, len(keys)), normalize(keys.float(), dim=-1)
        best = ours.new_full((*ours.shape[:2], keys.shape[1]), -torch.inf)
        for some in ours.split(max(1, grids.ELEMENTS // (len(queries) * keys.shape[1])), 2):
            best = torch.maximum(best, (some @ theirs[:, None].mT).amax(2))
        return best.mean(1)

    def operations(self, heads: int, rows: int, length: int, width: int) -> int:
        """Return the multiply-adds as if every head voted by itself; votes of a GQA group cost less by its size."""
        return heads * width * (rows + round(self.queries * rows) * length)

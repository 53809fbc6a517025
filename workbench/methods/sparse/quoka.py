"""QUOKA (arXiv:2602.08722): select past tokens by the most dissimilar queries of a chunk; for chunked prefill."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import normalize

from workbench.core.tiling import tiles as grids
from workbench.engine.attention_backends import choice as backends
from workbench.engine.attention_backends.listed_columns import rising_indices
from workbench.methods.sparse import Grid, Site, Sparse, Tiles, count, fraction, on_gpu, word


@dataclass(frozen=True)
class Quoka(Sparse):
    r"""Per KV head, keep the share `keep` of the past tokens; the chunk itself is kept completely.

    *Follows the paper, and where it leaves choices open a reimplementation: `compact_attn/modules/quoka_prefill.py` of
    jiwonsong-dev/CompactAttention at 4ed4d7d; no code of its authors was found.*

    In each head, the share `queries` of the chunk's queries with the lowest cosine to their mean vote.

    group    what is averaged over the heads of a GQA group. "queries": the voting queries, normalized, the n-th most
             dissimilar of each head with the n-th of the others; the score of a past token is the largest product of
             any of these means with its normalized key (the paper's algorithm 1, lines 6 to 8, as implemented in that
             code). "scores": every head's own largest cosine, the meaning of `quoka` in earlier versions

    On a GPU, the selected tokens are copied before attention if the chunk starts at a page boundary.

    The past are tokens that are not computed in this pass. A prompt in one pass has none, so only chunked prefill (or
    cached blocks) becomes sparse. A page has `block` tokens, if the selection is executed in pages.

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
                return replace(tiles, listed=rising_indices(seen, count + own))
            return replace(tiles, listed=torch.cat((places.long(), grid.rows.expand(len(places), -1)), 1))
        return tiles

    def _in_replay(self, queries: Tensor, keys: Tensor, grid: Grid) -> Tiles:
        """Select in a replay: the number of past tokens is on the device only, so lists have room for a whole prompt.

        Entries after the selected tokens and the rows themselves are padded with tokens beyond the prompt.
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
            fused: Tensor = backends.kernel("choose_quoka").votes_of(queries, kv_heads, count)
            return fused[:, None]
        unit = normalize(queries.float(), dim=-1)
        cosine = (unit @ normalize(queries.float().mean(1), dim=-1)[..., None])[..., 0]  # [Hq, R]
        lowest = cosine.sort(dim=-1, stable=True).indices[:, :count]
        votes = unit.gather(1, lowest[..., None].expand(-1, -1, unit.shape[-1])).unflatten(0, (kv_heads, -1))
        return votes.mean(1, keepdim=True) if self.group == "queries" else votes

    def scores(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Return the score [H, T] (fp32) of every key: its largest product with a vote."""
        votes, unit_keys = self.votes(queries, len(keys)), normalize(keys.float(), dim=-1)
        best = votes.new_full((*votes.shape[:2], keys.shape[1]), -torch.inf)
        for some in votes.split(max(1, grids.ELEMENTS // (len(queries) * keys.shape[1])), 2):
            best = torch.maximum(best, (some @ unit_keys[:, None].mT).amax(2))
        return best.mean(1)

    def operations(self, heads: int, rows: int, length: int, width: int) -> int:
        """Return the multiply-adds with votes per head; votes per GQA group need fewer by a factor of its size."""
        return heads * width * (rows + round(self.queries * rows) * length)

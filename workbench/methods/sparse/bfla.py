"""Block-Filtered Long-Context Attention (BFLA, arXiv:2605.12193)."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from workbench.core.tiling import tile_selection
from workbench.methods.sparse import (
    HERE,
    Grid,
    Site,
    Sparse,
    TileRule,
    Tiles,
    check_divides,
    count,
    fraction,
    fused,
    word,
)


@dataclass(frozen=True)
class Bfla(Sparse):
    r"""Blocks with `mass` of a softmax over pooled blocks, then local, sink and rescued tiles (section 3).

    *Follows the paper; its released code is the options `rescue=blocks` and `anchor=chunk`.*

    Defaults are the recommended row of the paper's table 5, which does not give the tile.

    block    b, tokens of a coarse block
    tile     T, tokens of an attention tile; divides b
    flat     g, adjacent tokens that are flattened to one vector of g · D channels; divides b. The score of two blocks
             is the largest product of any two of their vectors; the last block is padded with zeros
    mass     γ in (0, 1]: the fewest blocks of a query block that reach this share; a block that one head of a GQA group
             keeps is kept for the whole group
    local    number of tiles kept before a row's own (eq. 15), by absolute position
    sink     number of first tiles kept (eq. 16)
    stride   η: a dropped tile is rescued if (131 i + 17 j + seed) mod η = 0; 0: none (eq. 18)
    random   ρ: a dropped tile is rescued if ψ(h, i, j; seed) < ρ (eq. 19)
    rescue   unit of local, sink and both rescues: "tiles" (the paper), or coarse "blocks" as in the released code,
             where `local` is rounded up to blocks, at least one, and the first block is the sink
    anchor   "position": i and j count tiles from the start of the prompt (a query tile that starts inside a tile counts
             as that tile), so rescued tiles do not depend on chunks, and every row keeps its own tile. "chunk": as in
             the released code, i counts from the first row of the chunk, and the local band ends at the first row of a
             query tile; a chunk that starts inside a tile may then miss its own diagonal. The first tile is kept in
             both cases

    χ and ψ are those of the released code, since the paper does not define them; h is the KV head. The released code's
    own settings: `bfla(rescue=blocks, anchor=chunk, stride=0)`.

    Score of blocks $i$, $j$ from their vectors $\bar q_a$, $\bar k_c$ of $g$ tokens each, and the blocks kept by mass:

    $$A_{ij} = \mathrm{softmax}_j \left( \max_{a \in i,\, c \in j} \frac{\bar q_a \cdot \bar k_c}{\sqrt{D}} \right),
    \qquad \text{fewest } j \text{ with } \sum_j A_{ij} \ge \gamma$$
    """

    THRESHOLD = "mass"
    STEPS = (0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.999)

    block: int = count(256, least=1)
    tile: int = count(64, least=1)
    flat: int = count(64, least=1)
    mass: float = fraction(0.99)
    local: int = count(8)
    sink: int = count(1)
    stride: int = count(16)
    random: float = fraction(0.0, zero=True)
    seed: int = count(0)
    rescue: str = word("tiles", "blocks")
    anchor: str = word("position", "chunk")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_divides("tile", self.tile, "block", self.block)
        check_divides("flat", self.flat, "block", self.block)

    @property
    def size(self) -> int:
        return self.tile

    @property
    def rule(self) -> TileRule:
        """The selection rule (eq. 10-20)."""
        options = ("block", "tile", "mass", "local", "sink", "stride", "random", "seed")
        return TileRule(**{name: getattr(self, name) for name in options})

    @property
    def rows_together(self) -> int:
        return self.block if self.anchor == "position" else 0

    @property
    def replays(self) -> bool:
        return (self.rescue, self.anchor) == ("tiles", "position")

    def choose(self, queries: Tensor, keys: Tensor, grid: Grid, site: Site) -> Tiles:
        group, plain = len(queries) // len(keys), (self.rescue, self.anchor) == ("tiles", "position")
        kept = fused("choose_bfla", queries, keys, grid.rows, self.rule, self.flat) if plain else None
        if kept is None:
            causes = self._causes(self.blocks(queries, keys, grid.rows), grid)
            kept = torch.stack(torch.broadcast_tensors(*causes.values())).any(0) & grid.causal
            kept = (kept if self.anchor == "chunk" else kept | grid.own_tiles).repeat_interleave(group, 0)
        return Tiles(kept, self.tile, shared=group)

    def _causes(self, found: Tensor, grid: Grid) -> dict[str, Tensor]:
        """Return {reason: kept tiles}, bool, [H, I, J] or broadcastable to it, from blocks with mass [H, Lq, Lkv]."""
        rule, wide = self.rule, 1
        if self.rescue == "blocks":
            wide = self.block // self.tile
            local, sink = (max(1, -(-tiles // wide)) for tiles in (self.local, self.sink))
            rule = replace(rule, tile=self.block, local=local, sink=sink)
        unit = Grid(grid.rows, grid.length, rule.tile)
        causes = tile_selection.tiles_by_reason(found, unit, rule)
        if self.anchor == "chunk":
            causes |= _chunk_causes(found, unit, rule)
        if wide == 1:
            return causes
        coarse = {name: x.expand(-1, *unit.shape) for name, x in causes.items()}
        fine = {name: x.repeat_interleave(wide, 1).repeat_interleave(wide, 2) for name, x in coarse.items()}
        return {name: x[:, : grid.shape[0], : grid.shape[1]] for name, x in fine.items()}

    def tiles_by_reason(self, queries: Tensor, keys: Tensor, rows: Tensor, site: Site = HERE) -> dict[str, Tensor]:
        """Return {reason: kept tiles [Hq, I, J] (bool)} for "mass", "local", "sink", "stride" and "random".

        Only causal tiles are set. Reasons may overlap, but a rescue ("stride", "random") counts only for tiles that no
        earlier reason keeps (eq. 17).
        """
        grid, causes = Grid(rows, keys.shape[1], self.tile), {}
        before = torch.zeros(1, 1, 1, dtype=torch.bool, device=keys.device)
        for name, kept in self._causes(self.blocks(queries, keys, rows), grid).items():
            kept = kept & grid.causal
            causes[name] = (kept & ~before if name in ("stride", "random") else kept).expand(len(keys), -1, -1)
            before = before | kept
        group = len(queries) // len(keys)
        return {name: kept.repeat_interleave(group, 0) for name, kept in causes.items() if name != "tail"}

    def operations(self, heads: int, rows: int, length: int, width: int) -> int:
        """Return the multiply-adds of the selection, Hq Nq Nkv C / g (equation 24)."""
        return heads * rows * length * width // self.flat

    def blocks(self, queries: Tensor, keys: Tensor, rows: Tensor) -> Tensor:
        """Return [H, Lq, Lkv] bool: coarse blocks kept by mass for any head of the group (eq. 12)."""
        score = tile_selection.bfla(queries, keys, self.block, self.flat)
        blocks = Grid(rows, keys.shape[1], self.block)
        return tile_selection.blocks_by_weight(score, blocks, self.rule, len(queries) // len(keys), logits=True)

    def shares(self, queries: Tensor, keys: Tensor, rows: Tensor) -> Tensor:
        """Return block probabilities 𝒜 [Hq, Lq, Lkv] fp32 (eq. 3-9)."""
        score = tile_selection.bfla(queries, keys, self.block, self.flat)
        return score.masked_fill_(~Grid(rows, keys.shape[1], self.block).causal, -torch.inf).softmax(-1)


def _chunk_causes(found: Tensor, unit: Grid, rule: TileRule) -> dict[str, Tensor]:
    """Return the causes as in the released code, which counts rows from the start of the chunk, in tiles or blocks."""
    chunk = Grid(torch.arange(len(unit.rows), device=unit.rows.device), unit.length, unit.size)
    hashed = tile_selection.tiles_by_reason(found, chunk, rule)
    begin = unit.first_positions[:, None] // unit.size
    local = (unit.columns <= begin) & (unit.columns >= begin - rule.local)
    sink = (unit.columns < max(1, rule.sink))[None, None]
    return {"local": local[None], "sink": sink, "stride": hashed["stride"], "random": hashed["random"]}

"""Block-Filtered Long-Context Attention (BFLA, arXiv:2605.12193)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from workbench import grid as grids
from workbench.grid import Grid, folded
from workbench.plan import Site
from workbench.sparse import HERE, Sparse, check_count, check_divides, check_share, smallest
from workbench.tiles import Tiles


@dataclass(frozen=True)
class Bfla(Sparse):
    """Blocks that hold `mass` of a softmax over pooled blocks; then local, sink and rescued tiles (section 3).

    Defaults are the paper's recommended row of table 5; it does not say its tile.

    block    tokens of a coarse block, b
    tile     tokens of an attention tile, T; divides b
    flat     neighbouring tokens that are flattened to one vector of g · D channels, g; divides b. A block scores the
             largest product of any two of its vectors with another's; the last block is padded with zeros
    mass     γ in (0, 1]: fewest blocks of a query block that hold this share, the first to cross it included; a block
             that one head of a GQA group keeps is kept for all of them
    local    tiles before a row's own that are kept (eq. 15), by absolute position
    sink     tiles kept at the front (eq. 16)
    stride   η: a dropped tile is rescued where (131 i + 17 j + seed) mod η = 0; 0: none (eq. 18)
    random   ρ: a dropped tile is rescued where ψ(h, i, j; seed) < ρ (eq. 19)

    In both hashes i and j count tiles from the start of the prompt (a query tile that begins inside one counts as it),
    so that they rescue the same tiles whatever the chunks; h is the KV head.
    """

    DIAL = "mass"
    STEPS = (0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.999)

    block: int = 256
    tile: int = 64
    flat: int = 64
    mass: float = 0.99
    local: int = 8
    sink: int = 1
    stride: int = 16
    random: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        check_divides("tile", self.tile, "block", self.block)
        check_divides("flat", self.flat, "block", self.block)
        check_share("mass", self.mass)
        check_share("random", self.random, zero=True)
        for name in ("local", "sink", "stride", "seed"):
            check_count(name, getattr(self, name))

    @property
    def size(self) -> int:
        return self.tile

    def choose(self, queries: Tensor, keys: Tensor, grid: Grid, site: Site) -> Tiles:
        kept = torch.stack(torch.broadcast_tensors(*self._causes(queries, keys, grid).values())).any(0)
        return grid.tiles(kept, len(queries))

    def causes(self, queries: Tensor, keys: Tensor, rows: Tensor, site: Site = HERE) -> dict[str, Tensor]:
        """Why a tile is kept: [Hq, I, J] bool of "mass", "local", "sink", "stride" and "random", causal tiles only.

        They overlap; a rescue is counted only where nothing before it in this order keeps the tile (eq. 17).
        """
        grid, found = Grid(rows, keys.shape[1], self.tile), {}
        before = torch.zeros(1, 1, 1, dtype=torch.bool, device=keys.device)
        for name, kept in self._causes(queries, keys, grid).items():
            kept = kept & grid.causal
            found[name] = (kept & ~before if name in ("stride", "random") else kept).expand(len(keys), -1, -1)
            before = before | kept
        return {name: kept.repeat_interleave(len(queries) // len(keys), 0) for name, kept in found.items()}

    def operations(self, heads: int, rows: int, length: int, width: int) -> int:
        """Equation 24: Hq Nq Nkv C / g."""
        return heads * rows * length * width // self.flat

    def _causes(self, queries: Tensor, keys: Tensor, grid: Grid) -> dict[str, Tensor]:
        coarse, wide = self.blocks(queries, keys, grid.rows), self.block // self.tile
        fine = coarse.repeat_interleave(wide, 1).repeat_interleave(wide, 2)  # eq. 14
        return {
            "mass": fine[:, : grid.shape[0], : grid.shape[1]],
            "local": grid.near(self.local)[None],
            "sink": (grid.columns < self.sink)[None, None],
            "stride": self._strided(grid)[None],
            "random": self._drawn(grid, len(keys)),
        }

    def blocks(self, queries: Tensor, keys: Tensor, rows: Tensor) -> Tensor:
        """[H, Lq, Lkv] bool: coarse blocks kept by mass for any head of the group (eq. 12)."""
        share = self.shares(queries, keys, rows)
        return smallest(share, self.mass).unflatten(0, (len(keys), -1)).any(1)

    def shares(self, queries: Tensor, keys: Tensor, rows: Tensor) -> Tensor:
        """[Hq, Lq, Lkv] fp32: block probabilities 𝒜 (eq. 3-9)."""
        blocks = Grid(rows, keys.shape[1], self.block)
        ours, theirs = (self._vectors(x) for x in (queries, keys))
        groups, group = self.block // self.flat, len(queries) // len(keys)
        step, found = max(1, grids.ELEMENTS // (group * groups * theirs.shape[1])) * groups, []
        for head, key in enumerate(theirs):
            mine, parts = ours[head * group : (head + 1) * group], []
            for at in range(0, ours.shape[1], step):
                products = (mine[:, at : at + step] @ key.mT).unflatten(1, (-1, groups)).unflatten(-1, (-1, groups))
                parts.append(products.amax((2, 4)))
            found.append(torch.cat(parts, 1))
        score = torch.cat(found)
        return (score * queries.shape[-1] ** -0.5).masked_fill_(~blocks.causal, -torch.inf).softmax(-1)

    def _vectors(self, x: Tensor) -> Tensor:
        """[H, blocks · b / g, g · D] fp32"""
        return folded(x, self.block).flatten(1, 2).unflatten(1, (-1, self.flat)).flatten(2)

    def _strided(self, grid: Grid) -> Tensor:
        """[I, J]"""
        if not self.stride:
            return torch.zeros(grid.shape, dtype=torch.bool, device=grid.rows.device)
        i = grid.first[:, None] // self.tile
        return (131 * i + 17 * grid.columns + self.seed) % self.stride == 0

    def _drawn(self, grid: Grid, heads: int) -> Tensor:
        """[H, I, J]"""
        if not self.random:
            return torch.zeros(1, *grid.shape, dtype=torch.bool, device=grid.rows.device)
        h = torch.arange(heads, device=grid.rows.device)[:, None, None]
        i = grid.first[:, None] // self.tile
        mixed = (i + 1) * 1103515245 + (grid.columns + 1) * 12345 + (h + 1) * 2654435761 + self.seed
        return (mixed & 0x7FFFFFFF) % 1_000_000 < self.random * 1_000_000

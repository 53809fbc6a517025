"""From weights of blocks to kept tiles: the rule that BFLA, FlashPrefill and XAttention share, in torch.

On a GPU `kernels/_select/keep.py` carries a `Rule` out in one launch; the results are the same up to ties.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from workbench.core.tiling.tile_grid import Grid


@dataclass(frozen=True, eq=False)
class TileRule:
    """Which tiles of `tile` tokens are kept, given a weight for every pair of blocks of `block` tokens.

    mass     fewest blocks that hold this share of the weights of a row, the one that crosses it included: a number, or
             one for every query head [Hq]; None: blocks of at least `part` times the largest weight of the row
    first    a row's own blocks and the first one count before all others
    whole    a block has a weight where some row sees all of it (else: any of it)
    local    tiles before a row's own that are kept; its own always are
    sink     tiles at the front that are kept
    tail     a query tile with a row at this position or behind it keeps everything; None: none does
    stride, random, seed    rescued tiles, see `workbench.methods.sparse.bfla.Bfla`
    """

    block: int
    tile: int
    mass: float | Tensor | None = None
    part: float = 0.0
    first: bool = False
    whole: bool = False
    local: int = 0
    sink: int = 0
    tail: int | None = None
    stride: int = 0
    random: float = 0.0
    seed: int = 0


def smallest(weights: Tensor, share: float | Tensor, first: Tensor | None = None) -> Tensor:
    """Bool like `weights` [..., J]: the fewest that hold `share` of the row's sum, the one that crosses it included.

    Those in `first` are taken before all others and counted. A share of 1 takes all. Equal weights: the earlier.
    """
    exact = weights.double()
    ranked = exact if first is None else exact.masked_fill(first, torch.inf)
    order = ranked.sort(dim=-1, descending=True, stable=True).indices
    sums = exact.gather(-1, order).cumsum(-1)
    before = torch.nn.functional.pad(sums[..., :-1], (1, 0))
    part = torch.as_tensor(share, dtype=torch.float64, device=weights.device)
    taken = (before < part * sums[..., -1:]) | (part >= 1)
    kept = torch.zeros_like(taken).scatter_(-1, order, taken)
    return kept if first is None else kept | first


def kept(weights: Tensor, rows: Tensor, length: int, rule: TileRule, group: int = 1, logits: bool = False) -> Tensor:
    """Return [Hq, I, J] bool: what `rule` keeps by weights [Hq, I', J'] of the blocks of rows [R] over `length` keys.

    weights   at least 0, or any where they are `logits`; where no row sees the block they are not read
    group     neighbouring heads that choose together: what one of them keeps is kept for all
    """
    grid = Grid(rows, length, rule.tile)
    found = causes(chosen(weights, Grid(rows, length, rule.block), rule, group, logits), grid, rule)
    return grid.tiles(torch.stack(torch.broadcast_tensors(*found.values())).any(0), len(weights)).kept


def chosen(weights: Tensor, blocks: Grid, rule: TileRule, group: int = 1, logits: bool = False) -> Tensor:
    """Return [H, I', J'] bool: blocks that any head of a group keeps for their weight."""
    seen = (blocks.columns + 1) * rule.block - 1 <= blocks.last[:, None] if rule.whole else blocks.causal
    if logits:
        weights = weights.masked_fill(~seen, -torch.inf).softmax(-1)
    weights = weights.masked_fill(~seen, 0)
    if rule.mass is None:
        found = (weights >= rule.part * weights.amax(-1, keepdim=True)) & seen
    else:
        share = torch.as_tensor(rule.mass, dtype=torch.float64, device=weights.device).view(-1, 1, 1)
        found = smallest(weights, share, blocks.own | (blocks.columns == 0) if rule.first else None)
    return found.unflatten(0, (-1, group)).any(1)


def causes(found: Tensor, grid: Grid, rule: TileRule) -> dict[str, Tensor]:
    """Return why tiles of `grid` are kept: [H, I, J] bool each, or what broadcasts to it.

    `found` [H, I', J'] are blocks.
    """
    wide = rule.block // rule.tile
    fine = found.repeat_interleave(wide, 1).repeat_interleave(wide, 2)
    return {
        "mass": fine[:, : grid.shape[0], : grid.shape[1]],
        "local": grid.near(rule.local)[None],
        "sink": (grid.columns < rule.sink)[None, None],
        "tail": (grid.last >= (grid.length if rule.tail is None else rule.tail))[None, :, None],
        "stride": _strided(grid, rule)[None],
        "random": _drawn(grid, rule, len(found)),
    }


def _strided(grid: Grid, rule: TileRule) -> Tensor:
    """Return [I, J] bool: every `stride`-th tile, in another order for every `seed`."""
    if not rule.stride:
        return torch.zeros(grid.shape, dtype=torch.bool, device=grid.rows.device)
    i = grid.first[:, None] // rule.tile
    return (131 * i + 17 * grid.columns + rule.seed) % rule.stride == 0


def _drawn(grid: Grid, rule: TileRule, heads: int) -> Tensor:
    """Return [H, I, J] bool: a share `random` of the tiles, drawn by tile, head and `seed`."""
    if not rule.random:
        return torch.zeros(1, *grid.shape, dtype=torch.bool, device=grid.rows.device)
    h = torch.arange(heads, device=grid.rows.device)[:, None, None]
    i = grid.first[:, None] // rule.tile
    mixed = (i + 1) * 1103515245 + (grid.columns + 1) * 12345 + (h + 1) * 2654435761 + rule.seed
    return (mixed & 0x7FFFFFFF) % 1_000_000 < rule.random * 1_000_000

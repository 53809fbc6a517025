"""Block scores of BFLA, FlashPrefill and XAttention, and the rule that selects tiles by them, in torch.

Scores are of queries [Hq, R, D] at positions `rows` [R] over keys [H, T, D], without an N × N tensor. On a GPU the
kernels `kernels/choose_*.py` compute them, and `kernels/_select/keep.py` applies a `TileRule` in one launch, with the
same results up to ties.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from workbench.core.tiling import tiles as grids
from workbench.core.tiling.tiles import Grid, means, tokens_to_tiles


def bfla(queries: Tensor, keys: Tensor, block: int, flat: int) -> Tensor:
    """Return BFLA's block logits [Hq, Lq, Lkv] (fp32), Lq and Lkv numbers of blocks (arXiv:2605.12193, eq. 3-8).

    A logit is the largest product of a vector of the query block and a vector of the key block, times 1/sqrt(D). A
    vector is `flat` neighbouring tokens concatenated; the last block is padded with zeros.
    """
    ours, theirs = (
        tokens_to_tiles(x, block).flatten(1, 2).unflatten(1, (-1, flat)).flatten(2) for x in (queries, keys)
    )
    groups, group = block // flat, len(queries) // len(keys)
    step, found = max(1, grids.ELEMENTS // (group * groups * theirs.shape[1])) * groups, []
    for head, key in enumerate(theirs):
        mine, parts = ours[head * group : (head + 1) * group], []
        for at in range(0, ours.shape[1], step):
            products = (mine[:, at : at + step] @ key.mT).unflatten(1, (-1, groups)).unflatten(-1, (-1, groups))
            parts.append(products.amax((2, 4)))
        found.append(torch.cat(parts, 1))
    return torch.cat(found) * queries.shape[-1] ** -0.5


def flash_prefill(queries: Tensor, keys: Tensor, rows: Tensor, block: int) -> Tensor:
    """Return FlashPrefill's block logits [Hq, I, J] (fp32).

    A logit is the log-sum-exp, over the rows of block i, of query · mean key of block j / sqrt(D). Rows that may not
    attend to all of block j are excluded; -inf if none may. FlashPrefill's score is the softmax over j.
    """
    grid, found = Grid(rows, keys.shape[1], block), []
    wide, ends = means(keys, block)[:, None].mT, (grid.columns + 1) * block - 1
    for part in grid.chunks(len(queries) * grid.shape[1]):
        logits = (queries[:, part].float().unflatten(0, (len(keys), -1)) @ wide).flatten(0, 1)
        logits = (logits * keys.shape[-1] ** -0.5).masked_fill_(ends > rows[part, None], -torch.inf)
        found.append(grid.rows_to_tiles(logits, -torch.inf).logsumexp(2))  # [Hq, i, b, J]
    return torch.cat(found, 1)


def in_float8(x: Tensor) -> Tensor:
    """Round to float8 (e4m3), clamped to ±448, and back to the dtype of `x`."""
    return x.clamp(-448.0, 448.0).to(torch.float8_e4m3fn).to(x.dtype)


def xattention(queries: Tensor, keys: Tensor, rows: Tensor, block: int, stride: int) -> Tensor:
    """Return XAttention's estimate [Hq, I, J] (fp32) of the attention between blocks (arXiv:2503.16428).

    Logits are sums along the antidiagonals of stride × stride squares, scaled by 1/(sqrt(D) · stride); their softmax is
    summed over the squares of a block.
    """
    group, per, grid = len(queries) // len(keys), block // stride, Grid(rows, keys.shape[1], block)
    squares = Grid(rows, keys.shape[1], stride)
    wide, last, found = tokens_to_tiles(keys, stride).flatten(2), squares.last_positions, []
    for head, key in enumerate(wide):
        mine, parts = queries[head * group : (head + 1) * group], []
        for part in grid.chunks(-(-group * squares.shape[1] // stride)):
            ours = tokens_to_tiles(mine[:, part], stride).flip(2).flatten(2)
            ahead = squares.columns * stride > last[part.start // stride :, None][: ours.shape[1]]
            logits = (ours @ key.mT * (keys.shape[-1] ** -0.5 / stride)).masked_fill_(ahead, -torch.inf)
            share = logits.softmax(-1)
            by_key = pad(share, (0, -share.shape[-1] % per)).unflatten(-1, (-1, per)).sum(-1)
            parts.append(pad(by_key, (0, 0, 0, -by_key.shape[1] % per)).unflatten(1, (-1, per)).sum(2))
        found.append(torch.cat(parts, 1))
    return torch.cat(found)


@dataclass(frozen=True, eq=False)
class TileRule:
    """Rule that selects tiles of `tile` tokens by the weights of pairs of blocks of `block` tokens.

    mass     keep the fewest blocks that reach this share of a query block's weights: a number, or one per query head
             [Hq]; None: use `part`
    part     keep blocks of at least this share of the query block's largest weight
    first    the query block's own key blocks and the first block are ranked first, and count
    whole    only key blocks that some row may attend to completely have a weight (else: partly)
    local    number of tiles kept before a query tile's own
    sink     number of tiles kept at the front of the prompt
    tail     query tiles with a row at this position or later keep all tiles; None: none does
    stride, random, seed    additional tiles, at a stride or at random: see `workbench.methods.sparse.bfla.Bfla`
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


def fewest_reaching(weights: Tensor, share: float | Tensor, first: Tensor | None = None) -> Tensor:
    """Return the fewest entries of `weights` [..., J] that reach `share` of their sum: bool, of the same shape.

    The entry that crosses the share is included. Entries in `first` are ranked first, and count. A share of 1 selects
    everything. Among equal weights the earlier entry is selected first.
    """
    exact = weights.double()
    ranked = exact if first is None else exact.masked_fill(first, torch.inf)
    order = ranked.sort(dim=-1, descending=True, stable=True).indices
    sums = exact.gather(-1, order).cumsum(-1)
    before = torch.nn.functional.pad(sums[..., :-1], (1, 0))
    share = torch.as_tensor(share, dtype=torch.float64, device=weights.device)
    taken = (before < share * sums[..., -1:]) | (share >= 1)
    kept = torch.zeros_like(taken).scatter_(-1, order, taken)
    return kept if first is None else kept | first


def tiles_kept_by(
    weights: Tensor, rows: Tensor, length: int, rule: TileRule, group: int = 1, logits: bool = False
) -> Tensor:
    """Return the tiles [Hq, I, J] (bool) that `rule` keeps for rows [R] over `length` keys.

    weights   [Hq, I', J'] of pairs of blocks: nonnegative, or with `logits`, logits to apply softmax to
    group     number of neighbouring heads that keep the union of their selections
    """
    grid = Grid(rows, length, rule.tile)
    found = tiles_by_reason(blocks_by_weight(weights, Grid(rows, length, rule.block), rule, group, logits), grid, rule)
    return grid.tiles(torch.stack(torch.broadcast_tensors(*found.values())).any(0), len(weights)).kept


def blocks_by_weight(weights: Tensor, blocks: Grid, rule: TileRule, group: int = 1, logits: bool = False) -> Tensor:
    """Return the blocks [H, I', J'] (bool) that any query head of a group keeps by weight."""
    seen = (blocks.columns + 1) * rule.block - 1 <= blocks.last_positions[:, None] if rule.whole else blocks.causal
    if logits:
        weights = weights.masked_fill(~seen, -torch.inf).softmax(-1)
    weights = weights.masked_fill(~seen, 0)
    if rule.mass is None:
        found = (weights >= rule.part * weights.amax(-1, keepdim=True)) & seen
    else:
        share = torch.as_tensor(rule.mass, dtype=torch.float64, device=weights.device).view(-1, 1, 1)
        found = fewest_reaching(weights, share, blocks.own_tiles | (blocks.columns == 0) if rule.first else None)
    return found.unflatten(0, (-1, group)).any(1)


def tiles_by_reason(found: Tensor, grid: Grid, rule: TileRule) -> dict[str, Tensor]:
    """Return the tiles of `grid` that are kept, by reason: {reason: [H, I, J] bool, or broadcastable to it}.

    Reasons: mass (of the blocks `found` [H, I', J']), local, sink, tail, stride, random.
    """
    wide = rule.block // rule.tile
    fine = found.repeat_interleave(wide, 1).repeat_interleave(wide, 2)
    return {
        "mass": fine[:, : grid.shape[0], : grid.shape[1]],
        "local": grid.near_tiles(rule.local)[None],
        "sink": (grid.columns < rule.sink)[None, None],
        "tail": (grid.last_positions >= (grid.length if rule.tail is None else rule.tail))[None, :, None],
        "stride": _strided(grid, rule)[None],
        "random": _drawn(grid, rule, len(found)),
    }


def _strided(grid: Grid, rule: TileRule) -> Tensor:
    """Return [I, J] bool: one in `stride` tiles, in an order that depends on `seed`."""
    if not rule.stride:
        return torch.zeros(grid.shape, dtype=torch.bool, device=grid.rows.device)
    i = grid.first_positions[:, None] // rule.tile
    return (131 * i + 17 * grid.columns + rule.seed) % rule.stride == 0


def _drawn(grid: Grid, rule: TileRule, heads: int) -> Tensor:
    """Return [H, I, J] bool: a share `random` of the tiles, selected by a hash of tile, head and `seed`."""
    if not rule.random:
        return torch.zeros(1, *grid.shape, dtype=torch.bool, device=grid.rows.device)
    h = torch.arange(heads, device=grid.rows.device)[:, None, None]
    i = grid.first_positions[:, None] // rule.tile
    mixed = (i + 1) * 1103515245 + (grid.columns + 1) * 12345 + (h + 1) * 2654435761 + rule.seed
    return (mixed & 0x7FFFFFFF) % 1_000_000 < rule.random * 1_000_000

"""From weights of blocks to kept tiles: the part that choosing kernels share.

A `Rule` says which blocks are kept for their weight, and which tiles are kept besides. `launch` carries it out in one
kernel on the device: no sort (the weight at which the mass is reached is found bit by bit), no number read back.
"""

from dataclasses import dataclass
from math import ceil

import torch
from torch import Tensor

from workbench.grid import Grid

try:
    import triton
    import triton.language as tl
except ImportError:  # no Triton on this platform: `reference` still works
    triton = None

COLUMNS = 1 << 13  # most blocks of a row that the kernel takes, times the heads of a group


@dataclass(frozen=True, eq=False)
class Rule:
    """Which tiles of `tile` tokens are kept, of blocks of `block`.

    mass     fewest blocks that hold this share of the weights of a row, the one that crosses it included: a number, or
             one for every query head [Hq]; None: blocks of at least `part` times the largest weight
    first    a row's own blocks and the first one count before all others
    whole    a block has a weight where some row sees all of it (else: any of it)
    local    tiles before a row's own that are kept; sink: tiles at the front; tail: query tiles that keep everything
             have a row at this position or behind it
    stride, random, seed    rescued tiles, as `choose_bfla` says
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


def causes(kept: Tensor, grid: Grid, rule: Rule) -> dict[str, Tensor]:
    """Why a tile of `grid` is kept: [H, I, J] bool each (or what broadcasts to it), "mass" from blocks [H, I', J']."""
    wide = rule.block // rule.tile
    fine = kept.repeat_interleave(wide, 1).repeat_interleave(wide, 2)
    return {
        "mass": fine[:, : grid.shape[0], : grid.shape[1]],
        "local": grid.near(rule.local)[None],
        "sink": (grid.columns < rule.sink)[None, None],
        "tail": (grid.last[:, None] >= (grid.length if rule.tail is None else rule.tail))[None],
        "stride": _strided(grid, rule)[None],
        "random": _drawn(grid, rule, len(kept)),
    }


def _strided(grid: Grid, rule: Rule) -> Tensor:
    """[I, J]"""
    if not rule.stride:
        return torch.zeros(grid.shape, dtype=torch.bool, device=grid.rows.device)
    i = grid.first[:, None] // rule.tile
    return (131 * i + 17 * grid.columns + rule.seed) % rule.stride == 0


def _drawn(grid: Grid, rule: Rule, heads: int) -> Tensor:
    """[H, I, J]"""
    if not rule.random:
        return torch.zeros(1, *grid.shape, dtype=torch.bool, device=grid.rows.device)
    h = torch.arange(heads, device=grid.rows.device)[:, None, None]
    i = grid.first[:, None] // rule.tile
    mixed = (i + 1) * 1103515245 + (grid.columns + 1) * 12345 + (h + 1) * 2654435761 + rule.seed
    return (mixed & 0x7FFFFFFF) % 1_000_000 < rule.random * 1_000_000


def reference(weights: Tensor, rows: Tensor, length: int, rule: Rule, group: int, logits: bool) -> Tensor:
    """`launch` in torch."""
    found = []
    for one, at in zip(weights, rows, strict=True):
        kept = chosen(one, Grid(at, length, rule.block), rule, group, logits)
        grid = Grid(at, length, rule.tile)
        every = torch.broadcast_tensors(*causes(kept, grid, rule).values())
        found.append(grid.tiles(torch.stack(every).any(0), len(one)).kept)
    return torch.stack(found)


def chosen(weights: Tensor, blocks: Grid, rule: Rule, group: int, logits: bool) -> Tensor:
    """[H, I', J'] bool: blocks that any head of a group keeps for their weight [Hq, I', J']."""
    seen = (blocks.columns + 1) * rule.block - 1 <= blocks.last[:, None] if rule.whole else blocks.causal
    if logits:
        weights = weights.masked_fill(~seen, -torch.inf).softmax(-1).nan_to_num(0.0)
    weights = weights.masked_fill(~seen, 0)
    if rule.mass is None:
        kept = (weights >= rule.part * weights.amax(-1, keepdim=True)) & seen
    else:
        share = torch.as_tensor(rule.mass, device=weights.device).view(-1, 1, 1)
        kept = smallest(weights, share, blocks.own | (blocks.columns == 0) if rule.first else None)
    return kept.unflatten(0, (-1, group)).any(1)


def takes(rule: Rule, length: int, group: int) -> bool:
    """Whether the kernel carries the rule out: tiles that halve a block some times, rows that fit the registers."""
    wide = rule.block // rule.tile
    return wide & wide - 1 == 0 and _padded(-(-length // rule.block)) * triton.next_power_of_2(group) <= COLUMNS


def _padded(blocks: int) -> int:
    return max(128, triton.next_power_of_2(blocks))


if triton is not None:

    @triton.jit
    def _reaching(x, other, target, BITS: tl.constexpr):
        """[G] bits of the largest weight such that those of at least it, and `other`, hold the target."""
        bits = x.to(tl.int32, bitcast=True)
        wide = x.to(tl.float64)
        found = tl.zeros_like(other).to(tl.int32)
        for i in range(0, BITS):
            tried = found | (1 << (BITS - 1 - i))
            held = other + tl.sum(tl.where(bits >= tried[:, None], wide, 0.0), 1)
            found = tl.where(held >= target, tried, found)
        return found

    @triton.jit
    def _fewest(x, seen, forced, share, BITS: tl.constexpr):
        """[G, J] bool: `smallest` of weights x [G, J]."""
        other = tl.sum(tl.where(forced, x, 0.0).to(tl.float64), 1)
        x = tl.where(forced, 0.0, x)
        target = share * (tl.sum(x.to(tl.float64), 1) + other)
        least = _reaching(x, other, target, BITS)
        bits = x.to(tl.int32, bitcast=True)
        above, equal = bits > least[:, None], (bits == least[:, None]) & seen & ~forced
        held = other + tl.sum(tl.where(above, x, 0.0).to(tl.float64), 1)
        before = held[:, None] + (tl.cumsum(equal.to(tl.int32), 1) - 1).to(tl.float64) * x.to(tl.float64)
        return above | (equal & (before < target[:, None])) | forced | (share >= 1)[:, None]

    @triton.jit
    def _near(rows, at, end, first, last, column, count, TILE: tl.constexpr, HALVINGS: tl.constexpr):
        """Whether a row of `at` to `end` stands in the tile or in one of the `count` tiles behind it."""
        if last - first == end - 1 - at:  # rows without a gap
            found = (column >= first // TILE - count) & (column <= last // TILE)
        else:
            low, high = tl.zeros_like(column) + at, tl.zeros_like(column) + end
            for _ in range(0, HALVINGS):  # the first row at or behind the start of the tile
                middle = (low + high) // 2
                before = tl.load(rows + middle, mask=low < high, other=0) < column * TILE
                high = tl.where((low < high) & ~before, middle, high)
                low = tl.where((low < high) & before, middle + 1, low)
            row = tl.load(rows + low, mask=low < end, other=9223372036854775807)
            found = row < (column + count + 1).to(tl.int64) * TILE
        return found

    @triton.jit
    def _keep(
        weights, rows, shares, kept, count, length, blocks, first_blocks, tiles, columns, part,
        local, sink, tail, stride, limit, seed,
        GROUP: tl.constexpr, GP: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr, JP: tl.constexpr,
        MASS: tl.constexpr, LOGITS: tl.constexpr, FIRST: tl.constexpr, WHOLE: tl.constexpr, RESCUE: tl.constexpr,
        BITS: tl.constexpr, HALVINGS: tl.constexpr,
    ):  # fmt: skip
        WIDE: tl.constexpr = BLOCK // TILE
        coarse, group, request = tl.program_id(0), tl.program_id(1), tl.program_id(2)
        groups = tl.num_programs(1)
        rows += request.to(tl.int64) * count
        end = tl.minimum((coarse + 1) * BLOCK, count)
        start, last = tl.load(rows + coarse * BLOCK), tl.load(rows + end - 1)
        h, j = tl.arange(0, GP), tl.arange(0, JP)
        head = (request * groups + group).to(tl.int64) * GROUP + h
        visible = (j + 1) * BLOCK - 1 <= last if WHOLE else j * BLOCK <= last
        seen = (h < GROUP)[:, None] & (visible & (j < blocks))[None, :]
        at = weights + (head[:, None] * first_blocks + coarse) * blocks + j[None, :]
        x = tl.load(at, mask=seen, other=float("-inf") if LOGITS else 0.0)
        top = tl.max(x, 1)
        if LOGITS:
            x = tl.where(seen, tl.exp(x - tl.where(top == float("-inf"), 0.0, top)[:, None]), 0.0)
            top = tl.where(top == float("-inf"), 0.0, 1.0)
        if MASS:
            forced = seen & False
            if FIRST:
                own = _near(rows, coarse * BLOCK, end, start, last, j, 0, BLOCK, HALVINGS)
                forced = seen & (own | (j == 0))[None, :]
            share = tl.load(shares + (group * GROUP + h), mask=h < GROUP, other=0.0)
            taken = _fewest(x, seen, forced, share, BITS) & seen
        else:
            taken = seen & (x >= part * top[:, None])
        chosen = tl.max(taken.to(tl.int32), 0)
        column = j[:, None] * WIDE + tl.arange(0, WIDE)[None, :]
        for w in range(0, WIDE):
            i = coarse * WIDE + w
            if i < tiles:
                end = tl.minimum((i + 1) * TILE, count)
                start, last = tl.load(rows + i * TILE), tl.load(rows + end - 1)
                keep = (chosen[:, None] > 0) | _near(rows, i * TILE, end, start, last, column, local, TILE, HALVINGS)
                keep |= (column < sink) | (last >= tail)
                if RESCUE:
                    tile = start // TILE
                    keep |= (stride > 0) & ((131 * tile + 17 * column + seed) % tl.maximum(stride, 1) == 0)
                    mixed = (tile + 1) * 1103515245 + (column + 1).to(tl.int64) * 12345
                    mixed = (mixed + (group + 1).to(tl.int64) * 2654435761 + seed) & 0x7FFFFFFF
                    keep |= mixed.to(tl.int32) % 1000000 < limit
                keep &= column.to(tl.int64) * TILE <= last
                for g in range(0, GROUP):
                    one = ((request * groups + group).to(tl.int64) * GROUP + g) * tiles + i
                    tl.store(kept + one * columns + column, keep.to(tl.uint8), mask=column < columns)


def launch(weights: Tensor, rows: Tensor, length: int, rule: Rule, group: int, logits: bool) -> Tensor:
    """[B, Hq, I, J] bool: what `rule` keeps by weights [B, Hq, I', J'] of rows [B, R] over `length` keys.

    weights   at least 0; as `logits`, any (fp32); where no row sees the block they are not read
    group     neighbouring query heads that choose together: what one keeps is kept for all
    """
    batch, heads, coarse, blocks = weights.shape
    count = rows.shape[1]
    tiles, columns = -(-count // rule.tile), -(-length // rule.tile)
    kept = torch.empty(batch, heads, tiles, columns, dtype=torch.bool, device=weights.device)
    padded, together = _padded(blocks), triton.next_power_of_2(group)
    _keep[(coarse, heads // group, batch)](
        weights, rows.long().contiguous(), _shares(rule, heads, weights.device), kept.view(torch.uint8),
        count, length, blocks, coarse, tiles, columns, rule.part,
        rule.local, rule.sink, length if rule.tail is None else max(0, rule.tail), rule.stride,
        ceil(rule.random * 1_000_000), rule.seed,
        GROUP=group, GP=together, BLOCK=rule.block, TILE=rule.tile, JP=padded,
        MASS=rule.mass is not None, LOGITS=logits, FIRST=rule.first, WHOLE=rule.whole,
        RESCUE=bool(rule.stride or rule.random), BITS=30 if logits else 31,
        HALVINGS=rule.block.bit_length(),
        num_warps=min(16, max(1, padded * together // 256)),
    )  # fmt: skip
    return kept


def _shares(rule: Rule, heads: int, device: torch.device) -> Tensor:
    """[Hq] fp64"""
    if isinstance(rule.mass, Tensor):
        return rule.mass.double().expand(heads).contiguous()
    return torch.full((heads,), rule.mass or 0.0, dtype=torch.float64, device=device)

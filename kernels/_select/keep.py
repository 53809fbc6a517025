"""Tile selection from block scores, shared by selection kernels: `tile_selection.tiles_kept_by` in one launch.

There is no sort (the weight at which a row's mass is reached is found by bisection of its bits) and no synchronization.
"""

from math import ceil

import torch
from torch import Tensor

from workbench.core.tiling.tile_selection import TileRule
from workbench.kernels._shared.triton_import import jit, tl, triton

INT64_MAX = tl.constexpr(2**63 - 1)
FIRST_BITS, NEXT_BITS = tl.constexpr(12), tl.constexpr(4)  # bits found before each early-exit check
PER_WARP = 256  # weights of a row per warp
COLUMNS = 1 << 13  # maximum blocks per row times heads of a group


def fits(q: Tensor, keys: Tensor, rule: TileRule, group: int) -> bool:
    """Return whether the kernels support this head width, blocks of 2^n tiles, and rows of this length."""
    wide, blocks = rule.block // rule.tile, -(-keys.shape[2] // rule.block)
    if triton is None or q.shape[-1] % 16 or q.dtype != keys.dtype or wide & wide - 1:
        return False
    return bool(_padded(blocks) * triton.next_power_of_2(group) <= COLUMNS)


def _padded(blocks: int) -> int:
    return max(128, triton.next_power_of_2(blocks))


@jit
def _reaching(x, other, target, BITS: tl.constexpr):
    """Return [G] bits of the largest weight w such that `other` and all weights >= w sum to the target."""
    bits = x.to(tl.int32, bitcast=True)
    wide = x.to(tl.float64)
    found = tl.zeros_like(other).to(tl.int32)
    alike, alone = bits < 0, other < 0
    step, more, open = 0, FIRST_BITS, True
    while open:
        for _ in range(0, more):
            tried = found | tl.where(step < BITS, 1 << tl.maximum(BITS - 1 - step, 0), 0)
            held = other + tl.sum(tl.where(bits >= tried[:, None], wide, 0.0), 1)
            found = tl.where(held >= target, tried, found)
            step += 1
        more = NEXT_BITS
        # if only one weight has the bits found so far, it is the result
        alike = (bits ^ found[:, None]) >> tl.maximum(BITS - step, 0) == 0
        alone = tl.sum(alike.to(tl.int32), 1) == 1
        open = (step < BITS) & (tl.min((alone | (other >= target)).to(tl.int32), 0) == 0)
    one = tl.max(tl.where(alike, bits, 0), 1)
    found = tl.where(other >= target, 0x7FFFFFFF >> (31 - BITS), tl.where(alone, one, found))
    return found


@jit
def _fewest(x, seen, forced, share, BITS: tl.constexpr):
    """Return `tile_selection.fewest_reaching` of weights x [G, J]: [G, J] bool."""
    other = tl.sum(tl.where(forced, x, 0.0).to(tl.float64), 1)
    x = tl.where(forced, 0.0, x)
    target = share * (tl.sum(x.to(tl.float64), 1) + other)
    least = _reaching(x, other, target, BITS)
    bits = x.to(tl.int32, bitcast=True)
    above, equal = bits > least[:, None], (bits == least[:, None]) & seen & ~forced
    held = other + tl.sum(tl.where(above, x, 0.0).to(tl.float64), 1)
    before = held[:, None] + (tl.cumsum(equal.to(tl.int32), 1) - 1).to(tl.float64) * x.to(tl.float64)
    return above | (equal & (before < target[:, None])) | forced | (share >= 1)[:, None]


@jit
def near(rows, at, end, first, last, column, count, TILE: tl.constexpr, HALVINGS: tl.constexpr):
    """Return whether one of the rows `at` to `end` is in the tile or in one of the `count` tiles after it."""
    if last - first == end - 1 - at:  # contiguous rows
        found = (column >= first // TILE - count) & (column <= last // TILE)
    else:
        low, high = tl.zeros_like(column) + at, tl.zeros_like(column) + end
        for _ in range(0, HALVINGS):  # binary search for the first row at or after the start of the tile
            middle = (low + high) // 2
            before = tl.load(rows + middle, mask=low < high, other=0) < column * TILE
            high = tl.where((low < high) & ~before, middle, high)
            low = tl.where((low < high) & before, middle + 1, low)
        row = tl.load(rows + low, mask=low < end, other=INT64_MAX)
        found = row < (column + count + 1).to(tl.int64) * TILE
    return found


@jit
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
    largest = tl.max(x, 1)
    if LOGITS:
        x = tl.where(seen, tl.exp(x - tl.where(largest == float("-inf"), 0.0, largest)[:, None]), 0.0)
        largest = tl.where(largest == float("-inf"), 0.0, 1.0)
    if MASS:
        forced = seen & False
        if FIRST:
            own = near(rows, coarse * BLOCK, end, start, last, j, 0, BLOCK, HALVINGS)
            forced = seen & (own | (j == 0))[None, :]
        share = tl.load(shares + (group * GROUP + h), mask=h < GROUP, other=0.0)
        taken = _fewest(x, seen, forced, share, BITS) & seen
    else:
        taken = seen & (x >= part * largest[:, None])
    chosen = tl.max(taken.to(tl.int32), 0)
    column = j[:, None] * WIDE + tl.arange(0, WIDE)[None, :]
    for w in range(0, WIDE):
        i = coarse * WIDE + w
        if i < tiles:
            end = tl.minimum((i + 1) * TILE, count)
            start, last = tl.load(rows + i * TILE), tl.load(rows + end - 1)
            keep = (chosen[:, None] > 0) | near(rows, i * TILE, end, start, last, column, local, TILE, HALVINGS)
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


def carry_out(weights: Tensor, rows: Tensor, length: int, rule: TileRule, group: int, logits: bool) -> Tensor:
    """Apply `tile_selection.tiles_kept_by` to fp32 weights [B, Hq, I', J'] of rows [B, R] -> [B, Hq, I, J] bool."""
    batch, heads, coarse, blocks = weights.shape
    count = rows.shape[1]
    tiles, columns = -(-count // rule.tile), -(-length // rule.tile)
    kept = torch.empty(batch, heads, tiles, columns, dtype=torch.bool, device=weights.device)
    shares = weights  # not read without a mass
    if isinstance(rule.mass, Tensor):
        shares = rule.mass.double().expand(heads).contiguous()
    elif rule.mass is not None:  # without the synchronization of a copy
        shares = torch.full((heads,), rule.mass, dtype=torch.float64, device=weights.device)
    padded, together = _padded(blocks), triton.next_power_of_2(group)
    tensors = weights, rows.long().contiguous(), shares, kept.view(torch.uint8)
    sizes = count, length, blocks, coarse, tiles, columns
    tail = length if rule.tail is None else max(0, rule.tail)
    rules = rule.part, rule.local, rule.sink, tail, rule.stride, ceil(rule.random * 1_000_000), rule.seed
    constants = {"GROUP": group, "GP": together, "BLOCK": rule.block, "TILE": rule.tile, "JP": padded}
    constants |= {"MASS": rule.mass is not None, "LOGITS": logits, "FIRST": rule.first, "WHOLE": rule.whole}
    constants |= {"RESCUE": bool(rule.stride or rule.random), "BITS": 30 if logits else 31}
    constants |= {"HALVINGS": rule.block.bit_length(), "num_warps": min(16, max(1, padded * together // PER_WARP))}
    _keep[(coarse, heads // group, batch)](*tensors, *sizes, *rules, **constants)
    return kept

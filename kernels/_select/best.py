"""Top-k indices by radix select, without a sort.

    best(scores [N, T] fp32, count) -> ([N, count] int32 places, rising, [N, T] bool)

Among equal numbers the earlier ones are selected; nan ranks above all numbers. Numbers are mapped to integers of the
same order. The k-th largest is found in four launches, eight bits at a time: each counts the digits of the numbers that
share the bits known so far. Two more launches count and write the numbers above it.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from workbench.kernels._shared.triton_import import jit, need_triton, tl, triton

BLOCK = 2048  # numbers per program
PLACES, DIGITS = tl.constexpr(4), tl.constexpr(256)  # digits per number, values per digit


def reference(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Compute `launch` in torch, with a stable sort."""
    order = scores.sort(dim=-1, descending=True, stable=True)
    places = order.indices[:, :count].sort(-1).values
    return places.int(), torch.zeros_like(scores, dtype=torch.bool).scatter_(1, places, True)


@jit
def _whole(scores, row, token, length):
    """Load scores as integers of the same order, with a mask of the valid ones."""
    there = token < length
    x = tl.load(scores + row * length + token, mask=there, other=0.0)
    bits = tl.where(x == 0.0, 0.0, x).to(tl.int32, bitcast=True)  # -0 becomes 0
    bits = tl.where(x != x, 0x7FFFFFFF, bits)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF), there


@jit
def _digit(histogram, needed):
    """Return (largest digit d such that at least `needed` numbers have digits >= d, how many of digit d are needed)."""
    digit = tl.arange(0, DIGITS)
    often = tl.load(histogram + digit)
    at_least = tl.cumsum(often, 0, reverse=True)
    found = tl.max(tl.where(at_least >= needed, digit, 0), 0)
    return found, needed - tl.sum(tl.where(digit > found, often, 0), 0)


@jit
def _least(histograms, needed, PLACES: tl.constexpr):
    """Return (leading digits of the k-th largest number as one integer, how many that share them are needed)."""
    least = 0
    for place in tl.static_range(PLACES):
        digit, needed = _digit(histograms + place * DIGITS, needed)
        least = digit - DIGITS // 2 if place == 0 else least * DIGITS + digit
    return least, needed


@jit
def _count_digits(scores, histograms, length, needed, PLACE: tl.constexpr, BLOCK: tl.constexpr, TOLD: tl.constexpr):
    """Count the digits of one place among the numbers that share all earlier digits with the k-th largest."""
    if TOLD:
        needed = tl.load(needed).to(tl.int32)
    row = tl.program_id(1).to(tl.int64)
    number, alike = _whole(scores, row, tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), length)
    histograms += row * PLACES * DIGITS
    if PLACE == 0:
        digit = (number >> 24) + DIGITS // 2
    else:
        least, needed = _least(histograms, needed, PLACE)
        alike = alike & (number >> (32 - 8 * PLACE) == least)
        digit = (number >> (24 - 8 * PLACE)) & (DIGITS - 1)
    bins = tl.arange(0, DIGITS)
    often = tl.histogram(tl.where(alike, digit, 0), DIGITS)
    often -= tl.where(bins == 0, tl.sum((~alike).to(tl.int32), 0), 0)
    tl.atomic_add(histograms + PLACE * DIGITS + bins, often, mask=often > 0)


@jit
def _against(scores, histograms, row, token, length, needed):
    """Return (mask of numbers above the k-th largest, mask of equal ones, how many of the equal are selected)."""
    number, there = _whole(scores, row, token, length)
    least, needed = _least(histograms + row * PLACES * DIGITS, needed, PLACES)
    return there & (number > least), there & (number == least), needed


@jit
def _count(scores, histograms, counts, length, needed, BLOCK: tl.constexpr, TOLD: tl.constexpr):
    """Count the numbers of a part above the k-th largest, and those equal to it."""
    if TOLD:
        needed = tl.load(needed).to(tl.int32)
    tile, row, tiles = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.num_programs(0)
    token = tile * BLOCK + tl.arange(0, BLOCK)
    above, equal, _ = _against(scores, histograms, row, token, length, needed)
    at = counts + (row * tiles + tile) * 2
    tl.store(at, tl.sum(above.to(tl.int32), 0))
    tl.store(at + 1, tl.sum(equal.to(tl.int32), 0))


@jit
def _write(
    scores,
    histograms,
    counts,
    places,
    taken,
    length,
    needed,
    count,
    BLOCK: tl.constexpr,
    TILES: tl.constexpr,
    TOLD: tl.constexpr,
):
    """Write the indices of the numbers selected from a part, after those of earlier parts."""
    if TOLD:
        needed = tl.load(needed).to(tl.int32)
    tile, row, tiles = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.num_programs(0)
    token = tile * BLOCK + tl.arange(0, BLOCK)
    above, equal, missing = _against(scores, histograms, row, token, length, needed)
    before = tl.arange(0, TILES)
    at = counts + (row * tiles + before) * 2
    earlier = before < tile
    higher = tl.sum(tl.load(at, mask=earlier, other=0), 0)
    alike = tl.sum(tl.load(at + 1, mask=earlier, other=0), 0)
    rank = alike + tl.cumsum(equal.to(tl.int32), 0)  # among all equal numbers, from 1
    chosen = above | (equal & (rank <= missing))
    place = higher + tl.minimum(alike, missing) + tl.cumsum(chosen.to(tl.int32), 0) - 1
    tl.store(places + row * count + place, token, mask=chosen)
    tl.store(taken + row * length + token, chosen, mask=token < length)


def launch(scores: Tensor, count: int, needed: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Run the Triton kernels on CUDA tensors, or on CPU tensors under TRITON_INTERPRET=1; `count` is at most T.

    `needed` [1] int on the device: how many of the `count` to select; entries after them are unwritten.
    """
    need_triton("best")
    rows, length = scores.shape
    places = torch.empty(rows, count, dtype=torch.int32, device=scores.device)
    taken = torch.zeros(rows, length, dtype=torch.bool, device=scores.device)
    if not count or not rows:
        return places, taken
    tiles, scores = triton.cdiv(length, BLOCK), scores.contiguous()
    histograms = torch.zeros(rows, 4 * 256, dtype=torch.int32, device=scores.device)
    counts = torch.empty(rows, tiles, 2, dtype=torch.int32, device=scores.device)
    grid, sizes = (tiles, rows), {"BLOCK": BLOCK, "TOLD": needed is not None}
    some = count if needed is None else needed
    for place in range(4):
        _count_digits[grid](scores, histograms, length, some, PLACE=place, **sizes, num_warps=8)
    _count[grid](scores, histograms, counts, length, some, **sizes, num_warps=8)
    parts = {"TILES": triton.next_power_of_2(tiles)}
    _write[grid](scores, histograms, counts, places, taken, length, some, count, **sizes, **parts, num_warps=8)
    return places, taken


def cases(device: str = "cpu", dtype: torch.dtype = torch.float32) -> Iterator[tuple[Tensor, int]]:
    """Yield arguments to compare `launch` with `reference`: ties, infinities, nan, both zeros, all, one."""
    draw = torch.Generator().manual_seed(0)
    for rows, length, count in ((2, 5000, 1234), (1, 37, 1), (3, 2048, 2048), (2, 4097, 4000)):
        yield torch.randn(rows, length, generator=draw).to(device), count
    yield torch.randint(-3, 3, (2, 3000), generator=draw).float().to(device), 700
    odd = torch.randn(1, 2500, generator=draw)
    odd[0, ::3], odd[0, 1::7], odd[0, 5], odd[0, 2::9] = -torch.inf, -0.0, torch.nan, 0.0
    yield odd.to(device), 1200
    yield odd.abs().to(device), 1666

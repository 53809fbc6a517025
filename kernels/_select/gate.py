"""SeerAttention's gate (`workbench.methods.seer_gate`): pooling of keys and queries before RoPE, and selection.

    pooled(x [H, T, D], at [T], inv_freq [D/2], pairing, block, most) -> [H, J, D], or [H, J, 3 D]
    projected(x [H, J, C], weight [H, C, W], at [T], table [W/2], block, out) -> out [H, J or P, W]
    kept(logits [Hq, I, J], rows [R], block, scale, threshold, tail) -> [Hq, I, J] bool

Angles are computed in fp64 modulo 2 pi, as in `core.rope`; the rest is fp32.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from workbench.core.rope import Pairing, cos_sin, rotate, rotated
from workbench.core.tiling.tiles import Grid, means
from workbench.kernels._select.keep import near
from workbench.kernels._shared.attention import rows_first
from workbench.kernels._shared.triton_import import jit, tl, triton

PI2, TURN = tl.constexpr(6.283185307179586), tl.constexpr(0.15915494309189535)
MOST = 1 << 13  # maximum blocks per row
SIDE, WIDE, STEP = 16, 32, 64  # blocks per product, pairs of channels, channels per step
FULL = 256  # about the number of programs that fill a GPU


@jit
def _angle(position, table):
    """Return (cos, sin) in fp32 of positions [N] times inverse frequencies [M]."""
    turns = position.to(tl.float64)[:, None] * (table.to(tl.float64) * TURN)[None, :]
    angle = ((turns - tl.floor(turns)) * PI2).to(tl.float32)
    return tl.cos(angle), tl.sin(angle)


@jit
def _pool(
    x,
    at,
    freq,
    out,
    count,
    blocks,
    x_head,
    x_token,
    HALF: tl.constexpr,
    HP: tl.constexpr,
    BLOCK: tl.constexpr,
    TOKENS: tl.constexpr,
    HEADS: tl.constexpr,
    NEOX: tl.constexpr,
    INDEXED: tl.constexpr,
    ALL: tl.constexpr,
):
    """Pool a block of HEADS heads, which share their angles."""
    j, first_head = tl.program_id(0), tl.program_id(1) * HEADS
    inner, c = tl.arange(0, TOKENS), tl.arange(0, HP)
    row = j * BLOCK + inner
    inside = (inner < BLOCK) & (row < count)
    position = tl.load(at + row, mask=inside, other=0)
    token = position if INDEXED else row
    one, other = (c, c + HALF) if NEOX else (2 * c, 2 * c + 1)
    there = inside[:, None] & (c < HALF)[None, :]
    cos, sin = _angle(position, tl.load(freq + c, mask=c < HALF, other=0.0))
    number = tl.minimum(count - j * BLOCK, BLOCK)
    x += token.to(tl.int64)[:, None] * x_token
    for step in range(0, HEADS):
        head = first_head + step
        mine = x + head.to(tl.int64) * x_head
        a = tl.load(mine + one[None, :], mask=there, other=0.0).to(tl.float32)
        b = tl.load(mine + other[None, :], mask=there, other=0.0).to(tl.float32)
        a, b = a * cos + b * sin, b * cos - a * sin  # rotated back
        parts: tl.constexpr = 3 if ALL else 1
        target = out + (head * blocks + j).to(tl.int64) * parts * 2 * HALF
        if ALL:
            tl.store(target + one, tl.max(tl.where(there, a, float("-inf")), 0), mask=c < HALF)
            tl.store(target + other, tl.max(tl.where(there, b, float("-inf")), 0), mask=c < HALF)
            tl.store(target + 2 * HALF + one, tl.min(tl.where(there, a, float("inf")), 0), mask=c < HALF)
            tl.store(target + 2 * HALF + other, tl.min(tl.where(there, b, float("inf")), 0), mask=c < HALF)
            target += 4 * HALF
        tl.store(target + one, tl.sum(a, 0) / number, mask=c < HALF)
        tl.store(target + other, tl.sum(b, 0) / number, mask=c < HALF)


def pooled(
    x: Tensor, at: Tensor, inv_freq: Tensor, pairing: Pairing, block: int, most: bool = False, indexed: bool = False
) -> Tensor:
    """Pool tokens at positions `at` after inverse RoPE: mean, or with `most` maximum, minimum and mean.

    `indexed`: `x` has the tokens of all positions, of which those at `at` are pooled.
    """
    x, heads, half = rows_first(x), len(x), len(inv_freq)
    blocks = triton.cdiv(len(at), block)
    out = torch.empty(heads, blocks, (3 if most else 1) * 2 * half, device=x.device)
    shape = {"HALF": half, "HP": triton.next_power_of_2(half), "BLOCK": block, "TOKENS": triton.next_power_of_2(block)}
    together = next(n for n in (4, 2, 1) if heads % n == 0 and (n == 1 or heads * blocks >= n * FULL))
    shape |= {"HEADS": together, "NEOX": pairing == "neox", "INDEXED": indexed, "ALL": most}
    _pool[(blocks, heads // together)](x, at, inv_freq, out, len(at), blocks, *x.stride()[:2], **shape, num_warps=8)
    return out


@jit
def _project(
    x,
    weight,
    at,
    table,
    out,
    blocks,
    channels,
    out_head,
    W2: tl.constexpr,
    WP: tl.constexpr,
    BLOCK: tl.constexpr,
    SIDE: tl.constexpr,
    STEP: tl.constexpr,
    PLACED: tl.constexpr,
):
    """Project SIDE blocks of a head to WP of its pairs of channels."""
    head, j = tl.program_id(1), tl.program_id(0) * SIDE + tl.arange(0, SIDE)
    c = tl.program_id(2) * WP + tl.arange(0, WP)
    x += (head * blocks + j).to(tl.int64)[:, None] * channels
    weight += head.to(tl.int64) * channels * 2 * W2
    a, b = tl.zeros([SIDE, WP], tl.float32), tl.zeros([SIDE, WP], tl.float32)
    for first in range(0, channels, STEP):
        k = first + tl.arange(0, STEP)
        some = tl.load(x + k[None, :], mask=(j < blocks)[:, None] & (k < channels)[None, :], other=0.0)
        w_at, inside = weight + k[:, None] * (2 * W2) + c[None, :], (k < channels)[:, None] & (c < W2)[None, :]
        a = tl.dot(some, tl.load(w_at, mask=inside, other=0.0), a, input_precision="tf32x3")
        b = tl.dot(some, tl.load(w_at + W2, mask=inside, other=0.0), b, input_precision="tf32x3")
    position = tl.load(at + j * BLOCK, mask=j < blocks, other=0)
    cos, sin = _angle(position, tl.load(table + c, mask=c < W2, other=0.0))
    place = position // BLOCK if PLACED else j
    out += head * out_head + place.to(tl.int64)[:, None] * (2 * W2)
    inside = (j < blocks)[:, None] & (c < W2)[None, :]
    tl.store(out + c[None, :], a * cos - b * sin, mask=inside)
    tl.store(out + W2 + c[None, :], b * cos + a * sin, mask=inside)


def projected(x: Tensor, weight: Tensor, at: Tensor, table: Tensor, block: int, out: Tensor | None = None) -> Tensor:
    """Multiply blocks of pooled tokens by the weight of each head, and rotate to the first position of each block.

    `out` [H, P, W]: rows for all blocks of a prompt, of which those of these blocks are written.
    """
    heads, blocks, channels = x.shape
    width = weight.shape[-1]
    found = torch.empty(heads, blocks, width, device=x.device) if out is None else out
    shape = {"W2": width // 2, "WP": WIDE, "BLOCK": block, "SIDE": SIDE, "STEP": STEP}
    _project[(triton.cdiv(blocks, SIDE), heads, triton.cdiv(width // 2, WIDE))](
        x,
        weight,
        at,
        table,
        found,
        blocks,
        channels,
        found.stride(0),
        **shape,
        PLACED=out is not None,
        num_warps=4,
    )
    return found


@jit
def _keep(
    logits,
    rows,
    kept,
    count,
    blocks,
    scale,
    threshold,
    tail,
    BLOCK: tl.constexpr,
    JP: tl.constexpr,
    HALVINGS: tl.constexpr,
):
    i, head, tiles = tl.program_id(0), tl.program_id(1), tl.num_programs(0)
    j, at = tl.arange(0, JP), (head * tiles + i).to(tl.int64) * blocks
    end = tl.minimum((i + 1) * BLOCK, count)
    first, last = tl.load(rows + i * BLOCK), tl.load(rows + end - 1)
    seen = (j < blocks) & (j * BLOCK <= last)
    x = tl.load(logits + at + j, mask=seen, other=float("-inf"))
    weight = tl.exp((x - tl.max(x, 0)) * scale)
    keep = weight >= tl.where(last >= tail, 0.0, threshold) * tl.sum(weight, 0)
    keep |= near(rows, i * BLOCK, end, first, last, j, 0, BLOCK, HALVINGS)
    tl.store(kept + at + j, (keep & seen).to(tl.uint8), mask=j < blocks)


def kept(logits: Tensor, rows: Tensor, block: int, scale: float, threshold: float, tail: int) -> Tensor:
    """Keep blocks with at least `threshold` of the softmax, and own blocks; from position `tail` on, all blocks."""
    heads, tiles, blocks = logits.shape
    found = torch.empty(heads, tiles, blocks, dtype=torch.bool, device=logits.device)
    shape = {"BLOCK": block, "JP": triton.next_power_of_2(blocks), "HALVINGS": block.bit_length()}
    raw, rows = found.view(torch.uint8), rows.long().contiguous()
    _keep[(tiles, heads)](logits, rows, raw, len(rows), blocks, scale, threshold, tail, **shape)
    return found


def takes(width: int, inv_freq: Tensor, blocks: int) -> bool:
    """Return whether the kernels support fully rotary heads of this `width` and rows of `blocks` blocks."""
    return triton is not None and 2 * len(inv_freq) == width <= 256 and blocks <= MOST


def reference(
    x: Tensor, at: Tensor, inv_freq: Tensor, pairing: Pairing, weight: Tensor, table: Tensor, block: int
) -> Tensor:
    """Pool and project blocks of `x` at positions `at` in torch."""
    pooled_rows = means(rotate(x.float(), -at, inv_freq, pairing), block)
    return rotated(pooled_rows @ weight, *cos_sin(at[::block], table, x.device))


def reference_kept(logits: Tensor, rows: Tensor, block: int, scale: float, threshold: float, tail: int) -> Tensor:
    """Compute `kept` in torch."""
    grid = Grid(rows, logits.shape[2] * block, block)
    share = (logits * scale).masked_fill(~grid.causal, -torch.inf).softmax(-1)
    return ((share >= threshold) | (grid.last_positions >= tail)[:, None] | grid.own_tiles) & grid.causal


def cases(device: str = "cpu", dtype: torch.dtype = torch.float32) -> Iterator[tuple[Tensor, Tensor, Pairing, Tensor]]:
    """Yield tokens, positions, pairing and weights: large positions, odd counts, scattered tokens, both pairings."""
    for seed, (heads, count, width, gate, first) in enumerate(((2, 90, 32, 16, 0), (3, 64, 48, 32, 100_032))):
        draw = torch.Generator().manual_seed(seed)
        x, weight = torch.randn(heads, count, width, generator=draw), torch.randn(heads, width, gate, generator=draw)
        at = torch.arange(first, first + count) if seed else torch.randperm(300, generator=draw)[:count].sort().values
        yield x.to(device, dtype), at.to(device), "interleaved" if seed else "neox", weight.to(device)

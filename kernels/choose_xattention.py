"""XAttention's selection of key blocks (arXiv:2503.16428), by sums along the antidiagonals of small squares.

    choose_xattention(q [B, Hq, R, D], keys [B, H, T, D], rows [B, R], rule, stride, bits)
        -> [B, Hq, I, J] bool: row block i of head h attends to key block j, of `rule.block` tokens each

Row r of request b is at position `rows[b, r]`, rising: a whole prompt, a chunk of it, or scattered tokens. The scores
are those of `core.tiling.tile_selection.xattention`; `rule` selects blocks by them
(`core.tiling.tile_selection.TileRule`).

With `bits` = 8, queries and keys are rounded to float8 (e4m3) first, which a Hopper GPU multiplies twice as fast; the
selection may differ slightly.

Sums along the antidiagonals of all squares are one matrix product. Per row of squares and key block, only the
log-sum-exp of the logits is written, as the softmax needs no more: 1 / (stride · block) of N × N numbers, for some
heads at a time.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

import workbench.kernels._select.hopper as on_hopper
from workbench.core.tiling import tile_selection
from workbench.core.tiling.tile_selection import TileRule, tiles_kept_by
from workbench.kernels._select import vectors as _choose_vectors
from workbench.kernels._select.keep import carry_out, fits
from workbench.kernels._select.vectors import products
from workbench.kernels._shared.attention import LOG2E, Config, rows_first
from workbench.kernels._shared.triton_import import jit, need_triton, tl, triton

__all__ = ["cases", "configure", "launch", "reference", "takes"]

BYTES = 256 << 20  # maximum bytes of sums in memory at once
HELD = 2048  # sums per program at a time
LINE = 32  # sums per cache line
PER_WARP = 1024  # sums per warp
ROW = 16384  # up to this many sums, a row of blocks is read once


def configure(dtype: torch.dtype) -> Config:
    """Return the launch configuration of the product: squares in the rows and columns of a tile."""
    if dtype == torch.float32:
        return Config(32, 32, 4, 1, descriptors=True)
    return Config(128, 128, 8, 3, descriptors=True)


def reference(q: Tensor, keys: Tensor, rows: Tensor, rule: TileRule, stride: int, bits: int = 16) -> Tensor:
    """Compute the result in torch, weights in fp32."""
    choices = []
    if bits == 8:
        q, keys = tile_selection.in_float8(q), tile_selection.in_float8(keys)
    for queries, own_keys, at in zip(q, keys, rows, strict=True):
        weights = tile_selection.xattention(queries, own_keys, at, rule.block, stride)
        choices.append(tiles_kept_by(weights, at, keys.shape[2], rule))
    return torch.stack(choices)


@jit
def _eighths(x, out, count, heads, x_batch, x_head, x_token, TOKENS: tl.constexpr, D: tl.constexpr, DP: tl.constexpr):
    """Round to float8 as `tile_selection.in_float8`, to a contiguous 8-bit tensor."""
    head, request = tl.program_id(1), tl.program_id(2).to(tl.int64)
    token, col = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS), tl.arange(0, DP)
    inside = (token < count)[:, None] & (col < D)[None, :]
    at = x + request * x_batch + head.to(tl.int64) * x_head + token.to(tl.int64)[:, None] * x_token + col[None, :]
    value = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    value = tl.minimum(tl.maximum(value, -448.0), 448.0)
    out += ((request * heads + head) * count + token)[:, None] * D + col[None, :]
    tl.store(out, value.to(tl.float8e4nv), mask=inside)


def in_8_bits(x: Tensor) -> Tensor:
    """Return queries or keys [B, H, T, D] rounded to float8, as a tensor of dtype float8_e4m3fn."""
    batch, heads, count, width = x.shape
    out = torch.empty(x.shape, dtype=torch.float8_e4m3fn, device=x.device)
    _eighths[(triton.cdiv(count, 64), heads, batch)](
        x, out, count, heads, *x.stride()[:3], TOKENS=64, D=width, DP=triton.next_power_of_2(width), num_warps=4
    )
    return out


@jit
def _squares(
    q, keys, q_tiles, key_tiles, sums, rows, count, length, row_squares, blocks, scale, key_programs, first_head,
    q_batch, q_head, q_token, key_batch, key_head, key_token,
    GROUP: tl.constexpr, STRIDE: tl.constexpr, PER: tl.constexpr, D: tl.constexpr, STEP: tl.constexpr,
    DESCRIPTORS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Compute the log2-sum-exp2 over the squares of a key block, per row of squares."""
    one, request = tl.program_id(1), tl.program_id(2)
    head = first_head + one
    tile, tile_n = tl.program_id(0) // key_programs, tl.program_id(0) % key_programs
    row = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    end = tl.minimum((row + 1) * STRIDE, count) - 1
    last = tl.load(rows + request.to(tl.int64) * count + end, mask=row < row_squares, other=-1)
    if tile_n * BLOCK_N * STRIDE <= tl.max(last, 0):  # else the tile is masked, and no kernel reads its sums
        queries = (q, q_tiles, head, tile * BLOCK_M, count, q_batch, q_head, q_token)
        their_keys = (keys, key_tiles, head // GROUP, tile_n * BLOCK_N, length, key_batch, key_head, key_token)
        s = products(request, queries, their_keys, STRIDE, True, D, STEP, DESCRIPTORS, BLOCK_M, BLOCK_N)
        square = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
        s = tl.where((square * STRIDE)[None, :] <= last[:, None], s * scale, float("-inf"))
        N: tl.constexpr = BLOCK_N // PER
        s = tl.reshape(s, [BLOCK_M, N, PER])
        m_i = tl.max(s, 2)
        safe = tl.where(m_i == float("-inf"), 0.0, m_i)
        l_i = tl.sum(tl.exp2(s - safe[:, :, None]), 2)
        log_sum = tl.where(l_i > 0, safe + tl.log2(tl.where(l_i > 0, l_i, 1.0)), float("-inf"))
        j = tile_n * N + tl.arange(0, N)
        at = (request * tl.num_programs(1) + one).to(tl.int64) * blocks + j
        inside = (row < row_squares)[:, None] & (j < blocks)[None, :]
        tl.store(sums + at[None, :] * row_squares + row[:, None], log_sum, mask=inside)


@jit
def _some(sums, j, seen, row, last, row_squares, PER: tl.constexpr, STRIDE: tl.constexpr):
    """Load sums [PER, J] of key blocks j; -inf if the block is masked for a row."""
    inside = (j < seen)[None, :] & ((j * PER * STRIDE)[None, :] <= last[:, None])
    return tl.load(sums + j.to(tl.int64)[None, :] * row_squares + row[:, None], mask=inside, other=float("-inf"))


@jit
def _blocks(
    sums, weights, rows, count, row_squares, blocks, heads, first_head, STRIDE: tl.constexpr, PER: tl.constexpr, CHUNK:
    tl.constexpr, ONCE: tl.constexpr, TOGETHER: tl.constexpr,
):  # fmt: skip
    """Compute the softmax over each row of squares, summed over the rows of squares of a block.

    ONCE: a chunk has all blocks, and a program processes TOGETHER blocks of rows, with contiguous sums."""
    one, request = tl.program_id(1), tl.program_id(2)
    i = tl.program_id(0) * TOGETHER
    row = i * PER + tl.arange(0, PER * TOGETHER)
    end = tl.minimum((row + 1) * STRIDE, count) - 1
    last = tl.load(rows + request.to(tl.int64) * count + end, mask=row < row_squares, other=-1)
    seen = (tl.max(last, 0) // (PER * STRIDE)).to(tl.int32) + 1  # blocks at least partly visible to the last row
    sums += (request * tl.num_programs(1) + one).to(tl.int64) * blocks * row_squares
    row_blocks = (row_squares + PER - 1) // PER
    weights += ((request * heads + first_head + one).to(tl.int64) * row_blocks + i) * blocks
    if ONCE:
        j = tl.arange(0, CHUNK)
        x = _some(sums, j, seen, row, last, row_squares, PER, STRIDE)
        m_i = tl.max(x, 1)
        x = tl.exp2(x - tl.where(m_i == float("-inf"), 0.0, m_i)[:, None])
        l_i = tl.sum(x, 1)
        share = tl.where(l_i > 0, 1.0 / tl.where(l_i > 0, l_i, 1.0), 0.0)  # a missing row has weight 0
        x = tl.sum(tl.reshape(x * share[:, None], [TOGETHER, PER, CHUNK]), 1)
        n = tl.arange(0, TOGETHER)
        inside = (i + n < row_blocks)[:, None] & (j < seen)[None, :]
        tl.store(weights + n[:, None] * blocks + j[None, :], x, mask=inside)
    else:
        m_i = tl.full([PER], float("-inf"), tl.float32)
        l_i = tl.zeros([PER], tl.float32)
        for first in range(0, seen, CHUNK):
            x = _some(sums, first + tl.arange(0, CHUNK), seen, row, last, row_squares, PER, STRIDE)
            new = tl.maximum(m_i, tl.max(x, 1))
            safe = tl.where(new == float("-inf"), 0.0, new)
            l_i = l_i * tl.exp2(m_i - safe) + tl.sum(tl.exp2(x - safe[:, None]), 1)
            m_i = new
        whole = tl.where(l_i > 0, m_i + tl.log2(tl.where(l_i > 0, l_i, 1.0)), float("inf"))
        for first in range(0, seen, CHUNK):
            j = first + tl.arange(0, CHUNK)
            x = _some(sums, j, seen, row, last, row_squares, PER, STRIDE)
            tl.store(weights + j, tl.sum(tl.exp2(x - whole[:, None]), 0), mask=j < seen)


def takes(q: Tensor, keys: Tensor, rule: TileRule, stride: int, bits: int = 16) -> bool:
    """Return whether `launch` supports these arguments; if not, use `reference`.

    It supports blocks of 1, 2, 4 … 128 squares, head widths that are multiples of 16, and up to 8,192 key blocks.
    """
    per = rule.block // stride
    return per <= 128 and per & per - 1 == 0 and fits(q, keys, rule, 1)


def launch(
    q: Tensor, keys: Tensor, rows: Tensor, rule: TileRule, stride: int, bits: int = 16, *, config: Config | None = None
) -> Tensor:
    """Run the kernels on CUDA tensors, or on CPU tensors in fp32 or fp16 under TRITON_INTERPRET=1.

    config   launch configuration of the Triton kernel; None: the Hopper kernel (`_select.hopper`) if it fits
    """
    need_triton("choose_xattention")
    weights = _weights(config, rows_first(q), rows_first(keys), rows.long().contiguous(), rule.block, stride, bits)
    return carry_out(weights, rows, keys.shape[2], rule, 1, logits=False)


def _weights(
    config: Config | None, q: Tensor, keys: Tensor, rows: Tensor, block: int, stride: int, bits: int = 16
) -> Tensor:
    """Compute `tile_selection.xattention` [B, Hq, I, J] (fp32); masked blocks are unwritten."""
    batch, heads, count, width = q.shape
    per, scale = block // stride, width**-0.5 / stride * LOG2E
    squares, blocks = -(-count // stride), -(-keys.shape[2] // block)
    together = max(1, min(heads, BYTES // (4 * batch * squares * blocks)))
    sums = torch.empty(batch * together * squares * blocks, device=q.device)
    weights = torch.empty(batch, heads, -(-count // block), blocks, device=q.device)
    chunk = max(16, HELD // per, min(triton.next_power_of_2(blocks), ROW // per))
    once = chunk >= blocks
    side = max(1, min(LINE // per, 2 * ROW // (per * chunk))) if once else 1
    hopper = config is None and on_hopper.fits(q, keys, block, stride, bits == 8)
    if bits == 8:
        q, keys = (in_8_bits(x) if hopper else tile_selection.in_float8(x) for x in (q, keys))
    for first in range(0, heads, together):
        some = range(first, min(heads, first + together))
        if hopper:
            on_hopper.squares(q, keys, sums, rows, scale, some, stride, block)
        else:
            _multiply(config or configure(q.dtype), q, keys, sums, rows, scale, some, stride, block)
        tensors = sums, weights, rows, count, squares, blocks, heads, first
        constants = {"STRIDE": stride, "PER": per, "CHUNK": chunk, "ONCE": once, "TOGETHER": side}
        _blocks[(triton.cdiv(weights.shape[2], side), len(some), batch)](
            *tensors, **constants, num_warps=max(4, min(16, chunk * per * side // PER_WARP))
        )
    return weights


def _multiply(
    config: Config,
    q: Tensor,
    keys: Tensor,
    sums: Tensor,
    rows: Tensor,
    scale: float,
    some: range,
    stride: int,
    block: int,
) -> None:
    """Write the sums of some heads, with the Triton kernel."""
    batch, heads, count, width = q.shape
    length, per, channels = keys.shape[2], block // stride, _choose_vectors.step(q)
    squares, columns, blocks = -(-count // stride), -(-length // stride), -(-length // block)
    block_m, block_n = _choose_vectors.shape(config.rows, squares, 16), _choose_vectors.shape(config.keys, columns, per)
    row_programs, key_programs = triton.cdiv(squares, block_m), triton.cdiv(columns, block_n)
    with_descriptors = _choose_vectors.described(config, stride, q, keys)
    views = ((q, block_m), (keys, block_n))
    tiles = [_choose_vectors.descriptor(x, stride, n, channels) if with_descriptors else x for x, n in views]
    tensors = q, keys, *tiles, sums, rows, count, length, squares, blocks, scale, key_programs, some.start
    constants = {"GROUP": heads // keys.shape[1], "STRIDE": stride, "PER": per, "D": width, "STEP": channels}
    constants |= {"DESCRIPTORS": with_descriptors, "BLOCK_M": block_m, "BLOCK_N": block_n}
    _squares[(row_programs * key_programs, len(some), batch)](
        *tensors, *q.stride()[:3], *keys.stride()[:3], **constants, **config.launch
    )


def cases(device: str = "cpu", dtype: torch.dtype = torch.float32) -> Iterator[tuple[Any, ...]]:
    """Yield arguments to compare `launch` with `reference`: whole, chunked, scattered rows; odd lengths; shares."""
    each = torch.tensor([0.4, 0.9, 0.7, 1.0], device=device)
    for seed, (batch, heads, count, length, width, stride, rule) in enumerate(
        (
            (1, (4, 2), 150, 150, 64, 8, TileRule(32, 32, each, first=True)),
            (2, (2, 1), 50, 133, 128, 4, TileRule(16, 16, 0.5, first=True)),
            (1, (3, 3), 40, 500, 80, 16, TileRule(64, 64, 0.6, first=True)),
            (1, (2, 2), 77, 200, 16, 8, TileRule(16, 16, 0.6, first=True)),
            # whole squares, for the Hopper kernel: in 16 bits, and in float8 with both strides of the paper
            (1, (4, 2), 1160, 2400, 64, 8, TileRule(64, 64, 0.8, first=True)),
            (1, (4, 2), 1160, 2400, 128, 8, TileRule(128, 128, 0.8, first=True)),
            (1, (4, 2), 1104, 4208, 128, 16, TileRule(128, 128, 0.8, first=True)),
        )
    ):
        if seed >= 4 and torch.device(device).type == "cpu":
            return  # the interpreter takes half a minute
        draw = torch.Generator().manual_seed(seed)
        q, keys = (
            torch.randn(batch, n, tokens, width, generator=draw) * 3
            for n, tokens in zip(heads, (count, length), strict=True)
        )
        rows = torch.arange(length - count, length).repeat(batch, 1)
        if seed == 3:  # scattered
            rows[0] = torch.randperm(length, generator=draw)[:count].sort().values
        yield q.to(device, dtype), keys.to(device, dtype), rows.to(device), rule, stride, 8 if seed in (1, 5, 6) else 16

"""FlashPrefill's selection of key blocks, by the products of queries and mean keys of blocks.

    choose_flash_prefill(q [B, Hq, R, D], keys [B, H, T, D], rows [B, R], rule)
        -> [B, Hq, I, J] bool: row block i of head h attends to key block j, of `rule.block` tokens each

Row r of request b is at position `rows[b, r]`, rising: a whole prompt, a chunk of it, or scattered tokens. The score is
a log-sum-exp over the rows of a block (`core.tiling.tile_selection.flash_prefill`); `rule` selects blocks by it
(`core.tiling.tile_selection.TileRule`). Only one fp32 score per pair of blocks is written.

Mean keys are fp32. For 16-bit queries a mean is multiplied as the sum of two 16-bit numbers, so logits have 16 bits or
more of fp32's mantissa. For a short chunk, reading all keys for their means is most of the work; `pooled` keeps means
from chunk to chunk, so only the chunk's own keys are read.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from workbench.core.tiling import tile_selection
from workbench.core.tiling.tile_selection import TileRule, tiles_kept_by
from workbench.kernels._select.keep import carry_out, fits
from workbench.kernels._shared.attention import LOG2E, Config, rows_first
from workbench.kernels._shared.triton_import import jit, need_triton, padded_width, tl, triton

__all__ = ["Means", "cases", "configure", "launch", "pooled", "reference", "takes"]

MOST = 256  # maximum tokens per block
LN2 = tl.constexpr(0.6931471805599453)


@dataclass(frozen=True, eq=False)
class Means:
    """Mean keys [B, H, P, D'] of blocks of `block` tokens, as `high` + `low` (one tensor for fp32 keys)."""

    high: Tensor
    low: Tensor
    block: int


def configure(dtype: torch.dtype, block: int) -> Config:
    """Return the launch configuration of the scores: rows of a block, mean keys of a step."""
    rows = max(16, triton.next_power_of_2(block))
    if dtype == torch.float32:
        return Config(rows, 32, 4, 1)
    return Config(rows, 64, 4, 2)


def reference(q: Tensor, keys: Tensor, rows: Tensor, rule: TileRule) -> Tensor:
    """Compute the result in torch, scores in fp32."""
    choices = []
    for queries, own_keys, at in zip(q, keys, rows, strict=True):
        scores = tile_selection.flash_prefill(queries, own_keys, at, rule.block)
        choices.append(tiles_kept_by(scores, at, keys.shape[2], rule, logits=True))
    return torch.stack(choices)


@jit
def _means(
    keys, high, low, rows, length, start, places, heads, key_batch, key_head, key_token, BLOCK: tl.constexpr, TOKENS:
    tl.constexpr, D: tl.constexpr, DP: tl.constexpr, SPLIT: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    j, one = start + tl.program_id(0), tl.program_id(1)
    if ROWS:
        j += (tl.load(rows) // BLOCK).to(tl.int32)
    at, col = j * BLOCK + tl.arange(0, TOKENS), tl.arange(0, DP)
    keys += (one // heads).to(tl.int64) * key_batch + (one % heads).to(tl.int64) * key_head
    inside = (tl.arange(0, TOKENS) < BLOCK) & (at < length)
    k_at = keys + at.to(tl.int64)[:, None] * key_token + col[None, :]
    k = tl.load(k_at, mask=inside[:, None] & (col < D)[None, :], other=0.0).to(tl.float32)
    mean = tl.sum(k, 0) / tl.minimum(length - j * BLOCK, BLOCK)
    first = mean.to(high.dtype.element_ty)
    target = (one.to(tl.int64) * places + j) * DP + col
    there = col < tl.where(j * BLOCK < length, DP, 0)
    tl.store(high + target, first, mask=there)
    if SPLIT:
        tl.store(low + target, (mean - first.to(tl.float32)).to(low.dtype.element_ty), mask=there)


@jit
def _score(
    q, high, low, score, rows, count, blocks, places, scale, q_batch, q_head, q_token, GROUP: tl.constexpr, BLOCK:
    tl.constexpr, D: tl.constexpr, DP: tl.constexpr, SPLIT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    i, head, request = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    heads = tl.num_programs(1)
    inner = tl.arange(0, BLOCK_M)
    row, col = i * BLOCK + inner, tl.arange(0, DP)
    inside = (inner < BLOCK) & (row < count)
    at_row = tl.load(rows + request * count + row, mask=inside, other=-1)
    x_at = q + request * q_batch + head.to(tl.int64) * q_head + row.to(tl.int64)[:, None] * q_token + col[None, :]
    x = tl.load(x_at, mask=inside[:, None] & (col < D)[None, :], other=0.0)
    means = (request * (heads // GROUP) + head // GROUP) * places * DP
    score += ((request * heads + head) * tl.num_programs(0) + i) * blocks
    seen = ((tl.max(at_row, 0) + 1) // BLOCK).to(tl.int32)  # blocks that are fully visible to the last row
    clear = (at_row + 1) // BLOCK  # blocks that are fully visible to each row
    x = tl.trans(x)  # rows become columns of the product: sums over rows stay within a warp
    for first in tl.range(0, seen, BLOCK_N):
        j = first + tl.arange(0, BLOCK_N)
        k_at = means + j.to(tl.int64)[:, None] * DP + col[None, :]
        k = tl.load(high + k_at, mask=(j < seen)[:, None], other=0.0)
        s = tl.dot(k, x, input_precision=PRECISION)
        if SPLIT:
            k = tl.load(low + k_at, mask=(j < seen)[:, None], other=0.0)
            s = tl.dot(k, x, s, input_precision=PRECISION)
        s = tl.where(j[:, None] < clear[None, :], s * scale, float("-inf"))
        m_i = tl.max(s, 1)
        m_i = tl.where(m_i == float("-inf"), 0.0, m_i)
        l_i = tl.sum(tl.exp2(s - m_i[:, None]), 1)
        tl.store(score + j, (m_i + tl.log2(tl.maximum(l_i, 1.0))) * LN2, mask=j < seen)


def takes(q: Tensor, keys: Tensor, rule: TileRule) -> bool:
    """Return whether `launch` supports these arguments; if not, use `reference`.

    It supports blocks of up to 256 tokens, head widths that are multiples of 16 up to 256, and up to 8,192 blocks.
    """
    return rule.block <= MOST and q.shape[-1] <= 256 and fits(q, keys, rule, 1)


def launch(
    q: Tensor, keys: Tensor, rows: Tensor, rule: TileRule, *, means: Means | None = None, config: Config | None = None
) -> Tensor:
    """Run the Triton kernels on CUDA tensors, or on CPU tensors in fp32 or fp16 under TRITON_INTERPRET=1.

    means   mean keys of all blocks, from `pooled`; None: computed here
    """
    need_triton("choose_flash_prefill")
    config = config or configure(q.dtype, rule.block)
    means = means or pooled(keys, rule.block)
    score = _logits(config, rows_first(q), keys.shape, rows.long().contiguous(), means)
    return carry_out(score, rows, keys.shape[2], rule, 1, logits=True)


def _logits(config: Config, q: Tensor, shape: torch.Size, rows: Tensor, means: Means) -> Tensor:
    """Compute `tile_selection.flash_prefill` [B, Hq, I, J] (fp32); unwritten if no row attends to the whole block."""
    batch, heads, count, width = q.shape
    block, split, (places, wide) = means.block, q.dtype != torch.float32, means.high.shape[2:]
    blocks = -(-shape[2] // block)
    score = torch.empty(batch, heads, -(-count // block), blocks, device=q.device)
    tensors = q, means.high, means.low, score, rows, count, blocks, places, width**-0.5 * LOG2E
    constants = {"GROUP": heads // shape[1], "BLOCK": block, "D": width, "DP": wide, "SPLIT": split}
    constants |= {"BLOCK_M": config.rows, "BLOCK_N": config.keys}
    precision = "tf32" if split else "ieee"
    _score[(score.shape[2], heads, batch)](*tensors, *q.stride()[:3], **constants, PRECISION=precision, **config.launch)
    return score


def pooled(keys: Tensor, block: int, means: Means | None = None, first: int | Tensor = 0, capacity: int = 0) -> Means:
    """Return mean keys of the blocks of keys [B, H, T, D], allocated for a cache of `capacity` tokens.

    `means` of an earlier chunk are updated in place from the block of token `first` on; earlier keys are not read.
    `first` may also be consecutive rows [R] on the device: then their blocks are updated.
    """
    need_triton("choose_flash_prefill")
    keys = rows_first(keys)
    batch, heads, length, width = keys.shape
    blocks, wide, split = -(-length // block), padded_width(width), keys.dtype != torch.float32
    if means is None:
        shape = batch, heads, max(blocks, -(-capacity // block)), wide
        high = torch.empty(shape, dtype=keys.dtype, device=keys.device)
        means = Means(high, torch.empty_like(high) if split else high, block)
    if isinstance(first, Tensor):
        rows, start, count = first, 0, -(-len(first) // block) + 1
    else:
        rows, start, count = keys, first // block, blocks - first // block
    if count > 0:
        tensors = keys, means.high, means.low, rows, length, start, means.high.shape[2], heads
        constants = {"BLOCK": block, "TOKENS": triton.next_power_of_2(block), "D": width, "DP": wide, "SPLIT": split}
        constants["ROWS"] = rows is first
        _means[(count, batch * heads)](*tensors, *keys.stride()[:3], **constants, num_warps=8)
    return means


def cases(device: str = "cpu", dtype: torch.dtype = torch.float32) -> Iterator[tuple[Any, ...]]:
    """Yield arguments to compare `launch` with `reference`: whole, chunked, scattered rows; odd lengths and blocks."""
    for seed, (batch, heads, count, length, width, rule) in enumerate(
        (
            (1, (4, 2), 300, 300, 64, TileRule(32, 32, part=0.5, whole=True, local=1, sink=1, tail=288)),
            (2, (4, 1), 90, 333, 128, TileRule(16, 16, part=0.7, whole=True, sink=2)),
            (1, (3, 3), 40, 500, 80, TileRule(24, 24, part=0.8, whole=True, local=3)),
            (1, (2, 2), 77, 200, 16, TileRule(32, 32, part=0.9, whole=True)),
        )
    ):
        draw = torch.Generator().manual_seed(seed)
        q, keys = (
            torch.randn(batch, n, tokens, width, generator=draw) * 2
            for n, tokens in zip(heads, (count, length), strict=True)
        )
        rows = torch.arange(length - count, length).repeat(batch, 1)
        if seed == 3:  # scattered
            rows[0] = torch.randperm(length, generator=draw)[:count].sort().values
        yield q.to(device, dtype), keys.to(device, dtype), rows.to(device), rule

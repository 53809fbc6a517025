"""Variable-length causal attention within many blocks, in one launch, for packed encoding.

    encode_blocks(q [Hq, N, D], keys [H, N, D], values [H, N, D], cu_seqlens [B + 1], max_seqlen, scale)
        -> [Hq, N, D], same dtype

Block b is tokens cu_seqlens[b] to cu_seqlens[b + 1] of the packed tensors, without padding. A token attends to the
tokens of its own block up to itself. `max_seqlen` is the length of the longest block, a Python integer to avoid a
synchronization. The default scale is 1/sqrt(D). Names in the kernel are those of `_shared.attention`.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from workbench.kernels._shared.attention import (
    Config,
    attend,
    empty_state,
    load_tile,
    log2_scale,
    logits,
    rows_first,
    step,
)
from workbench.kernels._shared.triton_import import jit, need_triton, padded_width, tl, triton

__all__ = ["cases", "configure", "launch", "reference"]


def configure(width: int, dtype: torch.dtype) -> Config:
    """Return the launch configuration for head width `width`."""
    if dtype == torch.float32:
        return Config(32, 32, 4, 1)
    if width > 128:
        return Config(128, 64, 8, 2)
    return Config(128, 128, 8, 3) if width <= 64 else Config(64, 32, 4, 3)


def reference(
    q: Tensor, keys: Tensor, values: Tensor, cu_seqlens: Tensor, max_seqlen: int, scale: float | None = None
) -> Tensor:
    """Compute the result in torch, in the dtype of `q`."""
    out = torch.zeros_like(q)
    for begin, end in pairwise(cu_seqlens.tolist()):
        seen = torch.ones(end - begin, end - begin, dtype=torch.bool, device=q.device).tril()
        out[:, begin:end] = attend(q[:, begin:end], keys[:, begin:end], values[:, begin:end], seen, scale)
    return out


@jit
def _span(
    state, begin, end, rows, kv, scale, MASKED: tl.constexpr, BLOCK_N: tl.constexpr, D: tl.constexpr, DP: tl.constexpr
):
    """Process key tiles `begin` to `end` of the block. MASKED: partly visible, or beyond the end of the block."""
    acc, m_i, l_i = state
    x, row, length = rows
    keys, values, key_token, value_token = kv
    col = tl.arange(0, DP)
    for tile in tl.range(begin, end):
        at = tile * BLOCK_N + tl.arange(0, BLOCK_N)
        k_at = keys + at.to(tl.int64)[:, None] * key_token + col[None, :]
        v_at = values + at.to(tl.int64)[:, None] * value_token + col[None, :]
        k = load_tile(k_at, (at < length)[:, None], MASKED, D, DP)
        v = load_tile(v_at, (at < length)[:, None], MASKED, D, DP)
        s = logits(x, k, scale)
        if MASKED:
            s = tl.where(at[None, :] <= row[:, None], s, float("-inf"))
        acc, m_i, l_i = step(acc, m_i, l_i, s, v, False)
    return acc, m_i, l_i


@jit
def _encode(
    q, keys, values, out, cu_seqlens, scale, q_head, q_token, key_head, key_token, value_head, value_token, out_head,
    out_token, heads, row_tiles, GROUP: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N:
    tl.constexpr,
):  # fmt: skip
    place, head = tl.program_id(0) // heads, (tl.program_id(0) % heads).to(tl.int64)  # heads share keys in the L2 cache
    block = place // row_tiles
    tile = row_tiles - 1 - place % row_tiles  # the last rows attend to the most keys: start them first
    first = tl.load(cu_seqlens + block).to(tl.int64)
    length = (tl.load(cu_seqlens + block + 1) - first).to(tl.int32)
    if tile * BLOCK_M >= length:
        return
    row = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    col = tl.arange(0, DP)
    inside = (row < length)[:, None] & (col < D)[None, :]
    token = (first + row)[:, None]
    x = tl.load(q + head * q_head + token * q_token + col[None, :], mask=inside, other=0.0)
    keys += head // GROUP * key_head + first * key_token
    values += head // GROUP * value_head + first * value_token
    clear = tile * BLOCK_M // BLOCK_N  # tiles that are fully visible to all rows of the program
    end = tl.cdiv(tl.minimum((tile + 1) * BLOCK_M, length), BLOCK_N)
    rows, kv = (x, row, length), (keys, values, key_token, value_token)
    state = _span(empty_state(BLOCK_M, DP), 0, clear, rows, kv, scale, False, BLOCK_N, D, DP)
    acc, _, l_i = _span(state, clear, end, rows, kv, scale, True, BLOCK_N, D, DP)
    target = out + head * out_head + token * out_token + col[None, :]
    tl.store(target, (acc / l_i[:, None]).to(out.dtype.element_ty), mask=inside)


def launch(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    cu_seqlens: Tensor,
    max_seqlen: int,
    scale: float | None = None,
    *,
    config: Config | None = None,
) -> Tensor:
    """Run the Triton kernel on CUDA tensors, or on CPU tensors in fp32 or fp16 under TRITON_INTERPRET=1."""
    need_triton("encode_blocks")
    q, keys, values = rows_first(q), rows_first(keys), rows_first(values)
    heads, _, width = q.shape
    config = config or configure(width, q.dtype)
    # [N, Hq, D] in memory, as the following projection expects
    out = torch.empty((q.shape[1], heads, width), dtype=q.dtype, device=q.device).transpose(0, 1)
    tiles = triton.cdiv(max_seqlen, config.rows)
    tensors = q, keys, values, out, cu_seqlens, log2_scale(scale, width)
    strides = *q.stride()[:2], *keys.stride()[:2], *values.stride()[:2], *out.stride()[:2]
    constants = {"GROUP": heads // len(keys), "D": width, "DP": padded_width(width), "BLOCK_M": config.rows}
    _encode[(tiles * (len(cu_seqlens) - 1) * heads,)](
        *tensors, *strides, heads, tiles, **constants, BLOCK_N=config.keys, **config.launch
    )
    return out


def cases(device: str = "cpu", dtype: torch.dtype = torch.float32) -> Iterator[tuple[Any, ...]]:
    """Yield arguments to compare `launch` with `reference`: head widths, groups, one token, lengths around a tile."""
    for seed, (heads, width, lengths) in enumerate(
        (
            ((4, 2), 128, (37, 1, 64, 65)),
            ((4, 1), 64, (130, 5)),
            ((3, 1), 80, (33, 32, 31)),
            ((2, 2), 96, (1,)),
            ((2, 1), 256, (40, 3)),
            ((4, 1), 128, (129, 300, 2, 128, 127)),
        )
    ):
        draw = torch.Generator().manual_seed(seed)
        tokens = sum(lengths)
        # token-major in memory, as projections write them
        q, k, v = (
            torch.randn(tokens, n, width, generator=draw).to(device, dtype).transpose(0, 1)
            for n in (heads[0], heads[1], heads[1])
        )
        cu_seqlens = torch.tensor((0, *lengths)).cumsum(0).int().to(device)
        yield q, k, v, cu_seqlens, max(lengths)
        yield q.contiguous(), k.contiguous(), v.contiguous(), cu_seqlens, max(lengths), 0.3

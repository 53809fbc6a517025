"""Queries and keys rounded to float8 (e4m3) in 8 bits, as a Hopper GPU multiplies them."""

import torch
from torch import Tensor

from workbench.kernels._shared.triton_import import jit, tl, triton


@jit
def _eighths(x, out, count, heads, x_batch, x_head, x_token, TOKENS: tl.constexpr, D: tl.constexpr, DP: tl.constexpr):
    """`block_scores.in_float8`, in 8 bits and without gaps."""
    head, request = tl.program_id(1), tl.program_id(2).to(tl.int64)
    token, col = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS), tl.arange(0, DP)
    inside = (token < count)[:, None] & (col < D)[None, :]
    at = x + request * x_batch + head.to(tl.int64) * x_head + token.to(tl.int64)[:, None] * x_token + col[None, :]
    value = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    value = tl.minimum(tl.maximum(value, -448.0), 448.0)
    out += ((request * heads + head) * count + token)[:, None] * D + col[None, :]
    tl.store(out, value.to(tl.float8e4nv), mask=inside)


def in_8_bits(x: Tensor) -> Tensor:
    """[B, H, T, D] in float8."""
    batch, heads, count, width = x.shape
    out = torch.empty(x.shape, dtype=torch.float8_e4m3fn, device=x.device)
    _eighths[(triton.cdiv(count, 64), heads, batch)](
        x, out, count, heads, *x.stride()[:3], TOKENS=64, D=width, DP=triton.next_power_of_2(width), num_warps=4
    )
    return out

"""Fused RoPE and KV-cache write after the QKV projection.

    rope_and_cache(qkv [R, (Hq + 2 H) D], cos [R, W], sin [R, W], slots [R], keys [H, T, D], values [H, T, D],
                   norms: (q weight [D], k weight [D]) or None, eps) -> queries [R, Hq, D], dtype of `cos`

A row has the heads of the queries, then of the keys, then of the values. With `norms` (Qwen3) queries and keys are
RMS-normed per head, then rotated: channel i with channel i + W/2, for the first W <= D channels ("neox"). Keys and
values of row r are written to slot `slots[r]` of `keys` and `values`; rows with the same slot write it in any order.
Arithmetic is fp32, rounded once; a norm is rounded as in transformers. `qkv` may also be [S, R, …], split-K parts that
are summed here (`few_rows_linear`).
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from workbench.kernels._shared.triton_import import after_previous, jit, need_triton, overlap, padded_width, tl, triton

MANY = 512  # from this many rows on, a program processes several rows and heads
ROWS, HEADS = 16, 8
Norms = tuple[Tensor, Tensor] | None


def reference(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    slots: Tensor,
    keys: Tensor,
    values: Tensor,
    norms: Norms = None,
    eps: float = 1e-6,
) -> Tensor:
    """Compute the result in torch, in the dtype of `qkv`, and write to `keys` and `values`."""
    heads, _, width = keys.shape
    qkv = (qkv.sum(0) if qkv.ndim == 3 else qkv).to(cos.dtype)
    x = qkv.unflatten(-1, (-1, width))
    q, k, v = x.split((x.shape[1] - 2 * heads, heads, heads), 1)
    if norms is not None:
        q, k = (_normed(part, weight, eps) for part, weight in zip((q, k), norms, strict=True))
    q, k = (_rotated(part, cos[:, None], sin[:, None]) for part in (q, k))
    keys[:, slots.long()] = k.transpose(0, 1).to(keys.dtype)
    values[:, slots.long()] = v.transpose(0, 1).to(values.dtype)
    return q


def _normed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = x.double() if x.dtype == torch.float64 else x.float()
    return weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)).to(x.dtype)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    rotary, rest = x[..., : cos.shape[-1]], x[..., cos.shape[-1] :]
    a, b = rotary.chunk(2, -1)
    return torch.cat((rotary * cos + torch.cat((-b, a), -1) * sin, rest), -1)


@jit
def _channels(at, part, inside, like, PARTS: tl.constexpr):
    """Load [DP] channels at pointers `at`: the sum of the parts, in the model's dtype."""
    x = tl.load(at, mask=inside, other=0.0)
    if PARTS > 1:
        x = x.to(tl.float32)
        for i in tl.static_range(1, PARTS):
            x += tl.load(at + i * part, mask=inside, other=0.0).to(tl.float32)
    return x.to(like.dtype.element_ty)


@jit
def _scaled(x, at, inside, scale, NORM: tl.constexpr):
    """Return [DP] channels of a head in fp32; with NORM, normed by `scale` and the weights at `at`."""
    wide = x.to(tl.float32)
    if NORM:
        w = tl.load(at, mask=inside, other=0.0)
        wide = ((wide * scale).to(x.dtype) * w).to(x.dtype).to(tl.float32)
    return wide


@jit
def _rope_and_cache(
    qkv, cos, sin, slots, keys, values, q_weight, k_weight, out, eps, q_heads, heads, qkv_part, qkv_row, angle_row,
    key_head, key_token, value_head, value_token, PARTS: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, W:
    tl.constexpr, NORM: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Process one head of one row."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    col = tl.arange(0, DP)
    inside, rotary = col < D, col < W
    second = col >= W // 2
    after_previous(PDL)
    at = qkv + row * qkv_row + head * D
    slot = tl.load(slots + row).to(tl.int64)
    if head >= q_heads + heads:
        x = _channels(at + col, qkv_part, inside, out, PARTS)
        there = values + (head - q_heads - heads).to(tl.int64) * value_head + slot * value_token
        tl.store(there + col, x.to(values.dtype.element_ty), mask=inside)
    else:
        weight = q_weight
        if head >= q_heads:
            weight = k_weight
        x = _channels(at + col, qkv_part, inside, out, PARTS)
        scale = 1.0
        if NORM:
            squares = x.to(tl.float32) * x.to(tl.float32)
            scale = 1.0 / tl.sqrt(tl.sum(squares, 0) / D + eps)
        wide = _scaled(x, weight + col, inside, scale, NORM)
        other = tl.where(rotary, tl.where(second, col - W // 2, col + W // 2), col)
        y = _channels(at + other, qkv_part, inside, out, PARTS)
        partner = _scaled(y, weight + other, inside, scale, NORM)
        c = tl.load(cos + row * angle_row + col, mask=rotary, other=1.0).to(tl.float32)
        s = tl.load(sin + row * angle_row + col, mask=rotary, other=0.0).to(tl.float32)
        wide = wide * c + tl.where(second, partner, -partner) * s
        if head < q_heads:
            tl.store(out + (row * q_heads + head) * D + col, wide.to(out.dtype.element_ty), mask=inside)
        else:
            there = keys + (head - q_heads).to(tl.int64) * key_head + slot * key_token
            tl.store(there + col, wide.to(keys.dtype.element_ty), mask=inside)


@jit
def _many_rows(
    qkv, cos, sin, slots, keys, values, q_weight, k_weight, out, eps, count, q_heads, heads, qkv_row, angle_row,
    key_head, key_token, value_head, value_token, D: tl.constexpr, DP: tl.constexpr, W: tl.constexpr,
    NORM: tl.constexpr, ROWS: tl.constexpr, HEADS: tl.constexpr,
):  # fmt: skip
    """Process HEADS heads of ROWS rows, which share their angles."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    col = tl.arange(0, DP)
    rotary, second = col < W, col >= W // 2
    other = tl.where(rotary, tl.where(second, col - W // 2, col + W // 2), col)
    there, inside = (row < count)[:, None], (row < count)[:, None] & (col < D)[None, :]
    angle = row[:, None] * angle_row + col[None, :]
    c = tl.load(cos + angle, mask=there & rotary[None, :], other=1.0).to(tl.float32)
    s = tl.load(sin + angle, mask=there & rotary[None, :], other=0.0).to(tl.float32)
    s = tl.where(second[None, :], s, -s)
    slot = tl.load(slots + row, mask=row < count, other=0).to(tl.int64)
    for head in range(tl.program_id(1) * HEADS, tl.minimum((tl.program_id(1) + 1) * HEADS, q_heads + 2 * heads)):
        at = qkv + row[:, None] * qkv_row + head * D
        x = tl.load(at + col[None, :], mask=inside, other=0.0).to(out.dtype.element_ty)
        if head >= q_heads + heads:
            place = values + (head - q_heads - heads).to(tl.int64) * value_head + slot[:, None] * value_token
            tl.store(place + col[None, :], x.to(values.dtype.element_ty), mask=inside)
        else:
            weight = q_weight
            if head >= q_heads:
                weight = k_weight
            y = tl.load(at + other[None, :], mask=inside, other=0.0).to(out.dtype.element_ty)
            wide, partner = x.to(tl.float32), y.to(tl.float32)
            if NORM:
                scale = (1.0 / tl.sqrt(tl.sum(wide * wide, 1) / D + eps))[:, None]
                mine = tl.load(weight + col, mask=col < D, other=0.0)[None, :]
                theirs = tl.load(weight + other, mask=col < D, other=0.0)[None, :]
                wide = ((wide * scale).to(x.dtype) * mine).to(x.dtype).to(tl.float32)
                partner = ((partner * scale).to(x.dtype) * theirs).to(x.dtype).to(tl.float32)
            wide = wide * c + partner * s
            if head < q_heads:
                place = out + (row[:, None] * q_heads + head) * D
                tl.store(place + col[None, :], wide.to(out.dtype.element_ty), mask=inside)
            else:
                place = keys + (head - q_heads).to(tl.int64) * key_head + slot[:, None] * key_token
                tl.store(place + col[None, :], wide.to(keys.dtype.element_ty), mask=inside)


def launch(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    slots: Tensor,
    keys: Tensor,
    values: Tensor,
    norms: Norms = None,
    eps: float = 1e-6,
) -> Tensor:
    """Run the Triton kernel on CUDA tensors, or on CPU tensors under TRITON_INTERPRET=1; channels are contiguous."""
    need_triton("rope_and_cache")
    heads, _, width = keys.shape
    rows, q_heads = qkv.shape[-2], qkv.shape[-1] // width - 2 * heads
    out = torch.empty((rows, q_heads, width), dtype=cos.dtype, device=qkv.device)
    q_weight, k_weight = norms or (cos, cos)
    tensors = qkv, cos, sin, slots, keys, values, q_weight, k_weight, out
    strides = cos.stride(0), *keys.stride()[:2], *values.stride()[:2]
    constants = {"D": width, "DP": padded_width(width), "W": cos.shape[-1], "NORM": norms is not None}
    if qkv.ndim == 2 and rows >= MANY:
        constants |= {"ROWS": ROWS, "HEADS": HEADS, "num_warps": 4}
        _many_rows[(triton.cdiv(rows, ROWS), triton.cdiv(q_heads + 2 * heads, HEADS))](
            *tensors, eps, rows, q_heads, heads, qkv.stride(0), *strides, **constants
        )
        return out
    options, pdl = overlap(qkv.device)
    constants |= {"PARTS": len(qkv) if qkv.ndim == 3 else 1, "PDL": pdl, "num_warps": 1}
    _rope_and_cache[(rows, q_heads + 2 * heads)](
        *tensors, eps, q_heads, heads, qkv.stride(0), qkv.stride(-2), *strides, **constants, **options
    )
    return out


def cases(device: str = "cpu", dtype: torch.dtype = torch.float32) -> Iterator[tuple[object, ...]]:
    """Yield arguments to compare `launch` with `reference`: head widths, groups, partial rotary, QK norm."""
    for rows, q_heads, heads, width, rotary, normed in (
        (1, 4, 2, 64, 64, False),
        (5, 3, 1, 80, 32, False),
        (7, 4, 2, 128, 128, True),
        (3, 2, 2, 16, 16, True),
        (MANY + 3, 2, 1, 48, 32, True),
        (MANY, 7, 1, 16, 16, False),
    ):
        seed = torch.Generator().manual_seed(rows + width)

        def drawn(*shape: int, by: torch.Generator = seed) -> Tensor:
            return torch.randn(shape, generator=by).to(device, dtype)

        angle = torch.randint(4096, (rows, 1), generator=seed) * 1e4 ** (-torch.arange(0, rotary, 2) / rotary)
        cos, sin = (f(torch.cat((angle, angle), -1)).to(device, dtype) for f in (torch.cos, torch.sin))
        slots = torch.randperm(max(40, rows), generator=seed)[:rows].int().to(device)
        norms = (drawn(width), drawn(width)) if normed else None
        pools = (drawn(heads, max(40, rows), width), drawn(heads, max(40, rows), width))
        yield drawn(rows, (q_heads + 2 * heads) * width), cos, sin, slots, *pools, norms, 1e-6
        if rows >= MANY:
            continue  # split-K parts are for few rows only
        parts = torch.randn(4, rows, (q_heads + 2 * heads) * width, generator=seed).to(device)
        yield parts, cos, sin, slots, *pools, norms, 1e-6

"""Parts of the keys that programs attended to, merged by their weight in the softmax (Flash-Decoding).

lse is the log2 of the weight of a part. A part without weight may hold anything.
"""

import torch
from torch import Tensor

from workbench.kernels._shared.attention import processors
from workbench.kernels._shared.triton_import import after_previous, jit, overlap, padded_width, tl, triton

ONE_WARP = 2048  # numbers that a single warp merges, at most: no sum then crosses warps


def parts_for(q: Tensor, heads: int, slots: int) -> int:
    """How many programs on Hopper share the keys of a row tile: one for each multiprocessor, four steps for each."""
    rows = q.shape[2] * (q.shape[1] // heads)
    tiles = -(-rows // (64 * consumers_for(rows))) * heads * len(q)
    return max(1, min(processors(q.device) // tiles, slots // 512, 128))


def consumers_for(rows: int) -> int:
    """How many groups of 64 rows a program computes, for `rows` rows times heads of a group."""
    return 1 if rows <= 64 else 2


@jit
def part_weights(lse, place, splits, SPLITS: tl.constexpr):
    """[SPLITS] log2 of the weights of a row's parts."""
    i = tl.arange(0, SPLITS)
    return tl.load(lse + place * splits + i, mask=i < splits, other=float("-inf"))


@jit
def part_sum(parts, place, splits, weight, SPLITS: tl.constexpr, D: tl.constexpr, DP: tl.constexpr):
    """[DP] sum of a row's parts, weighted; a part without weight may be NaN and does not count.

    Parts are read without waiting for their weights.
    """
    i, col = tl.arange(0, SPLITS), tl.arange(0, DP)
    there = (i < splits)[:, None] & (col < D)[None, :]
    part = tl.load(parts + (place * splits + i[:, None]) * D + col[None, :], mask=there, other=0.0)
    return tl.sum(tl.where((weight > 0)[:, None], part * weight[:, None], 0.0), 0)


@jit
def _merge(
    parts, lse, out, heads, count, splits, out_batch, out_head, out_token, SPLITS: tl.constexpr, D: tl.constexpr, DP:
    tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """One row: parts [SPLITS, D] weighted by their share of the softmax."""
    after_previous(PDL)
    place = tl.program_id(0).to(tl.int64)
    request, head, row = place // count // heads, place // count % heads, place % count
    log, col = part_weights(lse, place, splits, SPLITS), tl.arange(0, DP)
    m_i = tl.max(log, 0)
    weight = tl.exp2(log - tl.where(m_i == float("-inf"), 0.0, m_i))
    l_i = tl.sum(weight, 0)
    result = part_sum(parts, place, splits, weight, SPLITS, D, DP) / tl.where(l_i > 0, l_i, 1.0)
    target = out + request * out_batch + head * out_head + row * out_token
    tl.store(target + col, result.to(out.dtype.element_ty), mask=col < D)


def new_parts(q: Tensor, splits: int) -> tuple[Tensor, Tensor]:
    """Unwritten parts [B, Hq, R, S, D] and log2 of their weights [B, Hq, R, S] for queries [B, Hq, R, D]; fp32."""
    lse = torch.empty((*q.shape[:3], splits), dtype=torch.float32, device=q.device)
    return torch.empty((*lse.shape, q.shape[3]), dtype=torch.float32, device=q.device), lse


def merge(parts: Tensor, lse: Tensor, out: Tensor) -> None:
    """Parts [B, Hq, R, S, D] fp32 with their log-sums [B, Hq, R, S] into `out` [B, Hq, R, D]."""
    batch, heads, count, splits, width = parts.shape
    options, pdl = overlap(parts.device)
    most, padded = triton.next_power_of_2(splits), padded_width(width)
    constants = {"SPLITS": most, "D": width, "DP": padded, "PDL": pdl}
    constants |= {"num_warps": 1 if most * padded <= ONE_WARP else 4}
    _merge[(batch * heads * count,)](parts, lse, out, heads, count, splits, *out.stride()[:3], **constants, **options)

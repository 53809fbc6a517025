"""Merge attention over parts of the keys by their softmax weights (Flash-Decoding).

lse is the log2 of the weight of a part. A part of weight 0 may be uninitialized.
"""

import torch
from torch import Tensor

from workbench.kernels._shared.attention import processors
from workbench.kernels._shared.triton_import import after_previous, jit, overlap, padded_width, tl, triton

ONE_WARP = 2048  # up to this many numbers, a single warp merges: no sum crosses warps


def parts_for(q: Tensor, heads: int, slots: int) -> int:
    """Return the number of programs per row tile on Hopper: one per multiprocessor, with at least four steps each."""
    rows = q.shape[2] * (q.shape[1] // heads)
    tiles = -(-rows // (64 * consumers_for(rows))) * heads * len(q)
    return max(1, min(processors(q.device) // tiles, slots // 512, 128))


def consumers_for(rows: int) -> int:
    """Return the number of groups of 64 rows per program, for `rows` rows times heads of a group."""
    return 1 if rows <= 64 else 2


@jit
def part_weights(lse, place, splits, SPLITS: tl.constexpr):
    """Load the log2 of the weights [SPLITS] of a row's parts."""
    i = tl.arange(0, SPLITS)
    return tl.load(lse + place * splits + i, mask=i < splits, other=float("-inf"))


@jit
def part_sum(parts, place, splits, weight, SPLITS: tl.constexpr, D: tl.constexpr, DP: tl.constexpr):
    """Return the weighted sum [DP] of a row's parts, except parts of weight 0, which may be NaN.

    Parts are loaded without waiting for their weights.
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
    """Merge the parts [SPLITS, D] of one row."""
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
    """Allocate parts [B, Hq, R, S, D] and log2 of their weights [B, Hq, R, S] for queries [B, Hq, R, D]; fp32."""
    lse = torch.empty((*q.shape[:3], splits), dtype=torch.float32, device=q.device)
    return torch.empty((*lse.shape, q.shape[3]), dtype=torch.float32, device=q.device), lse


def merge(parts: Tensor, lse: Tensor, out: Tensor) -> None:
    """Merge parts [B, Hq, R, S, D] fp32 with their log-sums [B, Hq, R, S] to `out` [B, Hq, R, D]."""
    batch, heads, count, splits, width = parts.shape
    options, pdl = overlap(parts.device)
    most, padded = triton.next_power_of_2(splits), padded_width(width)
    constants = {"SPLITS": most, "D": width, "DP": padded, "PDL": pdl}
    constants |= {"num_warps": 1 if most * padded <= ONE_WARP else 4}
    _merge[(batch * heads * count,)](parts, lse, out, heads, count, splits, *out.stride()[:3], **constants, **options)


@jit
def _merge_lists(
    one,
    log_one,
    two,
    log_two,
    at,
    out,
    heads,
    count,
    per_one,
    per,
    splits_one,
    splits_two,
    gain,
    out_head,
    out_token,
    ONE: tl.constexpr,
    TWO: tl.constexpr,
    D: tl.constexpr,
    DP: tl.constexpr,
    MOVED: tl.constexpr,
    PDL: tl.constexpr,
):
    """Merge the parts of two lists for one row of a head, with the gain on the first list."""
    after_previous(PDL)
    head, row, col = (tl.program_id(0) // count).to(tl.int64), tl.program_id(0) % count, tl.arange(0, DP)
    place = tl.load(at + row) if MOVED else row
    first = (row // per_one * heads + head) * per_one + row % per_one
    second = (place // per * heads + head) * per + place % per
    log, rest = part_weights(log_one, first, splits_one, ONE), part_weights(log_two, second, splits_two, TWO)
    top = tl.max(log, 0)
    whole = tl.sum(tl.exp2(log - tl.where(top == float("-inf"), 0.0, top)), 0)
    log += tl.where(top == float("-inf"), 0.0, gain * (top + tl.log2(tl.where(whole > 0, whole, 1.0))))
    top = tl.maximum(tl.max(log, 0), tl.max(rest, 0))
    top = tl.where(top == float("-inf"), 0.0, top)
    weight, other = tl.exp2(log - top), tl.exp2(rest - top)
    whole = tl.sum(weight, 0) + tl.sum(other, 0)
    result = part_sum(one, first, splits_one, weight, ONE, D, DP) + part_sum(two, second, splits_two, other, TWO, D, DP)
    result /= tl.where(whole > 0, whole, 1.0)
    tl.store(out + head * out_head + row * out_token + col, result.to(out.dtype.element_ty), mask=col < D)


def merge_lists(
    one: Tensor, weight: Tensor, two: Tensor, rest: Tensor, at: Tensor | None, out: Tensor, gain: float = 0.0
) -> None:
    """Merge parts [B, Hq, R, S, D] and those of a second list [G, Hq, P, T, D], with log-sums, to `out` [Hq, B · R, D].

    at    [B · R] place of each row among the G · P of the second list; None: in order of rows
    gain  multiple of the first list's total log-sum that is added to its log-sums
    """
    batch, heads, rows, splits, width = one.shape
    options, pdl = overlap(one.device)
    most, padded = [triton.next_power_of_2(x.shape[3]) for x in (one, two)], padded_width(width)
    constants = {"ONE": most[0], "TWO": most[1], "D": width, "DP": padded, "MOVED": at is not None, "PDL": pdl}
    constants |= {"num_warps": 1 if max(most) * padded <= ONE_WARP else 4}
    numbers = heads, batch * rows, rows, two.shape[2], splits, two.shape[3], gain, *out.stride()[:2]
    tensors = one, weight, two, rest, rest if at is None else at, out
    _merge_lists[(heads * batch * rows,)](*tensors, *numbers, **constants, **options)

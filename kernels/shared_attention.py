"""Cascade attention: few query tokens of several requests over a shared context and over their own pages.

    shared_attention(q [B, Hq, R, D], keys [H, T, D], values [H, T, D], rows [B, R], shared, own, inv_freq, pairing,
                     scale) -> [B, Hq, R, D], same dtype

The result is that of `question_attention` for requests whose page tables are `shared` (a `Paged` of batch 1) followed
by `own` (of batch B). The rows of all requests are one tile of the matrix product over the shared pages, so these are
read once, not once per request. Each request reads its own pages, and the parts are merged by their softmax weights
(cascade attention of FlashInfer, arXiv:2501.01005; Hydragen, arXiv:2402.05099).
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from workbench.core.page_table import INVALID_POS, Paged
from workbench.core.rope import Pairing
from workbench.kernels._pages import triton_kernel as _pages_triton
from workbench.kernels._pages.case import case as drawn
from workbench.kernels._pages.parts import part_sum, part_weights
from workbench.kernels._pages.triton_kernel import _query, _span
from workbench.kernels._shared.attention import count_upto, empty_state, log2_scale, rows_first
from workbench.kernels._shared.triton_import import after_previous, jit, need_triton, overlap, padded_width, tl, triton
from workbench.kernels.question_attention import launch_parts

__all__ = ["cases", "launch", "reference"]

ROWS = 64  # maximum rows times heads of a group
SLOTS = 1024  # maximum own slots of a request, which one program reads


@jit
def _attend_and_merge(
    q, keys, values, parts, lse, out, rows, table, positions, first, shifts, inv_freq, scale, batch, count, pages,
    splits, q_batch, q_head, q_token, key_head, key_token, value_head, value_token, out_batch, out_head, out_token,
    GROUP: tl.constexpr, PAGE: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, HALF: tl.constexpr,
    INTERLEAVED: tl.constexpr, ROTATE: tl.constexpr, PARTIAL_PAGES: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, CHUNK: tl.constexpr, SPLITS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Cascade attention, step 2: attend to private pages and merge with the shared-prefix partials.

    parts [1, Hq, B · R, S, D] over the shared pages, and the log2 of their weights, lse [1, Hq, B · R, S]. A program
    processes one request and one KV head. Names are those of `_pages.triton_kernel`.
    """
    kv_head, request = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    m = tl.arange(0, BLOCK_M)  # row-major: the heads of a group are adjacent
    row = (m // GROUP).to(tl.int64)
    head = kv_head * GROUP + m % GROUP
    after_previous(PDL)
    at_row = tl.load(rows + request * count + row, mask=row < count, other=-1).to(tl.int32)
    valid = at_row >= 0
    table, positions, shifts = table + request * pages, positions + request * pages * PAGE, shifts + request * pages
    seen = count_upto(first + request * pages, 0, pages, tl.max(at_row, 0), CHUNK)
    tiles = seen * (PAGE // BLOCK_N) if PAGE >= BLOCK_N else tl.cdiv(seen, BLOCK_N // PAGE)
    q += request * q_batch
    queries = (q, row, head, q_token, q_head, valid)
    kv = (keys + kv_head * key_head, values + kv_head * value_head, key_token, value_token)
    page_list = (table, positions, shifts, pages * PAGE)
    x = _query(queries, 0, inv_freq, D, DP, HALF, INTERLEAVED, False)
    acc, m_i, l_i = empty_state(BLOCK_M, DP)
    acc, m_i, l_i, _, _ = _span(
        (acc, m_i, l_i, x, 0), 0, tiles, queries, at_row, kv, page_list, inv_freq, scale, True, PARTIAL_PAGES, ROTATE,
        PAGE, BLOCK_N, D, DP, HALF, INTERLEAVED,
    )  # fmt: skip
    there = ((head * batch + request) * count + row) * splits  # the row's first part
    i, col = tl.arange(0, SPLITS), tl.arange(0, DP)
    log = tl.load(lse + there[:, None] + i[None, :], mask=valid[:, None] & (i < splits)[None, :], other=float("-inf"))
    top = tl.maximum(m_i, tl.max(log, 1))
    top = tl.where(top == float("-inf"), 0.0, top)
    own = tl.exp2(m_i - top)
    weight = tl.exp2(log - top[:, None])
    acc, l_i = acc * own[:, None], l_i * own + tl.sum(weight, 1)
    for part in tl.static_range(SPLITS):  # unrolled: loads overlap
        share = tl.sum(tl.where(i[None, :] == part, weight, 0.0), 1)
        at = there + tl.minimum(part, splits - 1)  # a missing part has weight 0
        one = tl.load(parts + at[:, None] * D + col[None, :], mask=valid[:, None] & (col < D)[None, :], other=0.0)
        acc += tl.where(share[:, None] > 0, one * share[:, None], 0.0)
    some = valid & (l_i > 0)
    result = tl.where(some[:, None], acc / tl.where(some, l_i, 1.0)[:, None], 0.0)
    target = out + request * out_batch + head[:, None] * out_head + row[:, None] * out_token
    inside = (row < count)[:, None] & (col < D)[None, :]
    tl.store(target + col[None, :], result.to(out.dtype.element_ty), mask=inside)


def _own_fits(q: Tensor, heads: int, own: Paged) -> bool:
    """Return whether one program can process the rows of q [B, Hq, R, D] of a request over its own pages."""
    return q.shape[2] * (q.shape[1] // heads) <= ROWS and own.positions[0].numel() <= SLOTS


def _launch_own(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    rows: Tensor,
    own: Paged,
    inv_freq: Tensor | None,
    pairing: Pairing,
    scale: float | None,
    parts: Tensor,
    lse: Tensor,
) -> Tensor:
    """Attend over the own pages and merge `parts` over the shared ones -> [B, Hq, R, D]."""
    q, keys, values = rows_first(q), rows_first(keys), rows_first(values)
    batch, q_heads, count, width = q.shape
    heads, size = len(keys), own.positions.shape[-1]
    group, rerotate = q_heads // heads, own.shifts is not None
    out = torch.empty_like(q)
    tile = 32 if q.dtype == torch.float32 or width > 128 else 64
    options, pdl = overlap(q.device)
    turned = (own.shifts, inv_freq) if rerotate else (own.table, own.table)
    tensors = q, keys, values, parts, lse, out, rows.contiguous(), own.table, own.positions, own.first, *turned
    sizes = log2_scale(scale, width), batch, count, own.table.shape[1], parts.shape[3]
    strides = *q.stride()[:3], *keys.stride()[:2], *values.stride()[:2], *out.stride()[:3]
    constants = {"GROUP": group, "PAGE": size, "D": width, "DP": padded_width(width), "ROTATE": rerotate}
    constants |= {"HALF": 0 if inv_freq is None else len(inv_freq), "INTERLEAVED": pairing == "interleaved"}
    constants |= {"PARTIAL_PAGES": own.partial_pages, "BLOCK_M": max(16, triton.next_power_of_2(count * group))}
    constants |= {"BLOCK_N": min(tile, size) if rerotate else tile}
    constants |= {"CHUNK": min(triton.next_power_of_2(own.table.shape[1]), 2048)}
    constants |= {"SPLITS": triton.next_power_of_2(parts.shape[3]), "PDL": pdl, "num_warps": 4, "num_stages": 2}
    _attend_and_merge[(heads, batch)](*tensors, *sizes, *strides, **constants, **options)
    return out


def reference(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    rows: Tensor,
    shared: Paged,
    own: Paged,
    inv_freq: Tensor | None = None,
    pairing: Pairing = "neox",
    scale: float | None = None,
) -> Tensor:
    """Compute the result in torch, in the dtype of `q`, request by request over both lists of pages."""

    def both(name: str) -> Tensor:
        first, second = getattr(shared, name), getattr(own, name)
        return torch.cat((first.expand(len(q), *first.shape[1:]), second), 1)

    shifts = None
    if shared.shifts is not None or own.shifts is not None:
        each = [torch.zeros_like(x.table) if x.shifts is None else x.shifts for x in (shared, own)]
        shifts = torch.cat((each[0].expand(len(q), -1), each[1]), 1)
    pages = Paged.of(both("table"), both("positions"), shifts)
    return _pages_triton.reference(q, keys, values, rows, pages, inv_freq, pairing, scale)


@jit
def _merge(
    shared, shared_lse, shared_splits, own, own_lse, own_splits, out, batch, heads, count, out_batch, out_head,
    out_token, SHARED: tl.constexpr, OWN: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Merge the parts of one row: over shared pages [1, Hq, B · R, S, D] and over own pages [B, Hq, R, S, D]."""
    after_previous(PDL)
    place = tl.program_id(0).to(tl.int64)
    request, head, row = place // count // heads, place // count % heads, place % count
    there = (head * batch + request) * count + row
    a = part_weights(shared_lse, there, shared_splits, SHARED)
    b = part_weights(own_lse, place, own_splits, OWN)
    m_i = tl.maximum(tl.max(a, 0), tl.max(b, 0))
    m_i = tl.where(m_i == float("-inf"), 0.0, m_i)
    a, b = tl.exp2(a - m_i), tl.exp2(b - m_i)
    l_i = tl.sum(a, 0) + tl.sum(b, 0)
    result = part_sum(shared, there, shared_splits, a, SHARED, D, DP)
    result += part_sum(own, place, own_splits, b, OWN, D, DP)
    result = result / tl.where(l_i > 0, l_i, 1.0)
    target = out + request * out_batch + head * out_head + row * out_token
    col = tl.arange(0, DP)
    tl.store(target + col, result.to(out.dtype.element_ty), mask=col < D)


def launch(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    rows: Tensor,
    shared: Paged,
    own: Paged,
    inv_freq: Tensor | None = None,
    pairing: Pairing = "neox",
    scale: float | None = None,
    *,
    hopper: bool = True,
    at_once: bool = True,
    early: bool = False,
) -> Tensor:
    """Run the kernels on CUDA tensors, or on CPU tensors in fp32 or fp16 under TRITON_INTERPRET=1.

    `hopper`: use the Hopper kernel for shared pages, if it fits. `at_once`: the kernel that merges the parts also reads
    the own pages, if these are few. `early`: see `question_attention`.
    """
    need_triton("shared_attention")
    batch, heads, count, width = q.shape
    together = q.transpose(0, 1).flatten(1, 2)[None]  # [1, Hq, B · R, D]
    at = rows.reshape(1, -1)
    turned: Any = (inv_freq, pairing, scale)
    one, one_lse = launch_parts(together, keys, values, at, shared, *turned, hopper=hopper, early=early)
    if at_once and _own_fits(q, len(keys), own):
        return _launch_own(q, keys, values, rows, own, inv_freq, pairing, scale, one, one_lse)
    two, two_lse = launch_parts(q, keys, values, rows, own, *turned, hopper=False)
    out = torch.empty_like(q)
    options, pdl = overlap(q.device)
    tensors = one, one_lse, one.shape[3], two, two_lse, two.shape[3], out, batch, heads, count
    constants = {"SHARED": triton.next_power_of_2(one.shape[3]), "OWN": triton.next_power_of_2(two.shape[3])}
    constants |= {"D": width, "DP": padded_width(width), "PDL": pdl}
    _merge[(batch * heads * count,)](*tensors, *out.stride()[:3], **constants, **options)
    return out


def cases(device: str = "cpu", dtype: torch.dtype = torch.float32) -> Iterator[tuple[Any, ...]]:
    """Yield arguments to compare `launch` with `reference`: groups, shifted pages, one request, a padding row."""
    case = partial(drawn, device=device, dtype=dtype)
    yield _split(case(1, contexts=[[0, 1]] * 3, blocks=[37, 66], questions=[1, 1, 1]), 8)
    yield _split(case(2, contexts=[[1, 0]] * 2, blocks=[40, 19], questions=[3, 2], width=128, pairing="neox"), 5)
    yield _split(case(3, contexts=[[0]] * 4, blocks=[101], questions=[1] * 4, width=80, heads=(3, 1), page=32), 4)
    yield _split(case(4, contexts=[[0, 1]], blocks=[16, 33], questions=[2], width=256, heads=(2, 2)), 4)
    large = case(6, contexts=[[1, 0]] * 3, blocks=[260, 130], questions=[1] * 3, width=128, page=64, pairing="neox")
    yield _split(large, 8)  # fits the Hopper kernel
    yield _split(case(7, contexts=[[0]] * 5, blocks=[520], questions=[1] * 5, page=128, heads=(8, 2)), 4)
    q, keys, values, rows, *rest = _split(case(5, contexts=[[0]] * 2, blocks=[50], questions=[1, 1]), 4)
    yield q, keys, values, torch.where(torch.arange(2, device=device)[:, None] == 1, -1, rows), *rest


def _split(whole: tuple[Any, ...], count: int) -> tuple[Any, ...]:
    """Split a case of `_pages.triton_kernel` after its `count` leading pages, which all requests share."""
    q, keys, values, rows, pages, inv_freq, pairing = whole
    parts = []
    for at in (slice(0, count), slice(count, None)):
        shifts = None if pages.shifts is None else pages.shifts[:, at]
        parts.append((pages.table[:, at], pages.positions[:, at], shifts))
    (table, positions, shifts), own = parts
    assert (
        (table == table[:1]).all() and (positions == positions[:1]).all() and not (positions[:, 0] == INVALID_POS).any()
    )
    shared = Paged.of(table[:1], positions[:1], None if shifts is None else shifts[:1])
    return q, keys, values, rows, shared, Paged.of(*own), inv_freq, pairing

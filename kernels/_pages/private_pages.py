"""The last step of `shared_attention`: rows attend to few pages of their own, and parts over the shared ones join in.

One program takes the rows of a request and of the heads that read one KV head. Names are those of `_pages_triton`.
"""

import torch
from torch import Tensor

from workbench.core.page_table import Paged
from workbench.core.rope import Pairing
from workbench.kernels._pages.triton_kernel import _query, _span
from workbench.kernels._shared.attention import LOG2E, count_upto, empty_state, rows_first
from workbench.kernels._shared.triton_import import after_previous, jit, overlap, padded_width, tl, triton

ROWS = 64  # rows times heads of a group, at most
SLOTS = 1024  # of a request's own pages, at most: one program reads them


@jit
def _attend_and_merge(
    q, keys, values, parts, lse, out, rows, table, positions, first, shifts, inv_freq, scale, batch, count, pages,
    splits, q_batch, q_head, q_token, key_head, key_token, value_head, value_token, out_batch, out_head, out_token,
    GROUP: tl.constexpr, PAGE: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, HALF: tl.constexpr,
    INTERLEAVED: tl.constexpr, ROTATE: tl.constexpr, PARTIAL_PAGES: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, CHUNK: tl.constexpr, SPLITS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """parts [1, Hq, B · R, S, D] over the shared pages, and the log2 of their weights, lse [1, Hq, B · R, S]."""
    kv_head, request = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    m = tl.arange(0, BLOCK_M)  # row by row, the heads of a group side by side
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
    log = tl.load(
        lse + there[:, None] + i[None, :], mask=valid[:, None] & (i < splits)[None, :], other=float("-inf")
    )  # fmt: skip
    top = tl.maximum(m_i, tl.max(log, 1))
    top = tl.where(top == float("-inf"), 0.0, top)
    own = tl.exp2(m_i - top)
    weight = tl.exp2(log - top[:, None])
    acc, l_i = acc * own[:, None], l_i * own + tl.sum(weight, 1)
    for part in tl.static_range(SPLITS):  # unrolled: loads need not wait for each other
        share = tl.sum(tl.where(i[None, :] == part, weight, 0.0), 1)
        at = there + tl.minimum(part, splits - 1)  # a part that there is not has no weight
        one = tl.load(parts + at[:, None] * D + col[None, :], mask=valid[:, None] & (col < D)[None, :], other=0.0)
        acc += tl.where(share[:, None] > 0, one * share[:, None], 0.0)
    some = valid & (l_i > 0)
    result = tl.where(some[:, None], acc / tl.where(some, l_i, 1.0)[:, None], 0.0)
    target = out + request * out_batch + head[:, None] * out_head + row[:, None] * out_token
    inside = (row < count)[:, None] & (col < D)[None, :]
    tl.store(target + col[None, :], result.to(out.dtype.element_ty), mask=inside)


def fits(q: Tensor, heads: int, own: Paged) -> bool:
    """Whether one program may take the rows [B, Hq, R, D] of a request over its own pages."""
    return q.shape[2] * (q.shape[1] // heads) <= ROWS and own.positions[0].numel() <= SLOTS


def launch(
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
    """Attend over the own pages, and add `parts` of the shared ones -> [B, Hq, R, D]."""
    q, keys, values = rows_first(q), rows_first(keys), rows_first(values)
    batch, q_heads, count, width = q.shape
    heads, size = len(keys), own.positions.shape[-1]
    group, rerotate = q_heads // heads, own.shifts is not None
    out = torch.empty_like(q)
    tile = 32 if q.dtype == torch.float32 or width > 128 else 64
    options, pdl = overlap(q.device)
    _attend_and_merge[(heads, batch)](
        q, keys, values, parts, lse, out, rows.contiguous(), own.table, own.positions, own.first,
        own.shifts if rerotate else own.table, inv_freq if rerotate else own.table,
        (width**-0.5 if scale is None else scale) * LOG2E, batch, count, own.table.shape[1], parts.shape[3],
        *q.stride()[:3], *keys.stride()[:2], *values.stride()[:2], *out.stride()[:3], GROUP=group, PAGE=size, D=width,
        DP=padded_width(width), HALF=len(inv_freq) if inv_freq is not None else 0, INTERLEAVED=pairing == "interleaved",
        ROTATE=rerotate, PARTIAL_PAGES=own.partial_pages, BLOCK_M=max(16, triton.next_power_of_2(count * group)),
        BLOCK_N=min(tile, size) if rerotate else tile, CHUNK=min(triton.next_power_of_2(own.table.shape[1]), 2048),
        SPLITS=triton.next_power_of_2(parts.shape[3]), PDL=pdl, num_warps=4, num_stages=2, **options,
    )  # fmt: skip
    return out

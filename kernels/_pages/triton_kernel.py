"""Paged attention, with pages anywhere in memory.

Shared by `question_attention` (few rows, keys split among programs) and `q_sparse_attention` (many rows).

A request is a list of pages of a pool (`core.page_table.Paged`), shared with other requests or its own, and the
position of each slot. Masked slots (the tail of a block, a stale entry that the request recomputed on its own page)
have position INVALID_POS. A row attends to the slots at or before its own position, so neither the order of pages nor
gaps matter.

The keys of a cached page may be rotated for positions `shifts` before those of the page. Since q · R(s) k = R(-s) q ·
k, the query is rotated back, once per run of pages with equal shifts, and keys are multiplied as they are stored
(RoFormer, arXiv:2104.09864, eq. 16). Names in the kernel are those of `_shared.attention`; lse is the log2 of the
weight of a part: m_i + log2(l_i).
"""

import torch
from torch import Tensor

from workbench.core import page_table
from workbench.core.page_table import Paged
from workbench.core.rope import Pairing, rotate
from workbench.kernels._pages.parts import merge, new_parts
from workbench.kernels._shared.attention import (
    INVALID_POS,
    Config,
    attend,
    count_upto,
    empty_state,
    load_tile,
    log2_scale,
    logits,
    planes,
    processors,
    rows_first,
    step,
)
from workbench.kernels._shared.triton_import import jit, padded_width, tl, triton


def reference(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    rows: Tensor,
    pages: Paged,
    inv_freq: Tensor | None = None,
    pairing: Pairing = "neox",
    scale: float | None = None,
) -> Tensor:
    """Attend with q [B, Hq, R, D] at `rows` [B, R] (-1: padding) over keys and values [H, T, D] -> [B, Hq, R, D].

    `inv_freq` [R/2] of the rotary embedding is needed for shifted pages. Computed in the dtype of `q`.
    """
    out = torch.zeros_like(q)
    for b in range(len(q)):
        k, v, at = read(keys, values, pages, b, inv_freq, pairing)
        out[b] = attend(q[b], k, v, at <= rows[b, :, None], scale)
    return out


def read(
    keys: Tensor, values: Tensor, pages: Paged, request: int, inv_freq: Tensor | None, pairing: Pairing
) -> tuple[Tensor, Tensor, Tensor]:
    """Copy what a request reads from pages: keys rotated to their positions, values [H, N, D], positions [N]."""
    at, size = pages.positions[request].flatten().long(), pages.positions.shape[-1]
    slots = (pages.table[request, :, None].long() * size + torch.arange(size, device=keys.device)).flatten()
    used = at != page_table.INVALID_POS
    k, v = keys[:, slots[used]], values[:, slots[used]]
    if pages.shifts is not None:
        assert inv_freq is not None
        k = rotate(k, pages.shifts[request].repeat_interleave(size)[used], inv_freq, pairing)
    return k, v, at[used]


@jit
def _query(
    queries, shift, inv_freq, D: tl.constexpr, DP: tl.constexpr, HALF: tl.constexpr, INTERLEAVED: tl.constexpr,
    REROTATE: tl.constexpr,
):  # fmt: skip
    """Load queries [M, DP]; with REROTATE, rotated back by `shift` positions."""
    q, row, head, token_stride, head_stride, valid = queries
    col = tl.arange(0, DP)
    base = q + head[:, None] * head_stride + row[:, None] * token_stride
    inside = valid[:, None] & (col < D)[None, :]
    x = tl.load(base + col[None, :], mask=inside, other=0.0)
    if REROTATE:
        other, angle, sin = planes(col, shift, inv_freq, HALF, INTERLEAVED, True)
        y = tl.load(base + other[None, :], mask=inside, other=0.0)
        x = (x.to(tl.float32) * tl.cos(angle)[None, :] + y.to(tl.float32) * sin[None, :]).to(x.dtype)
    return x


@jit
def _span(
    state, begin, end, queries, at_row, kv, page_list, inv_freq, scale, MASKED: tl.constexpr, PARTIAL_PAGES:
    tl.constexpr, ROTATE: tl.constexpr, PAGE: tl.constexpr, BLOCK_N: tl.constexpr, D: tl.constexpr, DP: tl.constexpr,
    HALF: tl.constexpr, INTERLEAVED: tl.constexpr,
):  # fmt: skip
    """Process key tiles `begin` to `end`. PARTIAL_PAGES: some of their slots are masked."""
    acc, m_i, l_i, x, rotated = state  # queries x are rotated back by `rotated` positions
    keys, values, key_token, value_token = kv
    table, positions, shifts, slots = page_list
    col = tl.arange(0, DP)
    for tile in tl.range(begin, end):
        slot = tile * BLOCK_N + tl.arange(0, BLOCK_N)
        if PAGE >= BLOCK_N:
            place = tile // (PAGE // BLOCK_N)
            token = tl.load(table + place).to(tl.int64) * PAGE + slot % PAGE
        else:
            token = tl.load(table + slot // PAGE, mask=slot < slots, other=0).to(tl.int64) * PAGE + slot % PAGE
        at = slot
        if MASKED or PARTIAL_PAGES:
            at = tl.load(positions + slot, mask=slot < slots, other=INVALID_POS)
        there = (at != INVALID_POS)[:, None]
        k = load_tile(keys + token[:, None] * key_token + col[None, :], there, MASKED or PARTIAL_PAGES, D, DP)
        v = load_tile(values + token[:, None] * value_token + col[None, :], there, MASKED or PARTIAL_PAGES, D, DP)
        if ROTATE:
            shift = tl.load(shifts + place)
            if shift != rotated:
                x = _query(queries, shift, inv_freq, D, DP, HALF, INTERLEAVED, True)
                rotated = shift
        s = logits(x, k, scale)
        if MASKED:
            s = tl.where(at[None, :] <= at_row[:, None], s, float("-inf"))
        elif PARTIAL_PAGES:
            s = tl.where((at != INVALID_POS)[None, :], s, float("-inf"))
        acc, m_i, l_i = step(acc, m_i, l_i, s, v, MASKED or PARTIAL_PAGES)
    return acc, m_i, l_i, x, rotated


@jit
def _attend(
    q, keys, values, out, lse, rows, table, positions, first, last, shifts, inv_freq, scale, count, pages,
    q_batch, q_head, q_token, key_head, key_token, value_head, value_token,
    out_batch, out_head, out_token, out_split, row_tiles, splits,
    GROUP: tl.constexpr, SPLIT: tl.constexpr, PAGE: tl.constexpr,
    D: tl.constexpr, DP: tl.constexpr, HALF: tl.constexpr, INTERLEAVED: tl.constexpr, ROTATE: tl.constexpr,
    PARTIAL_PAGES: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    kv_head = (tl.program_id(0) // row_tiles).to(tl.int64)
    tile_m = row_tiles - 1 - tl.program_id(0) % row_tiles  # the last rows attend to the most keys: start them first
    split = tl.program_id(1)
    request = tl.program_id(2).to(tl.int64)
    m = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)  # row-major: the heads of a group are adjacent
    row = (m // GROUP).to(tl.int64)
    head = kv_head * GROUP + m % GROUP
    at_row = tl.load(rows + request * count + row, mask=row < count, other=-1).to(tl.int32)
    valid = at_row >= 0
    table, positions, shifts = table + request * pages, positions + request * pages * PAGE, shifts + request * pages
    seen = count_upto(first + request * pages, 0, pages, tl.max(at_row, 0), CHUNK)
    lowest = tl.min(tl.where(valid, at_row, INVALID_POS), 0)
    whole = tl.minimum(count_upto(last + request * pages, 0, pages, lowest, CHUNK), seen)
    if PAGE >= BLOCK_N:
        tiles, clear = seen * (PAGE // BLOCK_N), whole * (PAGE // BLOCK_N)
    else:
        tiles, clear = tl.cdiv(seen, BLOCK_N // PAGE), whole // (BLOCK_N // PAGE)
    share = tl.cdiv(tiles, splits)
    begin = tl.minimum(split * share, tiles)
    end = tl.minimum(begin + share, tiles)
    middle = tl.minimum(tl.maximum(clear, begin), end)
    q += request * q_batch
    keys, values = keys + kv_head * key_head, values + kv_head * value_head
    queries = (q, row, head, q_token, q_head, valid)
    kv, page_list = (keys, values, key_token, value_token), (table, positions, shifts, pages * PAGE)
    x = _query(queries, 0, inv_freq, D, DP, HALF, INTERLEAVED, False)
    acc, m_i, l_i = empty_state(BLOCK_M, DP)
    state = _span(
        (acc, m_i, l_i, x, 0),
        begin,
        middle,
        queries,
        at_row,
        kv,
        page_list,
        inv_freq,
        scale,
        False,
        PARTIAL_PAGES,
        ROTATE,
        PAGE,
        BLOCK_N,
        D,
        DP,
        HALF,
        INTERLEAVED,
    )
    acc, m_i, l_i, _, _ = _span(
        state,
        middle,
        end,
        queries,
        at_row,
        kv,
        page_list,
        inv_freq,
        scale,
        True,
        PARTIAL_PAGES,
        ROTATE,
        PAGE,
        BLOCK_N,
        D,
        DP,
        HALF,
        INTERLEAVED,
    )
    some = valid & (l_i > 0)
    result = tl.where(some[:, None], acc / tl.where(some, l_i, 1.0)[:, None], 0.0)
    col = tl.arange(0, DP)
    target = out + request * out_batch + split * out_split + head[:, None] * out_head + row[:, None] * out_token
    inside = (row < count)[:, None] & (col < D)[None, :]
    tl.store(target + col[None, :], result.to(out.dtype.element_ty), mask=inside)
    if SPLIT:
        weight = tl.where(some, m_i + tl.log2(tl.where(some, l_i, 1.0)), float("-inf"))
        heads = tl.num_programs(0) // row_tiles * GROUP
        tl.store(lse + ((request * heads + head) * count + row) * splits + split, weight, mask=row < count)


def launch(
    config: Config,
    splits: int,
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    rows: Tensor,
    pages: Paged,
    inv_freq: Tensor | None,
    pairing: Pairing,
    scale: float | None,
) -> Tensor:
    """Run the kernel: rows times heads of a group in tiles of `config.rows`, keys in `splits` parts."""
    out = torch.empty_like(q)
    if splits > 1:
        merge(*launch_parts(config, splits, q, keys, values, rows, pages, inv_freq, pairing, scale), out)
    else:
        launch_parts(config, 1, q, keys, values, rows, pages, inv_freq, pairing, scale, out)
    return out


def launch_parts(
    config: Config,
    splits: int,
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    rows: Tensor,
    pages: Paged,
    inv_freq: Tensor | None,
    pairing: Pairing,
    scale: float | None,
    out: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return parts [B, Hq, R, S, D] and the log2 of their weights [B, Hq, R, S], fp32; or write one part to `out`."""
    q, keys, values = rows_first(q), rows_first(keys), rows_first(values)
    batch, q_heads, count, width = q.shape
    heads, size = len(keys), pages.positions.shape[-1]
    group, rotate_ = q_heads // heads, pages.shifts is not None
    tiles, table = triton.cdiv(count * group, config.rows), pages.table
    parts, lse = new_parts(q, splits) if out is None else (out, out)
    step = min(config.keys, size) if rotate_ else config.keys
    turned = (pages.shifts, inv_freq) if rotate_ else (table, table)
    tensors = q, keys, values, parts, lse, rows.contiguous(), table, pages.positions, pages.first, pages.last, *turned
    strides = *q.stride()[:3], *keys.stride()[:2], *values.stride()[:2], *parts.stride()[:3]
    sizes = 0 if parts is out else parts.stride(3), tiles, splits
    constants = {"GROUP": group, "SPLIT": parts is not out, "PAGE": size, "D": width, "DP": padded_width(width)}
    constants |= {"HALF": 0 if inv_freq is None else len(inv_freq), "INTERLEAVED": pairing == "interleaved"}
    constants |= {"ROTATE": rotate_, "PARTIAL_PAGES": pages.partial_pages, "BLOCK_M": config.rows, "BLOCK_N": step}
    constants |= {"CHUNK": min(triton.next_power_of_2(table.shape[1]), 2048)}
    _attend[(tiles * heads, splits, batch)](
        *tensors, log2_scale(scale, width), count, table.shape[1], *strides, *sizes, **constants, **config.launch
    )
    return parts, lse


def parts_for(config: Config, q: Tensor, heads: int, pages: Paged, resident: int) -> int:
    """Return the number of programs that share the keys of one row tile.

    Each multiprocessor then runs `resident` programs, and each program has at least four key tiles.
    """
    tiles = -(-q.shape[2] * (q.shape[1] // heads) // config.rows) * heads * len(q)
    most = pages.positions[0].numel() // (4 * config.keys)
    return max(1, min(resident * processors(q.device) // tiles, most, 128))

"""Rows that attend to pages of keys and values, wherever the pages lie: the common part of `question_attention` (few
rows, the keys split among programs) and `q_sparse_attention` (many rows).

A request is a list of pages of a pool (`core.page_table.Paged`), shared with other requests or its own, and the
position of every slot of them. A slot that no row may see (the tail of a block, a stale entry that the request
recomputed on a page of its own) stands at INVALID_POS. A row sees the slots at or before its own position, so neither
the order of the pages nor a gap between them matters.

A cached page may have to move: its keys were rotated for other positions, `moves` tokens before. q · R(s) k =
R(-s) q · k, so the query is turned back, once for each run of pages that move alike, and keys go to the matrix unit as
they lie in memory (RoFormer, arXiv:2104.09864, eq. 16).
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from workbench.core.page_table import INVALID_POS, Paged
from workbench.core.rope import Pairing, rotate
from workbench.kernels._common import LOG2E, Config, attend, processors, rows_first, step
from workbench.kernels._triton import jit, tl, triton


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
    """q [B, Hq, R, D] at positions `rows` [B, R] (-1: no row), keys and values [H, T, D] -> [B, Hq, R, D].

    `inv_freq` [R/2] of the rotary embedding is needed where pages move. Computed in the dtype of `q`.
    """
    out, size = torch.zeros_like(q), pages.positions.shape[-1]
    for b in range(len(q)):
        at = pages.positions[b].flatten().long()
        slots = (pages.table[b, :, None].long() * size + torch.arange(size, device=q.device)).flatten()
        used = at != INVALID_POS
        k, v = keys[:, slots[used]], values[:, slots[used]]
        if pages.shifts is not None:
            assert inv_freq is not None
            k = rotate(k, pages.shifts[b].repeat_interleave(size)[used], inv_freq, pairing)
        out[b] = attend(q[b], k, v, at[used] <= rows[b, :, None], scale)
    return out


def case(
    seed: int,
    device: str,
    dtype: torch.dtype,
    contexts: Sequence[Sequence[int]],
    blocks: Sequence[int],
    asked: Sequence[int],
    again: float = 0.0,
    page: int = 16,
    width: int = 64,
    heads: tuple[int, int] = (4, 2),
    pairing: Pairing | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Paged, Tensor | None, Pairing]:
    """Arguments of `reference`. Request b reads the cached blocks `contexts[b]` (their lengths are `blocks`), computes
    a share `again` of their tokens anew and asks a question of `asked[b]` tokens, on pages of its own. With `pairing`,
    blocks move to where they stand. Pages lie in random places; what no row may see is NaN."""
    draw = torch.Generator().manual_seed(seed)
    home, number = [], 0  # pages of each cached block
    for length in blocks:
        count = -(-length // page)
        home.append(list(range(number, number + count)))
        number += count
    tables: list[list[tuple[int, int, list[int]]]] = []  # of each request: (page, move, position of every slot)
    rows: list[list[int]] = []
    for context, question in zip(contexts, asked, strict=True):
        start, table, mine = 0, [], []
        for block in context:
            anew = torch.rand(blocks[block], generator=draw) < again
            mine += (start + anew.nonzero()[:, 0]).tolist()
            for i, p in enumerate(home[block]):
                inside = range(i * page, min((i + 1) * page, blocks[block]))
                at = [INVALID_POS if anew[t] else start + t for t in inside]
                table.append((p, start, at + [INVALID_POS] * (page - len(at))))
            start += blocks[block]
        mine += list(range(start, start + question))
        for i in range(0, len(mine), page):
            part = mine[i : i + page]
            table.append((number, 0, part + [INVALID_POS] * (page - len(part))))
            number += 1
        tables.append(table)
        rows.append(mine)
    width_p, width_r = max(map(len, tables)), max(map(len, rows))
    where = torch.randperm(number, generator=draw).tolist()
    empty = (0, 0, [INVALID_POS] * page)
    padded = [table + [empty] * (width_p - len(table)) for table in tables]
    positions = torch.tensor([[at for _, _, at in table] for table in padded])
    table_ = torch.tensor([[where[p] for p, _, _ in table] for table in padded])
    shifts = torch.tensor([[shift for _, shift, _ in table] for table in padded]) if pairing else None
    pool = [torch.full((heads[1], number * page, width), torch.nan) for _ in range(2)]
    seen = (table_[..., None] * page + torch.arange(page))[positions != INVALID_POS].unique()
    for x in pool:
        x[:, seen] = torch.randn(heads[1], len(seen), width, generator=draw)
    q = torch.randn(len(tables), heads[0], width_r, width, generator=draw)
    at_rows = torch.tensor([mine + [-1] * (width_r - len(mine)) for mine in rows])
    inv_freq = (1e4 ** (-torch.arange(0, width, 2) / width)).to(device) if pairing else None
    length = 1 + max((max(at) for at in rows if at), default=0)
    pages = Paged.of(
        table_.to(device), positions.to(device), None if shifts is None else shifts.to(device), length=length
    )
    keys, values = (x.to(device, dtype) for x in pool)
    return q.to(device, dtype), keys, values, at_rows.to(device), pages, inv_freq, pairing or "neox"


@jit
def _count(bounds, limit, pages, CHUNK: tl.constexpr):
    """How many of `pages` rising bounds are at most `limit`."""
    found = 0
    for at in range(0, pages, CHUNK):
        i = at + tl.arange(0, CHUNK)
        found += tl.sum(((tl.load(bounds + i, mask=i < pages, other=2147483647) <= limit) & (i < pages)).to(tl.int32))
    return found


@jit
def _query(
    q, row, head, token_stride, head_stride, valid, shift, inv_freq,
    D: tl.constexpr, DP: tl.constexpr, HALF: tl.constexpr, INTERLEAVED: tl.constexpr, TURN: tl.constexpr,
):  # fmt: skip
    """[M, DP] queries; with TURN, turned back by `move` positions."""
    col = tl.arange(0, DP)
    base = q + head[:, None] * head_stride + row[:, None] * token_stride
    x = tl.load(base + col[None, :], mask=valid[:, None] & (col < D)[None, :], other=0.0)
    if TURN:
        turns = col < 2 * HALF
        second = (col % 2 == 1) if INTERLEAVED else (col >= HALF)
        plane = col // 2 if INTERLEAVED else col % HALF
        apart = 1 if INTERLEAVED else HALF
        other = tl.where(turns, tl.where(second, col - apart, col + apart), col)
        freq = tl.load(inv_freq + plane, mask=turns, other=0.0).to(tl.float64)
        angle = shift.to(tl.float64) * freq
        angle = (angle - 6.283185307179586 * tl.floor(angle * 0.15915494309189535)).to(tl.float32)
        sin = tl.where(second, -tl.sin(angle), tl.sin(angle))  # of -move, and the sign of the plane's other channel
        y = tl.load(base + other[None, :], mask=valid[:, None] & (col < D)[None, :], other=0.0)
        x = (x.to(tl.float32) * tl.cos(angle)[None, :] + y.to(tl.float32) * sin[None, :]).to(x.dtype)
    return x


@jit
def _span(
    acc, top, total, x, turned, begin, end, at_row,
    q, row, head, q_token, q_head, valid, inv_freq,
    keys, values, key_token, value_token, table, positions, shifts, slots, scale,
    MASKED: tl.constexpr, PARTIAL_PAGES: tl.constexpr, ROTATE: tl.constexpr, PAGE: tl.constexpr,
    BLOCK_N: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, HALF: tl.constexpr,
    INTERLEAVED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Key tiles `begin` to `end`. MASKED: rows see a part of them; HOLES: some slots are nobody's."""
    col = tl.arange(0, DP)
    for tile in tl.range(begin, end):
        slot = tile * BLOCK_N + tl.arange(0, BLOCK_N)
        if PAGE >= BLOCK_N:
            place = tile // (PAGE // BLOCK_N)
            token = tl.load(table + place).to(tl.int64) * PAGE + slot % PAGE
        else:
            token = tl.load(table + slot // PAGE, mask=slot < slots, other=0).to(tl.int64) * PAGE + slot % PAGE
        k_at = keys + token[:, None] * key_token + col[None, :]
        v_at = values + token[:, None] * value_token + col[None, :]
        if MASKED or PARTIAL_PAGES:
            at = tl.load(positions + slot, mask=slot < slots, other=2147483647)
            there = (at != 2147483647)[:, None] & (col < D)[None, :]
            k = tl.load(k_at, mask=there, other=0.0)
            v = tl.load(v_at, mask=there, other=0.0)
        elif D != DP:
            k = tl.load(k_at, mask=(col < D)[None, :], other=0.0)
            v = tl.load(v_at, mask=(col < D)[None, :], other=0.0)
        else:
            k = tl.load(k_at)
            v = tl.load(v_at)
        if ROTATE:
            shift = tl.load(shifts + place)
            if shift != turned:
                x = _query(q, row, head, q_token, q_head, valid, shift, inv_freq, D, DP, HALF, INTERLEAVED, True)
                turned = shift
        s = tl.dot(x, tl.trans(k), input_precision=PRECISION) * scale
        if MASKED:
            s = tl.where(at[None, :] <= at_row[:, None], s, float("-inf"))
        elif PARTIAL_PAGES:
            s = tl.where((at != 2147483647)[None, :], s, float("-inf"))
        acc, top, total = step(acc, top, total, s, v, MASKED or PARTIAL_PAGES, PRECISION)
    return acc, top, total, x, turned


@jit
def _attend(
    q, keys, values, out, lse, rows, table, positions, first, last, shifts, inv_freq, scale, count, pages,
    q_batch, q_head, q_token, key_head, key_token, value_head, value_token,
    out_batch, out_head, out_token, out_split, row_tiles, splits,
    GROUP: tl.constexpr, SPLIT: tl.constexpr, PAGE: tl.constexpr,
    D: tl.constexpr, DP: tl.constexpr, HALF: tl.constexpr, INTERLEAVED: tl.constexpr, ROTATE: tl.constexpr,
    PARTIAL_PAGES: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CHUNK: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    kv_head = (tl.program_id(0) // row_tiles).to(tl.int64)
    tile_m = row_tiles - 1 - tl.program_id(0) % row_tiles  # the last rows see most: they begin first
    split = tl.program_id(1)
    request = tl.program_id(2).to(tl.int64)
    m = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)  # row by row, the heads of a group side by side
    row = (m // GROUP).to(tl.int64)
    head = kv_head * GROUP + m % GROUP
    at_row = tl.load(rows + request * count + row, mask=row < count, other=-1).to(tl.int32)
    valid = at_row >= 0
    table, positions, shifts = table + request * pages, positions + request * pages * PAGE, shifts + request * pages
    seen = _count(first + request * pages, tl.max(at_row, 0), pages, CHUNK)
    lowest = tl.min(tl.where(valid, at_row, 2147483647), 0)
    whole = tl.minimum(_count(last + request * pages, lowest, pages, CHUNK), seen)
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
    x = _query(q, row, head, q_token, q_head, valid, 0, inv_freq, D, DP, HALF, INTERLEAVED, False)
    acc = tl.zeros([BLOCK_M, DP], tl.float32)
    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    turned = 0
    acc, top, total, x, turned = _span(
        acc, top, total, x, turned, begin, middle, at_row, q, row, head, q_token, q_head, valid, inv_freq,
        keys, values, key_token, value_token, table, positions, shifts, pages * PAGE, scale,
        False, PARTIAL_PAGES, ROTATE, PAGE, BLOCK_N, D, DP, HALF, INTERLEAVED, PRECISION,
    )  # fmt: skip
    acc, top, total, x, turned = _span(
        acc, top, total, x, turned, middle, end, at_row, q, row, head, q_token, q_head, valid, inv_freq,
        keys, values, key_token, value_token, table, positions, shifts, pages * PAGE, scale,
        True, PARTIAL_PAGES, ROTATE, PAGE, BLOCK_N, D, DP, HALF, INTERLEAVED, PRECISION,
    )  # fmt: skip
    some = valid & (total > 0)
    result = tl.where(some[:, None], acc / tl.where(some, total, 1.0)[:, None], 0.0)
    col = tl.arange(0, DP)
    target = out + request * out_batch + split * out_split + head[:, None] * out_head + row[:, None] * out_token
    inside = (row < count)[:, None] & (col < D)[None, :]
    tl.store(target + col[None, :], result.to(out.dtype.element_ty), mask=inside)
    if SPLIT:
        weight = tl.where(some, top + tl.log2(tl.where(some, total, 1.0)), float("-inf"))
        heads = tl.num_programs(0) // row_tiles * GROUP
        tl.store(lse + ((request * heads + head) * count + row) * splits + split, weight, mask=row < count)


@jit
def _merge(
    parts, lse, out, heads, count, splits, out_batch, out_head, out_token,
    SPLITS_POW2: tl.constexpr, D: tl.constexpr, DP: tl.constexpr,
):  # fmt: skip
    """One row: parts [SPLITS, D] weighted by their share of the softmax."""
    place = tl.program_id(0).to(tl.int64)
    request, head, row = place // count // heads, place // count % heads, place % count
    i, col = tl.arange(0, SPLITS_POW2), tl.arange(0, DP)
    log = tl.load(lse + place * splits + i, mask=i < splits, other=float("-inf"))
    top = tl.max(log, 0)
    weight = tl.exp2(log - tl.where(top == float("-inf"), 0.0, top))
    total = tl.sum(weight, 0)
    there = (weight > 0)[:, None] & (col < D)[None, :]
    part = tl.load(parts + (place * splits + i[:, None]) * D + col[None, :], mask=there, other=0.0)
    result = tl.sum(part * weight[:, None], 0) / tl.where(total > 0, total, 1.0)
    target = out + request * out_batch + head * out_head + row * out_token
    tl.store(target + col, result.to(out.dtype.element_ty), mask=col < D)


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
    """`reference` on the card: rows in tiles of `config.rows` (times heads of a group), keys in `splits` parts."""
    q, keys, values = rows_first(q), rows_first(keys), rows_first(values)
    batch, q_heads, count, width = q.shape
    heads, size = len(keys), pages.positions.shape[-1]
    group, wide = q_heads // heads, triton.next_power_of_2(width)
    rotate_ = pages.shifts is not None
    tiles = triton.cdiv(count * group, config.rows)
    table = pages.table
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    split = splits > 1
    parts = torch.empty((batch, q_heads, count, splits, width), dtype=torch.float32, device=q.device) if split else out
    lse = torch.empty((batch, q_heads, count, splits), dtype=torch.float32, device=q.device) if split else out
    _attend[(tiles * heads, splits, batch)](
        q, keys, values, parts, lse, rows.contiguous(), table, pages.positions, pages.first, pages.last,
        pages.shifts if rotate_ else table, inv_freq if rotate_ else table,
        (width**-0.5 if scale is None else scale) * LOG2E, count, table.shape[1],
        *q.stride()[:3], *keys.stride()[:2], *values.stride()[:2], *parts.stride()[:3], parts.stride(3) if split else 0,
        tiles, splits, GROUP=group, SPLIT=split, PAGE=size, D=width, DP=wide,
        HALF=len(inv_freq) if inv_freq is not None else 0, INTERLEAVED=pairing == "interleaved", ROTATE=rotate_,
        PARTIAL_PAGES=pages.partial_pages, BLOCK_M=config.rows,
        BLOCK_N=min(config.keys, size) if rotate_ else config.keys,
        CHUNK=min(triton.next_power_of_2(table.shape[1]), 2048),
        PRECISION="ieee" if q.dtype == torch.float32 else "tf32", num_warps=config.warps, num_stages=config.stages,
    )  # fmt: skip
    if split:
        merge(parts, lse, out)
    return out


def merge(parts: Tensor, lse: Tensor, out: Tensor) -> None:
    """Parts [B, Hq, R, S, D] fp32 with their log-sums [B, Hq, R, S] into `out` [B, Hq, R, D]."""
    batch, heads, count, splits, width = parts.shape
    _merge[(batch * heads * count,)](
        parts, lse, out, heads, count, splits, *out.stride()[:3],
        SPLITS_POW2=triton.next_power_of_2(splits), D=width, DP=triton.next_power_of_2(width),
    )  # fmt: skip


def parts_for(config: Config, q: Tensor, heads: int, pages: Paged, resident: int) -> int:
    """How many programs share the keys of one row tile, so that each multiprocessor has `resident` of them to run and
    every one has at least four tiles of keys."""
    tiles = -(-q.shape[2] * (q.shape[1] // heads) // config.rows) * heads * len(q)
    most = pages.positions[0].numel() // (4 * config.keys)
    return max(1, min(resident * processors(q.device) // tiles, most, 128))

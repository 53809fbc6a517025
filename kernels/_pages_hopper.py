"""`_pages_triton` for Hopper: few rows over pages, wherever they lie, built as `_tiles_hopper` is.

Rows of all heads of a GQA group stand side by side in a tile of 128, so keys and values are read once. A page is
fetched through a tensor descriptor; its number decides where from. Whether a step needs a mask is asked at each step:
its pages say the largest position that they hold. Where cached pages move, the queries are turned back when the move
changes, at most once a page: a fourth group of warps does it for the next move while the matrix unit works on this one.
"""

import torch
from torch import Tensor

from workbench.core.page_table import Paged
from workbench.core.rope import Pairing
from workbench.kernels._common import LOG2E, processors
from workbench.kernels._pages_triton import merge
from workbench.kernels._tiles_hopper import BUFFERS, ROWS, fits_gpu
from workbench.kernels._triton import (
    GluonDescriptor,
    async_load,
    fence_async_shared,
    gl,
    gluon_jit,
    mbarrier,
    triton,
    warpgroup_mma,
    warpgroup_mma_wait,
)

WIDTHS = (64, 128)
PAGES = (64, 128, 256)  # tokens


def fits(q: Tensor, keys: Tensor, values: Tensor, page: int) -> bool:
    """Whether this kernel takes such arguments (of `_paged.launch`): a Hopper card, 16-bit numbers, whole tiles."""
    return fits_gpu(q, (keys[None], values[None])) and q.shape[3] in WIDTHS and page in PAGES


def parts_for(q: Tensor, heads: int, slots: int) -> int:
    """How many programs share the keys of one row tile: one program for each multiprocessor, four steps for each."""
    tiles = -(-q.shape[2] * (q.shape[1] // heads) // ROWS) * heads * len(q)
    return max(1, min(processors(q.device) // tiles, slots // 512, 128))


@gluon_jit
def _count(bounds, limit, pages):
    """How many of `pages` rising bounds are at most `limit`."""
    wide: gl.constexpr = gl.BlockedLayout([4], [32], [4], [0])
    found = 0
    for at in range(0, pages, 512):
        i = at + gl.arange(0, 512, layout=wide)
        kept = (gl.load(bounds + i, mask=i < pages, other=2147483647) <= limit) & (i < pages)
        found += gl.sum(kept.to(gl.int32), 0)
    return found


@gluon_jit
def _token(table, slot, pages, PAGE: gl.constexpr):
    """Where a slot lies in the pool; beyond it behind the last page."""
    page = slot // PAGE
    token = gl.load(table + page, mask=page < pages, other=0) * PAGE + slot % PAGE
    return gl.where(page < pages, token, 1073741824)


@gluon_jit
def _fetch(
    keys, values, k_tiles, v_tiles, k_full, k_empty, v_full, v_empty, kv_head, table, pages, begin, steps,
    PAGE: gl.constexpr, N: gl.constexpr,
):  # fmt: skip
    """The group that fetches."""
    BOX: gl.constexpr = keys.block_type.shape[1]
    PARTS: gl.constexpr = N // BOX
    BUFFERS: gl.constexpr = k_tiles.type.shape[0]
    first = _token(table, begin * N, pages, PAGE)  # asked for a step ahead: it takes as long to come as a tile
    second = _token(table, begin * N + (PARTS - 1) * BOX, pages, PAGE)
    for j in range(steps):
        index, phase = j % BUFFERS, (j // BUFFERS & 1) ^ 1
        now, then = first, second
        slot = (begin + j + 1) * N
        first = _token(table, slot, pages, PAGE)
        if PARTS == 2:
            second = _token(table, slot + BOX, pages, PAGE)
        mbarrier.wait(k_empty.index(index), phase)
        mbarrier.expect(k_full.index(index), N * keys.block_type.shape[2] * 2)
        for part in gl.static_range(PARTS):
            tile = k_tiles.index(index).slice(part * BOX, BOX, dim=1)
            async_load(keys, [kv_head, now if part == 0 else then, 0], k_full.index(index), tile)
        mbarrier.wait(v_empty.index(index), phase)
        mbarrier.expect(v_full.index(index), N * values.block_type.shape[2] * 2)
        for part in gl.static_range(PARTS):
            tile = v_tiles.index(index).slice(part * BOX, BOX, dim=1)
            async_load(values, [kv_head, now if part == 0 else then, 0], v_full.index(index), tile)


@gluon_jit
def _largest(step, tops, pages, PAGE: gl.constexpr, N: gl.constexpr):
    """The largest position that the pages of a step hold."""
    found = gl.load(tops + step * N // PAGE, mask=step * N // PAGE < pages, other=2147483647)
    for part in gl.static_range(1, N // PAGE if N > PAGE else 1):
        page = step * N // PAGE + part
        found = gl.maximum(found, gl.load(tops + page, mask=page < pages, other=2147483647))
    return found


@gluon_jit
def _angle(shift, inv_freq, plane, turns):
    """(cosine, sine) of the angle by which a plane turns over `move` positions."""
    freq = gl.load(inv_freq + plane, mask=turns, other=0.0).to(gl.float64)
    angle = shift.to(gl.float64) * freq
    angle = (angle - 6.283185307179586 * gl.floor(angle * 0.15915494309189535 + 0.5)).to(gl.float32)
    sin = gl.inline_asm_elementwise("sin.approx.f32 $0, $1;", "=f,f", [angle], gl.float32, True, 1)
    cos = gl.inline_asm_elementwise("cos.approx.f32 $0, $1;", "=f,f", [angle], gl.float32, True, 1)
    return cos, sin


@gluon_jit
def _put_queries(
    q_tile, q, m, rows, shift, inv_freq, q_head, q_token,
    GROUP: gl.constexpr, D: gl.constexpr, HALF: gl.constexpr, INTERLEAVED: gl.constexpr, TURN: gl.constexpr,
    FLAT: gl.constexpr,
):  # fmt: skip
    """Queries, turned back by `move` positions, into shared memory."""
    col = gl.arange(0, D, layout=gl.SliceLayout(0, FLAT))
    base = q + (m % GROUP).to(gl.int64)[:, None] * q_head + (m // GROUP).to(gl.int64)[:, None] * q_token
    inside = (m < rows)[:, None]
    x = gl.load(base + col[None, :], mask=inside, other=0.0)
    if TURN:
        turns = col < 2 * HALF
        APART: gl.constexpr = 1 if INTERLEAVED else HALF
        if INTERLEAVED:
            second = col % 2 == 1
            plane = col // 2
        else:
            second = col >= HALF
            plane = col % HALF
        other = gl.where(turns, gl.where(second, col - APART, col + APART), col)
        y = gl.load(base + other[None, :], mask=inside, other=0.0)
        cos, sin = _angle(shift, inv_freq, plane, turns)
        sin = gl.where(second, -sin, sin)  # of -move, and the sign of the other channel
        x = (x.to(gl.float32) * cos[None, :] + y.to(gl.float32) * sin[None, :]).to(x.dtype)
    q_tile.store(x)


@gluon_jit
def _turn_tile(target, source, shift, inv_freq, D: gl.constexpr, SOME: gl.constexpr, BOTH: gl.constexpr):
    """Queries of whole heads in halves, turned back by `move` positions, from shared memory to shared memory. In
    layout BOTH a thread holds both channels of a plane."""
    x = source.load(BOTH).reshape([SOME, 2, D // 2]).permute((0, 2, 1))
    low, high = gl.split(x)
    plane = gl.arange(0, D // 2, layout=gl.SliceLayout(0, low.type.layout))
    cos, sin = _angle(shift, inv_freq, plane, plane >= 0)
    a, b = low.to(gl.float32), high.to(gl.float32)
    low = (a * cos[None, :] + b * sin[None, :]).to(x.dtype)
    high = (b * cos[None, :] - a * sin[None, :]).to(x.dtype)
    target.store(gl.join(low, high).permute((0, 2, 1)).reshape([SOME, D]))


@gluon_jit
def _turn(
    q, q_tiles, q_own, q_full, q_empty, first, rows, q_head, q_token, begin, steps, shifts, inv_freq, pages,
    GROUP: gl.constexpr, PAGE: gl.constexpr, N: gl.constexpr, D: gl.constexpr, HALF: gl.constexpr,
    INTERLEAVED: gl.constexpr, KEPT: gl.constexpr,
):  # fmt: skip
    """The group that turns queries, for the next move while those of this one are computed with. KEPT: they stay in
    shared memory as they are given; else they are read again each time."""
    FLAT: gl.constexpr = gl.BlockedLayout([1, 8], [256 // D, D // 8], [4, 1], [1, 0])
    SOME: gl.constexpr = 16 if D == 128 else 32
    BOTH: gl.constexpr = (
        gl.DistributedLinearLayout(
            [[0, 1], [0, 2], [0, 4], [0, 64]], [[0, 8], [0, 16], [0, 32], [1, 0], [2, 0]], [[4, 0], [8, 0]], [],
            [16, 128],
        )
        if D == 128
        else gl.DistributedLinearLayout(
            [[0, 1], [0, 2], [0, 4], [0, 32]], [[0, 8], [0, 16], [1, 0], [2, 0], [4, 0]], [[8, 0], [16, 0]], [],
            [32, 64],
        )
    )  # fmt: skip
    if KEPT:
        for part in gl.static_range(128 // SOME):
            m = first + part * SOME + gl.arange(0, SOME, layout=gl.SliceLayout(1, FLAT))
            tile = q_own.index(part * SOME // 64).slice(part * SOME % 64, SOME, dim=0)
            _put_queries(tile, q, m, rows, 0, inv_freq, q_head, q_token, GROUP, D, HALF, INTERLEAVED, False, FLAT)
    found = 0
    turned = 0
    for j in range(steps):
        page = (begin + j) * N // PAGE
        shift = gl.load(shifts + page, mask=page < pages, other=0)
        if (j == 0) | (shift != turned):
            index = found % 2
            mbarrier.wait(q_empty.index(index), (found // 2 & 1) ^ 1)
            for part in gl.static_range(128 // SOME):
                tile = q_tiles.index(2 * index + part * SOME // 64).slice(part * SOME % 64, SOME, dim=0)
                if KEPT:
                    own = q_own.index(part * SOME // 64).slice(part * SOME % 64, SOME, dim=0)
                    _turn_tile(tile, own, shift, inv_freq, D, SOME, BOTH)
                else:
                    m = first + part * SOME + gl.arange(0, SOME, layout=gl.SliceLayout(1, FLAT))
                    _put_queries(
                        tile, q, m, rows, shift, inv_freq, q_head, q_token, GROUP, D, HALF, INTERLEAVED, True, FLAT
                    )
            fence_async_shared()
            mbarrier.arrive(q_full.index(index), count=1)
            turned = shift
            found += 1


@gluon_jit
def _mask(s, step, largest, lowest, positions, slots, at_row, N: gl.constexpr, LOGITS: gl.constexpr):
    if largest > lowest:
        slot = step * N + gl.arange(0, N, layout=gl.SliceLayout(0, LOGITS))
        at = gl.load(positions + slot, mask=slot < slots, other=2147483647)
        s = gl.where(at[None, :] <= at_row[:, None], s, float("-inf"))
    return s


@gluon_jit
def _softmax(s, top, total, scale):
    new = gl.maximum(top, gl.max(s, 1) * scale)
    safe = gl.where(new == float("-inf"), 0.0, new)
    p = gl.exp2(s * scale - safe[:, None])
    old = gl.exp2(top - safe)
    return p, old, new, total * old + gl.sum(p, 1)


@gluon_jit
def _clear(v_tile, half, step, largest, positions, slots, clean, phase, N: gl.constexpr, FLAT: gl.constexpr):
    """Values that nobody may see become 0: they may hold anything, and nothing times anything must be nothing."""
    if largest == 2147483647:
        part = v_tile.slice(half * (N // 2), N // 2, dim=0)
        slot = step * N + half * (N // 2) + gl.arange(0, N // 2, layout=gl.SliceLayout(1, FLAT))
        at = gl.load(positions + slot, mask=slot < slots, other=2147483647)
        part.store(gl.where((at != 2147483647)[:, None], part.load(FLAT), 0.0))
        fence_async_shared()
        mbarrier.arrive(clean, count=1)
        mbarrier.wait(clean, phase)
        phase ^= 1
    return phase


@gluon_jit
def _compute(
    half, q, out, lse, at_rows, q_tiles, q_full, q_empty, k_tiles, v_tiles, k_full, k_empty, v_full, v_empty, clean,
    first, rows, q_head, q_token, out_head, out_token, lse_head, splits,
    begin, steps, lowest, positions, tops, shifts, inv_freq, pages, scale,
    GROUP: gl.constexpr, SPLIT: gl.constexpr, PAGE: gl.constexpr, N: gl.constexpr, D: gl.constexpr,
    HALF: gl.constexpr, INTERLEAVED: gl.constexpr, ROTATE: gl.constexpr,
):  # fmt: skip
    """A group that computes 64 rows."""
    LOGITS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, N, 16])
    RESULT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    WEIGHTS: gl.constexpr = gl.DotOperandLayout(0, RESULT, 2)
    FLAT: gl.constexpr = gl.BlockedLayout([1, 8], [256 // D, D // 8], [4, 1], [1, 0])
    BUFFERS: gl.constexpr = k_tiles.type.shape[0]
    slots = pages * PAGE
    q_tile = q_tiles.index(half)
    mine = first + half * 64 + gl.arange(0, 64, layout=gl.SliceLayout(1, LOGITS))
    at_row = gl.load(at_rows + mine // GROUP, mask=mine < rows, other=-1).to(gl.int32)
    turned = 0
    found = 0  # moves after the first
    if ROTATE:
        turned = gl.load(shifts + begin * N // PAGE, mask=begin * N // PAGE < pages, other=0)
        mbarrier.wait(q_full.index(0), 0)
    else:
        m = first + half * 64 + gl.arange(0, 64, layout=gl.SliceLayout(1, FLAT))
        _put_queries(q_tile, q, m, rows, 0, inv_freq, q_head, q_token, GROUP, D, HALF, INTERLEAVED, False, FLAT)
        fence_async_shared()
    top = gl.full([64], float("-inf"), gl.float32, gl.SliceLayout(1, LOGITS))
    total = gl.zeros([64], gl.float32, gl.SliceLayout(1, LOGITS))
    acc = gl.zeros([64, D], gl.float32, RESULT)
    # the first step: there are no weights yet
    mbarrier.wait(k_full.index(0), 0)
    k = k_tiles.index(0).reshape([N, D]).permute((1, 0))
    s = warpgroup_mma(q_tile, k, gl.zeros([64, N], gl.float32, LOGITS), use_acc=False, is_async=True)
    s = warpgroup_mma_wait(0, deps=(s,))
    mbarrier.arrive(k_empty.index(0), count=1)
    largest = _largest(begin, tops, pages, PAGE, N)
    coming = _largest(begin + 1, tops, pages, PAGE, N)  # asked for a step ahead: it takes long to come
    shift = turned
    if ROTATE:
        shift = gl.load(shifts + (begin + 1) * N // PAGE, mask=(begin + 1) * N // PAGE < pages, other=0)
    s = _mask(s, begin, largest, lowest, positions, slots, at_row, N, LOGITS)
    weights, old, top, total = _softmax(s, top, total, scale)
    p = gl.convert_layout(weights.to(q_tile.dtype), WEIGHTS)
    cleaned = 0
    for j in range(1, steps):
        index, phase = j % BUFFERS, j // BUFFERS & 1
        last, last_phase = (j - 1) % BUFFERS, (j - 1) // BUFFERS & 1
        step = begin + j
        if ROTATE:
            if shift != turned:
                mbarrier.arrive(q_empty.index(found % 2), count=1)
                turned = shift
                found += 1
                mbarrier.wait(q_full.index(found % 2), found // 2 & 1)
                q_tile = q_tiles.index(2 * (found % 2) + half)
            shift = gl.load(shifts + (step + 1) * N // PAGE, mask=(step + 1) * N // PAGE < pages, other=0)
        mbarrier.wait(k_full.index(index), phase)
        k = k_tiles.index(index).reshape([N, D]).permute((1, 0))
        s = warpgroup_mma(q_tile, k, gl.zeros([64, N], gl.float32, LOGITS), use_acc=False, is_async=True)
        acc = acc * gl.convert_layout(old, gl.SliceLayout(1, RESULT))[:, None]
        mbarrier.wait(v_full.index(last), last_phase)
        v = v_tiles.index(last).reshape([N, D])
        cleaned = _clear(v, half, step - 1, largest, positions, slots, clean, cleaned, N, FLAT)
        acc = warpgroup_mma(p, v, acc, is_async=True)
        largest = coming
        coming = _largest(step + 1, tops, pages, PAGE, N)
        s = warpgroup_mma_wait(1, deps=(s,))
        mbarrier.arrive(k_empty.index(index), count=1)
        s = _mask(s, step, largest, lowest, positions, slots, at_row, N, LOGITS)
        weights, old, top, total = _softmax(s, top, total, scale)
        acc, weights = warpgroup_mma_wait(0, deps=(acc, weights))
        mbarrier.arrive(v_empty.index(last), count=1)
        p = gl.convert_layout(weights.to(q_tile.dtype), WEIGHTS)
    last, phase = (steps - 1) % BUFFERS, (steps - 1) // BUFFERS & 1
    mbarrier.wait(v_full.index(last), phase)
    acc = acc * gl.convert_layout(old, gl.SliceLayout(1, RESULT))[:, None]
    v = v_tiles.index(last).reshape([N, D])
    cleaned = _clear(v, half, begin + steps - 1, largest, positions, slots, clean, cleaned, N, FLAT)
    acc = warpgroup_mma(p, v, acc, is_async=True)
    acc = warpgroup_mma_wait(0, deps=(acc,))
    some = (at_row >= 0) & (total > 0)
    share = gl.convert_layout(gl.where(some, 1.0 / gl.where(some, total, 1.0), 0.0), gl.SliceLayout(1, RESULT))
    valid = gl.convert_layout(some, gl.SliceLayout(1, RESULT))
    n = first + half * 64 + gl.arange(0, 64, layout=gl.SliceLayout(1, RESULT))
    col = gl.arange(0, D, layout=gl.SliceLayout(0, RESULT))
    target = out + (n % GROUP).to(gl.int64)[:, None] * out_head + (n // GROUP).to(gl.int64)[:, None] * out_token
    result = gl.where(valid[:, None], acc * share[:, None], 0.0).to(out.dtype.element_ty)
    gl.store(target + col[None, :], result, mask=(n < rows)[:, None])
    if SPLIT:
        weight = gl.where(some, top + gl.log2(gl.where(some, total, 1.0)), float("-inf"))
        gl.store(lse + (mine % GROUP) * lse_head + (mine // GROUP) * splits, weight, mask=mine < rows)


@gluon_jit
def _attend(
    q, keys, values, out, lse, at_rows, table, positions, first, tops, shifts, inv_freq, scale, count, pages,
    q_batch, q_head, q_token, out_batch, out_head, out_token, out_split, row_tiles, splits,
    GROUP: gl.constexpr, SPLIT: gl.constexpr, PAGE: gl.constexpr, N: gl.constexpr, HALF: gl.constexpr,
    INTERLEAVED: gl.constexpr, ROTATE: gl.constexpr, BUFFERS: gl.constexpr,
):  # fmt: skip
    D: gl.constexpr = keys.block_type.shape[2]
    kv_head, tile_m = gl.program_id(0) // row_tiles, gl.program_id(0) % row_tiles
    split, request = gl.program_id(1), gl.program_id(2)
    rows, begin_row = count * GROUP, tile_m * 128
    at_rows += request.to(gl.int64) * count
    table += request * pages
    first += request * pages
    tops += request * pages
    shifts += request * pages
    positions += request.to(gl.int64) * pages * PAGE
    flat: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    m = begin_row + gl.arange(0, 128, layout=flat)
    at_row = gl.load(at_rows + m // GROUP, mask=m < rows, other=-1).to(gl.int32)
    highest = gl.max(at_row, 0)
    lowest = gl.min(gl.where(at_row >= 0, at_row, 2147483647), 0)
    all_steps = (_count(first, highest, pages) * PAGE + N - 1) // N
    share = (all_steps + splits - 1) // splits
    begin = gl.minimum(split * share, all_steps)
    steps = gl.minimum(begin + share, all_steps) - begin
    begin = gl.where(steps > 0, begin, (pages * PAGE + N - 1) // N)  # nothing to do: a step behind all pages
    steps = gl.maximum(steps, 1)
    q_tiles = gl.allocate_shared_memory(
        keys.dtype, [4 if ROTATE else 2, 64, D], gl.NVMMASharedLayout.get_default_for([64, D], keys.dtype)
    )
    KEPT: gl.constexpr = ROTATE and not INTERLEAVED and 2 * HALF == D
    q_own = q_tiles
    if KEPT:
        q_own = gl.allocate_shared_memory(
            keys.dtype, [2, 64, D], gl.NVMMASharedLayout.get_default_for([64, D], keys.dtype)
        )
    q_full = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    q_empty = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    k_tiles = gl.allocate_shared_memory(keys.dtype, [BUFFERS, 1, N, D], keys.layout)
    v_tiles = gl.allocate_shared_memory(keys.dtype, [BUFFERS, 1, N, D], values.layout)
    k_full = gl.allocate_shared_memory(gl.int64, [BUFFERS, 1], mbarrier.MBarrierLayout())
    k_empty = gl.allocate_shared_memory(gl.int64, [BUFFERS, 1], mbarrier.MBarrierLayout())
    v_full = gl.allocate_shared_memory(gl.int64, [BUFFERS, 1], mbarrier.MBarrierLayout())
    v_empty = gl.allocate_shared_memory(gl.int64, [BUFFERS, 1], mbarrier.MBarrierLayout())
    clean = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    for i in gl.static_range(BUFFERS):
        mbarrier.init(k_full.index(i), count=1)
        mbarrier.init(v_full.index(i), count=1)
        mbarrier.init(k_empty.index(i), count=2)
        mbarrier.init(v_empty.index(i), count=2)
    mbarrier.init(clean, count=2)
    for i in gl.static_range(2):
        mbarrier.init(q_full.index(i), count=1)
        mbarrier.init(q_empty.index(i), count=2)
    q += request.to(gl.int64) * q_batch + kv_head.to(gl.int64) * GROUP * q_head
    out += request.to(gl.int64) * out_batch + kv_head.to(gl.int64) * GROUP * out_head + split * out_split
    lse_head = count * splits
    lse += (request * (gl.num_programs(0) // row_tiles) + kv_head) * GROUP * lse_head + split
    if ROTATE:
        gl.warp_specialize(
            [
                (_compute, (
                    0, q, out, lse, at_rows, q_tiles, q_full, q_empty, k_tiles, v_tiles, k_full, k_empty, v_full,
                    v_empty, clean, begin_row, rows, q_head, q_token, out_head, out_token, lse_head, splits,
                    begin, steps, lowest, positions, tops, shifts, inv_freq, pages, scale,
                    GROUP, SPLIT, PAGE, N, D, HALF, INTERLEAVED, ROTATE,
                )),
                (_compute, (
                    1, q, out, lse, at_rows, q_tiles, q_full, q_empty, k_tiles, v_tiles, k_full, k_empty, v_full,
                    v_empty, clean, begin_row, rows, q_head, q_token, out_head, out_token, lse_head, splits,
                    begin, steps, lowest, positions, tops, shifts, inv_freq, pages, scale,
                    GROUP, SPLIT, PAGE, N, D, HALF, INTERLEAVED, ROTATE,
                )),
                (_fetch, (
                    keys, values, k_tiles, v_tiles, k_full, k_empty, v_full, v_empty,
                    kv_head, table, pages, begin, steps, PAGE, N,
                )),
                (_turn, (
                    q, q_tiles, q_own, q_full, q_empty, begin_row, rows, q_head, q_token, begin, steps, shifts,
                    inv_freq, pages, GROUP, PAGE, N, D, HALF, INTERLEAVED, KEPT,
                )),
            ],
            [4, 4, 4],
            [208, 24, 72],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (_compute, (
                    0, q, out, lse, at_rows, q_tiles, q_full, q_empty, k_tiles, v_tiles, k_full, k_empty, v_full,
                    v_empty, clean, begin_row, rows, q_head, q_token, out_head, out_token, lse_head, splits,
                    begin, steps, lowest, positions, tops, shifts, inv_freq, pages, scale,
                    GROUP, SPLIT, PAGE, N, D, HALF, INTERLEAVED, ROTATE,
                )),
                (_compute, (
                    1, q, out, lse, at_rows, q_tiles, q_full, q_empty, k_tiles, v_tiles, k_full, k_empty, v_full,
                    v_empty, clean, begin_row, rows, q_head, q_token, out_head, out_token, lse_head, splits,
                    begin, steps, lowest, positions, tops, shifts, inv_freq, pages, scale,
                    GROUP, SPLIT, PAGE, N, D, HALF, INTERLEAVED, ROTATE,
                )),
                (_fetch, (
                    keys, values, k_tiles, v_tiles, k_full, k_empty, v_full, v_empty,
                    kv_head, table, pages, begin, steps, PAGE, N,
                )),
            ],
            [4, 4],
            [240, 24],
        )  # fmt: skip


def launch(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    rows: Tensor,
    pages: Paged,
    inv_freq: Tensor | None,
    pairing: Pairing,
    scale: float | None,
    splits: int | None = None,
    buffers: int = BUFFERS,
) -> Tensor:
    """`_paged.reference` on a Hopper card, for arguments that `fits` approves."""
    batch, q_heads, count, width = q.shape
    heads, size = len(keys), pages.positions.shape[-1]
    q = q if q.stride(3) == 1 else q.contiguous()
    group, turn = q_heads // heads, pages.shifts is not None
    splits = splits or parts_for(q, heads, pages.positions[0].numel())
    step = min(size, 128) if turn else 128  # the pages of a step move alike
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    split = splits > 1
    parts = torch.empty((batch, q_heads, count, splits, width), dtype=torch.float32, device=q.device) if split else out
    lse = torch.empty((batch, q_heads, count, splits), dtype=torch.float32, device=q.device) if split else out
    layout = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=3)
    box = [1, min(step, size), width]
    tops = pages.positions.amax(-1) if pages.page_max is None else pages.page_max
    tiles = triton.cdiv(count * group, ROWS)
    _attend[(tiles * heads, splits, batch)](
        q, *(GluonDescriptor(x, list(x.shape), list(x.stride()), box, layout) for x in (keys, values)),
        parts, lse, rows.contiguous(), pages.table, pages.positions, pages.first, tops,
        pages.shifts if turn else pages.table, inv_freq if turn else pages.table,
        (width**-0.5 if scale is None else scale) * LOG2E, count, pages.table.shape[1],
        *q.stride()[:3], *parts.stride()[:3], parts.stride(3) if split else 0, tiles, splits,
        GROUP=group, SPLIT=split, PAGE=size, N=step, HALF=len(inv_freq) if turn and inv_freq is not None else 0,
        INTERLEAVED=pairing == "interleaved", ROTATE=turn, BUFFERS=buffers, num_warps=4, maxnreg=128 if turn else 168,
    )  # fmt: skip
    if split:
        merge(parts, lse, out)
    return out

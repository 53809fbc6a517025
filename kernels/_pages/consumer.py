"""The consumers of `_pages.hopper`: attention of 64 rows over a part of the keys.

Names are those of `_shared.hopper`; `page_list`, `q_ring` and steps those of `_pages.hopper`.
"""

import workbench.kernels._shared.hopper as pipe
from workbench.kernels._pages.rotated import _first_queries, _put_queries, _shift
from workbench.kernels._shared.attention import INVALID_POS
from workbench.kernels._shared.triton_import import (
    fence_async_shared,
    gl,
    gluon_jit,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)


@gluon_jit
def _largest(step, page_list, PAGE: gl.constexpr, N: gl.constexpr):
    """Return the largest position in the pages of a step."""
    page_max, _, pages, _ = page_list
    largest = gl.load(page_max + step * N // PAGE, mask=step * N // PAGE < pages, other=INVALID_POS)
    for i in gl.static_range(1, N // PAGE if N > PAGE else 1):
        page = step * N // PAGE + i
        largest = gl.maximum(largest, gl.load(page_max + page, mask=page < pages, other=INVALID_POS))
    return largest


@gluon_jit
def _mask(s, step, largest, lowest, page_list, at_row, PAGE: gl.constexpr):
    """Mask the logits of future keys, if the step has any."""
    N: gl.constexpr = s.type.shape[1]
    if largest > lowest:
        slot = step * N + gl.arange(0, N, layout=gl.SliceLayout(0, s.type.layout))
        at = gl.load(page_list[1] + slot, mask=slot < page_list[2] * PAGE, other=INVALID_POS)
        s = gl.where(at[None, :] <= at_row[:, None], s, float("-inf"))
    return s


@gluon_jit
def _clear(
    v_tile, consumer, step, largest, page_list, clean, phase, PAGE: gl.constexpr, FLAT: gl.constexpr, CONSUMERS:
    gl.constexpr,
):  # fmt: skip
    """Set values of masked slots to 0, as 0 · NaN is not 0; each consumer clears a share of them."""
    N: gl.constexpr = v_tile.type.shape[0]
    SHARE: gl.constexpr = N // CONSUMERS
    if largest == INVALID_POS:
        half = v_tile.slice(consumer * SHARE, SHARE, dim=0)
        slot = step * N + consumer * SHARE + gl.arange(0, SHARE, layout=gl.SliceLayout(1, FLAT))
        at = gl.load(page_list[1] + slot, mask=slot < page_list[2] * PAGE, other=INVALID_POS)
        half.store(gl.where((at != INVALID_POS)[:, None], half.load(FLAT), 0.0))
        fence_async_shared()
        mbarrier.arrive(clean, count=1)
        mbarrier.wait(clean, phase)
        phase ^= 1
    return phase


@gluon_jit
def _consume(
    consumer, work, GROUP: gl.constexpr, SPLIT: gl.constexpr, PAGE: gl.constexpr, HALF: gl.constexpr, INTERLEAVED:
    gl.constexpr, ROTATE: gl.constexpr, CONSUMERS: gl.constexpr, PDL: gl.constexpr,
):  # fmt: skip
    """Compute 64 rows."""
    queries, results, rings, bounds, page_list, inv_freq = work
    at_rows, out, out_head, out_token, lse, lse_head, splits = results
    q_ring, k_ring, v_ring, clean = rings
    q_tiles, q_full, q_empty, q_own, q_given = q_ring
    first, begin, steps, lowest, scale = bounds
    rows = queries[1]
    N: gl.constexpr = k_ring[0].type.shape[-2]
    D: gl.constexpr = k_ring[0].type.shape[-1]
    LOGITS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, N, 16])
    RESULT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    FLAT: gl.constexpr = gl.BlockedLayout([1, 8], [256 // D, D // 8], [4, 1], [1, 0])
    q_tile = q_tiles.index(consumer)
    mine = first + consumer * 64 + gl.arange(0, 64, layout=gl.SliceLayout(1, LOGITS))
    at_row = gl.load(at_rows + mine // GROUP, mask=mine < rows, other=-1).to(gl.int32)
    rotated = 0  # current shift of the queries
    count = 0  # shifts after the first
    if ROTATE:
        rotated = _shift(begin, page_list, PAGE, N)
        given = (q_own.index(consumer), q_given)
        pipe.wait_for_previous(PDL)
        _first_queries(q_tile, given, queries, first + consumer * 64, rotated, inv_freq, GROUP, HALF, INTERLEAVED)
        fence_async_shared()
    else:
        pipe.wait_for_previous(PDL)
        m = first + consumer * 64 + gl.arange(0, 64, layout=gl.SliceLayout(1, FLAT))
        _put_queries(q_tile, queries, m, GROUP, FLAT)
        fence_async_shared()
    acc = gl.zeros([64, D], gl.float32, RESULT)
    s = pipe.first_logits(q_tile, k_ring)
    largest = _largest(begin, page_list, PAGE, N)
    coming = _largest(begin + 1, page_list, PAGE, N)  # loaded a step ahead, to hide the latency
    shift = rotated
    if ROTATE:
        shift = _shift(begin + 1, page_list, PAGE, N)
    s = _mask(s, begin, largest, lowest, page_list, at_row, PAGE)
    weights, alpha, m_i, l_i = pipe.first_softmax(s, scale)
    p = pipe.operand(weights, acc, v_ring[0].dtype)
    cleaned = 0
    for j in range(1, steps):
        now, last = pipe.slot_of(k_ring, j), pipe.slot_of(v_ring, j - 1)
        step = begin + j
        if ROTATE:
            if shift != rotated:
                mbarrier.arrive(q_empty.index(count % 2), count=1)
                rotated = shift
                count += 1
                mbarrier.wait(q_full.index(count % 2), count // 2 & 1)
                q_tile = q_tiles.index(CONSUMERS * (count % 2) + consumer)
            shift = _shift(step + 1, page_list, PAGE, N)
        pipe.wait_full(k_ring, now)
        s = pipe.begin_logits(q_tile, k_ring, now)
        acc = pipe.rescale(acc, alpha)
        pipe.wait_full(v_ring, last)
        v = pipe.tile_of(v_ring, last)
        cleaned = _clear(v, consumer, step - 1, largest, page_list, clean, cleaned, PAGE, FLAT, CONSUMERS)
        acc = warpgroup_mma(p, v, acc, is_async=True)
        largest = coming
        coming = _largest(step + 1, page_list, PAGE, N)
        s = pipe.end_logits(s, k_ring, now)
        s = _mask(s, step, largest, lowest, page_list, at_row, PAGE)
        acc, weights, alpha, m_i, l_i = pipe.end_step(acc, s, m_i, l_i, scale, v_ring, last, True)
        p = pipe.operand(weights, acc, v_ring[0].dtype)  # converted here: fp32 would not fit in registers
    last = pipe.slot_of(v_ring, steps - 1)
    pipe.wait_full(v_ring, last)
    acc = pipe.rescale(acc, alpha)
    v = pipe.tile_of(v_ring, last)
    cleaned = _clear(v, consumer, begin + steps - 1, largest, page_list, clean, cleaned, PAGE, FLAT, CONSUMERS)
    acc = warpgroup_mma(p, v, acc, is_async=True)
    acc = warpgroup_mma_wait(0, deps=(acc,))
    result, some = pipe.normalize(acc, at_row, l_i)
    n = first + consumer * 64 + gl.arange(0, 64, layout=gl.SliceLayout(1, RESULT))
    col = gl.arange(0, D, layout=gl.SliceLayout(0, RESULT))
    target = out + (n % GROUP).to(gl.int64)[:, None] * out_head + (n // GROUP).to(gl.int64)[:, None] * out_token
    gl.store(target + col[None, :], result.to(out.dtype.element_ty), mask=(n < rows)[:, None])
    if SPLIT:
        weight = gl.where(some, m_i + gl.log2(gl.where(some, l_i, 1.0)), float("-inf"))
        gl.store(lse + (mine % GROUP) * lse_head + (mine // GROUP) * splits, weight, mask=mine < rows)

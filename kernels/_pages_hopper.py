"""`_pages_triton` for Hopper: few rows over pages, wherever they lie.

Names and pipeline are those of `_hopper`: a producer, and two consumers of 64 rows each. Rows of all heads of a GQA
group stand side by side in a tile of 128, so keys and values are read once. A page is fetched through a tensor
descriptor; its number decides where from. Whether a step needs a mask is decided at each step, by the largest position
that its pages hold. Where cached pages are shifted, the queries are rotated back when the shift changes, at most once a
page: a fourth group of warps does it for the next shift while the matrix unit works on this one.

    step       N slots: a part of a page, or two pages
    page_list  (largest position of each page, positions of all slots, number of pages, shifts of their keys)
    q_ring     rotated queries: two buffers of 128 rows, with barriers that say they are written, and read
"""

import torch
from torch import Tensor

import workbench.kernels._hopper as pipe
from workbench.core.page_table import Paged
from workbench.core.rope import Pairing
from workbench.kernels._common import INV_TWO_PI, INVALID_POS, LOG2E, TWO_PI, processors
from workbench.kernels._pages_triton import merge, new_parts
from workbench.kernels._triton import (
    fence_async_shared,
    gl,
    gluon_jit,
    mbarrier,
    overlap,
    triton,
    warpgroup_mma,
    warpgroup_mma_wait,
)

WIDTHS = (64, 128)
PAGES = (64, 128, 256)  # tokens
SHORT = 768  # slots of a part, at most, for which steps of a page are faster than steps of two


def fits(q: Tensor, keys: Tensor, values: Tensor, page: int) -> bool:
    """Whether this kernel takes arguments of `_pages_triton.launch`: a Hopper GPU, 16-bit numbers, whole tiles."""
    return pipe.fits_gpu(q, (keys[None], values[None])) and q.shape[3] in WIDTHS and page in PAGES


def parts_for(q: Tensor, heads: int, slots: int) -> int:
    """How many programs share the keys of one row tile: one program for each multiprocessor, four steps for each."""
    rows = q.shape[2] * (q.shape[1] // heads)
    tiles = -(-rows // (64 * consumers_for(rows))) * heads * len(q)
    return max(1, min(processors(q.device) // tiles, slots // 512, 128))


def consumers_for(rows: int) -> int:
    """How many groups of 64 rows a program computes, for `rows` rows times heads of a group."""
    return 1 if rows <= 64 else 2


@gluon_jit
def _token(table, slot, pages, PAGE: gl.constexpr):
    """Where a slot lies in the pool; OUTSIDE behind the last page."""
    page = slot // PAGE
    token = gl.load(table + page, mask=page < pages, other=0) * PAGE + slot % PAGE
    return gl.where(page < pages, token, pipe.OUTSIDE)


@gluon_jit
def _produce(
    keys, values, rings, kv_head, table, page_list, bounds, PAGE: gl.constexpr,
    PDL: gl.constexpr,
):  # fmt: skip
    """Fetch the pages of all steps; their numbers are read a step ahead: they take as long to come as a tile.

    Pages whose positions are all before the rows' are not written by the kernel before: these are not waited for.
    """
    _, k_ring, v_ring, _ = rings
    _, begin, steps, lowest, _ = bounds
    pages = page_list[2]
    N: gl.constexpr = k_ring[0].type.shape[-2]
    BOX: gl.constexpr = keys.block_type.shape[1]
    first = _token(table, begin * N, pages, PAGE)
    second = _token(table, begin * N + (N - BOX), pages, PAGE)
    largest = lowest
    if PDL:
        largest = _largest(begin, page_list, PAGE, N)
    for j in range(steps):
        slot = pipe.free_slot(k_ring, j)
        if PDL:
            if largest >= lowest:
                pipe.wait_for_previous(PDL)
            largest = _largest(begin + j + 1, page_list, PAGE, N)
        starts = (first, second)
        token = (begin + j + 1) * N
        first = _token(table, token, pages, PAGE)
        if N == 2 * BOX:
            second = _token(table, token + BOX, pages, PAGE)
        pipe.fill(keys, k_ring, slot, (kv_head,), starts, 0)
        pipe.fill(values, v_ring, slot, (kv_head,), starts, 0)


@gluon_jit
def _largest(step, page_list, PAGE: gl.constexpr, N: gl.constexpr):
    """The largest position that the pages of a step hold."""
    page_max, _, pages, _ = page_list
    largest = gl.load(page_max + step * N // PAGE, mask=step * N // PAGE < pages, other=INVALID_POS)
    for i in gl.static_range(1, N // PAGE if N > PAGE else 1):
        page = step * N // PAGE + i
        largest = gl.maximum(largest, gl.load(page_max + page, mask=page < pages, other=INVALID_POS))
    return largest


@gluon_jit
def _shift(step, page_list, PAGE: gl.constexpr, N: gl.constexpr):
    """How far the keys of a step are shifted; 0 behind the last page."""
    _, _, pages, shifts = page_list
    page = step * N // PAGE
    return gl.load(shifts + page, mask=page < pages, other=0)


@gluon_jit
def _angle(shift, freq):
    """(cosine, sine) of the angles by which planes of frequencies `freq` rotate over `shift` positions."""
    angle = shift.to(gl.float64) * freq.to(gl.float64)
    angle = (angle - TWO_PI * gl.floor(angle * INV_TWO_PI + 0.5)).to(gl.float32)
    sin = gl.inline_asm_elementwise("sin.approx.f32 $0, $1;", "=f,f", [angle], gl.float32, True, 1)
    cos = gl.inline_asm_elementwise("cos.approx.f32 $0, $1;", "=f,f", [angle], gl.float32, True, 1)
    return cos, sin


@gluon_jit
def _at_queries(queries, m, GROUP: gl.constexpr):
    """(where rows m lie, which of them exist), as columns."""
    q, rows, q_head, q_token = queries
    base = q + (m % GROUP).to(gl.int64)[:, None] * q_head + (m // GROUP).to(gl.int64)[:, None] * q_token
    return base, (m < rows)[:, None]


@gluon_jit
def _put_queries(q_tile, queries, m, GROUP: gl.constexpr, FLAT: gl.constexpr):
    """Put queries into shared memory."""
    col = gl.arange(0, q_tile.type.shape[1], layout=gl.SliceLayout(0, FLAT))
    base, inside = _at_queries(queries, m, GROUP)
    q_tile.store(gl.load(base + col[None, :], mask=inside, other=0.0))


@gluon_jit
def _put_rotated(
    q_tile, queries, m, by, GROUP: gl.constexpr, HALF: gl.constexpr, INTERLEAVED: gl.constexpr, FLAT: gl.constexpr
):
    """Put queries into shared memory, rotated back `by` (positions, inv_freq)."""
    col = gl.arange(0, q_tile.type.shape[1], layout=gl.SliceLayout(0, FLAT))
    base, inside = _at_queries(queries, m, GROUP)
    x = gl.load(base + col[None, :], mask=inside, other=0.0)
    rotated = col < 2 * HALF
    APART: gl.constexpr = 1 if INTERLEAVED else HALF
    if INTERLEAVED:
        second = col % 2 == 1
        plane = col // 2
    else:
        second = col >= HALF
        plane = col % HALF
    other = gl.where(rotated, gl.where(second, col - APART, col + APART), col)
    y = gl.load(base + other[None, :], mask=inside, other=0.0)
    cos, sin = _angle(by[0], gl.load(by[1] + plane, mask=rotated, other=0.0))
    sin = gl.where(second, -sin, sin)  # of -shift, and the sign of the plane's other channel
    q_tile.store((x.to(gl.float32) * cos[None, :] + y.to(gl.float32) * sin[None, :]).to(x.dtype))


@gluon_jit
def _frequencies(inv_freq, M: gl.constexpr, D: gl.constexpr, BOTH: gl.constexpr):
    """Frequencies of the planes, as `_rotated` takes angles for tiles [M, D] in layout BOTH."""
    low, _ = gl.split(gl.zeros([M, D], gl.float32, BOTH).reshape([M, 2, D // 2]).permute((0, 2, 1)))
    return gl.load(inv_freq + gl.arange(0, D // 2, layout=gl.SliceLayout(0, low.type.layout)))


@gluon_jit
def _rotated(x, cos, sin, M: gl.constexpr, D: gl.constexpr):
    """Queries [M, D] of whole heads in halves, rotated back by angles [D / 2].

    A thread holds both channels of a plane.
    """
    low, high = gl.split(x.reshape([M, 2, D // 2]).permute((0, 2, 1)))
    a, b = low.to(gl.float32), high.to(gl.float32)
    low = (a * cos[None, :] + b * sin[None, :]).to(x.dtype)
    high = (b * cos[None, :] - a * sin[None, :]).to(x.dtype)
    return gl.join(low, high).permute((0, 2, 1)).reshape([M, D])


@gluon_jit
def _first_queries(
    q_tile, q_own, queries, first, shift, inv_freq, GROUP: gl.constexpr, HALF: gl.constexpr, INTERLEAVED: gl.constexpr,
):  # fmt: skip
    """A consumer's queries, rotated back for the first shift; where KEPT, as they are too, for `_rerotate`."""
    D: gl.constexpr = q_tile.type.shape[1]
    KEPT: gl.constexpr = not INTERLEAVED and 2 * HALF == D
    FLAT: gl.constexpr = gl.BlockedLayout([1, 8], [256 // D, D // 8], [4, 1], [1, 0])
    WIDE: gl.constexpr = gl.DistributedLinearLayout(
        [[0, 1], [0, 2], [0, 4], [0, 64], [16, 0], [32, 0]],
        [[0, 8], [0, 16], [0, 32], [1, 0], [2, 0]],
        [[4, 0], [8, 0]],
        [],
        [64, 128],
    )
    NARROW: gl.constexpr = gl.DistributedLinearLayout(
        [[0, 1], [0, 2], [0, 4], [0, 32], [32, 0]],
        [[0, 8], [0, 16], [1, 0], [2, 0], [4, 0]],
        [[8, 0], [16, 0]],
        [],
        [64, 64],
    )
    BOTH: gl.constexpr = WIDE if D == 128 else NARROW
    LAYOUT: gl.constexpr = BOTH if KEPT else FLAT
    m = first + gl.arange(0, 64, layout=gl.SliceLayout(1, LAYOUT))
    if KEPT:
        base, inside = _at_queries(queries, m, GROUP)
        col = gl.arange(0, D, layout=gl.SliceLayout(0, LAYOUT))
        x = gl.load(base + col[None, :], mask=inside, other=0.0)
        cos, sin = _angle(shift, _frequencies(inv_freq, 64, D, LAYOUT))
        q_own.store(x)
        q_tile.store(_rotated(x, cos, sin, 64, D))
    else:
        _put_rotated(q_tile, queries, m, (shift, inv_freq), GROUP, HALF, INTERLEAVED, LAYOUT)


@gluon_jit
def _rerotate(
    queries, rings, bounds, page_list, inv_freq, GROUP: gl.constexpr, PAGE: gl.constexpr, HALF: gl.constexpr,
    INTERLEAVED: gl.constexpr, CONSUMERS: gl.constexpr, PDL: gl.constexpr,
):  # fmt: skip
    """The group that rotates queries, for the next shift while those of this one are computed with.

    Where both channels of a plane can be read at once (KEPT), the given queries stay in shared memory, in `q_own`; else
    they are read from memory each time.
    """
    q_ring, k_ring, _, _ = rings
    q_tiles, q_full, q_empty, q_own, q_given = q_ring
    first, begin, steps, _, _ = bounds
    N: gl.constexpr = k_ring[0].type.shape[-2]
    D: gl.constexpr = q_tiles.type.shape[2]
    KEPT: gl.constexpr = not INTERLEAVED and 2 * HALF == D
    FLAT: gl.constexpr = gl.BlockedLayout([1, 8], [256 // D, D // 8], [4, 1], [1, 0])
    SOME: gl.constexpr = 16 if D == 128 else 32  # rows at a time: what 72 registers of a thread hold
    WIDE: gl.constexpr = gl.DistributedLinearLayout(
        [[0, 1], [0, 2], [0, 4], [0, 64]],
        [[0, 8], [0, 16], [0, 32], [1, 0], [2, 0]],
        [[4, 0], [8, 0]],
        [],
        [16, 128],
    )
    NARROW: gl.constexpr = gl.DistributedLinearLayout(
        [[0, 1], [0, 2], [0, 4], [0, 32]],
        [[0, 8], [0, 16], [1, 0], [2, 0], [4, 0]],
        [[8, 0], [16, 0]],
        [],
        [32, 64],
    )
    BOTH: gl.constexpr = WIDE if D == 128 else NARROW
    mbarrier.arrive(q_full.index(0), count=1)  # the consumers have rotated for the first shift themselves
    rotated = _shift(begin, page_list, PAGE, N)
    count = 0  # shifts after the first
    freq = 0.0
    pipe.wait_for_previous(PDL)
    if KEPT:
        freq = _frequencies(inv_freq, SOME, D, BOTH)
        mbarrier.wait(q_given, 0)
    for j in range(1, steps):
        shift = _shift(begin + j, page_list, PAGE, N)
        if shift != rotated:
            rotated = shift
            count += 1
            index = count % 2
            mbarrier.wait(q_empty.index(index), (count // 2 & 1) ^ 1)
            if KEPT:
                cos, sin = _angle(shift, freq)
                for i in gl.static_range(64 * CONSUMERS // SOME):
                    tile = q_tiles.index(CONSUMERS * index + i * SOME // 64).slice(i * SOME % 64, SOME, dim=0)
                    own = q_own.index(i * SOME // 64).slice(i * SOME % 64, SOME, dim=0)
                    tile.store(_rotated(own.load(BOTH), cos, sin, SOME, D))
            else:
                for i in gl.static_range(64 * CONSUMERS // SOME):
                    m = first + i * SOME + gl.arange(0, SOME, layout=gl.SliceLayout(1, FLAT))
                    tile = q_tiles.index(CONSUMERS * index + i * SOME // 64).slice(i * SOME % 64, SOME, dim=0)
                    _put_rotated(tile, queries, m, (shift, inv_freq), GROUP, HALF, INTERLEAVED, FLAT)
            fence_async_shared()
            mbarrier.arrive(q_full.index(index), count=1)


@gluon_jit
def _mask(s, step, largest, lowest, page_list, at_row, PAGE: gl.constexpr):
    """Logits without the keys behind each row, where a step has such keys."""
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
    """Values that no row may see become 0, a share of them by each consumer: they may be NaN, and 0 · NaN is not 0."""
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
    rotated = 0  # the shift that the queries are rotated for
    count = 0  # shifts after the first
    if ROTATE:
        rotated = _shift(begin, page_list, PAGE, N)
        own = q_own.index(consumer)
        pipe.wait_for_previous(PDL)
        _first_queries(q_tile, own, queries, first + consumer * 64, rotated, inv_freq, GROUP, HALF, INTERLEAVED)
        fence_async_shared()
        mbarrier.arrive(q_given, count=1)
    else:
        pipe.wait_for_previous(PDL)
        m = first + consumer * 64 + gl.arange(0, 64, layout=gl.SliceLayout(1, FLAT))
        _put_queries(q_tile, queries, m, GROUP, FLAT)
        fence_async_shared()
    acc = gl.zeros([64, D], gl.float32, RESULT)
    s = pipe.first_logits(q_tile, k_ring)
    largest = _largest(begin, page_list, PAGE, N)
    coming = _largest(begin + 1, page_list, PAGE, N)  # read a step ahead: it takes long to come
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
        p = pipe.operand(weights, acc, v_ring[0].dtype)  # here, where fp32 would not fit the registers
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


@gluon_jit
def _attend(
    q, keys, values, out, lse, at_rows, table, positions, first, page_max, shifts, inv_freq, scale, count, pages,
    q_batch, q_head, q_token, out_batch, out_head, out_token, out_split, row_tiles, splits,
    GROUP: gl.constexpr, SPLIT: gl.constexpr, PAGE: gl.constexpr, N: gl.constexpr, HALF: gl.constexpr,
    INTERLEAVED: gl.constexpr, ROTATE: gl.constexpr, STAGES: gl.constexpr, CONSUMERS: gl.constexpr,
    PDL: gl.constexpr, EARLY: gl.constexpr,
):  # fmt: skip
    """64 rows a consumer, a part of the keys.

    EARLY: pages and positions of rows were written before the kernel before, so with PDL they are read, and cached keys
    fetched, while that still runs.
    """
    D: gl.constexpr = keys.block_type.shape[2]
    kv_head, tile_m = gl.program_id(0) // row_tiles, gl.program_id(0) % row_tiles
    split, request = gl.program_id(1), gl.program_id(2)
    rows, first_row = count * GROUP, tile_m * 64 * CONSUMERS
    pipe.let_next_begin(PDL)
    pipe.wait_for_previous(PDL and not EARLY)
    at_rows += request.to(gl.int64) * count
    table += request * pages
    first += request * pages
    page_max += request * pages
    shifts += request * pages
    positions += request.to(gl.int64) * pages * PAGE
    m = first_row + gl.arange(0, 64 * CONSUMERS, layout=gl.BlockedLayout([1], [32], [4], [0]))
    highest, lowest = pipe.row_range(at_rows, m, rows, GROUP)
    all_steps = (pipe.count_upto(first, 0, pages, highest, 512) * PAGE + N - 1) // N
    share = (all_steps + splits - 1) // splits
    begin = gl.minimum(split * share, all_steps)
    steps = gl.minimum(begin + share, all_steps) - begin
    begin = gl.where(steps > 0, begin, (pages * PAGE + N - 1) // N)  # nothing to do: a step behind all pages
    steps = gl.maximum(steps, 1)
    Q_LAYOUT: gl.constexpr = gl.NVMMASharedLayout.get_default_for([64, D], keys.dtype)
    KEPT: gl.constexpr = ROTATE and not INTERLEAVED and 2 * HALF == D
    q_tiles = gl.allocate_shared_memory(keys.dtype, [2 * CONSUMERS if ROTATE else CONSUMERS, 64, D], Q_LAYOUT)
    q_own = gl.allocate_shared_memory(keys.dtype, [CONSUMERS, 64, D], Q_LAYOUT) if KEPT else q_tiles
    q_full = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    q_empty = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    k_ring, v_ring, clean = pipe.make_rings(keys, values, N, STAGES, CONSUMERS)
    for i in gl.static_range(2):
        mbarrier.init(q_full.index(i), count=1)
        mbarrier.init(q_empty.index(i), count=CONSUMERS)
    q_given = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(q_given, count=CONSUMERS)
    q += request.to(gl.int64) * q_batch + kv_head.to(gl.int64) * GROUP * q_head
    out += request.to(gl.int64) * out_batch + kv_head.to(gl.int64) * GROUP * out_head + split * out_split
    lse_head = count * splits
    lse += (request * (gl.num_programs(0) // row_tiles) + kv_head) * GROUP * lse_head + split
    queries = (q, rows, q_head, q_token)
    results = (at_rows, out, out_head, out_token, lse, lse_head, splits)
    rings = ((q_tiles, q_full, q_empty, q_own, q_given), k_ring, v_ring, clean)
    bounds = (first_row, begin, steps, lowest, scale)
    page_list = (page_max, positions, pages, shifts)
    work = (queries, results, rings, bounds, page_list, inv_freq)
    # registers of a thread: what 64 rows of acc and logits need, less where a fourth group needs its share
    if ROTATE and CONSUMERS == 2:
        gl.warp_specialize(
            [
                (_consume, (0, work, GROUP, SPLIT, PAGE, HALF, INTERLEAVED, ROTATE, CONSUMERS, PDL)),
                (_consume, (1, work, GROUP, SPLIT, PAGE, HALF, INTERLEAVED, ROTATE, CONSUMERS, PDL)),
                (_produce, (keys, values, rings, kv_head, table, page_list, bounds, PAGE, PDL)),
                (
                    _rerotate,
                    (
                        queries,
                        rings,
                        bounds,
                        page_list,
                        inv_freq,
                        GROUP,
                        PAGE,
                        HALF,
                        INTERLEAVED,
                        CONSUMERS,
                        PDL,
                    ),
                ),
            ],
            [4, 4, 4],
            [208, 24, 72],
        )
    elif ROTATE:
        gl.warp_specialize(
            [
                (_consume, (0, work, GROUP, SPLIT, PAGE, HALF, INTERLEAVED, ROTATE, CONSUMERS, PDL)),
                (_produce, (keys, values, rings, kv_head, table, page_list, bounds, PAGE, PDL)),
                (
                    _rerotate,
                    (
                        queries,
                        rings,
                        bounds,
                        page_list,
                        inv_freq,
                        GROUP,
                        PAGE,
                        HALF,
                        INTERLEAVED,
                        CONSUMERS,
                        PDL,
                    ),
                ),
            ],
            [4, 4],
            [24, 72],
        )
    elif CONSUMERS == 2:
        gl.warp_specialize(
            [
                (_consume, (0, work, GROUP, SPLIT, PAGE, HALF, INTERLEAVED, ROTATE, CONSUMERS, PDL)),
                (_consume, (1, work, GROUP, SPLIT, PAGE, HALF, INTERLEAVED, ROTATE, CONSUMERS, PDL)),
                (_produce, (keys, values, rings, kv_head, table, page_list, bounds, PAGE, PDL)),
            ],
            [4, 4],
            [240, 24],
        )
    else:
        gl.warp_specialize(
            [
                (_consume, (0, work, GROUP, SPLIT, PAGE, HALF, INTERLEAVED, ROTATE, CONSUMERS, PDL)),
                (_produce, (keys, values, rings, kv_head, table, page_list, bounds, PAGE, PDL)),
            ],
            [4],
            [24],
        )


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
    buffers: int = pipe.STAGES,
    early: bool = False,
) -> Tensor:
    """`_pages_triton.reference` on a Hopper GPU, for arguments that `fits` approves.

    `early`: pages and rows were made before the kernel before this one.
    """
    out = torch.empty_like(q)
    splits = splits or parts_for(q, len(keys), pages.positions[0].numel())
    if splits > 1:
        merge(
            *launch_parts(q, keys, values, rows, pages, inv_freq, pairing, scale, splits, buffers, None, early),
            out,
        )
    else:
        launch_parts(q, keys, values, rows, pages, inv_freq, pairing, scale, 1, buffers, out, early)
    return out


def launch_parts(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    rows: Tensor,
    pages: Paged,
    inv_freq: Tensor | None,
    pairing: Pairing,
    scale: float | None,
    splits: int,
    buffers: int = pipe.STAGES,
    out: Tensor | None = None,
    early: bool = False,
) -> tuple[Tensor, Tensor]:
    """Parts [B, Hq, R, S, D] and the log2 of their weights [B, Hq, R, S], fp32; or write the one part to `out`."""
    batch, q_heads, count, width = q.shape
    heads, size = len(keys), pages.positions.shape[-1]
    q = q if q.stride(3) == 1 else q.contiguous()
    group, rerotate = q_heads // heads, pages.shifts is not None
    step = min(size * pages.run, 128) if rerotate else 128  # the pages of a step are shifted alike
    if rerotate and pages.positions[0].numel() <= SHORT * splits:
        step = min(size, 128)
    parts, lse = new_parts(q, splits) if out is None else (out, out)
    page_max = pages.positions.amax(-1) if pages.page_max is None else pages.page_max
    consumers = consumers_for(count * group)
    tiles = triton.cdiv(count * group, 64 * consumers)
    registers = (128 if consumers == 2 else 112) if rerotate else 168 if consumers == 2 else 128
    options, pdl = overlap(q.device)
    _attend[(tiles * heads, splits, batch)](
        q, *(pipe.descriptor(x, min(step, size)) for x in (keys, values)),
        parts, lse, rows.contiguous(), pages.table, pages.positions, pages.first, page_max,
        pages.shifts if rerotate else pages.table, inv_freq if rerotate else pages.table,
        (width**-0.5 if scale is None else scale) * LOG2E, count, pages.table.shape[1],
        *q.stride()[:3], *parts.stride()[:3], 0 if parts is out else parts.stride(3), tiles, splits,
        GROUP=group, SPLIT=parts is not out, PAGE=size, N=step,
        HALF=len(inv_freq) if rerotate and inv_freq is not None else 0,
        INTERLEAVED=pairing == "interleaved", ROTATE=rerotate, STAGES=buffers,
        CONSUMERS=consumers, PDL=pdl, EARLY=early, num_warps=4, maxnreg=registers, **options,
    )  # fmt: skip
    return parts, lse

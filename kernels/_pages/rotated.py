"""Queries of `_pages.hopper`, rotated back to the positions at which the keys of a page were encoded.

A fourth group of warps does it for the next shift while the tensor cores work on the current one; for the first shift
the consumers do it.

    q_ring   rotated queries: two buffers of 128 rows, with full and empty barriers; `q_own` has the original queries
"""

import workbench.kernels._shared.hopper as pipe
from workbench.kernels._shared.attention import INV_TWO_PI, TWO_PI
from workbench.kernels._shared.triton_import import fence_async_shared, gl, gluon_jit, mbarrier


@gluon_jit
def _shift(step, page_list, PAGE: gl.constexpr, N: gl.constexpr):
    """Return the shift of the keys of a step; 0 after the last page."""
    _, _, pages, shifts = page_list
    page = step * N // PAGE
    return gl.load(shifts + page, mask=page < pages, other=0)


@gluon_jit
def _angle(shift, freq):
    """Return (cos, sin) of the rotation of planes with frequencies `freq` by `shift` positions."""
    angle = shift.to(gl.float64) * freq.to(gl.float64)
    angle = (angle - TWO_PI * gl.floor(angle * INV_TWO_PI + 0.5)).to(gl.float32)
    sin = gl.inline_asm_elementwise("sin.approx.f32 $0, $1;", "=f,f", [angle], gl.float32, True, 1)
    cos = gl.inline_asm_elementwise("cos.approx.f32 $0, $1;", "=f,f", [angle], gl.float32, True, 1)
    return cos, sin


@gluon_jit
def _at_queries(queries, m, GROUP: gl.constexpr):
    """Return (pointers to rows m, mask of valid rows), as columns."""
    q, rows, q_head, q_token = queries
    base = q + (m % GROUP).to(gl.int64)[:, None] * q_head + (m // GROUP).to(gl.int64)[:, None] * q_token
    return base, (m < rows)[:, None]


@gluon_jit
def _put_queries(q_tile, queries, m, GROUP: gl.constexpr, FLAT: gl.constexpr):
    """Copy queries to shared memory."""
    col = gl.arange(0, q_tile.type.shape[1], layout=gl.SliceLayout(0, FLAT))
    base, inside = _at_queries(queries, m, GROUP)
    q_tile.store(gl.load(base + col[None, :], mask=inside, other=0.0))


@gluon_jit
def _put_rotated(
    q_tile, queries, m, by, GROUP: gl.constexpr, HALF: gl.constexpr, INTERLEAVED: gl.constexpr, FLAT: gl.constexpr
):
    """Copy queries to shared memory, rotated back `by` (positions, inv_freq)."""
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
    sin = gl.where(second, -sin, sin)  # rotation by -shift, and the sign of the other channel
    q_tile.store((x.to(gl.float32) * cos[None, :] + y.to(gl.float32) * sin[None, :]).to(x.dtype))


@gluon_jit
def _frequencies(inv_freq, M: gl.constexpr, D: gl.constexpr, BOTH: gl.constexpr):
    """Load the frequencies of the planes, in the layout of `_rotated` for tiles [M, D] in layout BOTH."""
    low, _ = gl.split(gl.zeros([M, D], gl.float32, BOTH).reshape([M, 2, D // 2]).permute((0, 2, 1)))
    return gl.load(inv_freq + gl.arange(0, D // 2, layout=gl.SliceLayout(0, low.type.layout)))


@gluon_jit
def _rotated(x, cos, sin, M: gl.constexpr, D: gl.constexpr):
    """Rotate queries [M, D], fully rotary with "neox" pairing, back by angles [D / 2].

    A thread has both channels of a plane.
    """
    low, high = gl.split(x.reshape([M, 2, D // 2]).permute((0, 2, 1)))
    a, b = low.to(gl.float32), high.to(gl.float32)
    low = (a * cos[None, :] + b * sin[None, :]).to(x.dtype)
    high = (b * cos[None, :] - a * sin[None, :]).to(x.dtype)
    return gl.join(low, high).permute((0, 2, 1)).reshape([M, D])


@gluon_jit
def _first_queries(
    q_tile, given, queries, first, shift, inv_freq, GROUP: gl.constexpr, HALF: gl.constexpr, INTERLEAVED: gl.constexpr,
):  # fmt: skip
    """Store a consumer's queries, rotated back for the first shift; with KEPT also unrotated, for `_rerotate`.

    `given`: (buffer of the unrotated queries, barrier that is signalled then).
    """
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
        given[0].store(x)
        mbarrier.arrive(given[1], count=1)
        q_tile.store(_rotated(x, cos, sin, 64, D))
    else:
        _put_rotated(q_tile, queries, m, (shift, inv_freq), GROUP, HALF, INTERLEAVED, LAYOUT)


@gluon_jit
def _rerotate(
    work, GROUP: gl.constexpr, PAGE: gl.constexpr, HALF: gl.constexpr, INTERLEAVED: gl.constexpr, CONSUMERS:
    gl.constexpr, PDL: gl.constexpr,
):  # fmt: skip
    """Rotate queries for the next shift, while the consumers use those for the current one.

    If a thread can read both channels of a plane at once (KEPT), the original queries stay in shared memory, in
    `q_own`; else they are read from global memory each time.
    """
    queries, _, rings, bounds, page_list, inv_freq = work
    q_ring, k_ring, _, _ = rings
    q_tiles, q_full, q_empty, q_own, q_given = q_ring
    first, begin, steps, _, _ = bounds
    N: gl.constexpr = k_ring[0].type.shape[-2]
    D: gl.constexpr = q_tiles.type.shape[2]
    KEPT: gl.constexpr = not INTERLEAVED and 2 * HALF == D
    FLAT: gl.constexpr = gl.BlockedLayout([1, 8], [256 // D, D // 8], [4, 1], [1, 0])
    SOME: gl.constexpr = 16 if D == 128 else 32  # rows at a time, limited by 72 registers per thread
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
    mbarrier.arrive(q_full.index(0), count=1)  # consumers rotate for the first shift
    rotated = _shift(begin, page_list, PAGE, N)
    count = 0  # shifts after the first
    freq = 0.0
    pipe.wait_for_previous(PDL)
    if KEPT:
        freq = _frequencies(inv_freq, SOME, D, BOTH)
    for j in range(1, steps):
        shift = _shift(begin + j, page_list, PAGE, N)
        if shift != rotated:
            rotated = shift
            count += 1
            index = count % 2
            cos, sin = 0.0, 0.0
            if KEPT:
                cos, sin = _angle(shift, freq)
                mbarrier.wait(q_given, 0)
            mbarrier.wait(q_empty.index(index), (count // 2 & 1) ^ 1)
            if KEPT:
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

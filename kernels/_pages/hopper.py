"""`_pages.triton_kernel` for Hopper: few rows over pages anywhere in memory.

Names and pipeline are those of `_shared.hopper`: a producer, and two consumers of 64 rows each. Rows of all heads of a
GQA group are adjacent in a tile of 128, so keys and values are read once. Pages are fetched through tensor descriptors,
by page number. Each step checks whether it needs a mask, by the largest position of its pages. For shifted pages, the
queries are rotated back when the shift changes, at most once per page: a fourth group of warps does it for the next
shift while the tensor cores work on the current one.

    step       N slots: a part of a page, or two pages
    page_list  (largest position of each page, positions of all slots, number of pages, shifts of their keys)
    q_ring     rotated queries: two buffers of 128 rows, with full and empty barriers
"""

import os

import torch
from torch import Tensor

import workbench.kernels._shared.hopper as pipe
from workbench.core.page_table import Paged
from workbench.core.rope import Pairing
from workbench.core.utils.runner import SHARED_GPU
from workbench.kernels._pages.consumer import _consume, _largest
from workbench.kernels._pages.parts import consumers_for, merge, new_parts, parts_for
from workbench.kernels._pages.rotated import _rerotate
from workbench.kernels._shared.attention import INVALID_POS, log2_scale
from workbench.kernels._shared.triton_import import gl, gluon_jit, mbarrier, overlap, triton

WIDTHS = (64, 128)
PAGES = (64, 128, 256)  # tokens
COUNTED = gl.constexpr(2048)  # pages counted at a time, e.g. of 128K tokens
SHORT = 768  # up to this many slots per part, steps of one page are faster than steps of two


def fits(q: Tensor, keys: Tensor, values: Tensor, page: int) -> bool:
    """Return whether arguments of `_pages.triton_kernel.launch` are supported: Hopper, 16 bits, whole tiles.

    False if processes share the GPU (SHARED_GPU), where hangs were observed.
    """
    if os.environ.get(SHARED_GPU):
        return False
    return pipe.fits_gpu(q, (keys[None], values[None])) and q.shape[3] in WIDTHS and page in PAGES


@gluon_jit
def _token(table, slot, pages, PAGE: gl.constexpr):
    """Return the index of a slot in the pool; OUTSIDE after the last page."""
    page = slot // PAGE
    token = gl.load(table + page, mask=page < pages, other=0) * PAGE + slot % PAGE
    return gl.where(page < pages, token, pipe.OUTSIDE)


@gluon_jit
def _produce(
    keys, values, rings, kv_head, table, page_list, bounds, fresh, PAGE: gl.constexpr,
    PDL: gl.constexpr,
):  # fmt: skip
    """Fetch the pages of all steps; page numbers are loaded a step ahead, as their latency is that of a tile.

    The preceding kernel writes at position `fresh` and later: the first row of the request, which may belong to another
    program. Pages that end before it are fetched without waiting for that kernel.
    """
    _, k_ring, v_ring, _ = rings
    _, begin, steps, _, _ = bounds
    pages = page_list[2]
    N: gl.constexpr = k_ring[0].type.shape[-2]
    BOX: gl.constexpr = keys.block_type.shape[1]
    first = _token(table, begin * N, pages, PAGE)
    second = _token(table, begin * N + (N - BOX), pages, PAGE)
    largest = fresh
    if PDL:
        largest = _largest(begin, page_list, PAGE, N)
    for j in range(steps):
        slot = pipe.free_slot(k_ring, j)
        if PDL:
            if largest >= fresh:
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
def _attend(
    q, keys, values, out, lse, at_rows, table, positions, first, page_max, shifts, inv_freq, scale, count, pages,
    q_batch, q_head, q_token, out_batch, out_head, out_token, out_split, row_tiles, splits,
    GROUP: gl.constexpr, SPLIT: gl.constexpr, PAGE: gl.constexpr, N: gl.constexpr, HALF: gl.constexpr,
    INTERLEAVED: gl.constexpr, ROTATE: gl.constexpr, STAGES: gl.constexpr, CONSUMERS: gl.constexpr,
    PDL: gl.constexpr, EARLY: gl.constexpr,
):  # fmt: skip
    """Process 64 rows per consumer over a part of the keys.

    EARLY: pages and ascending positions of rows were written before the preceding kernel started. So with PDL they are
    read, and cached keys fetched, while that kernel still runs.
    """
    D: gl.constexpr = keys.block_type.shape[2]
    kv_head, tile_m = gl.program_id(0) // row_tiles, gl.program_id(0) % row_tiles
    split, request = gl.program_id(1), gl.program_id(2)
    rows, first_row = count * GROUP, tile_m * 64 * CONSUMERS
    pipe.let_next_begin(PDL)
    pipe.wait_for_previous(PDL and not EARLY)
    at_rows += request.to(gl.int64) * count
    fresh = gl.load(at_rows).to(gl.int32)
    table += request * pages
    first += request * pages
    page_max += request * pages
    shifts += request * pages
    positions += request.to(gl.int64) * pages * PAGE
    m = first_row + gl.arange(0, 64 * CONSUMERS, layout=gl.BlockedLayout([1], [32], [4], [0]))
    page = gl.arange(0, COUNTED, layout=gl.BlockedLayout([COUNTED // 128], [32], [4], [0]))
    bound = gl.load(first + page, mask=page < pages, other=INVALID_POS)  # issued before positions are loaded
    highest, lowest = pipe.row_range(at_rows, m, rows, GROUP)
    seen = gl.sum(((bound <= highest) & (page < pages)).to(gl.int32), 0)
    seen += pipe.count_upto(first, COUNTED, pages, highest, COUNTED)
    all_steps = (seen * PAGE + N - 1) // N
    share = (all_steps + splits - 1) // splits
    begin = gl.minimum(split * share, all_steps)
    steps = gl.minimum(begin + share, all_steps) - begin
    begin = gl.where(steps > 0, begin, (pages * PAGE + N - 1) // N)  # no work: one step after all pages
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
    # registers per thread: for 64 rows of acc and logits; fewer if a fourth group needs its share
    if ROTATE and CONSUMERS == 2:
        gl.warp_specialize(
            [
                (_consume, (0, work, GROUP, SPLIT, PAGE, HALF, INTERLEAVED, ROTATE, CONSUMERS, PDL)),
                (_consume, (1, work, GROUP, SPLIT, PAGE, HALF, INTERLEAVED, ROTATE, CONSUMERS, PDL)),
                (_produce, (keys, values, rings, kv_head, table, page_list, bounds, fresh, PAGE, PDL)),
                (_rerotate, (work, GROUP, PAGE, HALF, INTERLEAVED, CONSUMERS, PDL)),
            ],
            [4, 4, 4],
            [208, 24, 72],
        )
    elif ROTATE:
        gl.warp_specialize(
            [
                (_consume, (0, work, GROUP, SPLIT, PAGE, HALF, INTERLEAVED, ROTATE, CONSUMERS, PDL)),
                (_produce, (keys, values, rings, kv_head, table, page_list, bounds, fresh, PAGE, PDL)),
                (_rerotate, (work, GROUP, PAGE, HALF, INTERLEAVED, CONSUMERS, PDL)),
            ],
            [4, 4],
            [24, 72],
        )
    elif CONSUMERS == 2:
        gl.warp_specialize(
            [
                (_consume, (0, work, GROUP, SPLIT, PAGE, HALF, INTERLEAVED, ROTATE, CONSUMERS, PDL)),
                (_consume, (1, work, GROUP, SPLIT, PAGE, HALF, INTERLEAVED, ROTATE, CONSUMERS, PDL)),
                (_produce, (keys, values, rings, kv_head, table, page_list, bounds, fresh, PAGE, PDL)),
            ],
            [4, 4],
            [240, 24],
        )
    else:
        gl.warp_specialize(
            [
                (_consume, (0, work, GROUP, SPLIT, PAGE, HALF, INTERLEAVED, ROTATE, CONSUMERS, PDL)),
                (_produce, (keys, values, rings, kv_head, table, page_list, bounds, fresh, PAGE, PDL)),
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
    """Compute `_pages.triton_kernel.reference` on a Hopper GPU, for arguments that satisfy `fits`.

    `early`: pages and rows were written before the preceding kernel started.
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
    """Return parts [B, Hq, R, S, D] and the log2 of their weights [B, Hq, R, S], fp32; or write one part to `out`."""
    batch, q_heads, count, width = q.shape
    heads, size = len(keys), pages.positions.shape[-1]
    q = q if q.stride(3) == 1 else q.contiguous()
    group, rerotate = q_heads // heads, pages.shifts is not None
    step = min(size * pages.run, 128) if rerotate else 128  # pages of a step share a shift
    if rerotate and pages.positions[0].numel() <= SHORT * splits:
        step = min(size, 128)
    parts, lse = new_parts(q, splits) if out is None else (out, out)
    page_max = pages.positions.amax(-1) if pages.page_max is None else pages.page_max
    consumers = consumers_for(count * group)
    tiles = triton.cdiv(count * group, 64 * consumers)
    registers = (128 if consumers == 2 else 112) if rerotate else 168 if consumers == 2 else 128
    options, pdl = overlap(q.device)
    described = q, *(pipe.descriptor(x, min(step, size)) for x in (keys, values))
    turned = (pages.shifts, inv_freq) if rerotate else (pages.table, pages.table)
    paged = rows.contiguous(), pages.table, pages.positions, pages.first, page_max, *turned
    sizes = log2_scale(scale, width), count, pages.table.shape[1]
    strides = *q.stride()[:3], *parts.stride()[:3], 0 if parts is out else parts.stride(3)
    constants = {"GROUP": group, "SPLIT": parts is not out, "PAGE": size, "N": step, "ROTATE": rerotate}
    constants |= {"HALF": len(inv_freq) if rerotate and inv_freq is not None else 0, "STAGES": buffers}
    constants |= {"INTERLEAVED": pairing == "interleaved", "CONSUMERS": consumers, "PDL": pdl, "EARLY": early}
    constants |= {"num_warps": 4, "maxnreg": registers}
    _attend[(tiles * heads, splits, batch)](
        *described, parts, lse, *paged, *sizes, *strides, tiles, splits, **constants, **options
    )
    return parts, lse

"""`_tiles.triton_kernel` for Hopper: the same lists, rows and results, with TMA and asynchronous wgmma.

Names and pipeline are those of `_shared.hopper`: a producer, and two consumers of 64 rows each. Tiles are processed
from last to first, so tiles that need a mask come first. Query tiles of 64 rows, each with its own list, are computed
in pairs from merged lists (`merge_pairs`): each consumer has its query tile, and masks entries that only the other
keeps.

Each query tile has its own program. A persistent grid, which fetches the next tile while it writes the current one,
gave the same results and was slower on an H200: dense at 8K and 32K, 15% of 128K, a chunk.

    entry      a key tile of the program's list; in a merged list, 4 · tile + a bit per consumer that keeps it
    step       N keys: several entries, or a part of one
    tile_list  (number of visible entries, pointer to the list, index of the KV head's first tile)
"""

import torch
from torch import Tensor

import workbench.kernels._shared.hopper as pipe
import workbench.kernels._tiles.hopper_lists as walk
from workbench.kernels._shared.attention import log2_scale, together
from workbench.kernels._shared.triton_import import (
    async_load,
    fence_async_shared,
    gl,
    gluon_jit,
    mbarrier,
    triton,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from workbench.kernels._tiles.hopper_lists import merge_pairs

WIDTHS = (64, 128, 256)


def keys_of(width: int) -> int:
    """Return the keys per step for head width `width`, as limited by shared memory and registers."""
    return 64 if width > 128 else 128


def fits(q: Tensor, keys: Tensor, values: Tensor, size: int | None, queries: int) -> bool:
    """Return whether arguments of `_tiles.triton_kernel.launch` are supported: Hopper, 16 bits, head widths."""
    if not pipe.fits_gpu(q, (keys, values)) or q.shape[3] not in WIDTHS or (size is not None and size < 32):
        return False
    return q.shape[2] <= queries or queries % pipe.ROWS == 0 or queries == pipe.ROWS // 2


@gluon_jit
def _produce(
    keys, values, rings, place, steps, tile_list, LISTED: gl.constexpr, PAIRED: gl.constexpr, SIZE: gl.constexpr
):
    """Fetch the tiles of all steps."""
    _, _, k_ring, v_ring, _ = rings
    N: gl.constexpr = k_ring[0].type.shape[-2]
    SUB: gl.constexpr = SIZE // N if SIZE > N else 1  # steps of an entry
    AHEAD: gl.constexpr = N <= 2 * SIZE  # load entries a step ahead: their latency is that of a tile
    coming = walk.starts_of(steps - 1, tile_list, LISTED, PAIRED, SIZE, N)
    for j in range(steps):
        slot = pipe.free_slot(k_ring, j)
        step = steps - 1 - j
        starts = coming
        if AHEAD:
            coming = walk.starts_of(gl.maximum(step - 1, 0), tile_list, LISTED, PAIRED, SIZE, N)
        else:
            starts = walk.starts_of(step, tile_list, LISTED, PAIRED, SIZE, N)
        pipe.fill(keys, k_ring, slot, place, starts, step % SUB * N)
        pipe.fill(values, v_ring, slot, place, starts, step % SUB * N)


@gluon_jit
def _steps(
    state, begin, end, mine, MASKED: gl.constexpr, LISTED: gl.constexpr, PAIRED: gl.constexpr, SIZE: gl.constexpr
):
    """Process steps `begin` to `end`. MASKED: their keys are partly visible."""
    acc, weights, alpha, m_i, l_i = state
    consumer, q_tile, k_ring, v_ring, at_row, tile_list, steps, scale = mine
    N: gl.constexpr = k_ring[0].type.shape[-2]
    HIDE: gl.constexpr = PAIRED and not MASKED
    coming = 0
    if HIDE:  # loaded a step ahead
        coming = walk.kept_by(steps - 1 - begin, consumer, tile_list, SIZE, N)
    for j in range(begin, end):
        # compute both slots first: otherwise head width 64 took 8% longer on an H100
        now, last = pipe.slot_of(k_ring, j), pipe.slot_of(v_ring, j - 1)
        p = pipe.operand(weights, acc, v_ring[0].dtype)
        pipe.wait_full(k_ring, now)
        s = pipe.begin_logits(q_tile, k_ring, now)
        acc = pipe.rescale(acc, alpha)
        pipe.wait_full(v_ring, last)
        acc = warpgroup_mma(p, pipe.tile_of(v_ring, last), acc, is_async=True)
        kept = coming
        if HIDE:
            coming = walk.kept_by(steps - 2 - j, consumer, tile_list, SIZE, N)
        s = pipe.end_logits(s, k_ring, now)
        if MASKED:
            s = walk.masked_logits(s, steps - 1 - j, consumer, at_row, tile_list, LISTED, PAIRED, SIZE)
        if HIDE:
            s = walk.hide_entries(s, kept, SIZE, N)
        acc, weights, alpha, m_i, l_i = pipe.end_step(acc, s, m_i, l_i, scale, v_ring, last, MASKED or PAIRED)
    return acc, weights, alpha, m_i, l_i


@gluon_jit
def _consume(
    consumer, tensors, rings, bounds, tile_list, LISTED: gl.constexpr, PAIRED: gl.constexpr, SIZE: gl.constexpr
):
    """Compute 64 rows."""
    out, rows, out_token = tensors
    q_tiles, q_full, k_ring, v_ring, clean = rings
    first, count, steps, masked, highest, scale = bounds
    N: gl.constexpr = k_ring[0].type.shape[-2]
    D: gl.constexpr = k_ring[0].type.shape[-1]
    LOGITS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, N, 16])
    RESULT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    FLAT: gl.constexpr = gl.BlockedLayout([1, 8], [256 // D, D // 8], [4, 1], [1, 0])
    q_tile = q_tiles.index(consumer).reshape([64, D])
    row = first + consumer * 64 + gl.arange(0, 64, layout=gl.SliceLayout(1, FLAT))
    col = gl.arange(0, D, layout=gl.SliceLayout(0, FLAT))
    m = first + consumer * 64 + gl.arange(0, 64, layout=gl.SliceLayout(1, LOGITS))
    at_row = gl.load(rows + m, mask=m < count, other=-1).to(gl.int32)
    mbarrier.wait(q_full, 0)
    s = pipe.first_logits(q_tile, k_ring)
    s = walk.masked_logits(s, steps - 1, consumer, at_row, tile_list, LISTED, PAIRED, SIZE)
    acc = gl.zeros([64, D], gl.float32, RESULT)
    weights, alpha, m_i, l_i = pipe.first_softmax(s, scale)
    # memory after the last token may be NaN, and 0 · NaN is not 0: each consumer clears half of the values
    pipe.wait_full(v_ring, (0, 0))
    v = pipe.tile_of(v_ring, (0, 0)).slice(consumer * (N // 2), N // 2, dim=0)
    wide = v.load(FLAT)
    spot = consumer * (N // 2) + gl.arange(0, N // 2, layout=gl.SliceLayout(1, FLAT))
    key, _ = walk.positions_of(steps - 1, spot, tile_list, LISTED, PAIRED, SIZE, N)
    v.store(gl.where((key <= highest)[:, None], wide, 0.0))
    fence_async_shared()
    mbarrier.arrive(clean, count=1)
    mbarrier.wait(clean, 0)
    mine = (consumer, q_tile, k_ring, v_ring, at_row, tile_list, steps, scale)
    state = _steps((acc, weights, alpha, m_i, l_i), 1, masked, mine, True, LISTED, PAIRED, SIZE)
    acc, weights, alpha, m_i, l_i = _steps(state, masked, steps, mine, False, LISTED, PAIRED, SIZE)
    last = pipe.slot_of(v_ring, steps - 1)
    pipe.wait_full(v_ring, last)
    acc = pipe.rescale(acc, alpha)
    p = pipe.operand(weights, acc, v_ring[0].dtype)
    acc = warpgroup_mma(p, pipe.tile_of(v_ring, last), acc, is_async=True)
    acc = warpgroup_mma_wait(0, deps=(acc,))
    result, _ = pipe.normalize(acc, at_row, l_i)
    q_tile.store(result.to(v_ring[0].dtype))
    result = q_tile.load(FLAT)
    gl.store(out + row.to(gl.int64)[:, None] * out_token + col[None, :], result, mask=(row < count)[:, None])


@gluon_jit
def _attend(
    q, keys, values, out, rows, indptr, indices, scale, count, capacity,
    out_batch, out_head, out_token, row_tiles, together, lists, queries,
    GROUP: gl.constexpr, HEADS: gl.constexpr, LISTED: gl.constexpr, SHARED: gl.constexpr, STRIDED: gl.constexpr,
    PAIRED: gl.constexpr, SIZE: gl.constexpr, N: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    D: gl.constexpr = keys.block_type.shape[3]
    section, place = gl.program_id(0) // (row_tiles * together), gl.program_id(0) % (row_tiles * together)
    head = section * together + place % together
    tile_m = row_tiles - 1 - place // together  # the last rows attend to the most keys: start them first
    request = gl.program_id(1)
    kv_head = head // GROUP
    first = tile_m * 128
    # queries are fetched while positions and lists are loaded
    q_tiles = gl.allocate_shared_memory(q.dtype, [2, 1, 1, 64, D], q.layout)
    q_full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(q_full, count=1)
    mbarrier.expect(q_full, 2 * q.block_type.nbytes)
    for part in gl.static_range(2):
        async_load(q, (request, head, first + part * 64, 0), q_full, q_tiles.index(part))
    begin, end = 0, 0
    if LISTED:
        n = (request * (HEADS // SHARED) + head // SHARED) * lists + (first // queries) % lists
        begin, end = gl.load(indptr + n), gl.load(indptr + n + 1)
    m = first + gl.arange(0, 128, layout=gl.BlockedLayout([1], [32], [4], [0]))
    rows += request.to(gl.int64) * count
    highest, lowest = pipe.row_range(rows, m, count, 1)
    lowest = gl.minimum(lowest, highest)
    tile_base = 0
    list_at = indices
    if LISTED:
        if STRIDED:
            tile_base = (request * (HEADS // GROUP) + kv_head) * capacity
        # tile j is fully visible if (j + 1) * SIZE - 1 <= lowest, and partly if j * SIZE <= highest
        whole = (lowest + 1) // SIZE - 1 + tile_base
        some = tile_base + gl.where(highest < 0, -1, highest // SIZE)
        if PAIRED:
            whole, some = whole * 4 + 3, some * 4 + 3
        clear, entries = pipe.count_both(indices, begin, end, whole, some, 256)
        list_at = indices + begin
    else:
        clear = (lowest + 1) // SIZE
        entries = (highest + SIZE) // SIZE
    steps = gl.maximum((entries * SIZE + N - 1) // N, 1)
    masked = gl.maximum(steps - clear * SIZE // N, 1)
    k_ring, v_ring, clean = pipe.make_rings(keys, values, N, STAGES)
    out += request.to(gl.int64) * out_batch + head.to(gl.int64) * out_head
    tile_list = (entries, list_at, tile_base)
    tensors = (out, rows, out_token)
    rings = (q_tiles, q_full, k_ring, v_ring, clean)
    bounds = (first, count, steps, masked, highest, scale)
    # registers per thread: for 64 rows of acc and logits, and the minimum for the producer
    gl.warp_specialize(
        [
            (_consume, (0, tensors, rings, bounds, tile_list, LISTED, PAIRED, SIZE)),
            (_consume, (1, tensors, rings, bounds, tile_list, LISTED, PAIRED, SIZE)),
            (_produce, (keys, values, rings, (request, kv_head), steps, tile_list, LISTED, PAIRED, SIZE)),
        ],
        [4, 4],
        [240, 24],
    )


def launch(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    rows: Tensor,
    indptr: Tensor | None,
    indices: Tensor | None,
    size: int,
    queries: int,
    scale: float | None,
    strided: bool = False,
    buffers: int = pipe.STAGES,
) -> Tensor:
    """Compute `_tiles.reference.reference` on a Hopper GPU, for arguments that satisfy `fits`."""
    batch, q_heads, count, width = q.shape
    heads, length = keys.shape[1:3]
    q = q if pipe.aligned(q) and 0 not in q.stride() else q.clone(memory_format=torch.contiguous_format)
    out = q.new_empty(batch, count, q_heads, width).transpose(1, 2)  # row-major, as models expect
    step = keys_of(width)
    tile = step if indptr is None else size
    tiles = triton.cdiv(count, pipe.ROWS)
    lists = -(-count // queries)
    groups = q_heads if indptr is None else (len(indptr) - 1) // (batch * lists)
    paired = indptr is not None and lists > 1 and queries < pipe.ROWS
    if indptr is not None and indices is not None and paired:
        indptr, indices = merge_pairs(indptr, indices, lists, -(-length // size))
        lists, queries = -(-lists // 2), pipe.ROWS
    described = pipe.descriptor(q, pipe.ROWS // 2), *(pipe.descriptor(x, min(step, tile)) for x in (keys, values))
    listed = rows if indptr is None else indptr, rows if indices is None else indices
    sizes = log2_scale(scale, width), count, length // size
    steps = *out.stride()[:3], tiles, together(keys, q_heads // heads), lists, queries
    constants = {"GROUP": q_heads // heads, "HEADS": q_heads, "LISTED": indptr is not None, "SHARED": q_heads // groups}
    constants |= {"STRIDED": strided, "PAIRED": paired, "SIZE": tile, "N": step, "STAGES": buffers}
    _attend[(tiles * q_heads, batch)](
        *described, out, rows.contiguous(), *listed, *sizes, *steps, **constants, num_warps=4, maxnreg=168
    )
    return out

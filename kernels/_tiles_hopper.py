"""`_tiles_triton` for Hopper: the same lists, rows and results, by its copy engine and asynchronous matrix unit.

A program is three groups of warps. One only fetches: tiles of keys and values come through tensor descriptors into a
ring of buffers, so nobody computes addresses. Two compute, 64 rows each: while the matrix unit multiplies the weights
of one tile with its values, and the next tile with the queries, the group takes the softmax of the tile between
(FlashAttention-3, arXiv:2407.08608, algorithm 2). Tiles are taken from the last to the first, so those that need a mask
come first. Query tiles of 64 rows, each with a list of its own, are computed two by two from merged lists
(`_tiles_pairs`): each computing group has its tile, and hides from it what only the other one keeps.

Written in Gluon, Triton's lower level, which has no interpreter: it is checked on the GPU, by the cases of
`tile_attention` and `page_attention`.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from workbench.kernels._common import LOG2E, together
from workbench.kernels._tiles_pairs import launch as merge_pairs
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

ROWS = 128  # of a program: 64 for each computing group
NOWHERE = 1 << 30  # position of a key that no row sees
BUFFERS = 2
DTYPES = (torch.bfloat16, torch.float16)
WIDTHS = (64, 128, 256)


def keys_of(width: int) -> int:
    """Keys of a step for head width `width`: what fits the shared memory and the registers."""
    return 64 if width > 128 else 128


def fits(q: Tensor, keys: Tensor, values: Tensor, size: int | None, queries: int) -> bool:
    """Whether this kernel takes such arguments (of `_tiled.launch`): a Hopper card, 16-bit numbers, its head widths."""
    if not fits_gpu(q, (keys, values)) or q.shape[3] not in WIDTHS or (size is not None and size < 32):
        return False
    return q.shape[2] <= queries or queries % ROWS == 0 or queries == ROWS // 2


def fits_gpu(q: Tensor, pools: Sequence[Tensor]) -> bool:
    """Whether this is a Hopper card, and these are tensors [B, H, T, D] that its copy engine can fetch tiles of."""
    if GluonDescriptor is None or q.device.type != "cuda" or torch.cuda.get_device_capability(q.device)[0] != 9:
        return False
    return q.dtype in DTYPES and all(_aligned(x) for x in pools)


def _aligned(x: Tensor) -> bool:
    """What the copy engine needs: rows of 16 bytes, a multiple of that from row to row and from head to head."""
    return x.stride(3) == 1 and x.data_ptr() % 16 == 0 and all(s * x.element_size() % 16 == 0 for s in x.stride()[:3])


@gluon_jit
def _upto(indices, first, end, limit):
    """How many of the rising indices are at most `limit`."""
    wide: gl.constexpr = gl.BlockedLayout([2], [32], [4], [0])
    found = 0
    for at in range(first, end, 256):
        i = at + gl.arange(0, 256, layout=wide)
        kept = (gl.load(indices + i, mask=i < end, other=2147483647) <= limit) & (i < end)
        found += gl.sum(kept.to(gl.int32), 0)
    return found


@gluon_jit
def _start(entry, entries, list_at, number, LISTED: gl.constexpr, PAIRED: gl.constexpr, SIZE: gl.constexpr):
    """Position of the first key of an entry of the list; NOWHERE behind its end."""
    if LISTED:
        inside = entry < entries
        tile = gl.load(list_at + entry, mask=inside, other=0)
        if PAIRED:
            tile = tile >> 2
        return gl.where(inside, (tile - number) * SIZE, 1073741824)
    else:
        return gl.where(entry < entries, entry * SIZE, 1073741824)


@gluon_jit
def _fetch(
    keys, values, k_tiles, v_tiles, k_full, k_empty, v_full, v_empty,
    request, kv_head, steps, entries, list_at, number,
    LISTED: gl.constexpr, PAIRED: gl.constexpr, SIZE: gl.constexpr, N: gl.constexpr,
):  # fmt: skip
    """The group that fetches."""
    BOX: gl.constexpr = keys.block_type.shape[2]
    PER: gl.constexpr = N // BOX  # entries of a step
    SUB: gl.constexpr = SIZE // BOX  # steps of an entry
    BUFFERS: gl.constexpr = k_tiles.type.shape[0]
    AHEAD: gl.constexpr = PER <= 2  # entries are asked for a step ahead: they take as long to come as a tile
    first = _start((steps - 1) * PER // SUB, entries, list_at, number, LISTED, PAIRED, SIZE)
    second = first
    if PER == 2:
        second = _start((steps - 1) * 2 + 1, entries, list_at, number, LISTED, PAIRED, SIZE)
    for j in range(steps):
        index, phase = j % BUFFERS, (j // BUFFERS & 1) ^ 1
        step = steps - 1 - j
        now, then = first, second
        if AHEAD:
            after = gl.maximum(step - 1, 0)
            first = _start(after * PER // SUB, entries, list_at, number, LISTED, PAIRED, SIZE)
            if PER == 2:
                second = _start(after * 2 + 1, entries, list_at, number, LISTED, PAIRED, SIZE)
        mbarrier.wait(k_empty.index(index), phase)
        mbarrier.expect(k_full.index(index), N * keys.block_type.shape[3] * 2)
        for part in gl.static_range(PER):
            at = now if part == 0 else then
            if not AHEAD:
                at = _start(step * PER + part, entries, list_at, number, LISTED, PAIRED, SIZE)
            tile = k_tiles.index(index).slice(part * BOX, BOX, dim=2)
            async_load(keys, [request, kv_head, at + step % SUB * BOX, 0], k_full.index(index), tile)
        mbarrier.wait(v_empty.index(index), phase)
        mbarrier.expect(v_full.index(index), N * values.block_type.shape[3] * 2)
        for part in gl.static_range(PER):
            at = now if part == 0 else then
            if not AHEAD:
                at = _start(step * PER + part, entries, list_at, number, LISTED, PAIRED, SIZE)
            tile = v_tiles.index(index).slice(part * BOX, BOX, dim=2)
            async_load(values, [request, kv_head, at + step % SUB * BOX, 0], v_full.index(index), tile)


@gluon_jit
def _where(
    step, half, entries, list_at, number,
    LISTED: gl.constexpr, PAIRED: gl.constexpr, SIZE: gl.constexpr, N: gl.constexpr, L: gl.constexpr,
):  # fmt: skip
    """[N] positions of the keys of a step; NOWHERE for what this half does not keep."""
    col = gl.arange(0, N, layout=L)
    if SIZE >= N:
        entry = step // (SIZE // N)
        at = _start(entry, entries, list_at, number, LISTED, PAIRED, SIZE) + step % (SIZE // N) * N + col
    else:
        entry = step * (N // SIZE) + col // SIZE
        at = _start(entry, entries, list_at, number, LISTED, PAIRED, SIZE) + col % SIZE
    if PAIRED:
        kept = gl.load(list_at + entry, mask=entry < entries, other=3) >> half & 1
        at += (1 - kept) * 1073741824
    return at


@gluon_jit
def _of_half(step, half, entries, list_at, SIZE: gl.constexpr, N: gl.constexpr):
    """Which entries of a step this half keeps, a bit for each; all of them behind the end, where nobody looks."""
    PER: gl.constexpr = N // SIZE if N > SIZE else 1
    found = 0
    for part in gl.static_range(PER):
        entry = step * PER + part if N > SIZE else step // (SIZE // N)
        raw = gl.load(list_at + entry, mask=(entry >= 0) & (entry < entries), other=3)
        found += (raw >> half & 1) << part
    return found


@gluon_jit
def _hide(s, kept, SIZE: gl.constexpr, N: gl.constexpr, LOGITS: gl.constexpr):
    """Logits without the entries that this half does not keep."""
    PER: gl.constexpr = N // SIZE if N > SIZE else 1
    if kept != (1 << PER) - 1:
        part = gl.arange(0, N, layout=gl.SliceLayout(0, LOGITS)) // (N // PER)
        s = gl.where((kept >> part & 1)[None, :] == 1, s, float("-inf"))
    return s


@gluon_jit
def _softmax(s, top, total, at, at_row, scale, MASKED: gl.constexpr, EMPTY: gl.constexpr):
    """EMPTY: a row may not have seen anything yet."""
    if MASKED:
        s = gl.where(at[None, :] <= at_row[:, None], s, float("-inf"))
    new = gl.maximum(top, gl.max(s, 1) * scale)
    safe = gl.where(new == float("-inf"), 0.0, new) if EMPTY else new
    p = gl.exp2(s * scale - safe[:, None])
    old = gl.exp2(top - safe)
    return p, old, new, total * old + gl.sum(p, 1)


@gluon_jit
def _steps(
    acc, p, old, top, total, begin, end, steps, half, q_tile, k_tiles, v_tiles, k_full, k_empty, v_full, v_empty,
    at_row, entries, list_at, number, scale,
    MASKED: gl.constexpr, LISTED: gl.constexpr, PAIRED: gl.constexpr, SIZE: gl.constexpr, N: gl.constexpr,
    D: gl.constexpr, LOGITS: gl.constexpr, WEIGHTS: gl.constexpr,
):  # fmt: skip
    BUFFERS: gl.constexpr = k_tiles.type.shape[0]
    ASK: gl.constexpr = PAIRED and not MASKED
    coming = 0
    if ASK:  # a step ahead
        coming = _of_half(steps - 1 - begin, half, entries, list_at, SIZE, N)
    for j in range(begin, end):
        index, phase = j % BUFFERS, j // BUFFERS & 1
        last, last_phase = (j - 1) % BUFFERS, (j - 1) // BUFFERS & 1
        mbarrier.wait(k_full.index(index), phase)
        k = k_tiles.index(index).reshape([N, D]).permute((1, 0))
        s = warpgroup_mma(q_tile, k, gl.zeros([64, N], gl.float32, LOGITS), use_acc=False, is_async=True)
        acc = acc * gl.convert_layout(old, gl.SliceLayout(1, acc.type.layout))[:, None]
        mbarrier.wait(v_full.index(last), last_phase)
        acc = warpgroup_mma(p, v_tiles.index(last).reshape([N, D]), acc, is_async=True)
        kept = coming
        if ASK:
            coming = _of_half(steps - 2 - j, half, entries, list_at, SIZE, N)
        s = warpgroup_mma_wait(1, deps=(s,))
        mbarrier.arrive(k_empty.index(index), count=1)
        at = _where(steps - 1 - j, half, entries, list_at, number, LISTED, PAIRED, SIZE, N, gl.SliceLayout(0, LOGITS))
        if ASK:
            s = _hide(s, kept, SIZE, N, LOGITS)
        weights, old, top, total = _softmax(s, top, total, at, at_row, scale, MASKED, MASKED or PAIRED)
        acc, weights = warpgroup_mma_wait(0, deps=(acc, weights))  # weights, so that they are not put off till then
        mbarrier.arrive(v_empty.index(last), count=1)
        p = gl.convert_layout(weights.to(q_tile.dtype), WEIGHTS)
    return acc, p, old, top, total


@gluon_jit
def _compute(
    half, q, out, rows, q_tiles, k_tiles, v_tiles, k_full, k_empty, v_full, v_empty, clean,
    first, count, q_token, out_token, steps, masked, entries, highest, list_at, number, scale,
    LISTED: gl.constexpr, PAIRED: gl.constexpr, SIZE: gl.constexpr, N: gl.constexpr, D: gl.constexpr,
):  # fmt: skip
    """A group that computes 64 rows."""
    LOGITS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, N, 16])
    RESULT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    WEIGHTS: gl.constexpr = gl.DotOperandLayout(0, RESULT, 2)
    FLAT: gl.constexpr = gl.BlockedLayout([1, 8], [256 // D, D // 8], [4, 1], [1, 0])
    q_tile = q_tiles.index(half)
    row = first + half * 64 + gl.arange(0, 64, layout=gl.SliceLayout(1, FLAT))
    col = gl.arange(0, D, layout=gl.SliceLayout(0, FLAT))
    x = gl.load(q + row.to(gl.int64)[:, None] * q_token + col[None, :], mask=(row < count)[:, None], other=0.0)
    q_tile.store(x)
    fence_async_shared()
    mine = first + half * 64 + gl.arange(0, 64, layout=gl.SliceLayout(1, LOGITS))
    at_row = gl.load(rows + mine, mask=mine < count, other=-1).to(gl.int32)
    # the first step: there are no weights yet
    mbarrier.wait(k_full.index(0), 0)
    k = k_tiles.index(0).reshape([N, D]).permute((1, 0))
    s = warpgroup_mma(q_tile, k, gl.zeros([64, N], gl.float32, LOGITS), use_acc=False, is_async=True)
    s = warpgroup_mma_wait(0, deps=(s,))
    mbarrier.arrive(k_empty.index(0), count=1)
    at = _where(steps - 1, half, entries, list_at, number, LISTED, PAIRED, SIZE, N, gl.SliceLayout(0, LOGITS))
    top = gl.full([64], float("-inf"), gl.float32, gl.SliceLayout(1, LOGITS))
    total = gl.zeros([64], gl.float32, gl.SliceLayout(1, LOGITS))
    weights, old, top, total = _softmax(s, top, total, at, at_row, scale, True, True)
    p = gl.convert_layout(weights.to(x.dtype), WEIGHTS)
    acc = gl.zeros([64, D], gl.float32, RESULT)
    # behind the last row there may be anything, and nothing times anything must be nothing
    mbarrier.wait(v_full.index(0), 0)
    part = v_tiles.index(0).reshape([N, D]).slice(half * (N // 2), N // 2, dim=0)
    wide = part.load(FLAT)
    spot = half * (N // 2) + gl.arange(0, N // 2, layout=gl.SliceLayout(1, FLAT))
    if SIZE >= N:
        key = _start((steps - 1) // (SIZE // N), entries, list_at, number, LISTED, PAIRED, SIZE) + spot
        key += (steps - 1) % (SIZE // N) * N
    else:
        entry = (steps - 1) * (N // SIZE) + spot // SIZE
        key = _start(entry, entries, list_at, number, LISTED, PAIRED, SIZE) + spot % SIZE
    part.store(gl.where((key <= highest)[:, None], wide, 0.0))
    fence_async_shared()
    mbarrier.arrive(clean, count=1)
    mbarrier.wait(clean, 0)
    acc, p, old, top, total = _steps(
        acc, p, old, top, total, 1, masked, steps, half, q_tile, k_tiles, v_tiles, k_full, k_empty, v_full,
        v_empty, at_row, entries, list_at, number, scale, True, LISTED, PAIRED, SIZE, N, D, LOGITS, WEIGHTS,
    )  # fmt: skip
    acc, p, old, top, total = _steps(
        acc, p, old, top, total, masked, steps, steps, half, q_tile, k_tiles, v_tiles, k_full, k_empty, v_full,
        v_empty, at_row, entries, list_at, number, scale, False, LISTED, PAIRED, SIZE, N, D, LOGITS, WEIGHTS,
    )  # fmt: skip
    BUFFERS: gl.constexpr = k_tiles.type.shape[0]
    last, phase = (steps - 1) % BUFFERS, (steps - 1) // BUFFERS & 1
    mbarrier.wait(v_full.index(last), phase)
    acc = acc * gl.convert_layout(old, gl.SliceLayout(1, RESULT))[:, None]
    acc = warpgroup_mma(p, v_tiles.index(last).reshape([N, D]), acc, is_async=True)
    acc = warpgroup_mma_wait(0, deps=(acc,))
    some = (at_row >= 0) & (total > 0)
    share = gl.where(some, 1.0 / gl.where(some, total, 1.0), 0.0)
    share = gl.convert_layout(share, gl.SliceLayout(1, RESULT))
    valid = gl.convert_layout(some, gl.SliceLayout(1, RESULT))
    q_tile.store(gl.where(valid[:, None], acc * share[:, None], 0.0).to(x.dtype))
    result = q_tile.load(FLAT)
    gl.store(out + row.to(gl.int64)[:, None] * out_token + col[None, :], result, mask=(row < count)[:, None])


@gluon_jit
def _attend(
    q, keys, values, out, rows, indptr, indices, scale, count, capacity,
    q_batch, q_head, q_token, out_batch, out_head, out_token, row_tiles, together, lists, queries,
    GROUP: gl.constexpr, HEADS: gl.constexpr, LISTED: gl.constexpr, SHARED: gl.constexpr, STRIDED: gl.constexpr,
    PAIRED: gl.constexpr, SIZE: gl.constexpr, N: gl.constexpr, BUFFERS: gl.constexpr,
):  # fmt: skip
    D: gl.constexpr = keys.block_type.shape[3]
    section, place = gl.program_id(0) // (row_tiles * together), gl.program_id(0) % (row_tiles * together)
    head = section * together + place % together
    tile_m = row_tiles - 1 - place // together  # the last rows see most: they begin first
    request = gl.program_id(1)
    kv_head = head // GROUP
    flat: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    row = tile_m * 128 + gl.arange(0, 128, layout=flat)
    rows += request.to(gl.int64) * count
    at_row = gl.load(rows + row, mask=row < count, other=-1).to(gl.int32)
    highest = gl.max(at_row, 0)
    lowest = gl.minimum(gl.min(gl.where(at_row >= 0, at_row, 2147483647), 0), highest)
    number = 0
    list_at = indices
    if LISTED:
        one = (request * (HEADS // SHARED) + head // SHARED) * lists + (tile_m * 128 // queries) % lists
        start, stop = gl.load(indptr + one), gl.load(indptr + one + 1)
        if STRIDED:
            number = (request * (HEADS // GROUP) + kv_head) * capacity
        # tile j is seen in whole where (j + 1) * SIZE - 1 <= lowest, and at all where j * SIZE <= highest
        whole = (lowest + 1) // SIZE - 1 + number
        some = number + gl.where(highest < 0, -1, highest // SIZE)
        clear = _upto(indices, start, stop, whole * 4 + 3 if PAIRED else whole)
        entries = _upto(indices, start, stop, some * 4 + 3 if PAIRED else some)
        list_at = indices + start
    else:
        clear = (lowest + 1) // SIZE
        entries = (highest + SIZE) // SIZE
    steps = gl.maximum((entries * SIZE + N - 1) // N, 1)
    masked = gl.maximum(steps - clear * SIZE // N, 1)
    q_tiles = gl.allocate_shared_memory(
        keys.dtype, [2, 64, D], gl.NVMMASharedLayout.get_default_for([64, D], keys.dtype)
    )
    shape: gl.constexpr = [BUFFERS, 1, 1, N, D]
    k_tiles = gl.allocate_shared_memory(keys.dtype, shape, keys.layout)
    v_tiles = gl.allocate_shared_memory(keys.dtype, shape, values.layout)
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
    q += request.to(gl.int64) * q_batch + head.to(gl.int64) * q_head
    out += request.to(gl.int64) * out_batch + head.to(gl.int64) * out_head
    first = tile_m * 128
    gl.warp_specialize(
        [
            (_compute, (
                0, q, out, rows, q_tiles, k_tiles, v_tiles, k_full, k_empty, v_full, v_empty, clean,
                first, count, q_token, out_token, steps, masked, entries, highest, list_at, number, scale,
                LISTED, PAIRED, SIZE, N, D,
            )),
            (_compute, (
                1, q, out, rows, q_tiles, k_tiles, v_tiles, k_full, k_empty, v_full, v_empty, clean,
                first, count, q_token, out_token, steps, masked, entries, highest, list_at, number, scale,
                LISTED, PAIRED, SIZE, N, D,
            )),
            (_fetch, (
                keys, values, k_tiles, v_tiles, k_full, k_empty, v_full, v_empty,
                request, kv_head, steps, entries, list_at, number, LISTED, PAIRED, SIZE, N,
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
    indptr: Tensor | None,
    indices: Tensor | None,
    size: int,
    queries: int,
    scale: float | None,
    strided: bool = False,
    buffers: int = BUFFERS,
) -> Tensor:
    """`_tiled.reference` on a Hopper card, for arguments that `fits` approves."""
    batch, q_heads, count, width = q.shape
    heads, length = keys.shape[1:3]
    q = q if q.stride(3) == 1 else q.contiguous()
    out = q.new_empty(batch, count, q_heads, width).transpose(1, 2)  # rows first, as models want it
    step = keys_of(width)
    tile = step if indptr is None else size
    box = [1, 1, min(step, tile), width]
    layout = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=4)
    tiles = triton.cdiv(count, ROWS)
    lists = -(-count // queries)
    groups = q_heads if indptr is None else (len(indptr) - 1) // (batch * lists)
    paired = indptr is not None and lists > 1 and queries < ROWS
    if indptr is not None and indices is not None and paired:
        indptr, indices = merge_pairs(indptr, indices, lists, -(-length // size))
        lists, queries = -(-lists // 2), ROWS
    _attend[(tiles * q_heads, batch)](
        q, *(GluonDescriptor(x, list(x.shape), list(x.stride()), box, layout) for x in (keys, values)),
        out, rows.contiguous(), rows if indptr is None else indptr, rows if indices is None else indices,
        (width**-0.5 if scale is None else scale) * LOG2E, count, length // size,
        *q.stride()[:3], *out.stride()[:3], tiles, together(keys, q_heads // heads), lists, queries,
        GROUP=q_heads // heads, HEADS=q_heads, LISTED=indptr is not None,
        SHARED=q_heads // groups, STRIDED=strided, PAIRED=paired,
        SIZE=tile, N=step, BUFFERS=buffers, num_warps=4, maxnreg=168,
    )  # fmt: skip
    return out

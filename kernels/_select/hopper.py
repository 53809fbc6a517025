"""XAttention's sums of squares on Hopper: `choose_xattention._squares` with TMA and wgmma.

Names and parts are those of `_shared.hopper`: a producer, and consumers of 64 rows of squares by N key squares each.
The grid is persistent: the next tile is fetched during the softmax of the current one. Tiles are ordered by head, then
in bands of BAND row tiles, so concurrent programs read the same keys. Only visible tiles are numbered: skipping the
others in the loop left some programs with 15% more work at 32K.

    order      [1 + tiles] int32, the order in which tiles are processed: number of visible tiles of a head, then
               row tile · 65,536 + key tile of each
    band       row tiles that are processed together, by key tile
    step       LINE bytes of one token of each square: a product of 64 rows, N keys and that many channels
    ring       (queries, keys, full, empty): buffers of the tiles of a step
    sums       [one, block, row]: rows are contiguous, as in the registers of wgmma
"""

import torch
from torch import Tensor

import workbench.kernels._shared.hopper as pipe
from workbench.kernels._shared.attention import processors
from workbench.kernels._shared.triton_import import (
    GluonDescriptor,
    async_load,
    gl,
    gluon_jit,
    jit,
    mbarrier,
    tl,
    triton,
    warpgroup_mma,
    warpgroup_mma_wait,
)


@jit
def _seen(rows, tile, count, row_squares, row_tiles, key_tiles, STRIDE: tl.constexpr, M: tl.constexpr, N: tl.constexpr):
    """Return the number of key tiles visible to row tiles, by the position of their last row."""
    end = tl.minimum(tl.minimum((tile + 1) * M, row_squares) * STRIDE, count) - 1
    last = tl.load(rows + end, mask=tile < row_tiles, other=-1)
    return tl.where(last < 0, 0, tl.minimum(last // (N * STRIDE) + 1, key_tiles)).to(tl.int32)


@jit
def _number(
    rows, order, count, row_squares, row_tiles, key_tiles, STRIDE: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    BAND: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Write `order`: by band of row tiles, then by key tile."""
    tile, request = tl.program_id(0), tl.program_id(1).to(tl.int64)
    rows += request * count
    order += request * (1 + row_tiles * key_tiles)
    first = tile // BAND * BAND
    every, near, n = tl.arange(0, ROWS), first + tl.arange(0, BAND), tl.arange(0, KEYS)
    seen = _seen(rows, every, count, row_squares, row_tiles, key_tiles, STRIDE, M, N)
    beside = _seen(rows, near, count, row_squares, row_tiles, key_tiles, STRIDE, M, N)
    own = tl.sum(tl.where(near == tile, beside, 0), 0)
    place = tl.sum(tl.where(every < first, seen, 0), 0) + tl.sum(tl.minimum(beside[:, None], n[None, :]), 0)
    place += tl.sum(((near < tile)[:, None] & (beside[:, None] > n[None, :])).to(tl.int32), 0)
    tl.store(order + 1 + place, tile * 65536 + n, mask=n < own)
    if tile == 0:
        tl.store(order, tl.sum(seen, 0))


def write_order(
    rows: Tensor,
    order: Tensor,
    count: int,
    row_squares: int,
    row_tiles: int,
    key_tiles: int,
    stride: int,
    high: int,
    wide: int,
    band: int,
) -> None:
    """Write `order` [B, 1 + row_tiles * key_tiles] int32 of tiles of `high` by `wide` squares, for rows [B, R]."""
    tensors = rows, order, count, row_squares, row_tiles, key_tiles
    constants = {"STRIDE": stride, "M": high, "N": wide, "BAND": band, "ROWS": triton.next_power_of_2(row_tiles)}
    _number[(row_tiles, len(rows))](*tensors, **constants, KEYS=triton.next_power_of_2(key_tiles), num_warps=4)


N = 256  # key squares of a tile
LINE = 128  # bytes of a step's channels, the widest swizzle
BAND = 8  # row tiles that are processed together
STAGES = 4


def fits(q: Tensor, keys: Tensor, block: int, stride: int, eighths: bool) -> bool:
    """Return whether this kernel supports the arguments: Hopper, 16 bits, whole squares, heads in 128-byte steps."""
    whole = q.shape[2] % stride == 0 and keys.shape[2] % stride == 0
    return whole and q.shape[3] % (128 if eighths else 64) == 0 and block // stride <= N and pipe.fits_gpu(q, (q, keys))


@gluon_jit
def _last(rows, square, count, request, STRIDE: gl.constexpr):
    """Return the position of the last row of a row of squares."""
    end = gl.minimum((square + 1) * STRIDE, count) - 1
    return gl.load(rows + request.to(gl.int64) * count + end).to(gl.int32)


@gluon_jit
def _place(tile, order, tiles):
    """Return (head, row tile, key tile) of a tile number."""
    code = gl.load(order + 1 + tile % tiles)
    return tile // tiles, code >> 16, code & 65535


@gluon_jit
def _produce(
    q, keys, ring, grid, GROUP: gl.constexpr, STRIDE: gl.constexpr, D: gl.constexpr, M: gl.constexpr, N: gl.constexpr,
):  # fmt: skip
    """Fetch the steps of all tiles."""
    q_tiles, k_tiles, full, empty = ring
    order, tiles, heads, first_head, request = grid
    STAGES: gl.constexpr = k_tiles.type.shape[0]
    STEP: gl.constexpr = k_tiles.type.shape[-1]
    BYTES: gl.constexpr = (M + N) * 128
    PARTS: gl.constexpr = D // STEP
    j = 0
    for tile in range(gl.program_id(0), tiles * heads, gl.num_programs(0)):
        one, tile_m, tile_n = _place(tile, order, tiles)
        head = first_head + one
        for step in range(STRIDE * PARTS):
            stage, phase = j % STAGES, (j // STAGES & 1) ^ 1
            token, channel = step // PARTS, step % PARTS * STEP
            mbarrier.wait(empty.index(stage), phase)
            mbarrier.expect(full.index(stage), BYTES)
            for part in gl.static_range(M // 64):
                at = (request, head, STRIDE - 1 - token, tile_m * M + part * 64, channel)
                async_load(q, at, full.index(stage), q_tiles.index(stage * (M // 64) + part))
            async_load(
                keys, (request, head // GROUP, token, tile_n * N, channel), full.index(stage), k_tiles.index(stage)
            )
            j += 1


@gluon_jit
def _consume(
    consumer, sums, ring, rows, shape, grid, scale, STRIDE: gl.constexpr, PER: gl.constexpr, D: gl.constexpr,
    M: gl.constexpr, N: gl.constexpr,
):  # fmt: skip
    """Multiply 64 rows of squares with the keys of each tile, and write the log-sum-exp of its blocks."""
    q_tiles, k_tiles, full, empty = ring
    order, tiles, heads, _, request = grid
    count, row_squares, blocks = shape
    STAGES: gl.constexpr = k_tiles.type.shape[0]
    STEP: gl.constexpr = k_tiles.type.shape[-1]
    STEPS: gl.constexpr = STRIDE * (D // STEP)
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, N, STEP // 4])  # of products of 32 bytes
    j = 0
    for tile in range(gl.program_id(0), tiles * heads, gl.num_programs(0)):
        one, tile_m, tile_n = _place(tile, order, tiles)
        s = gl.zeros([64, N], gl.float32, LAYOUT)
        for step in range(STEPS):
            stage, phase = j % STAGES, j // STAGES & 1
            mbarrier.wait(full.index(stage), phase)
            x = q_tiles.index(stage * (M // 64) + consumer).reshape([64, STEP])
            k = k_tiles.index(stage).reshape([N, STEP]).permute((1, 0))
            s = warpgroup_mma(x, k, s, use_acc=step > 0, is_async=True)
            s = warpgroup_mma_wait(1, deps=(s,))
            if step > 0:  # the preceding step was read
                mbarrier.arrive(empty.index((j + STAGES - 1) % STAGES), count=1)
            j += 1
        s = warpgroup_mma_wait(0, deps=(s,))
        mbarrier.arrive(empty.index((j + STAGES - 1) % STAGES), count=1)
        first = tile_m * M + consumer * 64
        lowest = _last(rows, gl.minimum(first, row_squares - 1), count, request, STRIDE)
        if lowest < ((tile_n + 1) * N - 1) * STRIDE:
            row = gl.minimum(first + gl.arange(0, 64, layout=gl.SliceLayout(1, LAYOUT)), row_squares - 1)
            last = _last(rows, row, count, request, STRIDE)
            square = tile_n * N + gl.arange(0, N, layout=gl.SliceLayout(0, LAYOUT))
            s = gl.where((square * STRIDE)[None, :] <= last[:, None], s, float("-inf"))
        m_i = gl.max(s, 1)  # over the row, before it is split into blocks: 4 shuffles, not 4 per block
        m_i = gl.where(m_i == float("-inf"), 0.0, m_i * scale)
        s = gl.reshape(gl.exp2(s * scale - m_i[:, None]), [64, N // PER, PER])
        l_i = gl.sum(s, 2)
        log_sum = _log2(l_i) + gl.convert_layout(m_i, gl.SliceLayout(1, l_i.type.layout))[:, None]
        _write(sums, log_sum, one * blocks, tile_n * (N // PER), first, blocks, row_squares)


@gluon_jit
def _log2(x):
    """Approximate log2, to 2^-22; -inf for 0. The library function took a quarter of a tile's softmax."""
    return gl.inline_asm_elementwise("lg2.approx.f32 $0, $1;", "=f,f", [x], gl.float32, True, 1)


@gluon_jit
def _write(sums, log_sum, base, block, first, blocks, row_squares):
    """Store the sums of 64 rows from `first` on and of the key blocks from `block` on."""
    COUNT: gl.constexpr = log_sum.type.shape[1]
    row = first + gl.arange(0, 64, layout=gl.SliceLayout(1, log_sum.type.layout))
    j = block + gl.arange(0, COUNT, layout=gl.SliceLayout(0, log_sum.type.layout))
    at = sums + base.to(gl.int64) * row_squares
    offset = j[None, :] * row_squares + row[:, None]  # computed per tile: hoisted, it would spill
    if (first + 64 <= row_squares) & (block + COUNT <= blocks):
        gl.store(at + offset, log_sum)
    else:
        inside = (row < row_squares)[:, None] & (j < blocks)[None, :]
        gl.store(at + offset, log_sum, mask=inside)


@gluon_jit
def _squares(
    q, keys, sums, rows, order, count, row_squares, blocks, scale, most, heads, first_head,
    GROUP: gl.constexpr, STRIDE: gl.constexpr, PER: gl.constexpr, D: gl.constexpr, N: gl.constexpr,
    STAGES: gl.constexpr,
):  # fmt: skip
    """Compute the log2-sum-exp2 over the squares of a key block, per row of squares."""
    STEP: gl.constexpr = keys.block_type.shape[-1]
    M: gl.constexpr = pipe.ROWS
    request = gl.program_id(1)
    sums += request.to(gl.int64) * heads * blocks * row_squares
    q_tiles = gl.allocate_shared_memory(q.dtype, [STAGES * 2, 1, 1, 1, 64, STEP], q.layout)
    k_tiles = gl.allocate_shared_memory(keys.dtype, [STAGES, 1, 1, 1, N, STEP], keys.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=2)
    ring = (q_tiles, k_tiles, full, empty)
    shape = (count, row_squares, blocks)
    order += request.to(gl.int64) * (1 + most)
    grid = (order, gl.load(order), heads, first_head, request)
    # registers per thread: for 64 rows of logits and their softmax, and the minimum for the producer
    gl.warp_specialize(
        [
            (_consume, (0, sums, ring, rows, shape, grid, scale, STRIDE, PER, D, M, N)),
            (_consume, (1, sums, ring, rows, shape, grid, scale, STRIDE, PER, D, M, N)),
            (_produce, (q, keys, ring, grid, GROUP, STRIDE, D, M, N)),
        ],
        [4, 4],
        [240, 24],
    )


def descriptor(x: Tensor, stride: int, squares: int) -> "GluonDescriptor":
    """View [B, H, T, D] as [B, H, stride, T // stride, D] in tiles of `squares` by LINE bytes, zero-padded."""
    batch, head, token = x.stride()[:3]
    layout = gl.NVMMASharedLayout(swizzle_byte_width=LINE, element_bitwidth=8 * x.element_size(), rank=5)
    shape = [x.shape[0], x.shape[1], stride, x.shape[2] // stride, x.shape[3]]
    return GluonDescriptor(
        x, shape, [batch, head, token, token * stride, 1], [1, 1, 1, squares, LINE // x.element_size()], layout
    )


def squares(
    q: Tensor,
    keys: Tensor,
    sums: Tensor,
    rows: Tensor,
    scale: float,
    heads: range,
    stride: int,
    block: int,
) -> None:
    """Write `sums` [B, heads, blocks, rows of squares] fp32 of some query heads."""
    batch, q_heads, count = q.shape[:3]
    row_squares, columns, blocks = count // stride, keys.shape[2] // stride, -(-keys.shape[2] // block)
    row_tiles, key_tiles = triton.cdiv(row_squares, pipe.ROWS), triton.cdiv(columns, N)
    programs = min(processors(q.device), row_tiles * key_tiles * len(heads))
    order = torch.empty(batch, 1 + row_tiles * key_tiles, dtype=torch.int32, device=q.device)
    write_order(rows, order, count, row_squares, row_tiles, key_tiles, stride, pipe.ROWS, N, BAND)
    tensors = descriptor(q, stride, 64), descriptor(keys, stride, N), sums, rows, order, count, row_squares, blocks
    sizes = scale, row_tiles * key_tiles, len(heads), heads.start
    constants = {"GROUP": q_heads // keys.shape[1], "STRIDE": stride, "PER": block // stride, "D": q.shape[3]}
    _squares[(programs, batch)](*tensors, *sizes, **constants, N=N, STAGES=STAGES, num_warps=4, maxnreg=168)

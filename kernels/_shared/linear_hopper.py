"""`few_rows_linear` for Hopper: a producer warpgroup fetches the matrix ahead of the consumers.

The matrix is not the output of an earlier kernel. So if kernels overlap, its first tiles, as many as shared memory
holds, are fetched while the preceding kernel still runs; only the input rows are waited for. A program processes
`boxes` boxes of rows of the matrix and one part of its channels. Names are those of `_shared.hopper`.

With `gated`, the two boxes of a program are the same rows of the two halves of the matrix, gate and up projection, and
their SwiGLU is written (`silu_and_mul`): [R, N / 2].
"""

from dataclasses import dataclass

import torch
from torch import Tensor

import workbench.kernels._shared.hopper as pipe
from workbench.kernels._shared.triton_import import (
    GluonDescriptor,
    async_load,
    gl,
    gluon_jit,
    mbarrier,
    overlap,
    padded_width,
    triton,
    warpgroup_mma,
    warpgroup_mma_wait,
)

MOST = 64  # rows
SHARED = 224 << 10  # bytes of a multiprocessor's shared memory for the rings


@dataclass(frozen=True)
class RingConfig:
    """Rows of a box of the matrix, boxes of a program, channels of a step, stages of the ring, split-K parts."""

    box: int = 128
    boxes: int = 1
    channels: int = 128
    stages: int = 4
    splits: int = 1
    gated: bool = False

    def __str__(self) -> str:
        return (
            f"ring {self.boxes}x{self.box}x{self.channels}, {self.stages} stages, {self.splits} splits"
            + ", gated" * self.gated
        )

    def fits(self, rows: int) -> bool:
        """Return whether the ring and `rows` rows fit into shared memory."""
        return (self.box * self.boxes + padded_width(rows)) * self.channels * 2 * self.stages <= SHARED


@gluon_jit
def _produce(x, weight, rings, place, PDL: gl.constexpr):
    """Fetch tiles of the matrix, then rows, for all steps."""
    w_tiles, x_tiles, full, empty = rings
    one, two, begin, steps = place
    STAGES: gl.constexpr = x_tiles.type.shape[0]
    BOXES: gl.constexpr = w_tiles.type.shape[0] // STAGES
    BOX: gl.constexpr = w_tiles.type.shape[1]
    K: gl.constexpr = w_tiles.type.shape[2]
    BYTES: gl.constexpr = (BOXES * BOX + x_tiles.type.shape[1]) * K * 2
    for j in range(gl.minimum(steps, STAGES)):
        mbarrier.expect(full.index(j), BYTES)
        async_load(weight, (one, (begin + j) * K), full.index(j), w_tiles.index(j * BOXES))
        if BOXES == 2:
            async_load(weight, (two, (begin + j) * K), full.index(j), w_tiles.index(j * BOXES + 1))
    pipe.wait_for_previous(PDL)
    for j in range(gl.minimum(steps, STAGES)):
        async_load(x, (0, (begin + j) * K), full.index(j), x_tiles.index(j))
    for j in range(STAGES, steps):
        stage = j % STAGES
        mbarrier.wait(empty.index(stage), (j // STAGES & 1) ^ 1)
        mbarrier.expect(full.index(stage), BYTES)
        async_load(weight, (one, (begin + j) * K), full.index(stage), w_tiles.index(stage * BOXES))
        if BOXES == 2:
            async_load(weight, (two, (begin + j) * K), full.index(stage), w_tiles.index(stage * BOXES + 1))
        async_load(x, (0, (begin + j) * K), full.index(stage), x_tiles.index(stage))


@gluon_jit
def _store(out, acc, n, width, rows):
    """Write [BOX, ROWS] as rows of out [rows, width]."""
    m = gl.arange(0, acc.type.shape[1], layout=gl.SliceLayout(0, acc.type.layout))
    at = out + m.to(gl.int64)[None, :] * width + n[:, None]
    gl.store(at, acc.to(out.dtype.element_ty), mask=(n < width)[:, None] & (m < rows)[None, :])


@gluon_jit
def _consume(out, rings, place, rows, width, GATED: gl.constexpr, PDL: gl.constexpr):
    """Multiply boxes of the matrix with the input rows."""
    w_tiles, x_tiles, full, empty = rings
    one, _two, _begin, steps = place
    STAGES: gl.constexpr = x_tiles.type.shape[0]
    BOXES: gl.constexpr = w_tiles.type.shape[0] // STAGES
    BOX: gl.constexpr = w_tiles.type.shape[1]
    ROWS: gl.constexpr = x_tiles.type.shape[1]
    RESULT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, ROWS, 16])
    acc = gl.zeros([BOX, ROWS], gl.float32, RESULT)
    other = gl.zeros([BOX, ROWS], gl.float32, RESULT)
    for j in range(steps):
        stage = j % STAGES
        mbarrier.wait(full.index(stage), j // STAGES & 1)
        x = x_tiles.index(stage).permute((1, 0))
        acc = warpgroup_mma(w_tiles.index(stage * BOXES), x, acc, is_async=True)
        if BOXES == 2:
            other = warpgroup_mma(w_tiles.index(stage * BOXES + 1), x, other, is_async=True)
            acc, other = warpgroup_mma_wait(0, deps=(acc, other))
        else:
            acc = warpgroup_mma_wait(0, deps=(acc,))
        mbarrier.arrive(empty.index(stage), count=1)
    pipe.wait_for_previous(PDL)  # it may still read the memory that is written here
    n = one + gl.arange(0, BOX, layout=gl.SliceLayout(1, RESULT))
    if GATED:
        gate = acc.to(out.dtype.element_ty).to(gl.float32)
        up = other.to(out.dtype.element_ty).to(gl.float32)
        gate = (gate / (1.0 + gl.exp(-gate))).to(out.dtype.element_ty).to(gl.float32)
        _store(out, gate * up, n, width, rows)
    else:
        _store(out, acc, n, width, rows)
        if BOXES == 2:
            _store(out, other, n + BOX, width, rows)


@gluon_jit
def _linear(
    x, weight, out, rows, width, channels, splits, BOX: gl.constexpr, BOXES: gl.constexpr, K: gl.constexpr, ROWS:
    gl.constexpr, STAGES: gl.constexpr, GATED: gl.constexpr, PDL: gl.constexpr,
):  # fmt: skip
    """Compute one tile of N over one part of K. `width`: columns of out, [splits, rows, width]."""
    tile, split = gl.program_id(0), gl.program_id(1)
    pipe.let_next_begin(PDL)
    all_steps = (channels + K - 1) // K
    share = (all_steps + splits - 1) // splits
    begin = gl.minimum(split * share, all_steps)
    steps = gl.minimum(begin + share, all_steps) - begin
    one = tile * (BOX if GATED else BOX * BOXES)
    two = one + (width if GATED else BOX)
    w_tiles = gl.allocate_shared_memory(weight.dtype, [STAGES * BOXES, BOX, K], weight.layout)
    x_tiles = gl.allocate_shared_memory(x.dtype, [STAGES, ROWS, K], x.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=1)
    rings = (w_tiles, x_tiles, full, empty)
    place = (one, two, begin, steps)
    out += split.to(gl.int64) * rows * width
    gl.warp_specialize(
        [(_consume, (out, rings, place, rows, width, GATED, PDL)), (_produce, (x, weight, rings, place, PDL))],
        [4],
        [24],
    )


def fits(x: Tensor, weight: Tensor) -> bool:
    """Return whether this kernel supports the arguments: a Hopper GPU, 16 bits, few rows."""
    if GluonDescriptor is None or x.device.type != "cuda" or torch.cuda.get_device_capability(x.device)[0] != 9:
        return False
    aligned = all(y.stride(1) == 1 and y.stride(0) % 8 == 0 and y.data_ptr() % 16 == 0 for y in (x, weight))
    return aligned and len(x) <= MOST and x.dtype == weight.dtype and x.dtype in pipe.DTYPES


def launch_parts(x: Tensor, weight: Tensor, config: RingConfig, early: bool = True) -> Tensor:
    """Multiply x [R, K] by weight [N, K] -> [splits, R, N], fp32 if splits > 1; gated, [1, R, N / 2].

    `early`: the matrix was written before the preceding kernel started; with overlap it is fetched while that runs.
    """
    (rows, channels), width = x.shape, len(weight)
    width = width // 2 if config.gated else width
    dtype = x.dtype if config.splits == 1 else torch.float32
    out = torch.empty((config.splits, rows, width), dtype=dtype, device=x.device)
    tall = padded_width(rows)
    options, pdl = overlap(x.device) if early else ({}, False)
    tile = config.box if config.gated else config.box * config.boxes
    tensors = pipe.descriptor(x, tall, config.channels), pipe.descriptor(weight, config.box, config.channels), out
    sizes = rows, width, channels, config.splits
    constants = {"BOX": config.box, "BOXES": config.boxes, "K": config.channels, "ROWS": tall}
    constants |= {"STAGES": config.stages, "GATED": config.gated, "PDL": pdl}
    _linear[(triton.cdiv(width, tile), config.splits)](
        *tensors, *sizes, **constants, num_warps=4, maxnreg=128, **options
    )
    return out

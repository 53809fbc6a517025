"""Shared parts of the attention kernels for Hopper: the ring of buffers, the parts of a step, supported arguments.

Written in Gluon, which has no interpreter: the cases of the public kernels check it on a GPU, and `tests/kernels`
compiles it on any machine. Names are those of FlashAttention-3 (arXiv:2407.08608, algorithms 1 and 2):

producer      the warps that only fetch: tiles are loaded through tensor descriptors, so no warp computes addresses
consumer      a warpgroup (4 warps) that computes 64 rows, the height of a wgmma; there are two, 0 and 1: one computes
              its softmax while the other multiplies
stage         one buffer of the ring of K tiles, or of V tiles
full, empty   barriers of a stage: its tile was loaded (1 arrival, by TMA); both consumers have read it (2)
phase         parity of the number of times a stage was filled, the argument of barrier waits
m_i, l_i      running maximum of a row's logits and sum of its weights, base 2
alpha         factor by which the preceding step rescales the accumulator: exp2(old m_i - new m_i)
acc           sum of weights times values, fp32, not yet divided by l_i
weights       of the preceding step, fp32, not yet multiplied with its values

While the tensor cores multiply the weights and values of one step, and the queries and keys of the next, a consumer
computes the softmax in between (algorithm 2). Weights are carried from step to step in fp32: in 16 bits each would be
unpacked and packed again, 64 of 520 instructions per step.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from workbench.kernels._shared.attention import INVALID_POS
from workbench.kernels._shared.triton_import import (
    GluonDescriptor,
    async_load,
    gl,
    gluon_jit,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

ROWS = 128  # per program: 64 for each consumer
STAGES = 2  # two tiles of 128 keys and 128 channels of K and of V, and the queries, take 160 of 227 KiB
DTYPES = (torch.bfloat16, torch.float16)
OUTSIDE = gl.constexpr(1 << 30)  # position of a missing tile, which TMA fills with zeros


def fits_gpu(q: Tensor, pools: Sequence[Tensor]) -> bool:
    """Return whether this is a Hopper GPU, and TMA can fetch tiles of these tensors [B, H, T, D]."""
    if GluonDescriptor is None or q.device.type != "cuda" or torch.cuda.get_device_capability(q.device)[0] != 9:
        return False
    return q.dtype in DTYPES and all(aligned(x) for x in pools)


def aligned(x: Tensor) -> bool:
    """Return whether TMA can read x: strides of rows and heads must be multiples of 16 bytes."""
    return x.stride(3) == 1 and x.data_ptr() % 16 == 0 and all(s * x.element_size() % 16 == 0 for s in x.stride()[:3])


def descriptor(x: Tensor, tokens: int, channels: int | None = None) -> "GluonDescriptor":
    """Describe tiles of `tokens` by D, or by `channels`, of x [..., T, D]."""
    layout = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=x.ndim)
    box = [1] * (x.ndim - 2) + [tokens, channels or x.shape[-1]]
    return GluonDescriptor(x, list(x.shape), list(x.stride()), box, layout)


@gluon_jit
def wait_for_previous(PDL: gl.constexpr):
    """With PDL, wait until the results of the preceding kernel can be read."""
    if PDL:
        gl.inline_asm_elementwise("griddepcontrol.wait; mov.u32 $0, 0;", "=r", [], gl.int32, False, 1)


@gluon_jit
def let_next_begin(PDL: gl.constexpr):
    """With PDL, let the next kernel start; it waits for this one's results itself."""
    if PDL:
        gl.inline_asm_elementwise("griddepcontrol.launch_dependents; mov.u32 $0, 0;", "=r", [], gl.int32, False, 1)


@gluon_jit
def count_upto(bounds, begin, end, limit, CHUNK: gl.constexpr):
    """Count the ascending bounds from `begin` to `end` that are at most `limit`."""
    layout: gl.constexpr = gl.BlockedLayout([CHUNK // 128], [32], [4], [0])
    count = 0
    for at in range(begin, end, CHUNK):
        i = at + gl.arange(0, CHUNK, layout=layout)
        below = (gl.load(bounds + i, mask=i < end, other=INVALID_POS) <= limit) & (i < end)
        count += gl.sum(below.to(gl.int32), 0)
    return count


@gluon_jit
def count_both(bounds, begin, end, low, high, CHUNK: gl.constexpr):
    """Return (`count_upto` of low, of high), in one pass."""
    layout: gl.constexpr = gl.BlockedLayout([CHUNK // 128], [32], [4], [0])
    below, within = 0, 0
    for at in range(begin, end, CHUNK):
        i = at + gl.arange(0, CHUNK, layout=layout)
        bound = gl.load(bounds + i, mask=i < end, other=INVALID_POS)
        found = ((bound <= low) & (i < end)).to(gl.int32) + ((bound <= high) & (i < end)).to(gl.int32) * 65536
        both = gl.sum(found, 0)
        below += both % 65536
        within += both // 65536
    return below, within


@gluon_jit
def row_range(rows, m, count, GROUP: gl.constexpr):
    """Return (largest, smallest) position of the program's rows m."""
    at_row = gl.load(rows + m // GROUP, mask=m < count, other=-1).to(gl.int32)
    return gl.max(at_row, 0), gl.min(gl.where(at_row >= 0, at_row, INVALID_POS), 0)


@gluon_jit
def make_rings(keys, values, N: gl.constexpr, STAGES: gl.constexpr, CONSUMERS: gl.constexpr = 2):
    """Allocate buffers for tiles of N keys and values: a ring each (tiles, full, empty)."""
    D: gl.constexpr = keys.block_type.shape[-1]
    SHAPE: gl.constexpr = [STAGES, 1, 1, N, D] if len(keys.block_type.shape) == 4 else [STAGES, 1, N, D]
    k_tiles = gl.allocate_shared_memory(keys.dtype, SHAPE, keys.layout)
    v_tiles = gl.allocate_shared_memory(keys.dtype, SHAPE, values.layout)
    k_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    k_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    clean = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(k_full.index(i), count=1)
        mbarrier.init(v_full.index(i), count=1)
        mbarrier.init(k_empty.index(i), count=CONSUMERS)
        mbarrier.init(v_empty.index(i), count=CONSUMERS)
    mbarrier.init(clean, count=CONSUMERS)
    return (k_tiles, k_full, k_empty), (v_tiles, v_full, v_empty), clean


@gluon_jit
def free_slot(ring, j):
    """Return (stage, phase to wait for at its `empty` barrier) for the tile of step j."""
    STAGES: gl.constexpr = ring[0].type.shape[0]
    return j % STAGES, (j // STAGES & 1) ^ 1


@gluon_jit
def fill(pool, ring, slot, place, starts, offset):
    """Producer: fetch a tile once the stage of a slot is empty, in parts that begin `offset` after `starts`."""
    tiles, full, empty = ring
    N: gl.constexpr = tiles.type.shape[-2]
    BOX: gl.constexpr = pool.block_type.shape[-2]
    stage, phase = slot
    mbarrier.wait(empty.index(stage), phase)
    mbarrier.expect(full.index(stage), N * pool.block_type.shape[-1] * 2)
    for part in gl.static_range(N // BOX):
        tile = tiles.index(stage).slice(part * BOX, BOX, dim=len(pool.block_type.shape) - 2)
        at = place + (starts[part] + offset, 0)  # noqa: RUF005, Triton does not support starred tuples
        async_load(pool, at, full.index(stage), tile)


@gluon_jit
def slot_of(ring, j):
    """Return (stage, phase) of the tile of step j."""
    STAGES: gl.constexpr = ring[0].type.shape[0]
    return j % STAGES, j // STAGES & 1


@gluon_jit
def wait_full(ring, slot):
    """Consumer: wait for the tile of a slot."""
    mbarrier.wait(ring[1].index(slot[0]), slot[1])


@gluon_jit
def tile_of(ring, slot):
    """Return the tile [N, D] of a slot."""
    tiles = ring[0]
    return tiles.index(slot[0]).reshape([tiles.type.shape[-2], tiles.type.shape[-1]])


@gluon_jit
def release(ring, slot):
    """Consumer: signal that the tile of a slot has been read."""
    mbarrier.arrive(ring[2].index(slot[0]), count=1)


@gluon_jit
def begin_logits(q_tile, k_ring, slot):
    """Start the product of 64 queries and the keys of a slot, which are loaded."""
    k = tile_of(k_ring, slot).permute((1, 0))
    N: gl.constexpr = k.type.shape[1]
    zeros = gl.zeros([64, N], gl.float32, gl.NVMMADistributedLayout([3, 0], [4, 1], [16, N, 16]))
    return warpgroup_mma(q_tile, k, zeros, use_acc=False, is_async=True)


@gluon_jit
def first_logits(q_tile, k_ring):
    """Compute the logits of the first step, without weights of a preceding step."""
    wait_full(k_ring, (0, 0))
    s = begin_logits(q_tile, k_ring, (0, 0))
    s = warpgroup_mma_wait(0, deps=(s,))
    release(k_ring, (0, 0))
    return s


@gluon_jit
def softmax(s, m_i, l_i, scale, EMPTY: gl.constexpr):
    """Return (weights, alpha, m_i, l_i) after logits s. EMPTY: a row may have no visible key so far."""
    new = gl.maximum(m_i, gl.max(s, 1) * scale)
    safe = gl.where(new == float("-inf"), 0.0, new) if EMPTY else new
    p = gl.exp2(s * scale - safe[:, None])
    alpha = gl.exp2(m_i - safe)
    return p, alpha, new, l_i * alpha + gl.sum(p, 1)


@gluon_jit
def rescale(acc, alpha):
    """Rescale the accumulated output for the running maximum of the preceding step."""
    return acc * gl.convert_layout(alpha, gl.SliceLayout(1, acc.type.layout))[:, None]


@gluon_jit
def end_logits(s, k_ring, slot):
    """Wait for the logits of a slot; the product with the preceding values may still run."""
    s = warpgroup_mma_wait(1, deps=(s,))
    release(k_ring, slot)
    return s


@gluon_jit
def operand(weights, acc, dtype):
    """Convert weights to the layout and dtype of a wgmma operand."""
    return gl.convert_layout(weights.to(dtype), gl.DotOperandLayout(0, acc.type.layout, 2))


@gluon_jit
def end_step(acc, s, m_i, l_i, scale, v_ring, last, EMPTY: gl.constexpr):
    """Compute the softmax of a step, finish the product with the values of slot `last`; return the new state."""
    weights, alpha, m_i, l_i = softmax(s, m_i, l_i, scale, EMPTY)
    acc, weights = warpgroup_mma_wait(0, deps=(acc, weights))  # weights too: else they are computed after the wait
    release(v_ring, last)
    return acc, weights, alpha, m_i, l_i


@gluon_jit
def first_softmax(s, scale):
    """Compute the softmax of the first step: (weights, alpha, m_i, l_i)."""
    m_i = gl.full([64], float("-inf"), gl.float32, gl.SliceLayout(1, s.type.layout))
    l_i = gl.zeros([64], gl.float32, gl.SliceLayout(1, s.type.layout))
    return softmax(s, m_i, l_i, scale, True)


@gluon_jit
def normalize(acc, at_row, l_i):
    """Return (acc / l_i, whether the row has visible keys): 0 for a row without."""
    some = (at_row >= 0) & (l_i > 0)
    share = gl.where(some, 1.0 / gl.where(some, l_i, 1.0), 0.0)
    share = gl.convert_layout(share, gl.SliceLayout(1, acc.type.layout))
    valid = gl.convert_layout(some, gl.SliceLayout(1, acc.type.layout))
    return gl.where(valid[:, None], acc * share[:, None], 0.0), some

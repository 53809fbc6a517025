"""Shared parts of the attention kernels: online softmax, loads, angles, launch configurations, GPU size.

Names are those of FlashAttention and of Triton's tutorials:

m_i, l_i   running maximum of a row's logits and sum of its weights, base 2
acc        sum of weights times values, fp32, not yet divided by l_i
alpha      factor by which a step rescales acc and l_i: exp2(old m_i - new m_i)
s, p       logits of a step, base 2, and their weights
D, DP      head width, and the next power of two
MASKED     whether tiles are only partly visible to the rows of the program; tiles before those need no mask
"""

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from workbench.core import page_table
from workbench.kernels._shared.triton_import import jit, tl

LOG2E = 1.4426950408889634
INVALID_POS = tl.constexpr(page_table.INVALID_POS)  # for kernels; the largest int32, so also above any index
TWO_PI = tl.constexpr(6.283185307179586)
INV_TWO_PI = tl.constexpr(0.15915494309189535)
SECTION_BYTES = 24 << 20  # heads run together if their keys and values fit this part of the L2 cache


def log2_scale(scale: float | None, width: int) -> float:
    """Return the factor of logits for exp2: `scale`, or 1/sqrt(width), times log2(e)."""
    return (width**-0.5 if scale is None else scale) * LOG2E


@dataclass(frozen=True)
class Config:
    """Rows and keys of a tile, warps of a program, depth of the software pipeline.

    `descriptors`: load keys and values through tensor descriptors (TMA) if their strides allow it.
    """

    rows: int
    keys: int
    warps: int = 4
    stages: int = 3
    descriptors: bool = False

    @property
    def launch(self) -> dict[str, int]:
        """Return the options of a Triton launch."""
        return {"num_warps": self.warps, "num_stages": self.stages}

    def __str__(self) -> str:
        shape = f"{self.rows}x{self.keys}, {self.warps} warps, {self.stages} stages"
        return shape + (", descriptors" if self.descriptors else "")


@cache
def processors(device: torch.device) -> int:
    """Return the number of multiprocessors of the GPU; 4 on a CPU."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4


def together(keys: Tensor, group: int) -> int:
    """Return the number of query heads to run concurrently, so their keys and values stay in the L2 cache."""
    heads, length, width = keys.shape[1:]
    fit = max(1, SECTION_BYTES // max(1, 2 * length * width * keys.element_size()))
    return group * max(n for n in range(1, heads + 1) if heads % n == 0 and n <= fit)


def rows_first(x: Tensor) -> Tensor:
    """Return `x` with contiguous channels."""
    return x if x.stride(-1) == 1 else x.contiguous()


def attend(q: Tensor, k: Tensor, v: Tensor, seen: Tensor, scale: float | None = None) -> Tensor:
    """Attend in torch, in the dtype of the arguments: q [Hq, R, D], k and v [H, T, D], mask `seen` [(Hq,) R, T] bool.

    The output of a row without keys is 0.
    """
    k, v = (x.repeat_interleave(len(q) // len(k), 0) for x in (k, v))
    scores = (q @ k.mT) * (q.shape[-1] ** -0.5 if scale is None else scale)
    weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
    return weights.masked_fill(~seen, 0) @ v


@jit
def logits(x, k, scale):
    """Return scaled products [M, N] (fp32) of queries x [M, DP] and keys k [N, DP]."""
    PRECISION: tl.constexpr = "ieee" if x.dtype == tl.float32 else "tf32"
    return tl.dot(x, tl.trans(k), input_precision=PRECISION) * scale


@jit
def step(acc, m_i, l_i, s, v, SOME: tl.constexpr):
    """Update the online softmax with a tile of logits s [M, N] (-inf if masked) and values v.

    FlashAttention, arXiv:2205.14135, algorithm 1. SOME: a row may have no visible key so far.
    """
    PRECISION: tl.constexpr = "ieee" if v.dtype == tl.float32 else "tf32"
    new = tl.maximum(m_i, tl.max(s, 1))
    safe = tl.where(new == float("-inf"), 0.0, new) if SOME else new
    p = tl.exp2(s - safe[:, None])
    alpha = tl.exp2(m_i - safe)
    acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None], input_precision=PRECISION)
    return acc, new, l_i * alpha + tl.sum(p, 1)


@jit
def empty_state(BLOCK_M: tl.constexpr, DP: tl.constexpr):
    """Return (acc, m_i, l_i) before the first step."""
    acc = tl.zeros([BLOCK_M, DP], tl.float32)
    return acc, tl.full([BLOCK_M], float("-inf"), tl.float32), tl.zeros([BLOCK_M], tl.float32)


@jit
def load_tile(at, inside, MASKED: tl.constexpr, D: tl.constexpr, DP: tl.constexpr):
    """Load keys or values [N, DP] at pointers `at`: 0 beyond the width and, with MASKED, if not `inside` [N, 1]."""
    col = tl.arange(0, DP)[None, :]
    if MASKED:
        x = tl.load(at, mask=inside & (col < D), other=0.0)
    elif D != DP:
        x = tl.load(at, mask=col < D, other=0.0)
    else:
        x = tl.load(at)
    return x


@jit
def count_upto(bounds, begin, end, limit, CHUNK: tl.constexpr):
    """Count the ascending bounds from `begin` to `end` that are at most `limit`."""
    count = 0
    for at in range(begin, end, CHUNK):
        i = at + tl.arange(0, CHUNK)
        below = (tl.load(bounds + i, mask=i < end, other=INVALID_POS) <= limit) & (i < end)
        count += tl.sum(below.to(tl.int32))
    return count


@jit
def angles(shift, freq):
    """Return the angles of `shift` positions at rotary frequencies, fp32 in [0, 2 pi): reduced in fp64."""
    angle = shift.to(tl.float64) * freq.to(tl.float64)
    return (angle - TWO_PI * tl.floor(angle * INV_TWO_PI)).to(tl.float32)


@jit
def planes(col, shift, inv_freq, HALF: tl.constexpr, INTERLEAVED: tl.constexpr, BACK: tl.constexpr):
    """Return (other channel of the plane, angle, sin) for channels `col`; x · cos(angle) + other · sin rotates x.

    BACK: rotated by -shift.
    """
    rotary = col < 2 * HALF
    second = (col % 2 == 1) if INTERLEAVED else (col >= HALF)
    plane = col // 2 if INTERLEAVED else col % HALF
    apart = 1 if INTERLEAVED else HALF
    other = tl.where(rotary, tl.where(second, col - apart, col + apart), col)
    angle = angles(shift, tl.load(inv_freq + plane, mask=rotary, other=0.0))
    sin = tl.where(second, -tl.sin(angle), tl.sin(angle)) if BACK else tl.where(second, tl.sin(angle), -tl.sin(angle))
    return other, angle, sin

"""What the attention kernels share: one step of the online softmax, launch shapes, the size of the card."""

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from workbench.kernels._triton import jit, tl

LOG2E = 1.4426950408889634
SECTION_BYTES = 24 << 20  # heads whose keys and values fit this much of the L2 cache run together


@dataclass(frozen=True)
class Config:
    """Rows and keys of a tile, warps of a program, depth of the software pipeline; `descriptors`: keys and values come
    through tensor descriptors (Hopper's copy engine) where their strides allow it."""

    rows: int
    keys: int
    warps: int = 4
    stages: int = 3
    descriptors: bool = False

    def __str__(self) -> str:
        shape = f"{self.rows}x{self.keys}, {self.warps} warps, {self.stages} stages"
        return shape + (", descriptors" if self.descriptors else "")


@cache
def processors(device: torch.device) -> int:
    """Multiprocessors of the card; a small number on a CPU."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4


def together(keys: Tensor, group: int) -> int:
    """How many query heads run side by side: those whose keys and values stay in the L2 cache."""
    heads, length, width = keys.shape[1:]
    fit = max(1, SECTION_BYTES // max(1, 2 * length * width * keys.element_size()))
    return group * max(n for n in range(1, heads + 1) if heads % n == 0 and n <= fit)


def rows_first(x: Tensor) -> Tensor:
    """`x`, its channels lying side by side."""
    return x if x.stride(-1) == 1 else x.contiguous()


def attend(q: Tensor, k: Tensor, v: Tensor, seen: Tensor, scale: float | None = None) -> Tensor:
    """Plain attention in the dtype of its arguments: q [Hq, R, D], k and v [H, T, D], seen [R, T] or [Hq, R, T] bool.
    A row that sees nothing is 0."""
    k, v = (x.repeat_interleave(len(q) // len(k), 0) for x in (k, v))
    scores = (q @ k.mT) * (q.shape[-1] ** -0.5 if scale is None else scale)
    weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
    return weights.masked_fill(~seen, 0) @ v


@jit
def step(acc, top, total, s, v, SOME: tl.constexpr, PRECISION: tl.constexpr):
    """One tile of logits `s` [M, N] (in powers of two, -inf where masked) and its values into the running softmax
    (FlashAttention, arXiv:2205.14135, algorithm 1). `SOME`: a row may have seen nothing yet."""
    new = tl.maximum(top, tl.max(s, 1))
    safe = tl.where(new == float("-inf"), 0.0, new) if SOME else new
    p = tl.exp2(s - safe[:, None])
    old = tl.exp2(top - safe)
    acc = tl.dot(p.to(v.dtype), v, acc * old[:, None], input_precision=PRECISION)
    return acc, new, total * old + tl.sum(p, 1)

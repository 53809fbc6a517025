"""What moving a cached key costs in rounding: relative L2 error against exact (fp64) rotation, by scheme and
distance."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from workbench.core.rope import rotate

SCHEMES = {
    "fp32 cache, fp32 shift": "keys kept in fp32",
    "stored un-rotated, rotated once": "bf16 keys before RoPE, one fp32 rotation when loaded",
    "computed in place in bf16": "no reuse: RoPE as a bf16 model applies it",
    "bf16 cache, fp32 shift": "what the workbench does",
    "bf16 cache, to zero and on": "turned back to position 0, rounded, turned to its place (the paper's three steps)",
    "bf16 cache, bf16 shift": "the same shift in bf16 arithmetic",
    "20 chained fp32 shifts": "moved 20 times, rounded to bf16 each time",
    "20 chained bf16 shifts": "moved 20 times in bf16 arithmetic",
    "naive: not moved": "the key keeps its cached position",
}


def shift_errors(
    inv_freq: Tensor, distances: list[int], keys: int = 256, start: int = 100, seed: int = 0
) -> list[dict]:
    """One record per scheme and distance: relative L2 error over `keys` random normal keys of 2·len(inv_freq) channels.

    A key, exact in bf16 before RoPE, is cached `start` tokens into its block and moved by `distance` tokens; bf16
    caches hold
    what a bf16 model's own RoPE gives, and every scheme hands bf16 keys on. Chained schemes get there in 20 steps.
    """
    x = torch.randn(1, keys, 2 * len(inv_freq), generator=torch.Generator().manual_seed(seed)).bfloat16().double()
    records = []
    for distance in distances:
        truth = _exact(x, start + distance, inv_freq)
        for scheme, moved in _moved(x, start, distance, inv_freq):
            error = float((moved.double() - truth).norm() / truth.norm())
            records.append({"scheme": scheme, "distance": distance, "error": error})
    return records


def _moved(x: Tensor, start: int, distance: int, w: Tensor) -> Iterator[tuple[str, Tensor]]:
    low, here = torch.bfloat16, _in_bf16(x.bfloat16(), start, w)
    yield "fp32 cache, fp32 shift", rotate(_exact(x, start, w).float(), distance, w)
    yield "stored un-rotated, rotated once", rotate(x.to(low), start + distance, w)
    yield "computed in place in bf16", _in_bf16(x.to(low), start + distance, w)
    yield "bf16 cache, fp32 shift", rotate(here, distance, w)
    yield "bf16 cache, to zero and on", rotate(rotate(here, -start, w), start + distance, w)
    yield "bf16 cache, bf16 shift", _in_bf16(here, distance, w)
    yield "20 chained fp32 shifts", _chained(rotate, here, distance, w)
    yield "20 chained bf16 shifts", _chained(_in_bf16, here, distance, w)
    yield "naive: not moved", here


def _chained(
    turn: Callable[[Tensor, int, Tensor], Tensor], keys: Tensor, distance: int, w: Tensor, steps: int = 20
) -> Tensor:
    for step in range(steps):
        part = distance * (step + 1) // steps - distance * step // steps
        keys = turn(keys, part, w)
    return keys


def _exact(x: Tensor, distance: int, w: Tensor) -> Tensor:
    angle = distance * w.double()
    cos, sin = angle.cos(), angle.sin()
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def _in_bf16(x: Tensor, distance: int, w: Tensor) -> Tensor:
    """RoPE as bf16 models apply it: cos and sin rounded to bf16, products in bf16."""
    angle = distance * w.float()
    cos, sin = angle.cos().bfloat16(), angle.sin().bfloat16()
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos + -b * sin, b * cos + a * sin), -1)

"""GEMM of few rows and a large weight matrix, for questions and decoding steps: reads the matrix once.

    few_rows_linear(x [R, K], weight [N, K], splits) -> [R, N], same dtype; R <= 64

The matrix is the left operand of the MMA, so few rows are few columns. A program computes a tile of N over a part of K
(split-K) and loads tiles through tensor descriptors (TMA), as many at a time as shared memory holds. `launch_parts`
returns the split-K parts [splits, R, N] in fp32; the next kernel (`add_rms_norm`, `rope_and_cache`) sums them.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

import workbench.kernels._shared.linear_hopper as on_hopper
from workbench.kernels._shared.triton_import import (
    TensorDescriptor,
    after_previous,
    jit,
    need_triton,
    overlap,
    padded_width,
    prefetch,
    tl,
    triton,
)

MOST = 64  # rows
AHEAD = 4  # 128-byte lines per row of a tile that are prefetched while the preceding kernel runs


@dataclass(frozen=True)
class LinearConfig:
    """Launch configuration: weight rows (`tile`) and channels of a tile, warps, pipeline stages, split-K parts."""

    tile: int = 128
    channels: int = 64
    warps: int = 8
    stages: int = 6
    splits: int = 1

    def __str__(self) -> str:
        return f"{self.tile}x{self.channels}, {self.warps} warps, {self.stages} stages, {self.splits} splits"


def reference(x: Tensor, weight: Tensor, splits: int = 1) -> Tensor:
    """Compute the result in torch."""
    return torch.nn.functional.linear(x, weight)


@jit
def _few_rows_linear(
    x, weight, matrix, out, rows, width, channels, matrix_row, splits, N: tl.constexpr, K: tl.constexpr, ROWS:
    tl.constexpr, LINE: tl.constexpr, AHEAD: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Compute one tile of N over one part of K. x, weight: tensor descriptors; out [splits, rows, width].

    With PDL, the first lines of the matrix (at `matrix`) are prefetched into the L2 cache while the preceding kernel
    still computes x.
    """
    PRECISION: tl.constexpr = "ieee" if x.dtype == tl.float32 else "tf32"
    tile, split = tl.program_id(0), tl.program_id(1)
    steps = tl.cdiv(channels, K)
    share = tl.cdiv(steps, splits)
    begin = tl.minimum(split * share, steps)
    end = tl.minimum(begin + share, steps)
    acc = tl.zeros([N, ROWS], tl.float32)
    if PDL:
        row = tl.minimum(tile * N + tl.arange(0, N), width - 1).to(tl.int64)
        for i in tl.static_range(AHEAD):
            channel = tl.minimum(begin * K + i * LINE, channels - 1)
            prefetch(matrix + row * matrix_row + channel)
    after_previous(PDL)
    for i in tl.range(begin, end):
        w = weight.load([tile * N, i * K])
        a = x.load([0, i * K])
        acc = tl.dot(w, tl.trans(a), acc, input_precision=PRECISION)
    n, m = tile * N + tl.arange(0, N), tl.arange(0, ROWS)
    target = out + (split * rows + m[None, :]).to(tl.int64) * width + n[:, None]
    tl.store(target, acc.to(out.dtype.element_ty), mask=(n < width)[:, None] & (m < rows)[None, :])


def fits(x: Tensor, weight: Tensor) -> bool:
    """Return whether the kernel supports these arguments: up to 64 rows, contiguous channels, 16-byte alignment."""
    aligned = all(y.stride(1) == 1 and y.stride(0) * y.element_size() % 16 == 0 for y in (x, weight))
    return len(x) <= MOST and aligned and x.data_ptr() % 16 == 0 and weight.data_ptr() % 16 == 0


def launch_parts(x: Tensor, weight: Tensor, config: LinearConfig) -> Tensor:
    """Run the Triton kernel; return split-K parts [splits, R, N], fp32 if splits > 1. Requires `fits`."""
    need_triton("few_rows_linear")
    (rows, channels), width = x.shape, len(weight)
    tall = padded_width(rows)
    out = torch.empty(
        (config.splits, rows, width), dtype=x.dtype if config.splits == 1 else torch.float32, device=x.device
    )
    vectors = TensorDescriptor(x, [rows, channels], [x.stride(0), 1], [tall, config.channels])
    matrix = TensorDescriptor(weight, [width, channels], [weight.stride(0), 1], [config.tile, config.channels])
    options, pdl = overlap(x.device)
    tensors = vectors, matrix, weight, out, rows, width, channels, weight.stride(0), config.splits
    constants = {"N": config.tile, "K": config.channels, "ROWS": tall, "LINE": 128 // weight.element_size()}
    _few_rows_linear[(triton.cdiv(width, config.tile), config.splits)](
        *tensors, **constants, AHEAD=AHEAD, PDL=pdl, num_warps=config.warps, num_stages=config.stages, **options
    )
    return out


def launch(x: Tensor, weight: Tensor, splits: int = 1, *, config: LinearConfig | None = None) -> Tensor:
    """Run the Hopper kernel if it fits, else the Triton kernel, and sum the split-K parts.

    Supports CUDA tensors, and CPU tensors under TRITON_INTERPRET=1.
    """
    if config is None and on_hopper.fits(x, weight):
        parts = on_hopper.launch_parts(x, weight, on_hopper.RingConfig(64, 2, 64, 4, splits), False)
        return parts[0] if len(parts) == 1 else parts.sum(0).to(x.dtype)
    parts = launch_parts(x, weight, config or LinearConfig(splits=splits, stages=6 if x.element_size() == 2 else 3))
    return parts[0] if len(parts) == 1 else parts.sum(0).to(x.dtype)


def cases(device: str = "cpu", dtype: torch.dtype = torch.float32) -> Iterator[tuple[Tensor, Tensor, int]]:
    """Yield arguments to compare `launch` with `reference`: one row, odd widths, parts of K, one of them empty."""
    for rows, width, channels, splits in ((1, 96, 64, 1), (8, 200, 192, 2), (50, 130, 256, 3), (64, 256, 320, 4)):
        seed = torch.Generator().manual_seed(rows + width)
        x, weight = (torch.randn(n, channels, generator=seed) / channels**0.25 for n in (rows, width))
        yield x.to(device, dtype), weight.to(device, dtype), splits

"""Per-row float8 quantization: tensor cores multiply float8 at twice the rate of 16 bits.

    float8_rows(x [R, K]) -> (values [R, K] float8 (e4m3), scales [R, 1] fp32)

The largest number of a row becomes 448, the largest e4m3 number, and the row is `values * scales`. The error of a
number is at most a sixteenth of itself, or 2^-10 of the scale for numbers below 2^-6 of the scale. A row with nan or
inf contains nan afterwards.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from workbench.kernels._shared.triton_import import jit, need_triton, tl, triton

LARGEST = 448.0
LEAST = 1e-30  # lower bound of a row's largest number, for rows of zeros


def reference(x: Tensor) -> tuple[Tensor, Tensor]:
    """Compute `launch` in torch, in fp32."""
    wide = x.float()
    largest = wide.abs().amax(-1, keepdim=True).clamp_min(LEAST)
    scale = torch.full_like(largest, LARGEST) / largest  # `LARGEST / largest` would round twice
    return (wide * scale).to(torch.float8_e4m3fn), largest / LARGEST


@jit
def _float8_rows(
    x,
    out,
    scales,
    x_row,
    K: tl.constexpr,
    KP: tl.constexpr,
    LARGEST: tl.constexpr,
    LEAST: tl.constexpr,
):
    """Process one row."""
    row, col = tl.program_id(0).to(tl.int64), tl.arange(0, KP)
    inside = col < K
    wide = tl.load(x + row * x_row + col, mask=inside, other=0.0).to(tl.float32)
    largest = tl.maximum(tl.max(tl.abs(wide), 0), LEAST)
    tl.store(out + row * K + col, (wide * tl.div_rn(LARGEST, largest)).to(tl.float8e4nv), mask=inside)
    tl.store(scales + row, tl.div_rn(largest, LARGEST))


def launch(x: Tensor) -> tuple[Tensor, Tensor]:
    """Run the Triton kernel on CUDA tensors, or on CPU tensors under TRITON_INTERPRET=1; channels are contiguous."""
    need_triton("float8_rows")
    rows, width = x.shape
    out = torch.empty((rows, width), dtype=torch.float8_e4m3fn, device=x.device)
    scales = torch.empty((rows, 1), dtype=torch.float32, device=x.device)
    padded = triton.next_power_of_2(width)
    _float8_rows[(rows,)](
        x,
        out,
        scales,
        x.stride(0),
        K=width,
        KP=padded,
        LARGEST=LARGEST,
        LEAST=LEAST,
        num_warps=max(1, min(8, padded // 512)),
    )
    return out, scales


def cases(device: str = "cpu", dtype: torch.dtype = torch.float32) -> Iterator[tuple[Tensor]]:
    """Yield arguments to compare `launch` with `reference`: odd widths, strided rows, zeros, nan."""
    for rows, width in ((1, 64), (5, 576), (3, 1536), (2, 4096)):
        seed = torch.Generator().manual_seed(rows + width)
        x = torch.randn(rows, 2 * width, generator=seed) * torch.logspace(-3, 3, rows)[:, None]
        yield (x[:, :width].contiguous().to(device, dtype),)
        yield (x.to(device, dtype)[:, width:],)
    yield (torch.zeros(2, 80, device=device, dtype=dtype),)
    yield (torch.tensor([[1.0, float("nan")] * 40, [1.0, 2.0] * 40]).to(device, dtype),)

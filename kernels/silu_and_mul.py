"""Fused SiLU + multiply of a gate-up projection (SwiGLU, arXiv:2002.05202).

    silu_and_mul(x [R, 2 F]) -> [R, F], same dtype: silu of the first half times the second

Arithmetic is fp32; the gate is rounded before it multiplies, as torch does in two steps.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from workbench.kernels._shared.triton_import import after_previous, jit, need_triton, overlap, tl, triton

CHANNELS = 1024  # per program


def reference(x: Tensor) -> Tensor:
    """Compute the result in torch, in the dtype of `x`."""
    gate, up = x.chunk(2, -1)
    return torch.nn.functional.silu(gate) * up


@jit
def _silu_and_mul(x, out, x_row, F: tl.constexpr, CHANNELS: tl.constexpr, PDL: tl.constexpr):
    """Process CHANNELS channels of one row."""
    row = tl.program_id(0).to(tl.int64)
    col = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    inside = col < F
    after_previous(PDL)
    gate = tl.load(x + row * x_row + col, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(x + row * x_row + F + col, mask=inside, other=0.0).to(tl.float32)
    gate = (gate / (1.0 + tl.exp(-gate))).to(out.dtype.element_ty).to(tl.float32)
    tl.store(out + row * F + col, (gate * up).to(out.dtype.element_ty), mask=inside)


def launch(x: Tensor) -> Tensor:
    """Run the Triton kernel on CUDA tensors, or on CPU tensors under TRITON_INTERPRET=1; channels are contiguous."""
    need_triton("silu_and_mul")
    rows, width = x.shape[0], x.shape[1] // 2
    out = torch.empty((rows, width), dtype=x.dtype, device=x.device)
    options, pdl = overlap(x.device)
    _silu_and_mul[(rows, triton.cdiv(width, CHANNELS))](
        x, out, x.stride(0), F=width, CHANNELS=CHANNELS, PDL=pdl, num_warps=4, **options
    )
    return out


def cases(device: str = "cpu", dtype: torch.dtype = torch.float32) -> Iterator[tuple[Tensor]]:
    """Yield arguments to compare `launch` with `reference`: one row, odd widths."""
    for rows, width in ((1, 32), (5, 1536), (3, 2000)):
        seed = torch.Generator().manual_seed(rows + width)
        yield (torch.randn(rows, 2 * width, generator=seed).to(device, dtype),)

"""Fused residual add + RMSNorm: one pass instead of five.

    add_rms_norm(x [R, C], weight [C], eps, residual [R, C] or None) -> [2, R, C], dtype of `weight`

Plane 0 is `x + residual`, plane 1 its RMSNorm (arXiv:1910.07467) times `weight`. As in transformers, the sum is rounded
before it is squared, and the norm before it is weighted; squares are summed in fp32. `x` may also be [S, R, C], split-K
parts that are summed here (`few_rows_linear`).
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from workbench.kernels._shared.triton_import import after_previous, jit, need_triton, overlap, tl, triton


def reference(x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None) -> Tensor:
    """Compute the result in torch, in the dtype of `weight`, squares in fp32 (fp64 for fp64)."""
    x = (x.sum(0) if x.ndim == 3 else x).to(weight.dtype)
    total = x if residual is None else x + residual
    wide = total.double() if x.dtype == torch.float64 else total.float()
    normed = (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)).to(x.dtype)
    return torch.stack((total, weight * normed))


@jit
def _add_rms_norm(
    x, residual, weight, out, rows, x_part, x_row, residual_row, eps, PARTS: tl.constexpr, C: tl.constexpr, CP:
    tl.constexpr, ADD: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Process one row."""
    row, col = tl.program_id(0).to(tl.int64), tl.arange(0, CP)
    inside = col < C
    w = tl.load(weight + col, mask=inside, other=0.0)  # loaded early: weights do not depend on the preceding kernel
    after_previous(PDL)
    total = tl.load(x + row * x_row + col, mask=inside, other=0.0).to(tl.float32)
    for part in tl.static_range(1, PARTS):
        total += tl.load(x + part * x_part + row * x_row + col, mask=inside, other=0.0).to(tl.float32)
    if PARTS > 1:
        total = total.to(out.dtype.element_ty).to(tl.float32)
    if ADD:
        total += tl.load(residual + row * residual_row + col, mask=inside, other=0.0).to(tl.float32)
    total = total.to(out.dtype.element_ty)
    wide = total.to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(wide * wide, 0) / C + eps)
    normed = (wide * scale).to(out.dtype.element_ty) * w
    tl.store(out + row * C + col, total, mask=inside)
    tl.store(out + (rows + row) * C + col, normed.to(out.dtype.element_ty), mask=inside)


def launch(x: Tensor, weight: Tensor, eps: float, residual: Tensor | None = None) -> Tensor:
    """Run the Triton kernel on CUDA tensors, or on CPU tensors under TRITON_INTERPRET=1; channels are contiguous."""
    need_triton("add_rms_norm")
    rows, width = x.shape[-2:]
    out = torch.empty((2, rows, width), dtype=weight.dtype, device=x.device)
    padded = triton.next_power_of_2(width)
    other = x if residual is None else residual
    options, pdl = overlap(x.device)
    tensors = x, other, weight, out, rows, x.stride(0), x.stride(-2), other.stride(-2), eps
    constants = {"PARTS": len(x) if x.ndim == 3 else 1, "C": width, "CP": padded, "ADD": residual is not None}
    _add_rms_norm[(rows,)](*tensors, **constants, PDL=pdl, num_warps=max(1, min(8, padded // 512)), **options)
    return out


def cases(
    device: str = "cpu", dtype: torch.dtype = torch.float32
) -> Iterator[tuple[Tensor, Tensor, float, Tensor | None]]:
    """Yield arguments to compare `launch` with `reference`: odd widths, one row, strided rows."""
    for rows, width in ((1, 64), (5, 576), (17, 4096), (3, 80)):
        seed = torch.Generator().manual_seed(rows + width)
        x, residual, wide = (torch.randn(rows, n, generator=seed).to(device, dtype) for n in (width, width, 2 * width))
        weight = torch.randn(width, generator=seed).to(device, dtype)
        yield x, weight, 1e-5, residual
        yield wide[:, :width], weight, 1e-6, None
        yield torch.randn(3, rows, width, generator=seed).to(device), weight, 1e-5, residual

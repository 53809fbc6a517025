"""Check a kernel against its reference on this device.

The rule is that of FlashAttention-3's tests (arXiv:2407.08608): compared with a reference in fp32 (fp64 for a kernel in
fp32), a kernel's largest error may be twice that of plain torch in the same dtype, plus a little for rounding. For a
selection of tiles, the same holds for the share that differs. Outputs are initialised to NaN, which reveals entries
that are not written. Inputs are redrawn. Each case runs three times, and a result that changes indicates a race.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from workbench.core.utils.determinism import deterministic

REPEATS = 3
LITTLE = 2e-6  # minimum allowed error
ODD = 2e-3  # share of a selection that may differ from plain torch's
FAR_APART = 1 << 31  # elements between the first and last head of a stretched case


@dataclass(frozen=True)
class KernelVerdict:
    """Result of one case of a kernel: its largest error, the allowed error, and another problem, if any."""

    kernel: str
    case: str
    dtype: str
    error: float
    allowed: float
    problem: str = ""

    @property
    def right(self) -> bool:
        return not self.problem and self.error <= self.allowed


def check(kernel: Any, device: str, dtypes: list[torch.dtype], stretch: bool = False) -> Iterator[KernelVerdict]:
    """Check all cases in each dtype; with `stretch`, also an attention case with its heads 2^31 elements apart."""
    name = kernel.__name__.rsplit(".", 1)[-1]
    for dtype in dtypes:
        for i, drawn in enumerate(kernel.cases(device=device, dtype=dtype)):
            yield _verdict(kernel, name, str(i), redraw_inputs(drawn, i), dtype)
    if stretch and name.endswith("_attention"):
        last = list(kernel.cases(device=device, dtype=dtypes[0]))[1]
        yield _verdict(kernel, name, "1, heads far apart", spread_last_head(last), dtypes[0])


def _verdict(kernel: Any, name: str, case: str, arguments: tuple[Any, ...], dtype: torch.dtype) -> KernelVerdict:
    label = str(dtype).removeprefix("torch.")
    exact = kernel.reference(*upcast(arguments, torch.float64 if dtype == torch.float32 else torch.float32))
    plain = kernel.reference(*arguments)
    with deterministic():
        results = [kernel.launch(*arguments) for _ in range(REPEATS)]
    problem = ""
    if results[0].isnan().any():
        problem = "some of the result was not written, or a key that no row attends to was read"
    elif any(not torch.equal(results[0], other) for other in results[1:]):
        problem = "the result changes from run to run"
    if exact.dtype == torch.bool:  # a selection: the share that differs, as nearly equal scores may swap
        error = share_differing(results[0], exact)
        return KernelVerdict(name, case, label, error, 2 * share_differing(plain, exact) + ODD, problem)
    error = (results[0].double() - exact).abs().max().item() if exact.numel() else 0.0
    return KernelVerdict(name, case, label, error, allowance(exact, plain), problem)


def share_differing(choice: Tensor, other: Tensor) -> float:
    """Return the share of entries in which two selections differ."""
    return (choice ^ other).float().mean().item() if choice.numel() else 0.0


def allowance(exact: Tensor, plain: Tensor) -> float:
    """Return the largest allowed error: twice plain torch's, plus the rounding of a sum near 0.3."""
    if not exact.numel() or not exact.is_floating_point():
        return 0.0  # selections have no rounding error
    rounded = exact.to(plain.dtype)
    rounding = (rounded + 0.3 - 0.3 - rounded).abs().max().item()
    return 2 * (plain.double() - exact).abs().max().item() + 2 * rounding + LITTLE


def upcast(arguments: tuple[Any, ...], dtype: torch.dtype) -> tuple[Any, ...]:
    """Return the same arguments with floating-point tensors in a wider `dtype`."""
    return tuple(x.to(dtype) if isinstance(x, Tensor) and x.is_floating_point() else x for x in arguments)


def redraw_inputs(arguments: tuple[Any, ...], seed: int) -> tuple[Any, ...]:
    """Return the arguments with redrawn queries, keys and values on the device; NaN entries stay NaN."""
    draw = torch.Generator(arguments[0].device).manual_seed(1000 + seed)

    def new(x: Any) -> Any:
        if not (isinstance(x, Tensor) and x.is_floating_point() and x.ndim > 2):
            return x
        drawn = torch.randn(x.shape, generator=draw, device=x.device).to(x.dtype)
        like = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)
        return like.copy_(torch.where(x.isnan(), x, drawn))

    return tuple(new(x) for x in arguments)


def spread_last_head(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the same case with the last head of keys and values more than 2^31 elements after the first."""
    q, *pools = arguments[:3]

    def wide(x: Tensor) -> Tensor:
        heads, length, width = x.shape[-3:]
        stride = -(-FAR_APART // (max(1, heads - 1) * width)) + length
        reserve = torch.empty((*x.shape[:-2], stride, width), dtype=x.dtype, device=x.device)
        reserve[..., :length, :] = x
        return reserve[..., :length, :]

    return (q, *(wide(x) for x in pools), *arguments[3:])

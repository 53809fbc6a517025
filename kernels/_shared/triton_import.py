"""Triton, and Gluon for Hopper, if they are installed.

Without them, stubs keep modules importable and each `reference` callable; a `launch` raises.
"""

from collections.abc import Callable
from typing import Any

import torch


class _Language:
    """Stub for `tl` and `gl`: the names that Python evaluates when a kernel is defined."""

    constexpr = staticmethod(lambda value: value)


def _unchanged(function: Callable[..., Any]) -> Callable[..., Any]:
    """Stub for `jit`: return the function unchanged."""
    return function


try:
    import triton
    import triton.language as tl
    from triton import jit
    from triton.tools.tensor_descriptor import TensorDescriptor
except ImportError:
    triton = TensorDescriptor = None
    tl, jit = _Language, _unchanged

try:
    if triton is None or [int(part) for part in triton.__version__.split(".")[:2]] < [3, 6]:
        raise ImportError("Gluon was another language before Triton 3.6")
    from triton.experimental.gluon import jit as gluon_jit
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.language.nvidia.hopper import (
        fence_async_shared,
        mbarrier,
        tma,
        warpgroup_mma,
        warpgroup_mma_wait,
    )
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor as GluonDescriptor

    async_load = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared  # before Triton 3.7
except ImportError:
    gl, gluon_jit = _Language, _unchanged
    async_load = fence_async_shared = mbarrier = warpgroup_mma = warpgroup_mma_wait = GluonDescriptor = None


try:
    if triton is None:
        raise ImportError("no Triton")
    from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
except ImportError:
    gdc_launch_dependents = gdc_wait = None

OVERLAP = True  # programmatic dependent launch (PDL): kernels start while preceding ones end, if the GPU supports it


@jit
def after_previous(PDL: tl.constexpr):
    """With PDL, let the next kernel start, and wait until the results of the preceding one can be read."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()


@jit
def prefetch(at):
    """Prefetch the cache lines of pointers `at` into the L2 cache."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;", "=r,l", [at], dtype=tl.int32, is_pure=False, pack=1
    )


def overlap(device: Any) -> tuple[dict[str, bool], bool]:
    """Return (launch options, whether the kernel itself must wait for the preceding one)."""
    if not OVERLAP or gdc_wait is None or device.type != "cuda":
        return {}, False
    able = torch.cuda.get_device_capability(device)[0] >= 9
    return ({"launch_pdl": True} if able else {}), able


def need_triton(name: str) -> None:
    """Raise NotImplementedError without Triton."""
    if triton is None:
        raise NotImplementedError(f"{name}.launch needs Triton, which is not installed: use reference")


def padded_width(width: int) -> int:
    """Round a head width up to a power of two of at least 16, the minimum for tensor cores."""
    return max(16, 1 << (width - 1).bit_length())

"""Kernels that were launched before are launched again without their arguments being bound anew.

`kernel[grid](...)` of Triton sorts its arguments, asks of each what the compiler may assume, and makes a key of it all:
that takes the host longer than the launch. Here a shorter key of the same facts finds the compiled kernel, and Triton's
`CompiledKernel` launches it.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

try:
    from triton import JITFunction
except ImportError:
    JITFunction = None


@cache
def facts_of(kinds: tuple[type, ...]) -> Callable[..., tuple[Any, ...]]:
    """Return what tells of arguments of these types all that a compiler may assume: their facts, in order.

    Of a tensor its dtype, and whether it begins at 16 bytes; of an int whether it is 1, a multiple of 16, or of 64
    bits; of tiles of a tensor (a descriptor) their dtype, shape and layout; of a float nothing; of all else itself.
    """
    found = []
    for number, kind in enumerate(kinds):
        x = f"x{number}"
        if issubclass(kind, Tensor):
            found += [f"{x}.dtype", f"{x}.data_ptr() & 15 == 0"]
        elif kind is int:
            found.append(f"1 if {x} == 1 else ({x} & 15 == 0) * 2 + (-0x80000000 <= {x} < 0x80000000) * 4")
        elif hasattr(kind, "block_type") or "block_shape" in getattr(kind, "__annotations__", ()):
            found += [f"{x}.base.dtype", f"tuple({x}.block_shape)", f"getattr({x}, 'layout', None)"]
        elif kind is not float:
            found.append(x)
    names = ", ".join(f"x{number}" for number in range(len(kinds)))
    made: Callable[..., tuple[Any, ...]] = eval(f"lambda {names}: ({''.join(each + ', ' for each in found)})")
    return made


class Relaunched:
    """The `run` of one kernel of Triton's: by what is `known` where it was launched with such arguments before."""

    def __init__(self, kernel: Any):
        self.first: Callable[..., Any] = kernel.run
        self.names: list[str] = kernel.arg_names
        self.known: dict[Any, Any] = {}

    def __call__(self, *given: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        """Launch on a grid; `options` are the kernel's last arguments, by name, and those of the launch."""
        if warmup or type(grid) is not tuple:
            return self.first(*given, grid=grid, warmup=warmup, **options)
        kinds = tuple(map(type, given))
        key = torch.cuda.current_device(), kinds, facts_of(kinds)(*given), *options.items()
        kernel = self.known.get(key)
        if kernel is None:
            kernel = self.first(*given, grid=grid, warmup=False, **options)
            if kernel is not None and all(name in options for name in self.names[len(given) :]):
                self.known[key] = kernel
            return kernel
        rest = [options[name] for name in self.names[len(given) :]]
        kernel[(*grid, 1, 1)[:3]](*given, *rest)
        return kernel


def relaunched(kernel: Any) -> Any:
    """Let a kernel be launched by `Relaunched`, where it is Triton's; what is interpreted stays as it is."""
    if JITFunction is not None and isinstance(kernel, JITFunction):
        kernel.run = Relaunched(kernel)
    return kernel

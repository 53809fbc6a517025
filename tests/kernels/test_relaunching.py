"""A kernel that was launched before is found by what its compiler assumed of the arguments, and by nothing less."""

from itertools import product

import pytest
import torch

from workbench.kernels._shared.relaunching import Relaunched, facts_of

triton = pytest.importorskip("triton")

BYTES = torch.zeros(64, dtype=torch.uint8)
VALUES = [
    *(sign * number for sign in (1, -1) for number in (0, 1, 2, 15, 16, 17, 2**31 - 16, 2**31 - 1, 2**31, 2**40)),
    *(0.0, 1.0, 2.5, True, False, None),
    *(BYTES[at:].view(dtype) for at, dtype in product((0, 16, 8, 4), (torch.float32, torch.int32, torch.bfloat16))),
]


def assumed(value):
    """What Triton assumes of an argument when it compiles."""
    from triton._C.libtriton import native_specialize_impl
    from triton.backends.compiler import BaseBackend
    from triton.backends.nvidia.compiler import CUDABackend

    assert issubclass(CUDABackend, BaseBackend)
    return native_specialize_impl(CUDABackend, value, False, True, True)


def test_arguments_of_equal_facts_are_compiled_alike():
    facts = [(type(value), facts_of((type(value),))(value)) for value in VALUES]
    known = [assumed(value) for value in VALUES]
    alike = [(i, j) for i in range(len(VALUES)) for j in range(i) if facts[i] == facts[j]]
    assert len(alike) > 20, "numbers that a compiler takes for alike are found again"
    assert all(known[i] == known[j] for i, j in alike)


class Kernel:
    """Stands for a kernel of Triton's, and for what it was compiled to."""

    arg_names = ("x", "count", "BLOCK")

    def __init__(self):
        self.compiled, self.launched = [], []

    def run(self, *given, grid, warmup, **options):
        self.compiled.append((given, grid, options))
        return self

    def __getitem__(self, grid):
        return lambda *given: self.launched.append((given, grid))


def test_the_second_launch_of_equal_facts_binds_nothing_and_passes_every_argument(monkeypatch):
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    kernel, x = Kernel(), torch.zeros(8)
    run = Relaunched(kernel)
    run(x, 32, grid=(3,), warmup=False, BLOCK=16, num_warps=4)
    run(torch.ones(4), 48, grid=(5, 2), warmup=False, BLOCK=16, num_warps=4)
    assert len(kernel.compiled) == 1 and kernel.launched[0][1] == (5, 2, 1)
    assert kernel.launched[0][0][1:] == (48, 16)
    others = [{"BLOCK": 32, "num_warps": 4}, {"BLOCK": 16, "num_warps": 8}]
    for options in others:
        run(x, 32, grid=(3,), warmup=False, **options)
    run(x, 33, grid=(3,), warmup=False, BLOCK=16, num_warps=4)
    run(x[1:], 32, grid=(3,), warmup=False, BLOCK=16, num_warps=4)
    run(x.double(), 32, grid=(3,), warmup=False, BLOCK=16, num_warps=4)
    assert len(kernel.compiled) == 6 and len(kernel.launched) == 1


def test_another_device_a_warm_up_and_a_grid_that_is_a_function_are_left_to_triton(monkeypatch):
    device = [0]
    monkeypatch.setattr(torch.cuda, "current_device", lambda: device[0])
    kernel, x = Kernel(), torch.zeros(8)
    run = Relaunched(kernel)
    for grid, warmup in (((1,), False), ((1,), True), (lambda bound: (1,), False)):
        run(x, 32, grid=grid, warmup=warmup, BLOCK=16)
    device[0] = 1
    run(x, 32, grid=(1,), warmup=False, BLOCK=16)
    assert len(kernel.compiled) == 4 and not kernel.launched

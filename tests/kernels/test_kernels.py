"""Every kernel equals its torch reference on its own cases; found by folder, so a new kernel is tested by existing."""

import importlib
import pkgutil
import subprocess
import sys

import pytest
import torch

import workbench.kernels
from workbench.kernels import rotate_keys

FOUND = (module.name for module in pkgutil.iter_modules(workbench.kernels.__path__))
NAMES = sorted(name for name in FOUND if not name.startswith("_"))  # what kernels share begins with an underscore
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def test_kernels_are_found_in_the_top_level_folder():
    assert "rotate_keys" in NAMES


@pytest.mark.parametrize("name", NAMES)
def test_launch_equals_reference_in_fp32(name):
    pytest.importorskip("triton", reason="Triton is not available on this platform")
    kernel = importlib.import_module(f"workbench.kernels.{name}")
    for case in kernel.cases(device=DEVICE, dtype=torch.float32):
        torch.testing.assert_close(kernel.launch(*case), kernel.reference(*case), atol=2e-5, rtol=0)


def test_kernel_modules_import_without_triton():
    code = "import sys; sys.modules['triton'] = None; from importlib import import_module as load\n"
    code += f"for name in {NAMES}: next(iter(load(f'workbench.kernels.{{name}}').cases()))"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_moving_twice_is_moving_once():
    keys, distance, inv_freq, pairing = next(iter(rotate_keys.cases()))
    there = rotate_keys.reference(keys, distance, inv_freq, pairing)
    torch.testing.assert_close(rotate_keys.reference(there, -distance, inv_freq, pairing), keys, atol=1e-5, rtol=0)

"""Types hold: as a test, so that one process checks them while another begins with the long tests."""

import os
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from workbench.data import assets

ROOT = Path(__file__).parents[1]


def test_types_hold():
    """A new clone begins with what the last one knew of torch and transformers; mypy compares the files' hashes."""
    pytest.importorskip("mypy")
    own, kept = ROOT / ".mypy_cache", assets.cache() / "mypy"
    is_new = not own.exists()
    if is_new:
        copied(kept, own)
    command = [sys.executable, "-m", "mypy", "workbench", "kernels", "data/benchmarks"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    if is_new:
        copied(own, kept)


def copied(folder, to):
    """Put a copy of a folder where it is whole or not at all; leave what is there where that cannot be."""
    begun = to.with_name(f"{to.name}-{os.getpid()}")
    with suppress(OSError):
        shutil.copytree(folder, begun)
        shutil.rmtree(to, ignore_errors=True)
        begun.rename(to)
    shutil.rmtree(begun, ignore_errors=True)

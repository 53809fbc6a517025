"""Types hold: as a test, so that one process checks them while another begins with the long tests."""

import subprocess
import sys
from pathlib import Path

import pytest


def test_types_hold():
    pytest.importorskip("mypy")
    command = [sys.executable, "-m", "mypy", "workbench", "kernels", "data/benchmarks"]
    done = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout

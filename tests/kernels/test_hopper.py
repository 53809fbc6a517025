"""Kernels written for Hopper: what can be said of them without such a GPU."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("triton", reason="Triton is not available on this platform")

SHARED = 227 << 10  # bytes of shared memory that a program may have on a Hopper GPU


@pytest.mark.skipif(importlib.util.find_spec("triton.experimental.gluon") is None, reason="this Triton has no Gluon")
def test_they_compile_for_hopper_and_fit_its_shared_memory(request):
    """Half a minute; what was compiled by an earlier run from the same source is taken from pytest's cache."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    if cache := getattr(request.config, "cache", None):  # not with -p no:cacheprovider
        environment["TRITON_CACHE_DIR"] = str(cache.mkdir("triton"))
    command = [sys.executable, "-m", "tests.kernels.ahead_of_time"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    names = ["kept tiles", "pairs of query tiles", "dense, fp16", "shifted pages", "shifted pages, narrow heads"]
    names += ["few rows, overlapped", "part of the width rotates"]
    plain = ["gated products", "squares", "squares, float8"]  # one product a step, no attention
    assert [one["kernel"] for one in found] == names + plain, done.stderr[-2000:]
    assert all(one["products"] >= (4 if one["kernel"] in plain else 16) for one in found)
    assert all(one["shared"] <= SHARED for one in found)

"""Kernels written for Hopper: what can be said of them without such a GPU."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not available on this platform")

from workbench.core.utils.runner import SHARED_GPU
from workbench.kernels._pages import hopper as pages_hopper
from workbench.kernels._select import hopper as select_hopper

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SHARED = 227 << 10  # bytes of shared memory that a program may have on a Hopper GPU


def test_pages_are_read_by_another_kernel_where_processes_share_a_gpu(monkeypatch):
    monkeypatch.setattr(pages_hopper.pipe, "fits_gpu", lambda q, pools: True)
    q, pool = torch.zeros(1, 4, 1, 64), torch.zeros(2, 256, 64)
    for told in (False, True):
        monkeypatch.setenv(SHARED_GPU, "1") if told else monkeypatch.delenv(SHARED_GPU, raising=False)
        assert pages_hopper.fits(q, pool, pool, 128) is not told


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
    names = ["kept tiles", "pairs of query tiles", "dense, fp16", "shifted pages"]
    names += ["part of narrow heads rotates", "few rows, overlapped"]
    plain = ["gated products", "squares", "squares, float8"]  # one product a step, no attention
    assert [one["kernel"] for one in found] == names + plain, done.stderr[-2000:]
    assert all(one["products"] >= (4 if one["kernel"] in plain else 16) for one in found)
    assert all(one["shared"] <= SHARED for one in found)
    assert all(one["arrivals"] and not one["early"] for one in found), "a tile is handed on before all warps wrote it"


@pytest.mark.skipif(importlib.util.find_spec("triton.experimental.gluon") is None, reason="this Triton has no Gluon")
def test_an_arrival_that_no_barrier_of_the_warps_precedes_is_found():
    from tests.kernels.ahead_of_time import handed_on

    wrote, waited = "st.shared.v4.b32 [%r1], {%r2};", "bar.sync 2, 128;"
    arrives = "@%p1 mbarrier.arrive.shared::cta.b64 _, [%r3];"
    told = "@%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], 8;"
    assert handed_on("\n".join([wrote, waited, arrives])) == (1, 0)
    assert handed_on("\n".join([waited, wrote, arrives, told])) == (1, 1)


@pytest.mark.parametrize(
    ("count", "length", "start", "band"), [(512, 512, 0, 2), (320, 512, 192, 4), (400, 3600, None, 8), (148, 148, 0, 4)]
)
def test_tiles_of_squares_have_numbers_where_a_row_sees_them(count, length, start, band):
    stride, high, wide = 4, 16, 32
    rows = torch.randperm(length, generator=torch.Generator().manual_seed(count))[:count].sort().values
    rows = (rows if start is None else torch.arange(start, start + count)).to(DEVICE)
    squares = count // stride
    row_tiles, key_tiles = -(-squares // high), -(-length // stride // wide)
    order = torch.empty(1, 1 + row_tiles * key_tiles, dtype=torch.int32, device=DEVICE)
    select_hopper.write_order(rows[None], order, count, squares, row_tiles, key_tiles, stride, high, wide, band)
    ends = [int(rows[min((tile + 1) * high, squares) * stride - 1]) for tile in range(row_tiles)]
    seen = [end // (wide * stride) + 1 for end in ends]
    expected = [
        tile * 65536 + key_tile
        for first in range(0, row_tiles, band)
        for key_tile in range(key_tiles)
        for tile in range(first, min(first + band, row_tiles))
        if key_tile < seen[tile]
    ]
    assert order[0, : 1 + len(expected)].tolist() == [len(expected), *expected]

"""Products of few rows: the fastest way is measured once, kept in a file, and gives torch's numbers."""

import json

import pytest
import torch

from workbench.engine.layers import gemm_dispatch
from workbench.engine.layers.gemm_dispatch import TORCH, Products

X, WEIGHTS = torch.randn(8, 64), [torch.randn(96, 64) for _ in range(2)]


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """Times that are made up: our kernel in two parts is the fastest, or torch, by `times`."""
    times = {TORCH: 2.0, "two": 1.0}
    way = gemm_dispatch.kernel("few_rows_linear").LinearConfig(tile=32, channels=16, splits=2)
    monkeypatch.setattr(gemm_dispatch, "_where", lambda device: "a GPU")
    monkeypatch.setattr(gemm_dispatch, "ways", lambda *_: [way])
    monkeypatch.setattr(gemm_dispatch, "timed", lambda work, weights: times[TORCH])
    monkeypatch.setattr(gemm_dispatch, "_tried", lambda *_: times["two"])
    monkeypatch.setattr(gemm_dispatch, "LARGE", 0)
    monkeypatch.setattr(torch.Tensor, "is_cuda", True, raising=False)
    return times


def test_what_was_measured_is_kept_and_read(as_on_a_gpu, tmp_path):
    found = Products(tmp_path / "cache" / "products.json")
    found.prepare(8, WEIGHTS, parts=True)
    assert [way.splits for way in found.chosen.values()] == [2]
    (name,) = json.loads(found.path.read_text())
    assert name == "a GPU, 8x64x96 float32 parts"
    as_on_a_gpu["two"] = 9.0
    again = Products(found.path)
    again.prepare(8, WEIGHTS, parts=True)
    assert again.chosen == found.chosen, "not measured once more"
    again.prepare(8, WEIGHTS)
    assert again.chosen["8x64x96 float32"] is None, "torch is the fastest"


def test_a_file_that_is_damaged_or_cannot_be_written_stops_nobody(as_on_a_gpu, tmp_path):
    path = tmp_path / "products.json"
    path.write_text("[1, 2")
    found = Products(path)
    found.prepare(8, WEIGHTS)
    assert len(found.chosen) == 1 and len(json.loads(path.read_text())) == 1
    nowhere = Products(tmp_path / "products.json" / "x.json")
    nowhere.prepare(8, WEIGHTS)
    assert len(nowhere.chosen) == 1


def test_both_ways_give_the_same_numbers():
    pytest.importorskip("triton", reason="Triton is not available on this platform")
    way = gemm_dispatch.kernel("few_rows_linear").LinearConfig(tile=32, channels=16, warps=4, stages=2, splits=3)
    own = Products(chosen={"8x64x96 float32 parts": way})
    parts = own(X, WEIGHTS[0], parts=True)
    assert parts.shape == (3, 8, 96)
    torch.testing.assert_close(parts.sum(0), Products()(X, WEIGHTS[0], parts=True), atol=1e-4, rtol=1e-4)
    assert own(X, WEIGHTS[0]).shape == (8, 96), "no parts where none are taken"
    assert own(X, WEIGHTS[0], torch.zeros(96), parts=True).shape == (8, 96), "nor with a bias"


def test_nothing_is_measured_without_a_gpu():
    found = Products()
    found.prepare(8, [torch.zeros(4096, 4096)], parts=True)
    assert found.chosen == {} and found.times == {}
    assert all(way.splits == 1 for way in gemm_dispatch.ways(28672, 4096, False))
    assert {way.splits for way in gemm_dispatch.ways(4096, 14336, True)} >= {4, 8}

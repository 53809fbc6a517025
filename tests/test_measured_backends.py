"""The table of measured backends: who is taken, for which shapes, and what an unknown GPU gets."""

import json
from contextlib import nullcontext

import pytest
import torch

from workbench.core.utils import wide_copies
from workbench.engine.attention_backends import blocks_backends
from workbench.engine.attention_backends import choice as measured_backends
from workbench.engine.attention_backends.choice import kernel

TIMES = {"tile_attention": 1.0, "cudnn": 0.9, "flash": 2.0}
ROW = {"work": "dense", "heads": [32, 8], "width": 128, "length": 8192, "times": TIMES}
GPUS = {"a GPU": {"capability": [9, 0], "rows": [ROW]}}


def asked(length=8192, group=4, width=128, rows=(ROW,)):
    return measured_backends.fastest(rows, "dense", group, width, length, "tile_attention")


def test_the_fastest_of_a_shape_is_taken_within_an_octave_of_its_length_and_by_a_margin():
    assert asked() == asked(6000) == asked(16384) == "cudnn"
    assert asked(1024) == asked(40000) == asked(group=1) == asked(width=64) == asked(rows=()) == "tile_attention"
    assert asked(rows=[ROW | {"times": TIMES | {"cudnn": 0.99}}]) == "tile_attention"


def test_a_gpu_is_found_by_name_or_by_its_capability(tmp_path):
    path = tmp_path / "table.json"
    path.write_text(json.dumps({"gpus": GPUS}))
    assert measured_backends.rows_for("a GPU", (9, 0), path) == [ROW]
    assert measured_backends.rows_for("another", (9, 0), path) == [ROW]
    assert measured_backends.rows_for("another", (8, 0), path) == []
    assert measured_backends.rows_for("a GPU", (9, 0), tmp_path / "none.json") == []
    (tmp_path / "odd.json").write_text("{")
    assert measured_backends.rows_for("a GPU", (9, 0), tmp_path / "odd.json") == []


def test_on_a_cpu_nothing_is_looked_up():
    found = measured_backends.choice(torch.device("cpu"), "dense", (32, 8), 128, 8192, "tile_attention")
    assert found == "tile_attention"
    q = torch.zeros(2, 8, 16)
    assert blocks_backends.fastest_backend(q, q, [4, 4]) == "encode_blocks"


def test_blocks_of_one_length_are_a_batch(monkeypatch):
    monkeypatch.setattr(blocks_backends, "sdpa_kernel", lambda _: nullcontext())
    q, k, v = (torch.randn(12, heads, 16).transpose(0, 1) for heads in (4, 2, 2))
    arguments = (q, k, v, torch.tensor([0, 4, 8, 12], dtype=torch.int32), 4, 0.3)
    assert torch.allclose(blocks_backends.cudnn(*arguments), kernel("encode_blocks").reference(*arguments), atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("width", "begin"), [(4, 0), (3, 0), (8, 1), (8, 4)])
def test_tokens_are_copied_whatever_their_layout(width, begin, dtype):
    """Channels of a wider tensor, from `begin` on; tokens [H, T, D] that lie as [T, H, D]."""
    at, rest = torch.tensor([7, 0, 2]), [1, 3, 4, 5, 6, 8]
    source = torch.randn(3, 2, width + 4, dtype=dtype).transpose(0, 1)[..., begin : begin + width]
    target = torch.zeros(2, 9, width + 4, dtype=dtype)[..., begin : begin + width]
    wide_copies.index_copy(target, at, source)
    assert torch.equal(target[:, at], source) and not target[:, rest].any()
    assert torch.equal(wide_copies.gather_tokens(target, at), source)
    wide_copies.copy(target[:, :3], source)
    assert torch.equal(target[:, :3], source)

"""`workbench bench choose_…`: every workload of choosing can be carried out, and feeds the attention it names."""

import json
import os

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not available on this platform")

from workbench.core.tiling.tile_selection import TileRule
from workbench.experiments.bench import workload_module
from workbench.experiments.bench.kernels import choices, workloads
from workbench.experiments.bench.kernels.workloads import variants
from workbench.experiments.bench.run import WORKLOADS
from workbench.kernels._pages.lists import PageLists, tile_lists


@pytest.fixture(autouse=True)
def small(monkeypatch):
    for name, value in {"HEADS": (2, 1), "WIDTH": 32, "CHUNK": (1, 2, 1)}.items():
        monkeypatch.setattr(workloads, name, value)
    for name, value in {"LENGTHS": (2,), "TILED": ((1, 128),), "SHARES": (0.25,), "HALVINGS": 1}.items():
        monkeypatch.setattr(choices, name, value)


@pytest.mark.parametrize("kernel", sorted(choices.WORKLOADS))
def test_workloads_can_be_carried_out(kernel, monkeypatch):
    if kernel == "choose_xattention":
        monkeypatch.setattr(choices, "LENGTHS", (1,))  # the interpreter takes a time that grows with the square
    assert WORKLOADS[kernel] is choices.WORKLOADS[kernel]
    found = set()
    for work in choices.WORKLOADS[kernel]([], [], unit=128):
        assert work.flops > 0 and work.bytes > 0
        json.dumps(work.shape)
        out = {name: call() for name, (call,) in work.candidates.items()}
        found |= set(out)
        if "choice and attention" in work.name:
            assert out["ours"].isfinite().all()
        else:
            made = out["ours"]
            indptr, indices = (made.indptr, made.indices) if isinstance(made, PageLists) else made
            assert 0 < indptr[-1] <= len(indices)
            assert out[choices.FEEDS].isfinite().all()
    besides = {"choose_flash_prefill": {choices.ANEW}, "choose_xattention": {choices.IN_8_BITS}}
    assert found == {"ours", "torch", choices.FEEDS} | besides.get(kernel, set())


def test_a_threshold_is_set_for_the_density(monkeypatch):
    monkeypatch.setattr(choices, "HALVINGS", 12)
    rule = TileRule(16, 16, 0.5)
    assert choices.with_density(rule, "mass", lambda rule: rule.mass, 0.3).mass == pytest.approx(0.3, abs=1e-3)
    assert choices.with_density(rule, "part", lambda rule: 1 - rule.part, 0.3).part == pytest.approx(0.7, abs=1e-3)


@pytest.mark.parametrize("kernel", sorted(choices.WORKLOADS))
def test_variants_choose_the_same(kernel):
    """Launch shapes beside the kernel's own; one of them, under the interpreter."""
    case = list(workload_module(kernel).cases(device=workloads.DEVICE))[-1]
    tried = variants(kernel)
    assert tried
    for variant in tried[:1] if os.environ.get("TRITON_INTERPRET") else tried:
        assert torch.equal(workload_module(kernel).launch(*case, **variant), workload_module(kernel).reference(*case))


def test_lists_are_made_by_what_the_engine_makes_them_with(monkeypatch):
    """Not by the reference in torch, which a GPU's host waits for."""
    (work, *_), made = choices.WORKLOADS["choose_bfla"]([], [], unit=128), []

    def lists(*arguments):
        made.append(arguments)
        return tile_lists(*arguments)

    monkeypatch.setattr(choices, "tile_lists", lists)
    indptr, indices = work.candidates["ours"][0]()
    assert len(made) == 1 and indptr[-1] == len(indices)

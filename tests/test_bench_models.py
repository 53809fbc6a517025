"""`workbench bench question` and the like: every candidate of every whole-model benchmark can be carried out."""

import json

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not available on this platform")

from workbench.experiments.bench import operations, whole_model
from workbench.experiments.bench.operations import OPERATIONS
from workbench.experiments.bench.timing import Roof
from workbench.experiments.bench.whole_model import LLAMA, Scene, build

TINY = LLAMA | {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 97,
}


@pytest.fixture(scope="module")
def scene():
    return Scene(build(TINY), [], unit=16)


@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_every_candidate_can_be_carried_out(scene, name):
    for work, candidates in OPERATIONS[name](scene):
        assert candidates[0].name == "ours" and work.flops > 0 and work.bytes > 0
        for candidate in candidates:
            candidate.runs = 1
        found = whole_model.measured(work, candidates, Roof(1e9, 1e9))
        json.dumps(found)
        for entry in found["contestants"]:
            assert "problem" not in entry, entry
            assert entry["ms"] > 0 and entry["ratio"] > 0


def test_bfla_is_set_to_the_density_that_is_asked_for(scene):
    (_, candidates), *_ = OPERATIONS["prefill"](scene)
    candidates[0].begin(candidates[0])()
    assert 0.05 < candidates[0].facts["density"] < 0.35  # few tiles, so in coarse steps


def test_the_shape_is_that_of_llama_8b():
    with torch.device("meta"):
        model = whole_model.AutoModelForCausalLM.from_config(whole_model.AutoConfig.for_model("llama", **LLAMA))
    assert sum(p.numel() for p in model.parameters()) == 8_030_261_248


def test_a_candidate_that_fails_is_reported_and_the_others_are_timed(scene):
    def broken(candidate):
        raise RuntimeError("no memory")

    (work, candidates), *_ = OPERATIONS["decode"](scene)
    candidates = [candidates[0], whole_model.Candidate("broken", broken)]
    candidates[0].runs = 1
    ours, other = whole_model.measured(work, candidates, Roof(1e9, 1e9))["contestants"]
    assert ours["ms"] > 0 and "no memory" in other["problem"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_times_are_refused_without_a_gpu():
    with pytest.raises(operations.BadInput, match="GPU"):
        next(operations.run("question", []))

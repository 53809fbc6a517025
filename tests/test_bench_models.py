"""`workbench bench question` and the like: every contestant of every whole-model benchmark can be carried out."""

import json

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not available on this platform")

from workbench.experiments.bench import operations, whole_model
from workbench.experiments.bench.operations import OPERATIONS
from workbench.experiments.bench.timing import Roof
from workbench.experiments.bench.whole_model import LLAMA, Scene, build

TINY = LLAMA | {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 97,
}  # fmt: skip


@pytest.fixture(scope="module")
def scene():
    return Scene(build(TINY), [], unit=16)


@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_every_contestant_can_be_carried_out(scene, name):
    for work, contestants in OPERATIONS[name](scene):
        assert contestants[0].who == "ours" and work.flops > 0 and work.moved > 0
        for one in contestants:
            one.runs = 1
        found = whole_model.measured(work, contestants, Roof(1e9, 1e9))
        json.dumps(found)
        for entry in found["contestants"]:
            assert "problem" not in entry, entry
            assert entry["ms"] > 0 and entry["ratio"] > 0


def test_bfla_is_turned_to_the_density_that_is_asked_for(scene):
    (_, contestants), *_ = OPERATIONS["prefill"](scene)
    contestants[0].begin(contestants[0])()
    assert 0.05 < contestants[0].facts["density"] < 0.35  # few tiles, so in coarse steps


def test_the_shape_is_that_of_llama_8b():
    with torch.device("meta"):
        model = whole_model.AutoModelForCausalLM.from_config(whole_model.AutoConfig.for_model("llama", **LLAMA))
    assert sum(p.numel() for p in model.parameters()) == 8_030_261_248


def test_a_contestant_that_fails_is_reported_and_the_others_are_timed(scene):
    def broken(one):
        raise RuntimeError("no memory")

    (work, contestants), *_ = OPERATIONS["decode"](scene)
    contestants = [contestants[0], whole_model.Contestant("broken", broken)]
    contestants[0].runs = 1
    ours, other = whole_model.measured(work, contestants, Roof(1e9, 1e9))["contestants"]
    assert ours["ms"] > 0 and "no memory" in other["problem"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_times_are_refused_without_a_gpu():
    with pytest.raises(operations.BadInput, match="GPU"):
        next(operations.run("question", []))

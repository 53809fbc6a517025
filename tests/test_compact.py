"""Weights in 8 bits: near what they were, half the size, and never taken for other weights."""

import shutil

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from workbench import models
from workbench.core.errors import BadInput
from workbench.models.checkpoints import COMPACT, WEIGHTS
from workbench.models.model_card import describe
from workbench.models.weights import compact


@pytest.fixture(scope="module")
def packed(folder, tmp_path_factory):
    """The tiny model with its weights in 8 bits."""
    out = tmp_path_factory.mktemp("packed") / "model"
    shutil.copytree(folder, out, ignore=shutil.ignore_patterns("*.safetensors"))
    compact.save(models.load(folder).model, out)
    return out


@given(st.integers(0, 99), st.floats(1e-6, 1e4))
def test_no_number_is_further_off_than_half_the_scale_of_its_row(seed, size):
    weights = {"a": torch.randn(5, 7, generator=torch.Generator().manual_seed(seed)) * size, "b": torch.ones(7)}
    weights["a"][2] = 0
    packed = compact.pack(weights)
    assert packed["a"].dtype == torch.int8 and packed["b"].dtype == torch.bfloat16
    again = compact.unpack(packed)
    assert set(again) == {"a", "b"} and torch.equal(again["b"], weights["b"])
    assert ((again["a"] - weights["a"]).abs() <= packed["a.scale"] * 0.5001).all() and not again["a"][2].any()


def test_a_packed_model_loads_by_name_and_is_near_the_one_it_was(folder, packed):
    before, after = models.load(folder).model, models.load(packed).model
    tokens = torch.arange(12)[None]
    assert (before(tokens).logits - after(tokens).logits).abs().max() < 0.05 * before(tokens).logits.std()
    assert (packed / COMPACT).stat().st_size < 0.7 * (folder / WEIGHTS).stat().st_size
    assert describe(packed)["parameters"] <= describe(folder)["parameters"]
    assert describe(packed)["parameters"] == sum(weight.numel() for weight in set(after.parameters()))
    assert models.load(packed, dtype="float16").model.dtype == torch.float16


def test_a_packed_model_is_no_checkpoint_to_others_and_is_refused_where_it_is_not_whole(packed, tmp_path):
    with pytest.raises(OSError, match="safetensors"):
        AutoModelForCausalLM.from_pretrained(packed)
    broken = shutil.copytree(packed, tmp_path / "broken")
    weights = load_file(broken / COMPACT)
    weights.pop(first := next(name for name in weights if name.endswith("q_proj.weight")))
    save_file(weights, broken / COMPACT)
    with pytest.raises(BadInput, match=f"1 weights are missing or of the wrong shape, first {first}"):
        models.load(broken)
    (broken / COMPACT).write_bytes(b"half")
    with pytest.raises(BadInput, match="corrupt or half-written"):
        models.load(broken)

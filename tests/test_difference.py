"""Weights kept as a difference: every bit comes back, and what cannot be restored is refused by name."""

import shutil

import numpy as np
import pytest
import tiny
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from workbench import models
from workbench.app.cli import app
from workbench.core.errors import BadInput
from workbench.models.checkpoints import DIFFERENCE, WEIGHTS
from workbench.models.model_card import describe
from workbench.models.weights import delta_weights, export_hf

BITS = arrays.arrays(np.int16, 40, elements=st.integers(-(2**15), 2**15 - 1))


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    """A tiny model in bf16, one that differs from it a little, and the second as a difference from the first."""
    folder = tmp_path_factory.mktemp("difference")
    base = tiny.checkpoint(folder / "base")
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16)
    model.save_pretrained(base)
    with torch.no_grad():
        for i, weight in enumerate(model.parameters()):
            weight += 0.1 * weight.std() * torch.randn(weight.shape, generator=torch.Generator().manual_seed(i))
    shutil.copytree(base, folder / "tuned")
    model.save_pretrained(folder / "tuned")
    delta_weights.save(folder / "tuned", folder / "kept", str(base))
    return folder


@given(BITS, BITS)
def test_every_bit_comes_back_from_any_two_numbers(weights, base):
    low, high = delta_weights.encode(weights, base)
    assert np.array_equal(delta_weights.decode(low, high, base), weights)


def test_whole_numbers_stand_in_the_order_of_the_values():
    values = torch.tensor([-torch.inf, -3.0, -1e-30, -0.0, 0.0, 1e-30, 0.5, 3.0, torch.inf]).bfloat16()
    order = delta_weights.ordered(values.view(torch.int16).numpy())
    assert (np.diff(order.astype(int)) > 0).all()


def test_a_difference_loads_as_the_model_it_was_and_is_smaller(tuned):
    whole, kept = models.load(tuned / "tuned"), models.load(tuned / "kept")
    assert all(torch.equal(a, b) for a, b in zip(whole.model.parameters(), kept.model.parameters(), strict=True))
    assert whole.model.dtype == kept.model.dtype and models.load(tuned / "kept", dtype="bfloat16").model.dtype
    assert (tuned / "kept" / DIFFERENCE).stat().st_size < (tuned / "tuned" / WEIGHTS).stat().st_size
    assert {**describe(tuned / "kept"), "path": ""} == {**describe(tuned / "tuned"), "path": ""}


def test_other_programs_find_no_weights_and_an_ordinary_copy_has_the_same(tuned, tmp_path):
    with pytest.raises(OSError, match="safetensors"):
        AutoModelForCausalLM.from_pretrained(tuned / "kept")
    result = CliRunner().invoke(app, ["models", "ordinary", str(tuned / "kept"), str(tmp_path / "plain")])
    assert result.exit_code == 0, result.output
    plain, source = (load_file(folder / WEIGHTS) for folder in (tmp_path / "plain", tuned / "tuned"))
    assert plain.keys() == source.keys() and all(torch.equal(plain[name], source[name]) for name in plain)
    assert {file.name for file in (tuned / "tuned").iterdir()} == {file.name for file in (tmp_path / "plain").iterdir()}
    with pytest.raises(BadInput, match="is there already"):
        export_hf.write(tuned / "kept", tmp_path / "plain")


def test_another_base_a_damaged_file_and_other_shapes_are_refused(tuned, tmp_path):
    kept = shutil.copytree(tuned / "kept", tmp_path / "kept")
    planes, about = load_file(kept / DIFFERENCE), {"base": str(tuned / "tuned"), "base_weights": "a", "weights": "b"}
    save_file(planes, kept / DIFFERENCE, about)
    with pytest.raises(BadInput, match="was made of other weights of"):
        models.load(kept)
    save_file(planes, kept / DIFFERENCE)
    with pytest.raises(BadInput, match="does not say its base"):
        models.load(kept)
    kept = shutil.copytree(tuned / "kept", tmp_path / "again")
    good = delta_weights._about(kept)
    swapped = {"low": planes["high"].clone(), "high": planes["high"]}
    for damaged, words in ((planes | {"low": planes["low"][:-9]}, "is damaged"), (swapped, "restores other weights")):
        save_file(damaged, kept / DIFFERENCE, good)
        with pytest.raises(BadInput, match=words):
            models.load(kept)
    save_file(planes, kept / DIFFERENCE, good | {"base": "nowhere"})
    with pytest.raises(BadInput, match="unknown model 'nowhere'"):
        models.load(kept)
    other = tiny.checkpoint(tmp_path / "other", vocab_size=410)
    with pytest.raises(BadInput, match="differ in names, shapes or number formats"):
        delta_weights.save(tuned / "tuned", tmp_path / "out", str(other))
    with pytest.raises(BadInput, match="all weights in bfloat16"):
        delta_weights.save(other, tmp_path / "out", str(other))
    assert not (tmp_path / "out").exists()


def test_the_command_writes_a_difference_and_says_its_size(tuned, tmp_path):
    words = ["models", "difference", str(tuned / "tuned"), str(tmp_path / "kept"), "--base", str(tuned / "base")]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0 and f"MB in {tmp_path / 'kept'}" in result.output.replace("\n", "")
    again, kept = (load_file(folder / "kept" / DIFFERENCE) for folder in (tmp_path, tuned))
    assert all(torch.equal(again[name], kept[name]) for name in ("low", "high"))

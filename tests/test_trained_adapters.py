"""An adapter that was trained loads alone, says what it is, and is refused where it does not fit."""

import json
from dataclasses import replace

import pytest
import tiny
import torch
from safetensors.torch import load_file, save_file
from self_teacher import LORA, tuned

from tests.refusals import refused
from workbench import models
from workbench.core.errors import BadInput
from workbench.models.weights import adapters
from workbench.training.tuning.output import save_adapter
from workbench.training.tuning.scores import Evaluation
from workbench.training.tuning.start import start
from workbench.training.tuning.text.examples import Data


@pytest.fixture(scope="module")
def adapter(sharp, texts, tmp_path_factory):
    """An adapter of a few steps, and the logits of the model it was trained in."""
    pytest.importorskip("peft")
    out = tmp_path_factory.mktemp("adapter")
    evaluation = Evaluation(every=6, samples=4, data=texts["held"])
    run, progress = tuned(replace(LORA, lr=5e-2), sharp, texts["train"], out / "run", evaluation)
    save_adapter(run, progress, out / "tiny-block")
    run.loaded.model.set_attn_implementation("sdpa")
    with torch.no_grad():
        return out / "tiny-block", run.loaded.model.eval()(torch.arange(40)[None]).logits


def test_an_adapter_loads_back_to_the_logits_it_was_trained_to_without_peft(adapter, sharp, monkeypatch):
    folder, wanted = adapter
    monkeypatch.setitem(__import__("sys").modules, "peft", None)
    loaded, plain = models.load(folder), models.load(sharp)
    ids = torch.arange(40)[None]
    with torch.no_grad():
        for each in (loaded, plain):
            each.model.set_attn_implementation("sdpa")
        found, before = loaded.model(ids).logits, plain.model(ids).logits
    assert (before - wanted).abs().max() > 0.1
    torch.testing.assert_close(found, wanted, rtol=0, atol=0.02 * float((before - wanted).abs().max()))  # bf16
    assert loaded.layout == plain.layout


def test_an_adapter_is_described_by_its_card_and_its_header(adapter, sharp):
    folder, _ = adapter
    about = models.describe(folder)
    assert about["type"] == f"adapter of {sharp}" and about["layers"] == 2 and about["context"] == 2048
    assert {x.dtype for x in load_file(folder / "adapter_model.safetensors").values()} == {torch.bfloat16}
    tuning, card = json.loads((folder / "tuning.json").read_text()), (folder / "README.md").read_text()
    assert about["parameters"] == tuning["parameters"] and f"{tuning['parameters']:,}" in card
    assert tuning["overlap"]["scored_passages"] and tuning["overlap"]["digest"]
    last = tuning["scores"][-1]["block"]
    assert f"{last['kl']:.3f} [{last['kl_low']:.3f}, {last['kl_high']:.3f}]" in card and "no labels" in card


def spoiled(adapter, tmp_path, **declared):
    folder = tmp_path / "spoiled"
    folder.mkdir()
    for path in adapter[0].iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    about = json.loads((folder / "workbench.json").read_text())
    (folder / "workbench.json").write_text(json.dumps(about | {"adapter": about["adapter"] | declared}))
    return folder


def test_an_adapter_of_other_weights_is_refused(adapter, tmp_path):
    other = tiny.checkpoint(tmp_path / "other", initializer_range=0.2)
    with pytest.raises(BadInput, match=r"was trained on other weights of .*other"):
        models.load(spoiled(adapter, tmp_path, base=str(other)))


def test_a_missing_base_is_refused_with_the_command_that_fetches_it(adapter, tmp_path):
    folder = spoiled(adapter, tmp_path, base="not-fetched")
    refused(r"adapter of 'not-fetched', which is not here \(workbench models get not-fetched", models.load, folder)
    assert models.describe(folder)["context"] is None  # it is listed all the same


def test_the_digest_is_of_the_weights_however_they_are_split(tmp_path):
    whole, split = tiny.checkpoint(tmp_path / "whole"), tiny.checkpoint(tmp_path / "split", shard="40KB")
    one, other = (adapters.digest_of(models.weights_of(folder)) for folder in (whole, split))
    assert one == other != adapters.digest_of(models.weights_of(tiny.checkpoint(tmp_path / "x", vocab_size=410)))


BROKEN = {
    "another kind": (lambda config, kept: config.update(peft_type="IA3"), "peft_type is 'IA3'"),
    "more than LoRA": (lambda config, kept: config.update(use_dora=True), "use_dora is True"),
    "no rank": (lambda config, kept: config.update(r=0), "r is 0"),
    "half a module": (lambda config, kept: kept.pop(sorted(kept)[0]), "does not fit its base model"),
    "something else": (lambda config, kept: kept.update(odd=torch.zeros(1)), "holds 'odd', which is no part of a LoRA"),
    "another shape": (
        lambda config, kept: kept.update({sorted(kept)[0]: torch.zeros(4, 7)}),
        "does not fit its base model: .* is .* for",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_an_adapter_that_does_not_fit_is_refused(adapter, tmp_path, name):
    spoil, message = BROKEN[name]
    folder = spoiled(adapter, tmp_path)
    config, kept = (
        json.loads((folder / "adapter_config.json").read_text()),
        load_file(folder / "adapter_model.safetensors"),
    )
    spoil(config, kept)
    (folder / "adapter_config.json").write_text(json.dumps(config))
    save_file(kept, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    refused(message, models.load, folder)


def test_an_adapter_is_no_base_for_another(adapter, texts, tmp_path):
    with pytest.raises(BadInput, match="is an adapter: LoRA of its base model"):
        start(LORA, str(adapter[0]), Data(texts["train"]), tmp_path / "run")

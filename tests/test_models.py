import json

import pytest
import torch

from tests import tiny
from tests.refusals import refused
from workbench import models
from workbench.data import assets
from workbench.data.layouts import LAB, RELEASED


@pytest.fixture
def whole(tmp_path):
    return tiny.checkpoint(tmp_path / "whole")


def test_a_folder_loads_with_its_layout(whole):
    model, tokenizer, layout = models.load(whole)
    assert (model.device.type, model.dtype, model.training) == ("cpu", torch.float32, False)
    assert tokenizer.bos_token_id == model.config.bos_token_id
    assert layout == LAB
    assert models.load(str(whole), dtype="bfloat16")[0].dtype == torch.bfloat16


def test_without_a_declaration_the_layout_is_the_released_one(whole):
    (whole / "workbench.json").unlink()
    assert models.layout_of(whole) == RELEASED


def test_shipped_models_load_by_name(whole, tmp_path, monkeypatch):
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path))
    monkeypatch.setattr(assets, "models", lambda: ["lab-tiny"])
    monkeypatch.setattr(assets, "model_path", lambda name: whole)
    assert models.names() == ["lab-tiny"]
    assert models.load("lab-tiny")[0].config.hidden_size == 32


def cut(path, share=0.5):
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])


def rename_type(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "nonesuch", "architectures": []}))


BROKEN = {
    "no config": (lambda folder: (folder / "config.json").unlink(), "config.json is missing"),
    "half a config": (lambda folder: cut(folder / "config.json"), "config.json is corrupt or half-written"),
    "a config without a type": (lambda folder: (folder / "config.json").write_text("{}"), "no model_type"),
    "an unknown type": (rename_type, "nonesuch"),
    "no tokenizer": (lambda folder: (folder / "tokenizer.json").unlink(), "has no tokenizer: one of tokenizer.json"),
    "half a tokenizer": (lambda folder: cut(folder / "tokenizer.json"), "tokenizer.json is corrupt or half-written"),
    "an odd tokenizer": (lambda folder: (folder / "tokenizer.json").write_text("{}"), "cannot be loaded"),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), "has no weights"),
    "half the weights": (
        lambda folder: cut(folder / "model.safetensors"),
        "model.safetensors is corrupt or half-written",
    ),
    "weights cut in the header": (lambda folder: cut(folder / "model.safetensors", 0.001), "corrupt or half-written"),
    "empty weights": (lambda folder: (folder / "model.safetensors").write_bytes(b""), "corrupt or half-written"),
    "no layout in it": (lambda folder: (folder / "workbench.json").write_text("{}"), "no layout object"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_checkpoint_that_is_not_whole_is_refused(whole, name):
    spoil, message = BROKEN[name]
    spoil(whole)
    refused(message, models.load, whole)


@pytest.mark.parametrize("share", [None, 0.5])
def test_a_missing_or_cut_shard_is_named(tmp_path, share):
    folder = tiny.checkpoint(tmp_path / "sharded", shard="40KB")
    last = sorted(folder.glob("model-*.safetensors"))[-1]
    last.unlink() if share is None else cut(last, share)
    refused(last.name, models.load, folder)


@pytest.mark.parametrize(
    "options, message",
    [
        (
            {"name_or_path": "no-such-model"},
            "unknown model 'no-such-model': allowed are a checkpoint folder, a shipped",
        ),
        ({"name_or_path": "nobody/no-such-model"}, "unknown model 'nobody/no-such-model'"),
        ({"name_or_path": "runs/a/b/c"}, "unknown model 'runs/a/b/c'"),
        ({"device": "tpu"}, "unknown device 'tpu': allowed are cpu, cuda"),
        ({"device": "xpu"}, "unknown device 'xpu'"),
        ({"device": "cuda:99"}, "'cuda:99' is not there"),
        ({"dtype": "int3"}, "unknown dtype 'int3': allowed are float32"),
    ],
)
def test_unknown_names_list_what_is_allowed(whole, options, message):
    refused(message, models.load, **{"name_or_path": whole} | options)

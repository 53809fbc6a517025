"""A damaged checkpoint, or one of somebody else's making, is refused in one sentence before it answers wrongly."""

import json
import re
import shutil
import warnings

import pytest
import tiny
import torch
from safetensors.torch import load_file, save_file

from tests.refusals import refused
from workbench import models

INFINITY = float("inf")
QUERY = "model.layers.0.self_attn.q_proj.weight"


@pytest.fixture(scope="module")
def sharded(tmp_path_factory):
    return tiny.checkpoint(tmp_path_factory.mktemp("sharded") / "tiny", shard="20KB")


@pytest.fixture
def folder(folder, tmp_path):
    return shutil.copytree(folder, tmp_path / "tiny")


def configure(folder, **fields):
    declared = json.loads((folder / "config.json").read_text()) | fields
    (folder / "config.json").write_text(json.dumps(declared))


def refusal_of(folder):
    text = refused(".", models.load, folder)
    assert len(text) < 900
    return text


CONFIG = [
    ({"num_hidden_layers": 1}, "config.json names 1 layers .* the weights are those of 2"),
    ({"num_hidden_layers": 3}, "config.json names 3 layers .* the weights are those of 2"),
    ({"num_hidden_layers": 10**9}, "the weights are those of 2"),
    ({"num_hidden_layers": 10**12}, "num_hidden_layers is 10+"),
    ({"rope_parameters": {}}, "rope_parameters is {}, rope_theta is needed"),
    ({"rope_parameters": None}, "rope_parameters is None, rope_theta is needed"),
    ({"rope_parameters": {"rope_type": "default"}}, "rope_theta is needed"),
    ({"rope_parameters": {"rope_type": "default", "rope_theta": 0}}, "rope_theta of its rotary positions is 0"),
    ({"rope_parameters": {"rope_type": "default", "rope_theta": "a"}}, "config.json"),
    ({"max_position_embeddings": 0}, "max_position_embeddings is 0, a whole number of at least 1"),
    ({"max_position_embeddings": -5}, "max_position_embeddings is -5"),
    ({"max_position_embeddings": "a"}, "max_position_embeddings"),
    ({"hidden_size": "a"}, "config.json cannot be used: .*hidden_size"),
    ({"hidden_act": 5}, "config.json cannot be used: .*hidden_act"),
    ({"num_attention_heads": 0}, "config.json"),
    ({"head_dim": 0}, "config.json|head_dim"),
    ({"rms_norm_eps": INFINITY}, "rms_norm_eps is inf, a finite number"),
    ({"eos_token_id": "a"}, "eos_token_id"),
    ({"dtype": "int8"}, "dtype is 'int8': allowed are float32"),
    ({"dtype": [1]}, r"dtype is \[1\]"),
    ({"quantization_config": {"quant_method": "nope"}}, "quantisation 'nope' is not known"),
    ({"quantization_config": "a"}, "quantisation 'a' is not known"),
    ({"quantization_config": {}}, "quantisation None is not known"),
    ({"quantization_config": {"quant_method": "awq", "bits": 4}}, "cannot be loaded"),
    ({"_attn_implementation": "somebody/kernels"}, "_attn_implementation is 'somebody/kernels'"),
    ({"attn_implementation": 5}, "attn_implementation is 5"),
    ({"model_type": "nope", "auto_map": {"AutoConfig": "a.A", "AutoModelForCausalLM": "a.B"}}, "config.json cannot"),
]


@pytest.mark.parametrize(("fields", "why"), CONFIG, ids=[json.dumps(fields)[:60] for fields, _ in CONFIG])
def test_a_config_that_would_compute_something_else_is_refused(fields, why, folder):
    configure(folder, **fields)
    assert re.search(why, refusal_of(folder))


@pytest.mark.parametrize("name", ["sdpa", "eager", "flash_attention_2"])
def test_an_attention_that_transformers_knows_is_passed_over(name, folder):
    configure(folder, _attn_implementation=name)
    models.load(folder)


def test_code_of_a_checkpoint_is_not_run(folder):
    for file in ("modeling_x.py", "configuration_x.py"):
        (folder / file).write_text(f"open({str(folder / 'ran')!r}, 'w')\n")
    remote = {"AutoConfig": "configuration_x.X", "AutoModelForCausalLM": "modeling_x.X"}
    configure(folder, auto_map=remote)
    models.load(folder)  # a type that transformers has itself
    configure(folder, model_type="x", auto_map=remote)
    refusal_of(folder)
    assert not (folder / "ran").exists()


def test_pickled_weights_are_not_opened(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    assert "has no weights" in refusal_of(folder)


def changed(name, change):
    return lambda weights: weights | {name: change(weights[name]).contiguous()}


WEIGHTS = {
    "missing": (lambda w: {k: v for k, v in w.items() if k != QUERY}, "1 weights are missing"),
    "another shape": (changed(QUERY, lambda x: x[:5]), "wrong shape"),
    "a layer too many": (lambda w: w | {QUERY.replace("0", "7"): w[QUERY].clone()}, "the weights are those of 8"),
    "a bias too many": (lambda w: w | {QUERY.replace("weight", "bias"): torch.ones(32)}, "has no place for"),
    "a head of infinities": (changed("lm_head.weight", lambda x: x / 0), "lm_head.weight holds infinities or nan"),
    "one nan": (changed(QUERY, lambda x: x.index_fill(0, torch.tensor(0), float("nan"))), "infinities or nan"),
    "one matrix of integers": (changed(QUERY, lambda x: x.to(torch.int8)), "as I8: allowed are F64"),
    "only integers": (lambda w: {k: v.to(torch.int32) for k, v in w.items()}, "as I32: allowed are F64"),
    "eight-bit numbers": (changed(QUERY, lambda x: x.to(torch.float8_e4m3fn)), "as F8_E4M3"),
}


@pytest.mark.parametrize("damage", WEIGHTS)
def test_weights_that_are_not_those_of_the_config_are_refused(damage, folder):
    change, why = WEIGHTS[damage]
    file = folder / "model.safetensors"
    save_file(change(load_file(file)), file, metadata={"format": "pt"})
    assert why in refusal_of(folder)


def test_weights_that_count_nowhere_are_said(folder):
    file = folder / "model.safetensors"
    save_file(load_file(file) | {"vision.projection": torch.ones(2)}, file, metadata={"format": "pt"})
    with pytest.warns(UserWarning, match=r"1 weights are left out, first vision\.projection"):
        models.load(folder)


def test_a_whole_checkpoint_is_loaded_without_a_word(folder, sharded):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for path in (folder, sharded):
            models.load(path)


INDEX = [
    '{"weight_map": {"a": 1}}',
    '{"weight_map": ["a"]}',
    '{"weight_map": {"a": "../x.safetensors"}}',
    "[" * 100_000,
]
INDEX += ['{"weight_map": {"a": "/etc/passwd"}}', '{"weight_map": {"a": null}}', '{"weight_map": {"a": "a.bin"}}']


@pytest.mark.parametrize("text", INDEX, ids=[text[:40] for text in INDEX])
def test_an_index_names_safetensors_of_its_own_folder(text, sharded, tmp_path):
    folder = shutil.copytree(sharded, tmp_path / "tiny")
    (folder / "model.safetensors.index.json").write_text(text)
    assert "index.json" in refusal_of(folder)


FILES = ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json", "workbench.json"]
BROKEN = ["[" * 100_000, '{"x": ' + "9" * 5000 + "}", "[]", "5", "null"]


@pytest.mark.parametrize("text", BROKEN, ids=[text[:10] for text in BROKEN])
@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_no_object_is_one_sentence(name, text, folder):
    (folder / name).write_text(text)
    refusal_of(folder)


@pytest.mark.parametrize("name", ["x" * 5000, "a\0b", "a/" + "x" * 5000, "a\ud800"])
def test_a_model_name_that_no_folder_can_have_is_refused(name):
    assert len(refused("unknown model", models.load, name)) < 900

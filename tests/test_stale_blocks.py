"""A cached block is served only by the model that made it: weights, buffers, scalars; a model with hooks is refused."""

import pytest
import torch

from tests.random_models import block_of, model_of
from tests.refusals import refused
from workbench import models
from workbench.core.kv import KV
from workbench.store import FolderStore, MemoryStore, fetch, fingerprint

BLOCK = block_of(9, seed=1)


def scale_rotation(model):
    model.model.rotary_emb.inv_freq.mul_(0.5)


def replace_rotation(model):
    model.model.rotary_emb.register_buffer("inv_freq", model.model.rotary_emb.inv_freq * 1.1, persistent=False)


def stretch_one_frequency(model):
    model.model.rotary_emb.inv_freq[-1] *= 1.05


def change_epsilon(model):
    model.model.layers[0].input_layernorm.variance_epsilon = 0.5


def change_scaling(model):
    model.model.layers[1].self_attn.scaling *= 2


def change_weight(model):
    with torch.no_grad():
        model.model.layers[0].mlp.down_proj.weight[0, 0] += 1


CHANGES = [scale_rotation, replace_rotation, stretch_one_frequency, change_epsilon, change_scaling, change_weight]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("place", ["memory", "disk"])
def test_a_block_of_a_model_that_was_changed_is_not_served(change, place, tmp_path):
    model = model_of()
    store = MemoryStore() if place == "memory" else FolderStore(tmp_path / "a", new=True)
    (before,) = fetch(model, [BLOCK], store)
    change(model)
    (after,) = fetch(model, [BLOCK], store)
    assert len(store) == 2
    same = all(torch.equal(a, b) for a, b in zip(before.tensors(), after.tensors(), strict=True))
    assert not same or change is change_scaling, "what the block is computed with has changed"


@pytest.mark.parametrize("which", ["register_forward_hook", "register_forward_pre_hook"])
def test_a_model_with_hooks_is_refused(which):
    model = model_of()
    handle = getattr(model.model.layers[0].mlp, which)(lambda *_: None)
    refused("forward hook", fetch, model, [BLOCK], MemoryStore())
    handle.remove()
    assert fetch(model, [BLOCK], MemoryStore())


def test_last_bits_of_buffers_are_no_other_model():
    model = model_of()
    known = fingerprint(model)
    rotation = model.model.rotary_emb
    rotation.inv_freq = torch.nextafter(rotation.inv_freq, torch.tensor(1.0))
    assert fingerprint(model) == known


def layers(count=2, dtype=torch.float32, tokens=3):
    return [torch.zeros(1, tokens, 4, dtype=dtype) for _ in range(count)]


@pytest.mark.parametrize(
    ("made", "sentence"),
    [
        (lambda: KV(layers(), layers(dtype=torch.bfloat16)), "keys of torch.float32 and values of torch.bfloat16"),
        (lambda: KV(layers(), layers(), -1), "start is -1"),
        (lambda: KV(layers(), layers(1)), "2 layers and values of 1"),
        (lambda: KV(None, layers()), "keys is None"),
    ],
)
def test_keys_and_values_that_do_not_go_together_are_refused(made, sentence):
    refused(sentence, made)


def test_a_model_made_under_inference_mode_is_refused_and_one_loaded_there_is_not(folder):
    with torch.inference_mode():
        made, loaded = model_of(), models.load(folder)
    refused("inference mode", fetch, made, [BLOCK], MemoryStore())
    assert fetch(loaded.model, [BLOCK], MemoryStore())

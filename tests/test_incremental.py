"""Edits of a prompt: what is encoded again, and that nothing else changes the result."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.random_models import block_of, model_of
from tests.refusals import refused
from workbench import models
from workbench.core.blocks import Block, Prompt
from workbench.core.kv import KV
from workbench.engine.encoding import encode
from workbench.engine.forward import prefill_many
from workbench.methods.incremental import revise
from workbench.store import FolderStore, MemoryStore, fetch, fingerprint, key_of

BLOCKS = [block_of(length, seed) for seed, length in enumerate((5, 1, 7, 3, 3, 9, 2, 6))]
QUESTIONS = [block_of(4, 50), block_of(6, 51)]
A, B, C, D = BLOCKS[:4]
Q = QUESTIONS[0]


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def model(request):
    return model_of(request.param)


@pytest.fixture(scope="module")
def llama():
    return model_of("llama")


@st.composite
def edited(draw) -> list[Prompt]:
    """Prompts, each an edit, insertion, deletion, exchange or shuffle of the one before."""
    context = draw(st.lists(st.sampled_from(BLOCKS), min_size=1, max_size=6))
    prompts = [Prompt((*context, draw(st.sampled_from(QUESTIONS))))]
    for _ in range(draw(st.integers(1, 5))):
        at = draw(st.integers(0, len(context) - 1))
        match draw(st.sampled_from(["edit", "insert", "delete", "shuffle", "nothing"])):
            case "edit":
                tokens = list(context[at].tokens)
                tokens[draw(st.integers(0, len(tokens) - 1))] = draw(st.integers(1, 90))
                context[at] = Block(tuple(tokens))
            case "insert":
                context.insert(at, draw(st.sampled_from(BLOCKS)))
            case "delete" if len(context) > 1:
                del context[at]
            case "shuffle":
                context = draw(st.permutations(context))
        prompts.append(Prompt((*context, draw(st.sampled_from(QUESTIONS)))))
    return prompts


def check_equal(model, revision, **tolerance) -> None:
    """KV and logits of the question are those of the same prompt with every block encoded anew."""
    anew = revise(model, revision.prompt, MemoryStore())
    one, other = prefill_many(model, [revision.request]), prefill_many(model, [anew.request])
    torch.testing.assert_close(one[0].logits, other[0].logits, **tolerance)
    torch.testing.assert_close([*revision.kv.tensors()], [*anew.kv.tensors()], **tolerance)


@given(edited())
@settings(max_examples=25)
def test_any_edits_encode_exactly_the_new_blocks_and_equal_encoding_everything_anew(model, prompts):
    store, seen, before = MemoryStore(), set(), None
    for prompt in prompts:
        revision = revise(model, prompt, store, before)
        new = set(prompt.context) - seen
        encoded = [b for b, status in zip(prompt.context, revision.statuses, strict=True) if status == "encoded"]
        assert len(encoded) == len(set(encoded)) and set(encoded) == new
        assert revision.computed == sum(map(len, new)) + len(prompt.question)
        check_equal(model, revision, atol=2e-5, rtol=0)
        seen |= new
        before = prompt


@given(edited(), st.integers(1, 25))
@settings(max_examples=20)
def test_a_store_that_evicts_costs_encoding_and_no_exactness(llama, prompts, tokens):
    store, before = MemoryStore(encode(llama, block_of(tokens)).nbytes), None
    for prompt in prompts:
        gone = {block for block in prompt.context if key_of(fingerprint(llama), llama.dtype, block) not in store}
        revision = revise(llama, prompt, store, before)
        encoded = {b for b, status in zip(prompt.context, revision.statuses, strict=True) if status == "encoded"}
        assert encoded == gone
        check_equal(llama, revision, atol=2e-5, rtol=0)
        before = prompt


def test_what_is_encoded_in_the_same_pass_is_equal_to_the_last_bit(llama):
    """Blocks of one forward pass that come back at another place: the same stored keys, turned the same way."""
    store = MemoryStore()
    revise(llama, Prompt((A, B, C, D, Q)), store)
    revision = revise(llama, Prompt((D, C, B, A, Q)), store)
    again = revise(llama, Prompt((D, C, B, A, Q)), store)
    anew = MemoryStore()
    revise(llama, Prompt((A, B, C, D, Q)), anew)
    fresh = revise(llama, Prompt((D, C, B, A, Q)), anew)
    for other in (again, fresh):
        assert all(torch.equal(x, y) for x, y in zip(revision.kv.tensors(), other.kv.tensors(), strict=True))


def revisions(model, *contexts, store=None):
    before, found = None, []
    store = MemoryStore() if store is None else store  # an empty store is false
    for context in contexts:
        prompt = Prompt((*context, Q))
        found.append(revise(model, prompt, store, before))
        before = prompt
    return found


@pytest.mark.parametrize(
    ("old", "new", "expected", "shifts"),
    [
        ([A, B, C], [A, B, C], ["kept", "kept", "kept"], [0, 0, 0]),
        ([A, B, C], [A, D, C], ["kept", "encoded", "moved"], [0, None, 2]),
        ([A, B, C], [A, C], ["kept", "moved"], [0, -1]),
        ([A, B, C], [A, D, B, C], ["kept", "encoded", "moved", "moved"], [0, None, 3, 3]),
        ([A, B, C], [C, B, A], ["moved", "moved", "moved"], [-6, 2, 8]),
        ([A, B], [A, A, B], ["kept", "moved", "moved"], [0, 5, 5]),
        ([A], [A, D, D], ["kept", "encoded", "recalled"], [0, None, None]),
    ],
)
def test_every_block_has_one_fate(llama, old, new, expected, shifts):
    revision = revisions(llama, old, new)[-1]
    assert (list(revision.statuses), list(revision.shifts)) == (expected, shifts)
    assert revision.blocks("encoded") == expected.count("encoded")


def test_a_prefix_cache_keeps_what_stands_before_the_first_change(llama):
    first, same, edited, longer = revisions(llama, [A, B, C], [A, B, C], [A, D, C], [A, D, C, B])
    assert first.prefix == 0
    assert same.prefix == len(same.prompt) - 1, "the last token is always computed"
    assert len(A) <= edited.prefix < len(A) + len(D)
    assert longer.prefix >= len(A) + len(D) + len(C)


def test_a_prompt_over_the_context_is_refused_before_anything_is_encoded(llama):
    store = MemoryStore()
    refused("over the model's context of 512", revise, llama, Prompt((*[block_of(60, i) for i in range(9)], Q)), store)
    assert not len(store)


# --- A cached block is served only by the model that made it: weights, buffers, scalars; a model with hooks is refused
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

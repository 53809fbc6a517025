"""One call each: tables of one prompt agree with what they are read off."""

from itertools import product

import pytest
import torch
from random_models import prompt_of

import workbench
from workbench import data, explore, measure, select
from workbench.metrics.kv import kv_deviation
from workbench.models.given import reading_of

PROMPT = prompt_of(18, 18, 18, 18)
CONTEXT = PROMPT.starts[-1]


def test_deviation_has_a_row_a_token_layer_and_part(model):
    table = measure.deviation(model, PROMPT)
    layers = model.config.num_hidden_layers
    assert len(table) == CONTEXT * layers * 2 and list(table.block.unique()) == [0, 1, 2]
    first = table[table.block == 0]
    assert first.deviation.max() < 1e-4 < table[table.block == 2].deviation.max()


def test_tokens_that_are_not_computed_have_no_deviation(model):
    exact = kv_deviation.full_attention_kv(model, PROMPT)
    found = kv_deviation.deviation(measure.reused(model, PROMPT), exact)
    assert bool(found.tokens[CONTEXT:].isnan().all()) and not bool(found.tokens[:CONTEXT].isnan().any())


def test_scores_are_those_of_the_selectors(model):
    table = measure.scores(model, PROMPT, ["first_k", select.from_spec("kv_deviation")])
    assert list(table.columns) == ["token", "block", "first_k", "KvDeviation"]
    kv = measure.reused(model, PROMPT)
    assert torch.equal(torch.tensor(table.first_k.to_numpy()), select.from_spec("first_k")(model, PROMPT, kv))


def test_attention_of_the_question_is_a_share(model):
    table = measure.attention(model, PROMPT)
    assert len(table) == CONTEXT and table.attention.sum() == pytest.approx(1) and table.attention.min() >= 0


@pytest.mark.parametrize("call", ["deviation", "scores", "attention"])
def test_tables_of_tokens_hold_their_texts_where_the_tokenizer_is_known(call, loaded):
    (sample,) = data.load("lab", samples=1, passages=2)
    table = getattr(measure, call)(loaded, sample, **CALLS[call])
    tokens = table.drop_duplicates("token")
    reading = reading_of(loaded, sample)
    assert list(table.columns)[:3] == ["token", "text", "block"]
    assert list(tokens.text) == reading.tokens[: len(tokens)] and len(tokens) == reading.prompt.starts[-1]


def test_selected_tiles_hold_the_mass_that_they_name(model):
    table = measure.selected(model, PROMPT, "window(block=16, local=1)")
    assert set(table.columns) == {"layer", "head", "query_tile", "key_tile", "tokens", "mass"}
    assert (table.key_tile <= table.query_tile).all() and (table.tokens == 16).all()
    own = measure.selected(model, PROMPT, "dense")
    assert own.groupby(["layer", "head", "query_tile"]).mass.sum().to_numpy() == pytest.approx(1, abs=1e-3)


TEXT = "Bees dance.\n\nMaps fold badly.\n\nHow do maps fold?"
CALLS = {
    "deviation": {},
    "scores": {"selectors": ["first_k"]},
    "attention": {},
    "selected": {"method": "dense"},
}


@pytest.mark.parametrize("name", CALLS)
def test_what_is_measured_is_given_as_to_an_explorer(loaded, name):
    (sample,) = data.load("lab", samples=1, passages=2)
    call, more = getattr(measure, name), CALLS[name]
    (prompt,) = loaded.layout.prompts([sample], loaded.tokenizer)
    exact = call(loaded.model, prompt, **more)
    forms = (loaded, tuple(loaded)), (sample, prompt, reading_of(loaded, sample))
    for one, given in product(*forms):
        assert call(one, given, **more).equals(exact)
    texts = call(loaded, TEXT, **more), call(loaded, TEXT.rpartition("\n\n")[0], question="How do maps fold?", **more)
    assert texts[0].equals(texts[1])


def test_dir_of_a_public_module_lists_what_is_public():
    for name in ("data", "measure", "models", "results", "select", "sparse", "prepare", "explore", "store", "notebook"):
        module = getattr(workbench, name)
        assert dir(module) == sorted(module.__all__) and not any(each.startswith("_") for each in dir(module))
        assert all(hasattr(module, each) for each in dir(module))
    assert {*workbench.__all__} <= {*dir(workbench)} and not any(each.startswith("_") for each in dir(workbench))


def test_public_modules_are_listed():
    for name in ("data", "measure", "models", "results", "select", "sparse", "prepare", "explore", "store"):
        assert name in dir(workbench) and getattr(workbench, name)


@pytest.mark.parametrize(
    ("call", "given", "named"),
    [
        (measure.deviation, {"model": ["lab-full"]}, "model"),
        (measure.deviation, {"model": ("lab-full", 3)}, "model"),
        (measure.attention, {"prompt": 3}, "prompt"),
        (measure.attention, {"prompt": ["one piece"]}, "prompt"),
        (explore.deviation, {"model": ["lab-full"]}, "model"),
        (explore.deviation, {"prompt": 3}, "prompt"),
        (measure.scores, {"selectors": "random"}, "selectors"),
        (measure.selected, {"method": 3}, "method"),
    ],
)
def test_what_is_no_model_prompt_or_method_is_named(model, loaded, call, given, named):
    needed = {"scores": {"selectors": ["random"]}, "selected": {"method": "dense"}}.get(call.__name__, {})
    model = loaded if "prompt" in given else model
    with pytest.raises(workbench.BadInput, match=f"^{named} is ") as problem:
        call(**{"model": model, "prompt": PROMPT, **needed, **given})
    assert len(str(problem.value)) < 120 and "(" not in str(problem.value), "a sentence, no repr"

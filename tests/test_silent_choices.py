"""A choice that changes nothing says so, and names what would change something."""

import json

import pytest

from tests.commands import told
from workbench import data, models
from workbench.app.console import trial_report
from workbench.experiments.trials.trial import Trial
from workbench.methods import sparse
from workbench.methods.sparse._small import CHUNKED, SETTINGS, for_short_prompts
from workbench.metrics.tiles.sparsity import measure

SHORT = {"samples": 1, "passages": 3, "max_new_tokens": 1, "timed": 1, "fidelity": False}


@pytest.fixture(scope="module")
def model(folder):
    return str(folder)


def test_published_blocks_on_a_short_prompt_say_that_nothing_is_sparse_and_what_fits(model):
    record = Trial(model, sparse="bfla", **SHORT).run()
    assert record.sparsity["tiles"] == 1
    fits = for_short_prompts("bfla", round(record.prompt_tokens))
    assert f"bfla keeps every tile of prompts of {record.prompt_tokens:,.0f} tokens" in record.note
    assert f"options for such prompts: --sparse {fits!r}" in record.note


@pytest.fixture(scope="module")
def lab():
    lm = models.load("lab-full")
    return lm.model, lm.layout.prompts(data.load("lab", samples=1), lm.tokenizer)


@pytest.mark.parametrize("name", sorted({*SETTINGS} - {*CHUNKED, "dense"}))
def test_the_options_that_are_named_leave_tiles_out_on_the_lab_model(name, lab):
    model, (prompt,) = lab
    assert len(prompt) < 600
    fitting = sparse.from_spec(for_short_prompts(name, len(prompt))).for_model(model)
    assert measure(model, [prompt], fitting).mean("tiles") < 0.8


@pytest.mark.parametrize("name", CHUNKED)
def test_what_chooses_among_earlier_chunks_is_told_to_cut_the_prompt_in_chunks(name, model):
    note = Trial(model, sparse=name, **SHORT).run().note
    assert "keeps every tile" in note and note.endswith("it selects among tokens of earlier chunks: add --chunk 128.")
    record = Trial(model, sparse=f"{name}(block=16)", chunk=16, **SHORT).run()
    assert record.sparsity["density"] < 1 and "keeps every tile" not in record.note


@pytest.mark.parametrize(
    ("tiles", "density", "told"), [(1.0, 0.44, ("token pairs kept", "44%")), (0.8, 0.44, ("tiles kept", "80%"))]
)
def test_a_choice_of_tokens_of_every_tile_is_told_by_the_pairs_that_it_keeps(tiles, density, told):
    assert trial_report._kept({"tiles": tiles, "density": density}, 0) == told


def test_the_command_says_it_too(model):
    words = ["trial", "--model", model, "--sparse", "bfla", "--samples", "1", "--passages", "3"]
    words += ["--max-new-tokens", "1", "--timed", "1", "--no-fidelity"]
    assert "keeps every tile of prompts of" in " ".join(told(*words).split())
    assert "keeps every tile" in json.loads(told(*words, "--json"))["note"]


def test_dense_keeps_every_tile_without_a_word(model):
    assert "keeps every tile" not in Trial(model, sparse="dense", **SHORT).run().note


@pytest.mark.parametrize(("correct", "whole"), [("kvcomm", True), ("kvcomm(most=0)", False), ("agent_kv_shift", False)])
def test_a_correction_that_computed_every_prompt_says_why_and_what_lets_it_reuse_more(correct, whole, model):
    record = Trial(model, mode="block", correct=correct, **SHORT).run()
    assert (record.rows_computed == record.prompt_tokens) == whole
    assert ("kvcomm computed every prompt in full: each had a passage" in record.note) == whole
    assert ("threshold=0.7" in record.note) == whole


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_for_short_prompts_are_of_the_method_that_was_asked_for(name):
    assert for_short_prompts(f"{name}()", 500).partition("(")[0] == name
    assert for_short_prompts("of_ones_own(block=8)", 500) == "of_ones_own(block=8)"

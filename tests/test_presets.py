"""Published methods by name: each is a trial that can be run, and options change it."""

import pytest
import tiny
import torch

from tests.refusals import refused
from workbench import data, models
from workbench.core.blocks import Prompt
from workbench.engine.encoding import packs
from workbench.experiments.trials.trial import Trial
from workbench.methods.presets import METHODS, options
from workbench.methods.select.cache_clip import CacheClip
from workbench.models.weights import soft_tokens

QUESTIONS = {"samples": 4, "passages": 4, "max_new_tokens": 3, "timed": 1}


@pytest.mark.parametrize("name", METHODS)
def test_every_published_method_answers_and_accounts_for_its_tokens(folder, loaded, name):
    fields = dict(METHODS[name].fields)
    if fields.get("prepare") == "with_neighbours":
        fields["prepare"] = "with_neighbours(n=2, search=exact)"
    small = {
        "cacheclip": "cache_clip(helper=lab-full)",  # of another tokenizer
        "cacheblend-gradual": "kv_deviation(fresh=True, layer=0, stages=(0.3,))",  # of two layers
    }
    fields |= {"select": small[name]} if name in small else {}
    if fields.get("prepare") == "packet":
        loaded = models.load(folder)
        soft_tokens.grow(loaded.model, soft_tokens.sample_embeddings(loaded.model, (2, 1, 1)))
    record = Trial(str(folder), **fields, **QUESTIONS).run(loaded=loaded)
    assert record.n == 4 and record.flops > 0 and record.ttft_s.n == 1
    assert (record.rows_reused > 0) == (name not in ("full", "kvcomm")), "KVCOMM computes its first anchors in full"
    if name not in ("superposition", "kv-packet", "kvlink"):  # soft tokens are none of the prompt's
        assert record.rows_computed + record.rows_reused == record.prompt_tokens


def test_a_helper_reads_in_groups_what_is_more_than_its_context_and_in_one_what_is_not(folder, loaded, tmp_path):
    model, tokenizer, layout = loaded
    prompts = layout.prompts(data.load("lab", samples=2, passages=6), tokenizer)
    question = max(len(prompt.question) for prompt in prompts)
    most = question + max(sum(map(len, prompt.context[:3])) for prompt in prompts)
    small, whole = (tiny.checkpoint(tmp_path / str(n), max_position_embeddings=n) for n in (most, 2048))
    assert all(len(prompt) > most for prompt in prompts)
    for prompt in prompts:
        found = CacheClip(helper=str(small), window=1).scores(model, [prompt], [])[0]
        groups = packs([len(block) for block in prompt.context], most - len(prompt.question))
        parts = [Prompt((*(prompt.context[i] for i in group), prompt.blocks[-1])) for group in groups]
        apart = [CacheClip(helper=str(whole), window=1).scores(model, [part], [])[0] for part in parts]
        assert len(groups) > 1
        torch.testing.assert_close(found, torch.cat(apart))


def test_methods_cache_what_their_papers_cache(folder, loaded):
    """EPIC and Block-Attention cache chunks by themselves; Full Reuse is FusionRAG's, behind the system prompt."""
    looked_back = {}
    for name in ("block", "epic", "prompt-cache", "full-reuse", "cacheblend", "fusionrag"):
        looked_back[name] = METHODS[name].fields.get("prepare", "independent")
    assert looked_back["block"] == looked_back["epic"] == looked_back["prompt-cache"] == "independent"
    assert looked_back["full-reuse"] == looked_back["cacheblend"] == "after_system"
    assert looked_back["fusionrag"] == "with_neighbours"
    assert Trial(str(folder)).prepare == "independent", "where a method names none"


def test_what_a_method_computes_grows_with_what_it_recomputes(folder, loaded):
    rows = {
        name: Trial(str(folder), **METHODS[name].fields, **QUESTIONS).run(loaded=loaded).rows_computed
        for name in ("full", "full-reuse", "cacheblend", "epic")
    }
    assert rows["full-reuse"] < rows["cacheblend"] == rows["epic"] < rows["full"]


def test_flops_count_what_the_selector_computes(folder, loaded):
    common = {"mode": "block", "prepare": "after_system", "ratio": 0.2} | QUESTIONS
    flops = {
        select: Trial(str(folder), select=select, **common).run(loaded=loaded).flops
        for select in ("random", "query_guided", "kv_deviation")
    }
    assert flops["random"] < flops["query_guided"] < flops["kv_deviation"]


def test_options_change_a_method():
    assert options("fusionrag", {"ratio": "0.3"}) == {**METHODS["fusionrag"].fields, "ratio": 0.3}
    assert options("cacheblend", {"ratio": "own"})["ratio"] is None
    assert options(None, {"select": "random"}) == {"select": "random", "mode": "block"}
    assert options(None, {}) == {} and options("full", {})["mode"] == "full"


@pytest.mark.parametrize(
    ("method", "given", "sentence"),
    [
        ("fuse", {}, "unknown method 'fuse': allowed are full, block, prompt-cache"),
        ("compact", {}, "unknown method 'compact': it is a choice of trial and sweep, --sparse compact$"),
        ("random", {}, "it is a choice of trial and sweep, --select random or --sparse random$"),
        ("cache_clip", {}, "did you mean 'cacheclip'"),
        (None, {"ratio": "half"}, "ratio is 'half': a share from 0 to 1, or own"),
    ],
)
def test_unknown_options_are_refused(method, given, sentence):
    refused(sentence, options, method, given)

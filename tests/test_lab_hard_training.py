"""Models of the harder lab: two sizes, a curriculum that knows all its words, weights in few bits."""

import json
import re
from copy import deepcopy
from random import Random

import pytest
import torch
from transformers import LlamaForCausalLM
from typer.testing import CliRunner

from workbench import data, models
from workbench.app.cli import app
from workbench.core.errors import BadInput
from workbench.data.lab_corpus import hard_words
from workbench.data.lab_corpus.style import HARD, PLAIN, Style
from workbench.training.lab import checkpoint, evaluate
from workbench.training.lab.config import RECIPES, PretrainConfig, recipe
from workbench.training.lab.curriculum import ANSWER, HARD_STAGES, STAGES, STAGES_OF, Stage, draw
from workbench.training.lab.ship import ship
from workbench.training.lab.tokenizer import train_tokenizer
from workbench.training.lab.train import PretrainProgress

SMALL = PretrainConfig(hidden=32, intermediate=48, layers=2, heads=2, kv_heads=1, head_dim=16, corpus="lab-hard")


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(2560, worlds=100, styles=(PLAIN, HARD))


@pytest.fixture(scope="module")
def finished(tokenizer, tmp_path_factory):
    """Folder of a model that was never trained, written as a finished one is."""
    out = tmp_path_factory.mktemp("runs") / "model"
    torch.manual_seed(0)
    model = LlamaForCausalLM(SMALL.model_config(len(tokenizer)))
    facts = {"minutes": 1.5, "device": "the CPU", "parameters": 12345, "stages": len(HARD_STAGES)}
    checkpoint.save(
        out, model, tokenizer, SMALL, PretrainProgress(curve=[{"step": 20, "stage": 0, "loss": 7.5}]), facts
    )
    return out


@pytest.mark.parametrize(
    ("name", "least", "most", "last"), [("lab-hard-small", 3e6, 4e6, 6_000), ("lab-hard-large", 11.5e6, 12.5e6, 5_000)]
)
def test_the_two_sizes_have_the_parameters_they_should(name, least, most, last):
    config = recipe(name, seed=2)
    with torch.device("meta"):
        model = LlamaForCausalLM(config.model_config(2170))
    assert least <= sum(p.numel() for p in model.parameters()) <= most
    assert (config.seed, config.corpus, config.context, config.head_dim) == (2, "lab-hard", 4096, 64)
    assert config.last == last


@pytest.mark.parametrize("stage", range(len(HARD_STAGES)))
def test_a_batch_of_the_harder_curriculum_is_drawn_from_its_seed_alone(stage, tokenizer):
    small = deepcopy(HARD_STAGES[stage])
    object.__setattr__(small, "batch", 8)
    batch, again = (draw(small, Random(5), tokenizer) for _ in range(2))
    assert torch.equal(batch.tokens, again.tokens) and batch.kinds == again.kinds and batch.tokens.shape[1] < 4096
    assert len(set(batch.answers[batch.roles == ANSWER].tolist())) == len(batch.kinds)


def test_the_harder_curriculum_uses_its_words_from_the_first_stage_on_and_mixes_both_corpora():
    assert all(style.paraphrases and style.phrases for style in HARD_STAGES[0].styles)
    assert {style.titles for style in HARD_STAGES[0].styles} == {"continued", "kept"}
    assert Style(hints=0.5) in HARD_STAGES[-1].styles and {s.titles for s in HARD_STAGES[-1].styles} > {"kept"}
    assert all(stage.others == () for stage in STAGES)
    assert "multi-value" in HARD_STAGES[-1].kinds and len(HARD_STAGES) > len(STAGES)


def test_every_word_of_the_harder_lab_is_one_token_of_its_models(tokenizer):
    adjectives = [word for both in hard_words.ADJECTIVES.values() for words in both for word in words]
    said = " ".join(says for listed in hard_words.PARAPHRASES.values() for says in listed)
    words = [*hard_words.RECORDS, *adjectives, *re.findall(r"(?<!{)\b[a-z]+\b(?!})", said)]
    encoded = tokenizer([f" {word}" for word in words], add_special_tokens=False).input_ids
    assert [word for word, ids in zip(words, encoded, strict=True) if len(ids) != 1] == []


@pytest.mark.parametrize("storage", ["bfloat16", "float16", "int8"])
def test_a_shipped_model_answers_as_the_one_it_was(finished, tmp_path, storage):
    out = tmp_path / "lab-hard-tiny"
    done = CliRunner().invoke(app, f"lab ship --model {finished} --out {out} --storage {storage}".split())
    assert done.exit_code == 0 and f"MB in {out}" in " ".join(done.output.split())
    tokens = torch.arange(3, 40)[None]
    before, after = (models.load(path).model(tokens).logits for path in (finished, out))
    assert (before - after).abs().max() < 0.05 * before.std()
    card = (out / "README.md").read_text()
    assert "# lab-hard-tiny" in card and "worlds of the corpora lab and lab-hard" in card
    assert ("loads with `workbench.models.load`" in card) == (storage == "int8")
    sizes = {path: (path / "tokenizer.json").stat().st_size for path in (finished, out)}
    assert len(set(sizes.values())) == 1 and json.loads((out / "training.json").read_text())["recipe"]["corpus"]


def test_what_cannot_be_shipped_or_trained_is_refused_and_nothing_written(finished, tmp_path, monkeypatch):
    with pytest.raises(BadInput, match="storage is 'int4': allowed are bfloat16, float16, int8"):
        ship(finished, tmp_path / "out", "int4")
    with pytest.raises(BadInput, match="only models of `workbench lab train` are shipped"):
        ship(tmp_path, tmp_path / "out", "int8")
    monkeypatch.setattr(
        "workbench.training.lab.tokenizer.tokenizer_for", lambda corpus: pytest.fail("work before the refusal")
    )
    for given, message in (
        ("--recipe lab-harder", "unknown recipe 'lab-harder'"),
        ("--set corpus=x", "unknown corpus 'x'"),
    ):
        done = CliRunner().invoke(app, f"lab train --out {tmp_path / 'out'} {given}".split())
        assert done.exit_code == 2 and message in " ".join(done.output.split())
    assert not (tmp_path / "out").exists() and set(RECIPES) == {"lab", "lab-hard-small", "lab-hard-large"}


def test_a_model_is_scored_on_the_harder_lab_by_name(finished, monkeypatch):
    monkeypatch.setattr(evaluate, "LENGTHS", (2,))
    scores = evaluate.evaluate(str(finished), samples=2, corpus="lab-hard")
    assert scores["data"] == "lab-hard" and scores["full, 2 passages"]["all"]["n"] == 2
    assert scores["recompute_all"]["bit_identical"] == scores["recompute_all"]["samples"]
    with pytest.raises(BadInput, match="unknown lab corpus 'needles'"):
        evaluate.evaluate(str(finished), samples=2, corpus="needles")


def test_training_worlds_are_never_those_of_scored_seeds(tokenizer):
    scored = {passage.text for seed in (0, 1) for sample in data.load("lab-hard", 16, seed) for passage in sample.ctxs}
    stage = deepcopy(HARD_STAGES[-2])
    object.__setattr__(stage, "batch", 8)
    texts = [
        tokenizer.decode(row) for i in range(2) for row in draw(stage, Random(f"lab train {i} 0"), tokenizer).tokens
    ]
    assert texts and not any(passage in text for passage in scored for text in texts)


def test_a_recipe_is_trained_from_the_command_line_on_the_stages_of_its_corpus(tokenizer, tmp_path, monkeypatch):
    easy = Style(facts=1, continued=0.0, asides=0.0)
    stages = tuple(Stage((2, 2), easy, {"single-hop": 1.0}, 4, 2, most=20, others=(HARD,)) for _ in range(2))
    monkeypatch.setitem(STAGES_OF, "lab-hard", stages)
    monkeypatch.setattr("workbench.training.lab.tokenizer.tokenizer_for", lambda corpus: tokenizer)
    settings = {"hidden": 32, "intermediate": 48, "layers": 1, "heads": 2, "kv_heads": 1, "head_dim": 16, "last": 20}
    given = " ".join(f"--set {name}={value}" for name, value in settings.items())
    command = f"lab train --recipe lab-hard-large --seed 3 --workers 0 --out {tmp_path / 'run'} {given}"
    done = CliRunner().invoke(app, command.split())
    assert done.exit_code == 0, done.output
    record = json.loads((tmp_path / "run" / "model" / "training.json").read_text())
    assert record["recipe"] | settings == record["recipe"] and record["recipe"]["corpus"] == "lab-hard"
    assert (record["steps"], record["stages"], record["recipe"]["lr"]) == (40, 2, RECIPES["lab-hard-large"].lr)

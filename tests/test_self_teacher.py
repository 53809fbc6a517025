"""Self-distillation in miniature: block mode nears full attention; runs resume and keep to their budget."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from self_teacher import CONFIG, LORA, same, tuned, weights
from torch.nn.functional import kl_div

from tests.refusals import refused
from workbench import generate, models
from workbench.data.layouts import LAB
from workbench.training import common
from workbench.training.tuning import train as loop
from workbench.training.tuning.scores import Evaluation
from workbench.training.tuning.start import CACHE, TuneRun, draw_own_answers, start
from workbench.training.tuning.teacher import divergence, logits_of, pack_taught
from workbench.training.tuning.text.examples import Data
from workbench.training.tuning.train import train


@given(st.integers(1, 4), st.integers(1, 9), st.integers(2, 30), st.integers(0, 2**31))
def test_divergence_and_its_gradient_are_those_of_torch(taught, rows, vocabulary, seed):
    generator = torch.Generator().manual_seed(seed)
    teacher = torch.randn(taught, vocabulary, generator=generator)
    student = torch.randn(rows, vocabulary, generator=generator, requires_grad=True)
    rows_of = torch.randint(taught, (rows,), generator=generator)
    weights = torch.rand(rows, generator=generator)
    wanted = kl_div(student.log_softmax(-1), teacher[rows_of].log_softmax(-1), log_target=True, reduction="none").sum(
        -1
    )
    (gradient,) = torch.autograd.grad((wanted * weights).sum(), student)
    found = divergence(student, teacher, rows_of)
    (other,) = torch.autograd.grad((found * weights).sum(), student)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(other, gradient, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("config", [CONFIG, pytest.param(LORA, id="lora")])
def test_before_the_first_step_full_mode_is_the_teacher_and_block_mode_is_not(config, sharp, texts):
    if config.lora_rank:
        pytest.importorskip("peft")
    run, source = start(config, sharp, Data(texts["train"]), Path("unused"))
    batch = pack_taught([source[0]], config)
    with torch.no_grad():
        logits, taught = logits_of(run.model, run.teacher, batch, run.windows, bf16=False)
    each = divergence(logits, taught, batch.same)
    full = each[batch.student.examples[batch.student.rows] == 0]
    block = each[batch.student.examples[batch.student.rows] == 1]
    assert full.abs().max() < 1e-5 and block.mean() > 1e-3


@pytest.mark.parametrize("positions", ["re-encoded", "naive"])
def test_block_mode_nears_the_teacher_on_held_out_text_and_full_mode_stays(sharp, tmp_path, positions):
    pytest.importorskip("peft")
    config = replace(LORA, steps=16, lr=1e-2, positions=positions)
    held, worlds = Evaluation(every=16, samples=6, passages=2), Data("lab", passages=(2, 2), questions=4)
    run, source = start(config, sharp, worlds, tmp_path / "run", held)
    before, after = train(run, source, held).scores
    assert before["full"]["kl"] < 1e-5 and before["n"] == 6 and abs(before["full"]["nll_gap"]) < 1e-4
    assert after["block"]["kl"] < 0.75 * before["block"]["kl"] and after["full"]["kl"] < 0.2 * before["block"]["kl"]
    assert before["block"]["kl_low"] <= before["block"]["kl"] <= before["block"]["kl_high"]


def test_the_loss_falls_with_all_weights_and_the_teacher_is_a_frozen_copy(sharp, texts, tmp_path, monkeypatch):
    monkeypatch.setattr(common, "READ_EVERY", 1)
    run, progress = tuned(replace(CONFIG, steps=25, lr=2e-3), sharp, texts["train"], tmp_path / "run")
    losses = [row["loss"] for row in progress.curve]
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])
    assert {"kl_full", "kl_block", "full", "block"} <= progress.curve[-1].keys()
    untouched = models.load(sharp).model.state_dict()
    assert same(dict(run.teacher.model.state_dict()), dict(untouched)) and not same(weights(run), dict(untouched))


class Killed(Exception):
    pass


@pytest.mark.parametrize("config", [CONFIG, pytest.param(LORA, id="lora")])
def test_killed_and_resumed_is_not_interrupted(config, sharp, texts, tmp_path):
    if config.lora_rank:
        pytest.importorskip("peft")

    def kill(row):
        if row["step"] == 4:
            raise Killed

    whole = tuned(config, sharp, texts["unlabelled"], tmp_path / "whole", save_every=2)[0]
    with pytest.raises(Killed):
        tuned(config, sharp, texts["unlabelled"], tmp_path / "cut", report=kill, save_every=2)
    again = tuned(config, sharp, texts["unlabelled"], tmp_path / "cut", save_every=2)[0]
    assert same(weights(whole), weights(again))


def test_without_labels_the_model_answers_itself_once(sharp, texts, tmp_path):
    for _ in range(2):
        run, source = start(CONFIG, sharp, Data(texts["unlabelled"]), tmp_path / "run")
        draw_own_answers(run, source)
        said = json.loads((tmp_path / "run" / CACHE).read_text())["answers"]
        (tmp_path / "run" / CACHE).write_text((tmp_path / "run" / CACHE).read_text().replace(" ", ""))
    assert {tuple(said[str(i)]) for i in range(4)} == {source[i].questions[0].answer for i in range(4)}
    assert all(1 <= len(answer) <= CONFIG.own_tokens for answer in said.values())
    loaded = models.load(sharp)
    prompts = LAB.prompts(source.samples[:1], loaded.tokenizer)
    (wanted,) = generate(loaded.model, loaded.tokenizer, prompts, max_new_tokens=4, stop=LAB.stop)
    assert list(wanted.tokens) == said["0"]


def test_gold_answers_alone_need_no_drawing(sharp, texts, tmp_path):
    run, source = start(CONFIG, sharp, Data(texts["train"]), tmp_path / "run")
    draw_own_answers(run, source)
    assert not (tmp_path / "run").exists() and len(source[0].questions) == 1
    both = replace(CONFIG, own_answers="all")
    run, source = start(both, sharp, Data(texts["train"]), tmp_path / "run")
    draw_own_answers(run, source)
    assert len(source[0].questions) == 2 and source[0].questions[0].question == source[0].questions[1].question


def test_the_rate_falls_with_the_budget_and_the_run_ends_with_it(sharp, texts, tmp_path):
    config = replace(CONFIG, steps=1000, budget=1.0, warmup=0)
    assert config.rate(0, 0) == config.lr and config.rate(0, 30) == pytest.approx(config.lr / 2)
    assert config.rate(500, 6) == config.lr / 2 and config.rate(1, 90) == 0
    assert not config.finished(999, 59) and config.finished(1000, 0) and config.finished(1, 60)
    quick = replace(config, budget=1e-4)
    _, progress = tuned(quick, sharp, texts["train"], tmp_path / "run", Evaluation(1000, 2, texts["held"]))
    assert progress.step == 1 and [row["step"] for row in progress.scores] == [0, 1]
    assert (tmp_path / "run" / "state").is_dir()


@pytest.fixture
def settled(monkeypatch):
    """A CPU that takes its batches for a GPU's: one length for all, and a batch that is compiled for."""
    monkeypatch.setattr(TuneRun, "tiles", True)
    monkeypatch.setattr(TuneRun, "how", "parts")


def test_a_run_compiles_for_two_lengths_says_so_and_learns_what_it_would_without(
    sharp, texts, tmp_path, settled, monkeypatch
):
    lines, held = [], Evaluation(every=6, samples=5, data=texts["held"])
    run, source = start(CONFIG, sharp, Data(texts["train"]), tmp_path / "run", held, say=lines.append)
    progress = train(run, source, held)
    assert len(run.compiled) == 2 and max(run.compiled) == 2 * min(run.compiled)
    assert any("compil" in line for line in lines), "who waits is told why"
    monkeypatch.setattr(TuneRun, "tiles", False)
    plain, source = start(CONFIG, sharp, Data(texts["train"]), tmp_path / "plain", held)
    without = train(plain, source, held)
    for key, x in weights(plain).items():
        torch.testing.assert_close(weights(run)[key], x, rtol=0, atol=1e-4)
    for row, other in zip(progress.scores, without.scores, strict=True):
        assert row["n"] == other["n"] == 5 and row["block"]["kl"] == pytest.approx(other["block"]["kl"], abs=1e-3)


def test_the_budget_counts_from_the_first_step_on(sharp, texts, tmp_path, monkeypatch):
    config, now = replace(CONFIG, budget=1.0, steps=3), [0.0]

    def scored(*_):
        now[0] += 100.0
        return {"n": 2, "full": {"kl": 0.0}, "block": {}}

    monkeypatch.setattr("workbench.training.tuning.start.time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(loop, "fidelity", scored)
    _, progress = tuned(config, sharp, texts["train"], tmp_path / "run", Evaluation(3, 2, texts["held"]))
    assert (progress.step, progress.seconds, now[0]) == (3, 0.0, 200.0), "no evaluation is counted"


def test_a_first_evaluation_that_takes_long_is_cut_and_later_ones_ask_the_same(sharp, texts, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "FIRST_SECONDS", 0.0)
    _, progress = tuned(CONFIG, sharp, texts["train"], tmp_path / "run", Evaluation(3, 6, texts["held"]))
    assert [row["n"] for row in progress.scores] == [2, 2, 2]  # one batch of two contexts, of three


def test_a_model_is_tuned_on_prompts_of_the_layout_that_is_asked_for(sharp, texts, tmp_path):
    layout = tmp_path / "layout.json"
    layout.write_text(json.dumps(LAB.to_json() | {"name": "short", "system": "Answer.\n"}))
    run, source = start(CONFIG, sharp, Data(texts["train"]), tmp_path / "run", layout=str(layout))
    words = run.loaded.tokenizer
    assert words.decode(source[0].context[0]).endswith("Answer.\n") and run.loaded.layout.name == "short"
    train(run, source)
    refused("holds a run with another layout", lambda: start(CONFIG, sharp, Data(texts["train"]), tmp_path / "run"))

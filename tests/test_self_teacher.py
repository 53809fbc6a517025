"""Self-distillation in miniature: block mode nears full attention; runs resume and keep to their budget."""

import json
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import tiny
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from self_teacher import CONFIG, LORA, Killed, kill_at_step_4, same, tuned, weights
from torch.nn.functional import kl_div
from typer.testing import CliRunner

from tests.commands import refused_command
from tests.refusals import refused
from workbench import generate, models
from workbench.app.cli import app
from workbench.core.errors import BadInput
from workbench.data.layouts import LAB
from workbench.models.weights import adapters
from workbench.training import common
from workbench.training.tuning import train as loop
from workbench.training.tuning.output import save_adapter
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


def test_killed_and_resumed_is_not_interrupted(sharp, texts, tmp_path):
    """Of all weights: tests/test_tuning.py."""
    pytest.importorskip("peft")
    whole = tuned(LORA, sharp, texts["unlabelled"], tmp_path / "whole", save_every=2)[0]
    with pytest.raises(Killed):
        tuned(LORA, sharp, texts["unlabelled"], tmp_path / "cut", report=kill_at_step_4, save_every=2)
    again = tuned(LORA, sharp, texts["unlabelled"], tmp_path / "cut", save_every=2)[0]
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


def test_a_run_compiles_for_two_lengths_says_so_and_learns_what_it_would_without(sharp, texts, tmp_path, monkeypatch):
    """On a CPU that takes its batches for a GPU's: one length for all, and a batch that is compiled for."""
    monkeypatch.setattr(TuneRun, "tiles", True)
    monkeypatch.setattr(TuneRun, "mask_kind", "parts")
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


# --- `workbench tune` with a model as its own teacher: what it refuses, what it leaves, and how it ends when asked to
SELF_TAUGHT = "--warmup 1 --batch 2 --teacher self --lora-rank 2"


def tune(model, texts, out, options):
    """Run the command on the file of training questions."""
    common = ["--model", model, "--data", texts["train"], "--out", str(out), "--max-length", "2000"]
    return CliRunner().invoke(app, ["tune", *common, *options.split()])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "HELD", "--exclude", "HELD"], "shares a question with sample"),
        (["--data", "HELD", "--evaluate-every", "2", "--evaluate-data", "HELD"], "which is scored on"),
        (["--data", "lab", "--passages", "2", "--exclude", "HELD"], "mix and exclude are for files"),
        (["--data", "TRAIN", "--overlap", "keep"], "overlap is 'keep': allowed are refuse, drop"),
        (["--data", "TRAIN", "--mix", "some"], "mix is 'some'"),
        (["--data", "TRAIN", "--mix", "4-2"], "mix is 4-2"),
        (["--data", "TRAIN", "--questions", "2"], "are for data 'lab'"),
    ],
)
def test_the_command_ends_in_one_sentence_with_nothing_written(sharp, texts, tmp_path, arguments, message):
    named = [{"HELD": texts["held"], "TRAIN": texts["train"]}.get(each, each) for each in arguments]
    common = ["--model", sharp, "--out", str(tmp_path / "run"), "--max-length", "2000", "--teacher", "self"]
    assert message in refused_command("tune", *common, *named)
    assert not (tmp_path / "run").exists()


def test_the_command_leaves_an_adapter_under_the_name_of_its_base(sharp, texts, tmp_path):
    pytest.importorskip("peft")
    out = tmp_path / "tiny-block"
    result = tune(
        sharp, texts, out, f"{SELF_TAUGHT} --steps 2 --mix 2-3 --exclude {texts['held']} --base-name known-name"
    )
    assert result.exit_code == 0, result.output
    names = {path.name for path in (out / "adapter").iterdir()}
    assert names == {"README.md", "adapter_config.json", "adapter_model.safetensors", "tuning.json", "workbench.json"}
    declared = json.loads((out / "adapter" / "workbench.json").read_text())
    config = json.loads((out / "adapter" / "adapter_config.json").read_text())
    assert declared["adapter"]["base"] == config["base_model_name_or_path"] == "known-name"
    assert sorted(config["target_modules"]) == ["k_proj", "o_proj", "q_proj", "v_proj"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_run_that_is_asked_to_end_keeps_state_curve_and_adapter_and_goes_on(
    sharp, texts, tmp_path, monkeypatch, number
):
    pytest.importorskip("peft")
    out, steps = tmp_path / "run", []
    real = loop.step

    def step(*given):
        steps.append(given)
        if len(steps) == 2:
            os.kill(os.getpid(), number)
        return real(*given)

    monkeypatch.setattr(loop, "step", step)
    before = signal.getsignal(number)
    result = tune(sharp, texts, out, f"{SELF_TAUGHT} --steps 4")
    assert result.exit_code == 128 + number and "step 2 " in result.output
    assert signal.getsignal(number) is before
    assert json.loads((out / "adapter" / "tuning.json").read_text())["steps"] == 2
    assert json.loads((out / "curve.json").read_text())["seconds"] > 0 and not (out / "model").exists()
    result = tune(sharp, texts, out, f"{SELF_TAUGHT} --steps 4")
    assert result.exit_code == 0 and len(steps) == 4
    assert json.loads((out / "adapter" / "tuning.json").read_text())["steps"] == 4


# --- An adapter that was trained loads alone, says what it is, and is refused where it does not fit
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
    folder = shutil.copytree(adapter[0], tmp_path / "spoiled")
    about = json.loads((folder / "workbench.json").read_text())
    (folder / "workbench.json").write_text(json.dumps(about | {"adapter": about["adapter"] | declared}))
    return folder


def test_an_adapter_of_other_weights_is_refused(adapter, tmp_path):
    other = tiny.checkpoint(tmp_path / "other", initializer_range=0.2)
    refused(r"was trained on other weights of .*other", models.load, spoiled(adapter, tmp_path, base=str(other)))


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
    config = json.loads((folder / "adapter_config.json").read_text())
    kept = load_file(folder / "adapter_model.safetensors")
    spoil(config, kept)
    (folder / "adapter_config.json").write_text(json.dumps(config))
    save_file(kept, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    refused(message, models.load, folder)


def test_an_adapter_is_no_base_for_another(adapter, texts, tmp_path):
    with pytest.raises(BadInput, match="is an adapter: LoRA of its base model"):
        start(LORA, str(adapter[0]), Data(texts["train"]), tmp_path / "run")

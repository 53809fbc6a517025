"""Block fine-tuning in miniature: it learns, resumes bit for bit, writes whole models, refuses before any work."""

import json
import os
import subprocess
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
import tiny
import torch
from self_teacher import Killed, kill_at_step_4, same, weights
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from tests.commands import refused_command
from tests.refusals import refused
from workbench import data, models
from workbench.app.cli import app
from workbench.core.errors import BadInput
from workbench.engine.layers.fused_layers import side_by_side
from workbench.training import common
from workbench.training.tuning import train as loop
from workbench.training.tuning.config import TuneConfig
from workbench.training.tuning.output import TUNING, save_model
from workbench.training.tuning.scores import Evaluation
from workbench.training.tuning.start import start
from workbench.training.tuning.text.examples import Data
from workbench.training.tuning.train import train

CONFIG = TuneConfig(steps=6, batch=2, lr=3e-3, warmup=2, max_length=2000)
QUESTIONS = 6
FSDP = {
    "ACCELERATE_USE_FSDP": "true",
    "FSDP_VERSION": "2",
    "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
    "FSDP_TRANSFORMER_CLS_TO_WRAP": "LlamaDecoderLayer",
    "FSDP_STATE_DICT_TYPE": "SHARDED_STATE_DICT",
}


@pytest.fixture(scope="module")
def base(folder):
    return str(folder)


@pytest.fixture(scope="module")
def questions(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "questions.jsonl"
    drawn = data.load("lab", samples=QUESTIONS, seed=5, passages=2)
    path.write_text("".join(json.dumps(sample.to_json()) + "\n" for sample in drawn))
    return str(path)


def tuned(config, base, questions, out, **options):
    run, source = start(config, base, Data(questions), out)
    progress = train(run, source, **options)
    return run, progress


@pytest.fixture(scope="module")
def uninterrupted(base, questions, tmp_path_factory):
    """Run and progress of CONFIG."""
    return tuned(CONFIG, base, questions, tmp_path_factory.mktemp("whole"), save_every=2)


@pytest.mark.parametrize("config", [CONFIG, replace(CONFIG, accumulate=2, optimizer="muon", mode="block")])
def test_killed_and_resumed_is_not_interrupted(config, uninterrupted, base, questions, tmp_path):
    another = config != CONFIG
    whole, through = tuned(config, base, questions, tmp_path / "whole", save_every=2) if another else uninterrupted
    run, source = start(config, base, Data(questions), tmp_path / "cut")
    with pytest.raises(Killed):
        train(run, source, report=kill_at_step_4, save_every=2)
    again, progress = tuned(config, base, questions, tmp_path / "cut", save_every=2)
    assert same(weights(whole), weights(again))
    assert progress.curve == through.curve and progress.step == 6
    assert json.loads((tmp_path / "cut" / "curve.json").read_text())["train"] == through.curve


def test_a_state_saved_after_the_engine_laid_weights_side_by_side_is_resumed(
    uninterrupted, base, questions, tmp_path, monkeypatch
):
    monkeypatch.setattr(common, "READ_EVERY", 2)
    run, stopped = tuned(CONFIG, base, questions, tmp_path / "out", minutes=0)
    for layer in run.loaded[0].model.layers:  # as an evaluation does on a GPU
        attention = layer.self_attn
        side_by_side([attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight])
    run.save(stopped)
    resumed, progress = tuned(CONFIG, base, questions, tmp_path / "out")
    assert same(weights(uninterrupted[0]), weights(resumed)) and progress.step == 6


def test_drawing_processes_and_time_limits_change_nothing(uninterrupted, base, questions, tmp_path, monkeypatch):
    monkeypatch.setattr(common, "READ_EVERY", 2)
    whole, through = uninterrupted
    for _ in range(2):
        _, stopped = tuned(CONFIG, base, questions, tmp_path / "cut", minutes=0)
    assert stopped.step == 4
    again, progress = tuned(CONFIG, base, questions, tmp_path / "cut", workers=2)
    assert same(weights(whole), weights(again)) and progress.curve == through.curve


def test_accumulated_batches_and_recomputed_activations_give_the_gradients_of_one_batch(base, questions, tmp_path):
    config = replace(CONFIG, steps=3, batch=4)
    wanted = weights(tuned(config, base, questions, tmp_path / "one")[0])
    for name, other in (
        ("accumulated", replace(config, batch=2, accumulate=2)),
        ("recomputed", replace(config, gradient_checkpointing=True)),
    ):
        found = weights(tuned(other, base, questions, tmp_path / name)[0])
        for key in wanted:
            torch.testing.assert_close(found[key], wanted[key], rtol=0, atol=2e-4, msg=f"{name}: {key}")


def test_both_modes_learn_the_answers_and_the_model_is_whole(base, questions, tmp_path):
    few = tmp_path / "few.jsonl"
    few.write_text("".join(Path(questions).read_text().splitlines(keepends=True)[:2]))
    config = replace(CONFIG, steps=45, lr=1e-2)
    run, progress = tuned(config, base, str(few), tmp_path / "run", save_every=15)
    last = progress.curve[-1]
    assert last["loss"] < 0.2 and min(last["full"], last["block"]) == 1
    trained = weights(run)
    save_model(run, progress, tmp_path / "run" / "model")
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "model", dtype="float32")
    assert same(trained, dict(plain.state_dict()))  # the base checkpoint is float32 too
    assert models.load(tmp_path / "run" / "model")[2] == models.load(base)[2]
    record = json.loads((tmp_path / "run" / "model" / TUNING).read_text())
    assert record["recipe"]["steps"] == record["steps"] == 45 and record["base"]["name"] == base
    card = (tmp_path / "run" / "model" / "README.md").read_text()
    assert record["base"]["fingerprint"][:16] in card and "seed 0" in card and f"{last['block']:.3f}" in card


def test_both_modes_are_scored_at_the_beginning_every_so_often_and_at_the_end(base, questions, tmp_path):
    run, source = start(replace(CONFIG, steps=5), base, Data(questions), tmp_path / "run")
    rows = []
    progress = train(run, source, Evaluation(every=2, samples=3, passages=2), rows.append)
    assert [row["step"] for row in progress.scores] == [0, 2, 4, 5]
    assert all(row["full"]["n"] == row["block"]["n"] == 3 for row in progress.scores)
    assert [row for row in rows if "loss" not in row] == progress.scores
    untouched = tuned(replace(CONFIG, steps=5), base, questions, tmp_path / "other")[0]
    assert same(weights(run), weights(untouched))  # looking at a model does not change it


def test_two_processes_give_what_one_gives_with_twice_the_batch(python, base, questions, tmp_path):
    common = ["--model", base, "--data", questions, "--steps", "2", "--warmup", "1", "--lr", "1e-3"]
    command = ["workbench", "tune", *common, "--max-length", "2000", "--batch", "2"]
    two = [*python, "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--no-python", *python, *command]
    ways = {"ddp": ({}, ()), "fsdp": (FSDP, ())} | ({"lora": ({}, ("--lora-rank", "2"))} if find_spec("peft") else {})
    running = {
        name: subprocess.Popen(
            [*two, *options, "--out", str(tmp_path / name)],
            env=dict(os.environ, OMP_NUM_THREADS="1", **settings),
            cwd=Path(__file__).parents[1],
            stderr=subprocess.PIPE,
            text=True,
        )
        for name, (settings, options) in ways.items()
    }
    config = replace(CONFIG, steps=2, warmup=1, lr=1e-3, batch=4)
    for name, process in running.items():
        alone = replace(config, lora_rank=2 if name == "lora" else 0)
        run, progress = tuned(alone, base, questions, tmp_path / f"{name} alone")
        save_model(run, progress, tmp_path / f"{name} alone" / "model")
        _, errors = process.communicate()
        assert process.returncode == 0, errors[-2000:]
        folder = tmp_path / name / "model"
        assert json.loads((folder / TUNING).read_text())["processes"] == 2
        one, found = (
            AutoModelForCausalLM.from_pretrained(at, dtype="float32").state_dict()
            for at in (tmp_path / f"{name} alone" / "model", folder)
        )
        for key in one:
            torch.testing.assert_close(found[key], one[key], rtol=0, atol=1e-5, msg=f"{name}: {key}")


def test_lora_is_merged_and_kept_beside(base, questions, tmp_path):
    peft = pytest.importorskip("peft")
    config = replace(CONFIG, lora_rank=2, lr=5e-2)
    run, progress = tuned(config, base, questions, tmp_path / "run")
    save_model(run, progress, tmp_path / "run" / "model")
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "run" / "model")
    plain = AutoModelForCausalLM.from_pretrained(base)
    ids = torch.arange(20)[None]
    before, after = plain(ids).logits, merged(ids).logits
    adapted = peft.PeftModel.from_pretrained(plain, tmp_path / "run" / "model" / "adapter").eval()
    assert (before - after).abs().max() > 1e-3
    torch.testing.assert_close(adapted(ids).logits, after, rtol=0, atol=1e-4)


def test_a_missing_peft_is_told_with_the_line_that_installs_it(base, questions, tmp_path, monkeypatch):
    monkeypatch.setattr("workbench.training.tuning.start.find_spec", lambda name: None)
    with pytest.raises(BadInput, match=r"pip install 'cached-block-workbench\[lora\]'"):
        start(replace(CONFIG, lora_rank=2), base, Data(questions), tmp_path / "run")


def test_a_run_of_something_else_is_refused_and_left_alone(base, questions, tmp_path):
    out = tmp_path / "run"
    tuned(replace(CONFIG, steps=2), base, questions, out)
    before = (out / "state" / "progress.json").read_bytes()
    other = tiny.checkpoint(tmp_path / "other", num_hidden_layers=1)
    for config, model, source, message in (
        (replace(CONFIG, steps=2, lr=1e-4), base, questions, r"another recipe \(different: lr\)"),
        (replace(CONFIG, steps=2), str(other), questions, "from another base model"),
        (replace(CONFIG, steps=2), base, "lab-sample", "on other data"),
    ):
        refused(message, start, config, model, Data(source), out)
    assert (out / "state" / "progress.json").read_bytes() == before


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        (
            torch.OutOfMemoryError("CUDA out of memory"),
            "out of memory with batch 2 .* lower --batch .*raise --accumulate",
        ),
        (torch.tensor(float("nan")), "the loss is nan at step 4: lower --lr"),
    ],
)
def test_a_failing_step_says_what_to_lower_and_the_last_state_stays(
    base, questions, tmp_path, monkeypatch, failure, message
):
    real = loop.step

    def step(run, batches, number):
        if number < 2 or (isinstance(failure, torch.Tensor) and number < 3):
            return real(run, batches, number)
        if isinstance(failure, Exception):
            raise failure
        return failure

    run, source = start(CONFIG, base, Data(questions), tmp_path / "run")
    monkeypatch.setattr(loop, "step", step)
    refused(message + ".*step 2 is kept in", train, run, source, save_every=2)
    monkeypatch.undo()
    assert tuned(CONFIG, base, questions, tmp_path / "run")[1].step == 6


def test_the_rate_rises_and_falls_linearly():
    config = TuneConfig(steps=10, warmup=4, lr=1.0 - 1e-9)
    rates = [config.rate(step) for step in range(10)]
    assert rates[:4] == pytest.approx([0.25, 0.5, 0.75, 1.0])
    assert rates[4:] == pytest.approx([1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mode": "both"}, "unknown mode 'both': allowed are mixed, block, full"),
        ({"positions": "none"}, "unknown positions 'none'"),
        ({"steps": 0}, "steps is 0: at least 1"),
        ({"lr": 0.0}, "lr is 0.0"),
        ({"lr": float("nan")}, "lr is nan"),
        ({"warmup": 7}, "warmup is 7: at most all 6 steps"),
        ({"mode": "full", "positions": "naive"}, "mode full moves no block"),
        ({"optimizer": "muon", "lora_rank": 4}, "use adamw with lora_rank"),
        ({"teacher": "other"}, "unknown teacher 'other': allowed are gold, self"),
        ({"teacher": "self", "mode": "full"}, "teacher 'self' teaches nothing in mode full"),
        ({"question_weight": 1.5}, "question_weight is 1.5: from 0 to 1"),
        ({"question_weight": float("nan")}, "question_weight is nan"),
        ({"budget": 0.0}, "budget is 0.0: more than 0"),
        ({"own_tokens": 0}, "own_tokens is 0: at least 1"),
        ({"own_answers": "none"}, "unknown own_answers 'none'"),
        ({"lora_targets": "q"}, "unknown lora_targets 'q'"),
    ],
)
def test_a_recipe_that_cannot_be_is_refused(change, message):
    refused(message, replace, CONFIG, **change)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "nowhere"], "unknown data 'nowhere'"),
        (["--max-length", "5000"], "max_length is 5000: the model's context is 2048 tokens"),
        (["--max-length", "100"], "tokens with its answer, the limit is 100"),
        (["--passages", "few"], "passages is 'few'"),
        (["--device", "tpu"], "unknown device 'tpu'"),
        (["--data", "lab-sample", "--evaluate-every", "5"], "evaluate_every needs --evaluate-data"),
        (["--evaluate-data", "lab-sample"], "evaluate_data 'lab-sample' needs --evaluate-every"),
        (["--base-name", "known"], "base_name 'known' is of an adapter: it needs --lora-rank"),
        (["--minutes", "nan"], "minutes is nan: a number of at least 0 is needed"),
        (["--steps", "0"], "steps is 0"),
        (["--kinds", "order=nan"], "a positive weight for each is needed"),
        (["--attention", "dense"], "unknown attention 'dense': allowed are auto, tiles, parts"),
        (["--attention", "tiles"], "attention 'tiles' (FlexAttention) trains on a GPU only"),
        (["--layout", "nowhere"], "unknown layout 'nowhere'"),
    ],
)
def test_the_command_ends_in_one_sentence_with_nothing_written(base, tmp_path, arguments, message):
    out = tmp_path / "run"
    common = ["--model", base, "--out", str(out), "--passages", "2", "--max-length", "2000"]
    assert message in refused_command("tune", *common, *arguments)
    assert not out.exists()


def test_a_model_the_family_refuses_is_refused_by_name(base, questions, tmp_path):
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    other = tiny.checkpoint(tmp_path / "dynamic", rope_parameters=rope)
    refused("dynamic: frequencies change", lambda: start(CONFIG, str(other), Data(questions), tmp_path / "run"))


def test_the_command_tunes_and_says_where_the_model_is(base, questions, tmp_path):
    arguments = ["--model", base, "--data", questions, "--out", str(tmp_path / "run"), "--max-length", "2000"]
    result = CliRunner().invoke(app, ["tune", *arguments, "--steps", "2", "--warmup", "1", "--batch", "2"])
    assert result.exit_code == 0, result.output
    assert str(tmp_path / "run" / "model") in result.output.replace("\n", "")
    assert models.describe(tmp_path / "run" / "model")["layout"] == "lab"

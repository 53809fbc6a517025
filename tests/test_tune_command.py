"""`workbench tune` with a model as its own teacher: what it refuses, what it leaves, and how it ends when asked to."""

import json
import os
import signal
from dataclasses import replace

import pytest
from self_teacher import CONFIG
from typer.testing import CliRunner

from tests.refusals import refused
from workbench.app.cli import app
from workbench.training.tuning import train as loop

SELF_TAUGHT = "--warmup 1 --batch 2 --teacher self --lora-rank 2"


def tune(model, texts, out, options):
    """Run the command on the file of training questions."""
    common = ["--model", model, "--data", texts["train"], "--out", str(out), "--max-length", "2000"]
    return CliRunner().invoke(app, ["tune", *common, *options.split()])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"teacher": "other"}, "unknown teacher 'other': allowed are gold, self"),
        ({"mode": "full"}, "teacher 'self' teaches nothing in mode full"),
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
    result = CliRunner().invoke(app, ["tune", *common, *named])
    assert result.exit_code == 2 and message in " ".join(result.output.split()), result.output
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


def test_a_run_that_is_asked_to_end_keeps_state_curve_and_adapter_and_goes_on(sharp, texts, tmp_path, monkeypatch):
    pytest.importorskip("peft")
    out, steps = tmp_path / "run", []
    real = loop.step

    def step(*given):
        steps.append(given)
        if len(steps) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return real(*given)

    monkeypatch.setattr(loop, "step", step)
    before = signal.getsignal(signal.SIGTERM)
    result = tune(sharp, texts, out, f"{SELF_TAUGHT} --steps 4")
    assert result.exit_code == 128 + signal.SIGTERM and "ended by SIGTERM at step 2 of 4" in result.output
    assert signal.getsignal(signal.SIGTERM) is before
    assert json.loads((out / "adapter" / "tuning.json").read_text())["steps"] == 2
    assert json.loads((out / "curve.json").read_text())["seconds"] > 0 and not (out / "model").exists()
    result = tune(sharp, texts, out, f"{SELF_TAUGHT} --steps 4")
    assert result.exit_code == 0 and len(steps) == 4
    assert json.loads((out / "adapter" / "tuning.json").read_text())["steps"] == 4


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("--attention dense", "unknown attention 'dense': allowed are auto, tiles, parts"),
        ("--attention tiles", "attention 'tiles' (FlexAttention) trains on a GPU only"),
        ("--layout nowhere", "unknown layout 'nowhere'"),
    ],
)
def test_an_attention_or_a_layout_that_is_not_there_is_refused(sharp, texts, tmp_path, more, message):
    result = tune(sharp, texts, tmp_path / "run", more)
    assert result.exit_code == 2 and message in " ".join(result.output.split()), result.output
    assert not (tmp_path / "run").exists()

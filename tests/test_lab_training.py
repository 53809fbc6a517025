"""Training of a lab model in miniature: what it reads, that it learns, resumes and writes whole checkpoints."""

import json
import os
import signal
import time
from copy import deepcopy
from dataclasses import asdict, replace
from random import Random
from threading import Event
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

from tests.commands import refused_command, told
from tests.refusals import refused
from workbench import data, models
from workbench.app.cli import app
from workbench.core.utils import stages
from workbench.core.utils.compiled import stoppable_call
from workbench.data.lab_corpus.world import Style
from workbench.training.common import show_curve
from workbench.training.lab import checkpoint
from workbench.training.lab.checkpoint import ship
from workbench.training.lab.config import PretrainConfig
from workbench.training.lab.train import (
    ANSWER,
    NOTHING,
    STAGES,
    PretrainProgress,
    Stage,
    StageSampler,
    draw,
    train,
    train_tokenizer,
)
from workbench.training.run_folder import saved_record, saved_state_message

SMALL = PretrainConfig(hidden=32, intermediate=48, layers=2, heads=2, kv_heads=1, head_dim=16, warmup=10, last=40)
EASY = tuple(
    Stage((2, n), Style(facts=1, continued=0, asides=0), {"single-hop": 1.0}, batch=4, questions=2, most=20)
    for n in (2, 3)
)


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(worlds=200)


@pytest.fixture(scope="module")
def written(whole, tokenizer, tmp_path_factory):
    """Folder of a finished model."""
    model, progress = deepcopy(whole)  # saving rounds its weights
    facts = {"minutes": 1.5, "device": "the CPU", "parameters": 12345, "stages": len(EASY)}
    checkpoint.save(out := tmp_path_factory.mktemp("runs") / "model", model, tokenizer, SMALL, progress, facts)
    return out


@pytest.fixture(scope="module")
def whole(tokenizer, tmp_path_factory):
    """Model and progress of a run that was not interrupted."""
    return train(SMALL, tokenizer, tmp_path_factory.mktemp("whole"), EASY, save_every=20)


@pytest.mark.parametrize("stage", STAGES)
def test_a_batch_marks_every_answer_and_is_drawn_from_its_seed_alone(stage, tokenizer):
    stage = replace(stage, batch=8)
    batch, again = (draw(stage, Random(5), tokenizer) for _ in range(2))
    assert torch.equal(batch.tokens, again.tokens) and batch.kinds == again.kinds
    assert ((batch.roles == NOTHING) == (batch.tokens == tokenizer.pad_token_id)).all()
    for number, kind in enumerate(batch.kinds):
        row, where = (batch.answers == number).nonzero()[:, 0], batch.answers == number
        assert (batch.roles[where] == ANSWER).all() and len(set(row.tolist())) == 1
        text = tokenizer.decode(batch.tokens[where])
        assert text.startswith(" ") and text.endswith("\n") == (kind != "recall")


def test_nothing_is_asked_twice_over_one_context(tokenizer):
    stage = replace(STAGES[0], recalls=0.0, questions=30, batch=4)
    text = tokenizer.decode(draw(stage, Random(0), tokenizer).tokens[0])
    asked = [line for line in text.split("\n") if line.startswith("Question:")]
    assert 0 < len(asked) == len(set(asked)) <= 4


def test_what_is_drawn_does_not_depend_on_how_far_ahead_it_is_drawn():
    eager, lazy = PretrainProgress(), PretrainProgress()
    order = iter(StageSampler(eager, 0, 1))
    ahead = [next(order) for _ in range(60)]
    for progress in (eager, lazy):
        progress.entered.append(40)
        progress.step = 40
    drawn = ahead + [next(order) for _ in range(60)]
    assert drawn[40:] == [at for at, _ in zip(iter(StageSampler(lazy, 0, 1)), range(80), strict=False)]
    assert {stage for stage, _ in drawn[:104]} == {0} and drawn[104][0] == 1


def test_a_run_that_was_interrupted_ends_with_the_weights_of_one_that_was_not(whole, tokenizer, tmp_path):
    _, progress = train(SMALL, tokenizer, tmp_path / "parts", EASY, save_every=20, minutes=0)
    assert progress.step == 20
    rows: list[dict] = []

    def kill(row):
        rows.append(row)
        if row["step"] == 40:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(SMALL, tokenizer, tmp_path / "parts", EASY, kill, save_every=20)
    resumed, progress = train(SMALL, tokenizer, tmp_path / "parts", EASY, rows.append, save_every=20, workers=1)
    assert [row["step"] for row in rows] == [40, 40, 60] and progress.step == 60
    for a, b in zip(whole[0].parameters(), resumed.parameters(), strict=True):
        assert torch.equal(a, b)


def test_ctrl_c_ends_the_step_at_work_saves_it_and_the_same_call_goes_on_as_if_nothing_was(whole, tokenizer, tmp_path):
    def stop(row):
        os.kill(os.getpid(), signal.SIGINT)

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            train(SMALL, tokenizer, tmp_path, EASY, stop, save_every=60)
    assert saved_record(tmp_path)["progress"]["step"] == 41 and "step 41" in saved_state_message(tmp_path)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    resumed, progress = train(SMALL, tokenizer, tmp_path, EASY, save_every=60)
    assert progress.curve == whole[1].curve
    for a, b in zip(whole[0].parameters(), resumed.parameters(), strict=True):
        assert torch.equal(a, b)


def test_ctrl_c_is_heard_while_compiled_code_is_at_work_and_what_it_returns_or_raises_comes_through():
    ended = Event()

    def work():
        os.kill(os.getpid(), signal.SIGINT)
        ended.wait(60)

    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        stoppable_call(work)
    assert time.monotonic() - begin < 30
    ended.set()
    assert stoppable_call(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        stoppable_call(lambda: 1 // 0)


def test_the_loss_falls_and_the_curriculum_moves_on(whole):
    _, progress = whole
    losses = [row["loss"] for row in progress.curve]
    assert progress.entered == [0, 20] and progress.step == 60
    assert losses[-1] < 0.8 * losses[0]


def test_a_finished_model_is_a_whole_checkpoint_with_a_card(whole, written):
    again = AutoModelForCausalLM.from_pretrained(written)
    assert AutoTokenizer.from_pretrained(written).decode([1]) == "<s>"
    for a, b in zip(whole[0].parameters(), again.parameters(), strict=True):
        assert torch.equal(a.bfloat16(), b.bfloat16())
    card = (written / "README.md").read_text()
    assert "12,345 parameters" in card and "1.5 minutes" in card and f"seed {SMALL.seed}" in card
    assert models.load(written)[2].name == "lab"
    assert not list(written.parent.glob(".model*"))


@pytest.mark.parametrize("storage", ["bfloat16", "float16", "int8"])
def test_a_shipped_model_answers_as_the_one_it_was(written, tmp_path, storage):
    out = tmp_path / "lab-tiny"
    said = told("lab", "ship", "--model", written, "--out", out, "--storage", storage)
    assert f"MB in {out}" in " ".join(said.split())
    tokens = torch.arange(3, 40)[None]
    before, after = (models.load(path).model(tokens).logits for path in (written, out))
    assert (before - after).abs().max() < 0.05 * before.std()
    card = (out / "README.md").read_text()
    assert "# lab-tiny" in card and ("loads with `workbench.models.load`" in card) == (storage == "int8")
    sizes = {path: (path / "tokenizer.json").stat().st_size for path in (written, out)}
    assert len(set(sizes.values())) == 1


def test_what_cannot_be_shipped_is_refused_and_nothing_written(written, tmp_path):
    refused("storage is 'int4': allowed are bfloat16, float16, int8", ship, written, tmp_path / "out", "int4")
    refused("only models of `workbench lab train` are shipped", ship, tmp_path, tmp_path / "out", "int8")
    assert not (tmp_path / "out").exists()


def test_training_worlds_are_never_those_of_scored_seeds(tokenizer):
    scored = {passage.text for seed in (0, 1) for sample in data.load("lab", 16, seed) for passage in sample.ctxs}
    stage = replace(STAGES[-2], batch=8)
    drawn = [draw(stage, Random(f"lab train {i} 0"), tokenizer).tokens for i in range(2)]
    texts = [tokenizer.decode(row) for tokens in drawn for row in tokens]
    assert texts and not any(passage in text for passage in scored for text in texts)


def test_a_recipe_is_trained_from_the_command_line(tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr("workbench.training.lab.train.train_tokenizer", lambda: tokenizer)
    monkeypatch.setattr("workbench.training.lab.train.STAGES", EASY)
    settings = {"hidden": 32, "intermediate": 48, "layers": 1, "heads": 2, "kv_heads": 1, "head_dim": 16, "last": 20}
    given = " ".join(f"--set {name}={value}" for name, value in settings.items())
    command = f"lab train --seed 3 --workers 0 --out {tmp_path / 'run'} {given}"
    told(*command.split())
    record = json.loads((tmp_path / "run" / "model" / "training.json").read_text())
    assert record["recipe"] | settings == record["recipe"]
    assert (record["steps"], record["stages"], record["recipe"]["seed"]) == (40, 2, 3)


@pytest.fixture
def no_work(monkeypatch):
    """No tokenizer can be trained: a training begins with it."""
    monkeypatch.setattr("workbench.training.lab.train.train_tokenizer", lambda: pytest.fail("work was begun"))


@pytest.mark.parametrize(
    "arguments",
    [
        ["train", "--out", "OUT", "--set", "size=3"],
        ["train", "--out", "OUT", "--set", "lr=fast"],
        ["train", "--out", "OUT", "--set", "hidden=33"],
        ["train", "--out", "OUT", "--set", "heads=-8"],
        ["train", "--out", "OUT", "--set", "lr=0"],
        ["train", "--out", "OUT", "--set", "optimizer=sgd"],
        ["train", "--out", "OUT", "--set", "corpus=lab"],
        ["train", "--out", "OUT", "--workers", "-1"],
    ],
)
def test_bad_arguments_end_with_code_2_before_any_work_and_nothing_written(arguments, tmp_path, no_work):
    out = tmp_path / "out"
    refused_command("lab", *(out if argument == "OUT" else argument for argument in arguments))
    assert not out.exists()


def test_a_folder_of_another_recipe_is_refused_before_any_work(tmp_path, no_work):
    state = tmp_path / "run" / "state"
    state.mkdir(parents=True)
    (state / "progress.json").write_text(json.dumps({"recipe": asdict(SMALL)}))
    (tmp_path / "file").write_text("")
    for out, message in (("run", "holds a run of another recipe"), ("file", "is a file: a folder is needed")):
        assert message in refused_command("lab", "train", "--out", tmp_path / out)
    assert (state / "progress.json").read_text() == json.dumps({"recipe": asdict(SMALL)})


@pytest.mark.parametrize("main", [True, False])
def test_one_of_many_processes_writes_the_model(main, whole, tokenizer, tmp_path, monkeypatch):
    out = tmp_path / "run"
    (out / "state").mkdir(parents=True)
    monkeypatch.setattr("workbench.training.lab.train.train_tokenizer", lambda: tokenizer)
    monkeypatch.setattr("workbench.training.lab.train.train", lambda *_, **__: deepcopy(whole))
    monkeypatch.setattr("workbench.training.lab.train.is_finished", lambda *_: True)
    monkeypatch.setattr("accelerate.PartialState", lambda: SimpleNamespace(is_main_process=main))
    said = told("lab", "train", "--out", out)
    assert sorted(path.name for path in out.iterdir()) == (["model", "seconds", "state"] if main else ["state"])
    assert ("trained in" in said) == main


def test_a_training_that_is_killed_keeps_the_time_it_took(tokenizer, tmp_path, monkeypatch):
    def killed(*_, report, **__):
        report({"step": 20, "stage": 0, "loss": 1.0, "answers_right": 0.5})
        raise RuntimeError("the device is lost")

    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "seconds").write_text("600.0\n")
    monkeypatch.setattr("workbench.training.lab.train.train_tokenizer", lambda: tokenizer)
    monkeypatch.setattr("workbench.training.lab.train.train", killed)
    monkeypatch.setattr("workbench.training.lab.train.check", lambda *_: None)
    result = CliRunner().invoke(app, ["lab", "train", "--out", str(tmp_path / "run")])
    assert isinstance(result.exception, RuntimeError)
    assert float((tmp_path / "run" / "seconds").read_text()) > 600


@pytest.mark.parametrize(("main", "steps"), [(True, [20, 40]), (False, [])])
def test_without_a_bar_the_main_process_prints_a_line_every_so_many_steps(main, steps, capsys):
    with show_curve(main, 20, dict) as show:
        for step in (10, 20, 30, 40):
            show({"step": step, "loss": 1.0})
    assert [json.loads(line)["step"] for line in capsys.readouterr().out.splitlines()] == steps


def test_a_bar_moves_with_every_step_where_a_person_watches(monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with show_curve(True, 20, dict, 3):
        for step in (1, 2):
            stages.stage(f"step {step}")
        stages.stage("encoding 4 blocks")
    assert "2/3" in capsys.readouterr().err


def test_a_log_says_within_seconds_at_which_step_a_training_is(monkeypatch, capsys):
    monkeypatch.setattr("workbench.training.common.SOON", (0.0,))
    with show_curve(True, 20, dict, 300):
        for step in (1, 2):
            stages.stage(f"step {step}")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("step 1, after 0 s, ") and line.endswith("s left")

"""Self-distillation in miniature: block mode nears full attention, adapters load alone, scored text stays out."""

import json
import os
import re
import signal
import time
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import tiny
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch.nn.functional import kl_div
from typer.testing import CliRunner

from workbench import data, generate, models
from workbench.app.cli import app
from workbench.core.errors import BadInput
from workbench.data.layouts import LAB
from workbench.training import common
from workbench.training.tuning import train as loop
from workbench.training.tuning.batches import chunks, drawn, examples_of, fitting, room_of
from workbench.training.tuning.config import TuneConfig
from workbench.training.tuning.examples import Data, Example, Limits, Mixed, OwnAnswers, QuestionAnswer
from workbench.training.tuning.output import save_adapter
from workbench.training.tuning.overlap import apart, words_of
from workbench.training.tuning.own_answers import CACHE, draw
from workbench.training.tuning.packing import pack
from workbench.training.tuning.run import TuneRun
from workbench.training.tuning.scores import Evaluation
from workbench.training.tuning.start import start
from workbench.training.tuning.teacher import divergence, logits_of, pack_taught
from workbench.training.tuning.train import train

CONFIG = TuneConfig(teacher="self", steps=6, batch=2, lr=5e-3, warmup=2, max_length=2000, own_tokens=4)
LORA = replace(CONFIG, lora_rank=4)


def write(path: Path, samples, **changes) -> str:
    path.write_text("".join(json.dumps(sample.to_json() | changes) + "\n" for sample in samples))
    return str(path)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A tiny model whose attention is sharp enough that block mode differs from full attention."""
    folder = tiny.checkpoint(tmp_path_factory.mktemp("base") / "tiny", initializer_range=0.1)
    return str(folder)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    return {
        "train": write(folder / "train.jsonl", data.load("lab", samples=8, seed=5, passages=2)),
        "unlabelled": write(folder / "unlabelled.jsonl", data.load("lab", samples=4, seed=5, passages=2), answers=[]),
        "held": write(folder / "held.jsonl", data.load("lab", samples=6, seed=6, passages=2)),
    }


def tuned(config, base, name, out, evaluation=None, **options):
    run, source = start(config, base, Data(name), out, **({"evaluation": evaluation} if evaluation else {}))
    draw(run, source)
    return run, train(run, source, evaluation or Evaluation(), **options)


def weights(run):
    return {name: x.detach().clone() for name, x in run.loaded.model.state_dict().items()}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


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


def test_rows_of_the_student_meet_the_same_tokens_of_the_teacher(base, files):
    _, source = start(CONFIG, base, Data(files["train"]), Path("unused"))
    batch = pack_taught([source[0], source[1]], replace(CONFIG, question_weight=0.5))
    token = batch.student.tokens[batch.student.rows]
    assert torch.equal(token, batch.teacher.tokens[batch.teacher.rows][batch.same])
    assert torch.equal(batch.student.targets, batch.teacher.targets[batch.same])
    of_answers = torch.zeros(len(token), dtype=torch.bool)
    of_answers[batch.of_answers] = True
    assert set(batch.weights[of_answers].tolist()) == {1.0} and set(batch.weights[~of_answers].tolist()) == {0.5}


@pytest.mark.parametrize("config", [CONFIG, pytest.param(LORA, id="lora")])
def test_before_the_first_step_full_mode_is_the_teacher_and_block_mode_is_not(config, base, files):
    if config.lora_rank:
        pytest.importorskip("peft")
    run, source = start(config, base, Data(files["train"]), Path("unused"))
    batch = pack_taught([source[0]], config)
    with torch.no_grad():
        logits, taught = logits_of(run.model, run.teacher, batch, run.windows, bf16=False)
    each = divergence(logits, taught, batch.same)
    full = each[batch.student.examples[batch.student.rows] == 0]
    block = each[batch.student.examples[batch.student.rows] == 1]
    assert full.abs().max() < 1e-5 and block.mean() > 1e-3


@pytest.mark.parametrize("positions", ["re-encoded", "naive"])
def test_block_mode_nears_the_teacher_on_held_out_text_and_full_mode_stays(base, tmp_path, positions):
    pytest.importorskip("peft")
    config = replace(LORA, steps=16, lr=1e-2, positions=positions)
    held, worlds = Evaluation(every=16, samples=6, passages=2), Data("lab", passages=(2, 2), questions=4)
    run, source = start(config, base, worlds, tmp_path / "run", held)
    before, after = train(run, source, held).scores
    assert before["full"]["kl"] < 1e-5 and before["n"] == 6 and abs(before["full"]["nll_gap"]) < 1e-4
    assert after["block"]["kl"] < 0.75 * before["block"]["kl"] and after["full"]["kl"] < 0.2 * before["block"]["kl"]
    assert before["block"]["kl_low"] <= before["block"]["kl"] <= before["block"]["kl_high"]


def test_the_loss_falls_with_all_weights_and_the_teacher_is_a_frozen_copy(base, files, tmp_path, monkeypatch):
    monkeypatch.setattr(common, "READ_EVERY", 1)
    run, progress = tuned(replace(CONFIG, steps=25, lr=2e-3), base, files["train"], tmp_path / "run")
    losses = [row["loss"] for row in progress.curve]
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])
    assert {"kl_full", "kl_block", "full", "block"} <= progress.curve[-1].keys()
    untouched = models.load(base).model.state_dict()
    assert same(dict(run.teacher.model.state_dict()), dict(untouched)) and not same(weights(run), dict(untouched))


class Killed(Exception):
    pass


@pytest.mark.parametrize("config", [CONFIG, pytest.param(LORA, id="lora")])
def test_killed_and_resumed_is_not_interrupted(config, base, files, tmp_path):
    if config.lora_rank:
        pytest.importorskip("peft")

    def kill(row):
        if row["step"] == 4:
            raise Killed

    whole = tuned(config, base, files["unlabelled"], tmp_path / "whole", save_every=2)[0]
    with pytest.raises(Killed):
        tuned(config, base, files["unlabelled"], tmp_path / "cut", report=kill, save_every=2)
    again = tuned(config, base, files["unlabelled"], tmp_path / "cut", save_every=2)[0]
    assert same(weights(whole), weights(again))


def test_without_labels_the_model_answers_itself_once(base, files, tmp_path):
    for _ in range(2):
        run, source = start(CONFIG, base, Data(files["unlabelled"]), tmp_path / "run")
        draw(run, source)
        said = json.loads((tmp_path / "run" / CACHE).read_text())["answers"]
        (tmp_path / "run" / CACHE).write_text((tmp_path / "run" / CACHE).read_text().replace(" ", ""))
    assert {tuple(said[str(i)]) for i in range(4)} == {source[i].questions[0].answer for i in range(4)}
    assert all(1 <= len(answer) <= CONFIG.own_tokens for answer in said.values())
    loaded = models.load(base)
    prompts = LAB.prompts(source.samples[:1], loaded.tokenizer)
    (wanted,) = generate(loaded.model, loaded.tokenizer, prompts, max_new_tokens=4, stop=LAB.stop)
    assert list(wanted.tokens) == said["0"]


def test_gold_answers_alone_need_no_drawing(base, files, tmp_path):
    run, source = start(CONFIG, base, Data(files["train"]), tmp_path / "run")
    draw(run, source)
    assert not (tmp_path / "run").exists() and len(source[0].questions) == 1
    both = replace(CONFIG, own_answers="all")
    run, source = start(both, base, Data(files["train"]), tmp_path / "run")
    draw(run, source)
    assert len(source[0].questions) == 2 and source[0].questions[0].question == source[0].questions[1].question


def test_contexts_are_mixed_from_passages_that_answer_and_their_questions_asked():
    samples, words = data.load("lab", samples=12, seed=5, passages=4), tiny.tokenizer()
    common = (samples, LAB, words, Limits(4000), 3, OwnAnswers("missing", 4))
    source = Mixed(*common, passages=(2, 6), questions=3)
    texts = {
        words.decode(words(LAB.passage.format(title=p.title, text=p.text))["input_ids"])
        for s in samples
        for p in s.ctxs
    }
    for i in range(12):
        drawn = source[i]
        assert 1 <= len(drawn.context) - 1 <= 6 and 1 <= len(drawn.questions) <= 3
        assert {words.decode(block) for block in drawn.context[1:]} <= texts
        assert len(set(drawn.context)) == len(drawn.context)
    assert [source[i] for i in (7, 2)] == [Mixed(*common, passages=(2, 6), questions=3)[i] for i in (7, 2)]
    short = Mixed(samples, LAB, words, Limits(900), 3, passages=(6, 6))
    assert all(short[i].length <= 900 for i in range(6))


def test_the_rate_falls_with_the_budget_and_the_run_ends_with_it(base, files, tmp_path):
    config = replace(CONFIG, steps=1000, budget=1.0, warmup=0)
    assert config.rate(0, 0) == config.lr and config.rate(0, 30) == pytest.approx(config.lr / 2)
    assert config.rate(500, 6) == config.lr / 2 and config.rate(1, 90) == 0
    assert not config.finished(999, 59) and config.finished(1000, 0) and config.finished(1, 60)
    quick = replace(config, budget=1e-4)
    _, progress = tuned(quick, base, files["train"], tmp_path / "run", Evaluation(1000, 2, files["held"]))
    assert progress.step == 1 and [row["step"] for row in progress.scores] == [0, 1]
    assert (tmp_path / "run" / "state").is_dir()


@pytest.fixture(scope="module")
def adapter(base, files, tmp_path_factory):
    """An adapter of a few steps, and the logits of the model it was trained in."""
    pytest.importorskip("peft")
    out = tmp_path_factory.mktemp("adapter")
    evaluation = Evaluation(every=6, samples=4, data=files["held"])
    run, progress = tuned(replace(LORA, lr=5e-2), base, files["train"], out / "run", evaluation)
    save_adapter(run, progress, out / "tiny-block")
    run.loaded.model.set_attn_implementation("sdpa")
    with torch.no_grad():
        return out / "tiny-block", run.loaded.model.eval()(torch.arange(40)[None]).logits


def test_an_adapter_loads_back_to_the_logits_it_was_trained_to_without_peft(adapter, base, monkeypatch):
    folder, wanted = adapter
    monkeypatch.setitem(__import__("sys").modules, "peft", None)
    loaded, plain = models.load(folder), models.load(base)
    ids = torch.arange(40)[None]
    with torch.no_grad():
        for each in (loaded, plain):
            each.model.set_attn_implementation("sdpa")
        found, before = loaded.model(ids).logits, plain.model(ids).logits
    assert (before - wanted).abs().max() > 0.1
    torch.testing.assert_close(found, wanted, rtol=0, atol=0.02 * float((before - wanted).abs().max()))  # bf16
    assert loaded.layout == plain.layout


def test_an_adapter_is_described_by_its_card_and_its_header(adapter, base):
    folder, _ = adapter
    about = models.describe(folder)
    assert about["type"] == f"adapter of {base}" and about["layers"] == 2 and about["context"] == 2048
    assert {x.dtype for x in load_file(folder / "adapter_model.safetensors").values()} == {torch.bfloat16}
    tuning, card = json.loads((folder / "tuning.json").read_text()), (folder / "README.md").read_text()
    assert about["parameters"] == tuning["parameters"] and f"{tuning['parameters']:,}" in card
    assert tuning["overlap"]["scored_passages"] and tuning["overlap"]["digest"]
    last = tuning["scores"][-1]["block"]
    assert f"{last['kl']:.3f} [{last['kl_low']:.3f}, {last['kl_high']:.3f}]" in card and "no labels" in card


def spoiled(adapter, tmp_path, **declared):
    folder = tmp_path / "spoiled"
    folder.mkdir()
    for path in adapter[0].iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    about = json.loads((folder / "workbench.json").read_text())
    (folder / "workbench.json").write_text(json.dumps(about | {"adapter": about["adapter"] | declared}))
    return folder


def test_an_adapter_of_other_weights_is_refused(adapter, tmp_path):
    other = tiny.checkpoint(tmp_path / "other", initializer_range=0.2)
    with pytest.raises(BadInput, match=r"was trained on other weights of .*other"):
        models.load(spoiled(adapter, tmp_path, base=str(other)))


def test_a_missing_base_is_refused_with_the_command_that_fetches_it(adapter, tmp_path):
    folder = spoiled(adapter, tmp_path, base="not-fetched")
    with pytest.raises(
        BadInput, match=r"adapter of 'not-fetched', which is not here \(workbench models get not-fetched"
    ):
        models.load(folder)
    assert models.describe(folder)["context"] is None  # it is listed all the same


def test_the_digest_is_of_the_weights_however_they_are_split(tmp_path):
    whole, split = tiny.checkpoint(tmp_path / "whole"), tiny.checkpoint(tmp_path / "split", shard="40KB")
    one, other = (models.adapters.digest_of(models.weights_of(folder)) for folder in (whole, split))
    assert one == other != models.adapters.digest_of(models.weights_of(tiny.checkpoint(tmp_path / "x", vocab_size=410)))


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
    config, kept = (
        json.loads((folder / "adapter_config.json").read_text()),
        load_file(folder / "adapter_model.safetensors"),
    )
    spoil(config, kept)
    (folder / "adapter_config.json").write_text(json.dumps(config))
    save_file(kept, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    with pytest.raises(BadInput, match=message):
        models.load(folder)


def test_an_adapter_is_no_base_for_another(adapter, files, tmp_path):
    with pytest.raises(BadInput, match="is an adapter: LoRA of its base model"):
        start(LORA, str(adapter[0]), Data(files["train"]), tmp_path / "run")


def test_text_that_is_scored_on_is_refused_by_its_first_sample_or_left_out(files, tmp_path):
    train_on, held = data.load(files["train"]), data.load(files["held"])
    shouted = replace(held[0].ctxs[0], title="Other", text=held[0].ctxs[0].text.upper().replace(" ", "  ") + "!")
    leaky = [*train_on, replace(train_on[0], id="leak", ctxs=(*train_on[0].ctxs, shouted))]
    with pytest.raises(BadInput, match=f"sample 'leak' shares a passage with sample '{held[0].id}' of .*held.jsonl"):
        apart(leaky, [files["held"]])
    kept, record = apart(leaky, [files["held"]], drop=True)
    assert kept == train_on and record["left_out"] == 1 and record["shared_passages"] == record["shared_questions"] == 0
    asked = [*train_on, replace(train_on[0], id="asked", question=held[1].question.lower().replace("?", " ?"))]
    with pytest.raises(BadInput, match=f"sample 'asked' shares a question with sample '{held[1].id}'"):
        apart(asked, [files["held"]])
    with pytest.raises(BadInput, match="all 6 samples share"):
        apart(held, [files["held"]], drop=True)
    assert apart(train_on, []) == (train_on, None)


def test_shared_runs_of_words_are_counted_though_the_passages_differ(files):
    held, train_on = data.load(files["held"]), data.load(files["train"])[:1]
    text = held[0].ctxs[0].text
    longer = replace(train_on[0], ctxs=(replace(train_on[0].ctxs[0], text=f"{text} And more is told here."),))
    assert len(words_of(text).split()) >= 13
    _, record = apart([longer], [files["held"]])
    assert record["passages_sharing_a_run"] == 1 and record["shared_passages"] == 0


@given(st.text(max_size=40), st.integers(0, 9))
def test_words_are_the_same_in_any_case_and_spacing(text, seed):
    spaced = text.replace(" ", " " * (1 + Random(seed).randrange(3)))
    assert words_of(words_of(text)) == words_of(text) == words_of(f"  {spaced}\n")


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
    with pytest.raises(BadInput, match=message):
        replace(CONFIG, **change)


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
def test_the_command_ends_in_one_sentence_with_nothing_written(base, files, tmp_path, arguments, message):
    named = [{"HELD": files["held"], "TRAIN": files["train"]}.get(each, each) for each in arguments]
    common = ["--model", base, "--out", str(tmp_path / "run"), "--max-length", "2000", "--teacher", "self"]
    result = CliRunner().invoke(app, ["tune", *common, *named])
    assert result.exit_code == 2 and message in " ".join(result.output.split()), result.output
    assert not (tmp_path / "run").exists()


def test_the_command_leaves_an_adapter_under_the_name_of_its_base(base, files, tmp_path):
    pytest.importorskip("peft")
    out = tmp_path / "tiny-block"
    arguments = ["--model", base, "--data", files["train"], "--out", str(out), "--max-length", "2000", "--steps", "2"]
    arguments += ["--warmup", "1", "--batch", "2", "--teacher", "self", "--lora-rank", "2", "--mix", "2-3"]
    arguments += ["--exclude", files["held"], "--base-name", "known-name"]
    result = CliRunner().invoke(app, ["tune", *arguments])
    assert result.exit_code == 0, result.output
    names = {path.name for path in (out / "adapter").iterdir()}
    assert names == {"README.md", "adapter_config.json", "adapter_model.safetensors", "tuning.json", "workbench.json"}
    declared = json.loads((out / "adapter" / "workbench.json").read_text())
    config = json.loads((out / "adapter" / "adapter_config.json").read_text())
    assert declared["adapter"]["base"] == config["base_model_name_or_path"] == "known-name"
    assert sorted(config["target_modules"]) == ["k_proj", "o_proj", "q_proj", "v_proj"]


def test_batches_are_filled_up_to_one_length_and_stay_the_same_examples(base, files):
    _, source = start(CONFIG, base, Data(files["train"]), Path("unused"))
    room, share = room_of(source, CONFIG, 128)
    assert room % 128 == 0 and 0.5 < share <= 1
    batches = [drawn(source, CONFIG, room, i) for i in range(6)]
    assert {len(batch.student.tokens) for batch in batches} == {2 * room}
    assert {len(batch.teacher.tokens) for batch in batches} == {room}
    bare = pack_taught(examples_of(source, CONFIG, 0), CONFIG)
    assert torch.equal(bare.student.targets, batches[0].student.targets)
    assert torch.equal(bare.student.tokens[bare.student.rows], batches[0].student.tokens[batches[0].student.rows])


@given(st.lists(st.integers(1, 60), min_size=1, max_size=20), st.integers(1, 5), st.integers(1, 40))
def test_batches_keep_to_their_room_unless_one_example_needs_more(lengths, most, units):
    room = 8 * units
    examples = [Example(str(i), ((7,) * (8 * n),), (QuestionAnswer((1, 2), (3,)),)) for i, n in enumerate(lengths)]
    assert all(example.tokens == len(pack([example], ("full",)).tokens) for example in examples)
    assert fitting(examples, 0) == examples
    kept = fitting(examples, room)
    assert kept[0] is examples[0] and [each for each in examples if each in kept] == kept
    for batch in (kept, *chunks(examples, most, room)):
        tokens = sum(example.tokens for example in batch)
        assert tokens <= room or len(batch) == 1
        filled = len(pack(batch, ("full",), least=room).tokens)
        assert filled >= tokens and filled in {room << i for i in range(8)} and (filled == room or filled < 2 * tokens)
    assert [example for chunk in chunks(examples, most, room) for example in chunk] == examples
    assert all(len(chunk) <= most for chunk in chunks(examples, most, 0))


@pytest.fixture
def settled(monkeypatch):
    """A CPU that takes its batches for a GPU's: one length for all, and a batch that is compiled for."""
    monkeypatch.setattr(TuneRun, "tiles", True)
    monkeypatch.setattr(TuneRun, "how", "parts")


def test_a_run_compiles_for_two_lengths_says_so_and_learns_what_it_would_without(
    base, files, tmp_path, settled, monkeypatch
):
    lines, held = [], Evaluation(every=6, samples=5, data=files["held"])
    run, source = start(CONFIG, base, Data(files["train"]), tmp_path / "run", held, say=lines.append)
    progress = train(run, source, held)
    assert len(run.compiled) == 2 and max(run.compiled) == 2 * min(run.compiled)
    names = [re.sub(r"\d[\d,]*", "N", line.partition(":")[0]) for line in lines]
    assert names == [
        "model",
        "samples read, compared with what is scored on, and checked",
        "held-out questions",
        "length of batches",
        "compiling for N and N tokens …",
        "compiled",
        "evaluation",
        "evaluation",
    ]
    assert all(re.search(r"\d\.\d s( \(|$)", line) for line in lines if "compiling" not in line)
    monkeypatch.setattr(TuneRun, "tiles", False)
    plain, source = start(CONFIG, base, Data(files["train"]), tmp_path / "plain", held)
    without = train(plain, source, held)
    for key, x in weights(plain).items():
        torch.testing.assert_close(weights(run)[key], x, rtol=0, atol=1e-4)
    for row, other in zip(progress.scores, without.scores, strict=True):
        assert row["n"] == other["n"] == 5 and row["block"]["kl"] == pytest.approx(other["block"]["kl"], abs=1e-3)


def test_the_budget_counts_from_the_first_step_on(base, files, tmp_path, monkeypatch):
    config = replace(CONFIG, budget=1.0, steps=3)
    monkeypatch.setattr(loop, "fidelity", lambda *_: time.sleep(0.3) or {"n": 2, "full": {"kl": 0.0}, "block": {}})
    _, progress = tuned(config, base, files["train"], tmp_path / "run", Evaluation(3, 2, files["held"]))
    first = progress.seconds - 0.3  # the evaluation behind the last step is not counted either
    assert progress.step == 3 and first < 0.3 + 3


def test_a_first_evaluation_that_takes_long_is_cut_and_later_ones_ask_the_same(base, files, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "FIRST_SECONDS", 0.0)
    _, progress = tuned(CONFIG, base, files["train"], tmp_path / "run", Evaluation(3, 6, files["held"]))
    assert [row["n"] for row in progress.scores] == [2, 2, 2]  # one batch of two contexts, of three


def test_a_run_that_is_asked_to_end_keeps_state_curve_and_adapter_and_goes_on(base, files, tmp_path, monkeypatch):
    pytest.importorskip("peft")
    out, steps = tmp_path / "run", []
    arguments = ["--model", base, "--data", files["train"], "--out", str(out), "--max-length", "2000", "--steps", "4"]
    arguments += ["--warmup", "1", "--batch", "2", "--teacher", "self", "--lora-rank", "2"]
    real = loop.step

    def step(*given):
        steps.append(given)
        if len(steps) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return real(*given)

    monkeypatch.setattr(loop, "step", step)
    before = signal.getsignal(signal.SIGTERM)
    result = CliRunner().invoke(app, ["tune", *arguments])
    assert result.exit_code == 128 + signal.SIGTERM and "ended by SIGTERM at step 2 of 4" in result.output
    assert signal.getsignal(signal.SIGTERM) is before
    assert json.loads((out / "adapter" / "tuning.json").read_text())["steps"] == 2
    assert json.loads((out / "curve.json").read_text())["seconds"] > 0 and not (out / "model").exists()
    result = CliRunner().invoke(app, ["tune", *arguments])
    assert result.exit_code == 0 and len(steps) == 4
    assert json.loads((out / "adapter" / "tuning.json").read_text())["steps"] == 4


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--attention", "dense"], "unknown attention 'dense': allowed are auto, tiles, parts"),
        (["--attention", "tiles"], "attention 'tiles' (FlexAttention) trains on a GPU only"),
        (["--layout", "nowhere"], "unknown layout 'nowhere'"),
    ],
)
def test_an_attention_or_a_layout_that_is_not_there_is_refused(base, files, tmp_path, more, message):
    common = ["--model", base, "--data", files["train"], "--out", str(tmp_path / "run"), "--max-length", "2000"]
    result = CliRunner().invoke(app, ["tune", *common, *more])
    assert result.exit_code == 2 and message in " ".join(result.output.split()), result.output
    assert not (tmp_path / "run").exists()


def test_a_model_is_tuned_on_prompts_of_the_layout_that_is_asked_for(base, files, tmp_path):
    layout = tmp_path / "layout.json"
    layout.write_text(json.dumps(LAB.to_json() | {"name": "short", "system": "Answer.\n"}))
    run, source = start(CONFIG, base, Data(files["train"]), tmp_path / "run", layout=str(layout))
    words = run.loaded.tokenizer
    assert words.decode(source[0].context[0]).endswith("Answer.\n") and run.loaded.layout.name == "short"
    train(run, source)
    with pytest.raises(BadInput, match="holds a run with another layout"):
        start(CONFIG, base, Data(files["train"]), tmp_path / "run")

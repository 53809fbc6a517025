"""Question files end to end on a model with random weights, whose numbers are said to mean nothing."""

import ast
import json
import re
from dataclasses import replace
from pathlib import Path
from random import Random

import nbformat
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from tests.refusals import refused
from workbench import data, models
from workbench.app import cli
from workbench.app.notebooks import own
from workbench.data import assets
from workbench.experiments.sweeps.sweep import sweep
from workbench.experiments.trials.record import Record
from workbench.experiments.trials.trial import Trial
from workbench.methods.preprocessing.precompute import Preparation
from workbench.models import random_init
from workbench.training.tuning.text.overlap import apart, words_of

ASKED = {"samples": 2, "passages": 3, "max_new_tokens": 2, "timed": 1}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(random_init.write(tmp_path_factory.mktemp("models") / "random"))


@pytest.fixture(scope="module")
def loaded(model):
    return models.load(model)


def test_a_file_of_questions_is_prepared_and_tried(model, loaded, tmp_path):
    questions = tmp_path / "questions.jsonl"
    questions.write_text("".join(json.dumps(sample.to_json()) + "\n" for sample in data.load("lab", 2, 0, 10)))
    found = Preparation(model, tmp_path / "out", str(questions), "with_neighbours(n=2)").run(loaded=loaded)
    assert found.passages == len({passage for sample in data.load(questions) for passage in sample.ctxs})
    reuse = {"mode": "block", "prepare": "with_neighbours(n=2)", "select": "query_guided", "prepared": found.folder}
    trial = Trial(model=model, data=str(questions), **reuse, **ASKED)
    record, answers = trial.run_each(loaded=loaded)
    assert record.n == 2 and record.hit_rate == 1 and record.note == random_init.NOTE
    full = replace(trial, mode="full", prepare="independent", select="none", prepared=None).run(loaded=loaded)
    assert record.rows_computed < full.rows_computed == full.prompt_tokens == record.prompt_tokens
    assert [row["id"] for row in answers] == [sample.id for sample in data.load(questions)]


def test_every_output_says_that_the_numbers_of_random_weights_mean_nothing(model, loaded, tmp_path):
    asked = [part for name, value in ASKED.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    said = " ".join(CliRunner().invoke(cli.app, ["trial", "--model", model, *asked]).stdout.split())
    assert random_init.NOTE in said
    ended = CliRunner().invoke(cli.app, ["trial", "--model", model, *asked, "--json"])
    assert Record.from_json(json.loads(ended.stdout)).note == random_init.NOTE
    ended = CliRunner().invoke(cli.app, ["sweep", "--model", model, *asked, "--out", str(tmp_path)])
    assert random_init.NOTE in " ".join(ended.stdout.split())
    table = sweep(Trial(model, **ASKED), loaded=loaded, seed=[0, 1])
    assert set(table.note) == {random_init.NOTE}


def test_a_shipped_model_has_no_such_note():
    assert models.note_of("lab-full") == "" == models.describe(models.folder("lab-full"))["note"]
    assert models.note_of("in memory only") == ""


def test_random_weights_are_written_whole_into_a_new_folder_by_a_command(tmp_path):
    ended = CliRunner().invoke(cli.app, ["models", "--untrained", str(tmp_path / "random")])
    assert ended.exit_code == 0 and ended.stdout.strip() == str(tmp_path / "random")
    assert [path.name for path in tmp_path.iterdir()] == ["random"]
    assert models.describe(tmp_path / "random")["note"] == random_init.NOTE
    refused("is there already: a new folder is needed", random_init.write, tmp_path / "random")


def test_a_note_that_is_no_text_is_refused(model, tmp_path):
    folder = random_init.write(tmp_path / "random")
    (folder / "workbench.json").write_text(json.dumps({"note": 3}))
    refused("note is 3, a text is needed", models.note_of, folder)


# --- What notebooks say of a model that is no lab model, and which one they take for its fine-tuned version
FOLDER = Path(__file__).resolve().parents[1] / "notebooks"
NOTEBOOKS = [path for path in sorted(FOLDER.glob("[0-9][0-9]_*.ipynb")) if 'model: str = \\"lab-' in path.read_text()]


def test_the_fine_tuned_version_is_one_that_ships(monkeypatch):
    monkeypatch.setattr(assets, "models", lambda: ["lab-block", "lab-full", "real-block"])
    names = ["lab-full", "lab-block", "real", "other"]
    assert [own.tuned_version(name) for name in names] == ["lab-block", "lab-block", "real-block", "other"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notice_names_sections_that_are_there(path):
    cells = nbformat.read(path, as_version=4).cells
    headings = {heading for cell in cells for heading in re.findall(r"^## (.+)$", cell.source, re.MULTILINE)}
    (notice,) = [cell.source for cell in cells if "import notice" in cell.source]
    lists = [node for node in ast.walk(ast.parse(notice)) if isinstance(node, ast.List)]
    named = {item.value for node in lists for item in node.elts if isinstance(item, ast.Constant)}
    assert named <= headings


# --- Text that is scored on stays out of what is trained on
def test_text_that_is_scored_on_is_refused_by_its_first_sample_or_left_out(texts, tmp_path):
    train_on, held = data.load(texts["train"]), data.load(texts["held"])
    shouted = replace(held[0].ctxs[0], title="Other", text=held[0].ctxs[0].text.upper().replace(" ", "  ") + "!")
    leaky = [*train_on, replace(train_on[0], id="leak", ctxs=(*train_on[0].ctxs, shouted))]
    refused(f"sample 'leak' shares a passage with sample '{held[0].id}' of .*held.jsonl", apart, leaky, [texts["held"]])
    kept, record = apart(leaky, [texts["held"]], drop=True)
    assert kept == train_on and record["left_out"] == 1 and record["shared_passages"] == record["shared_questions"] == 0
    asked = [*train_on, replace(train_on[0], id="asked", question=held[1].question.lower().replace("?", " ?"))]
    refused(f"sample 'asked' shares a question with sample '{held[1].id}'", apart, asked, [texts["held"]])
    refused("all 6 samples share", apart, held, [texts["held"]], drop=True)
    assert apart(train_on, []) == (train_on, None)


def test_shared_runs_of_words_are_counted_though_the_passages_differ(texts):
    held, train_on = data.load(texts["held"]), data.load(texts["train"])[:1]
    text = held[0].ctxs[0].text
    longer = replace(train_on[0], ctxs=(replace(train_on[0].ctxs[0], text=f"{text} And more is told here."),))
    assert len(words_of(text).split()) >= 13
    _, record = apart([longer], [texts["held"]])
    assert record["passages_sharing_a_run"] == 1 and record["shared_passages"] == 0


@given(st.text(max_size=40), st.integers(0, 9))
def test_words_are_the_same_in_any_case_and_spacing(text, seed):
    spaced = text.replace(" ", " " * (1 + Random(seed).randrange(3)))
    assert words_of(words_of(text)) == words_of(text) == words_of(f"  {spaced}\n")

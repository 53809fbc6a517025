"""Question files as published, end to end on a model with random weights, whose numbers are said to mean nothing."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from workbench import data, models
from workbench.app import cli
from workbench.core.errors import BadInput
from workbench.experiments.sweeps.sweep import sweep
from workbench.experiments.trials.record import Record
from workbench.experiments.trials.trial import Trial
from workbench.methods.preprocessing.precompute import Preparation
from workbench.models import random_init

REAL = Path(__file__).resolve().parents[2] / "shared" / "data"
FILES = [
    "reflexion_hotpot/hotpotqa_distractor_100.jsonl",
    "ircot/2wikimultihopqa_dev_demos.jsonl",
    "ircot/hotpotqa_dev_demos.jsonl",
    "ircot/musique_dev_demos.jsonl",
]
ASKED = {"samples": 2, "passages": 3, "max_new_tokens": 2, "timed": 1}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(random_init.write(tmp_path_factory.mktemp("models") / "random"))


@pytest.fixture(scope="module")
def loaded(model):
    return models.load(model)


@pytest.mark.skipif(not REAL.is_dir(), reason="the real question files are not in the repository")
@pytest.mark.parametrize("name", FILES)
def test_a_real_file_is_prepared_and_tried(name, model, loaded, tmp_path):
    questions = tmp_path / Path(name).name
    questions.write_text("".join((REAL / name).read_text().splitlines(keepends=True)[:2]))
    found = Preparation(model, tmp_path / "out", str(questions), "with_neighbours(n=2)").run(loaded=loaded)
    assert found.passages == len({passage for sample in data.load(questions) for passage in sample.ctxs})
    trial = Trial(
        model=model,
        data=str(questions),
        mode="block",
        prepare="with_neighbours(n=2)",
        select="query_guided",
        prepared=found.folder,
        **ASKED,
    )
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
    with pytest.raises(BadInput, match="is there already: a new folder is needed"):
        random_init.write(tmp_path / "random")


def test_a_note_that_is_no_text_is_refused(model, tmp_path):
    folder = random_init.write(tmp_path / "random")
    (folder / "workbench.json").write_text(json.dumps({"note": 3}))
    with pytest.raises(BadInput, match="note is 3, a text is needed"):
        models.note_of(folder)

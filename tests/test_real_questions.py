"""Question files end to end on a model with random weights, whose numbers are said to mean nothing."""

import ast
import json
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from random import Random

import nbformat
import pytest
import report_notebooks as tiny
from hypothesis import given
from hypothesis import strategies as st
from test_report import invoke

from tests.commands import told
from tests.refusals import refused
from workbench import data, models
from workbench.app.notebooks import execution, own
from workbench.app.reports import real_pages, report
from workbench.data import assets
from workbench.experiments.sweeps.sweep import sweep
from workbench.experiments.trials.record import Record
from workbench.experiments.trials.trial import Trial
from workbench.methods.preprocessing.precompute import Preparation
from workbench.models import pretrained, random_init
from workbench.models.gguf.header import VERSION
from workbench.training.tuning.text.overlap import without_overlap, words_of

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
    said = told("trial", "--model", model, *asked), told("sweep", "--model", model, *asked, "--out", tmp_path)
    assert all(random_init.NOTE in " ".join(text.split()) for text in said)
    record = Record.from_json(json.loads(told("trial", "--model", model, *asked, "--json")))
    assert record.note == random_init.NOTE
    table = sweep(Trial(model, **ASKED), loaded=loaded, seed=[0, 1])
    assert set(table.note) == {random_init.NOTE}


def test_a_shipped_model_has_no_such_note():
    assert models.note_of("lab-full") == "" == models.describe(models.folder("lab-full"))["note"]
    assert models.note_of("in memory only") == ""


def test_random_weights_are_written_whole_into_a_new_folder_by_a_command(tmp_path):
    assert told("models", "--untrained", tmp_path / "random").strip() == str(tmp_path / "random")
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
    refused(
        f"sample 'leak' shares a passage with sample '{held[0].id}' of .*held.jsonl",
        without_overlap,
        leaky,
        [texts["held"]],
    )
    kept, record = without_overlap(leaky, [texts["held"]], drop=True)
    assert kept == train_on and record["left_out"] == 1 and record["shared_passages"] == record["shared_questions"] == 0
    asked = [*train_on, replace(train_on[0], id="asked", question=held[1].question.lower().replace("?", " ?"))]
    refused(f"sample 'asked' shares a question with sample '{held[1].id}'", without_overlap, asked, [texts["held"]])
    refused("all 6 samples share", without_overlap, held, [texts["held"]], drop=True)
    assert without_overlap(train_on, []) == (train_on, None)


def test_shared_runs_of_words_are_counted_though_the_passages_differ(texts):
    held, train_on = data.load(texts["held"]), data.load(texts["train"])[:1]
    text = held[0].ctxs[0].text
    longer = replace(train_on[0], ctxs=(replace(train_on[0].ctxs[0], text=f"{text} And more is told here."),))
    assert len(words_of(text).split()) >= 13
    _, record = without_overlap([longer], [texts["held"]])
    assert record["passages_sharing_a_run"] == 1 and record["shared_passages"] == 0


@given(st.text(max_size=40), st.integers(0, 9))
def test_words_are_the_same_in_any_case_and_spacing(text, seed):
    spaced = text.replace(" ", " " * (1 + Random(seed).randrange(3)))
    assert words_of(words_of(text)) == words_of(text) == words_of(f"  {spaced}\n")


# --- Pages of a real model in a report: there where the model is fetched or can be, else one sentence. No network
MODEL = real_pages.MODEL
SAVE = 'notebook.save(output, {"points": points, "model": model})'
LOAD = "from workbench.models import pretrained\n\nassert pretrained.folder(model).is_dir()"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A user's cache with nothing in it, and no browser."""
    monkeypatch.setenv(assets.CACHE, str(tmp_path / "cache"))
    return tmp_path / "cache"


def stand_in() -> None:
    """Leave what says that the real model is fetched."""
    source = {"sha256": pretrained.CATALOGUE[MODEL].sha256, "conversion": VERSION}
    pretrained.place(MODEL).mkdir(parents=True)
    (pretrained.place(MODEL) / "workbench.json").write_text(json.dumps({"source": source}))


def fetch_by(monkeypatch, code: str) -> None:
    """Let this Python code stand for the command that fetches."""
    monkeypatch.setattr(real_pages, "COMMAND", (sys.executable, "-c", code))


@pytest.fixture
def notebooks(tmp_path):
    lab = tiny.write(tmp_path, real_pages.AGAIN[0], SAVE, model="lab-full")
    return lab, tiny.write(tmp_path, "12_own", LOAD, SAVE, title="Its own", model=MODEL)


@pytest.fixture
def no_kernels(monkeypatch):
    """Notebooks are not executed: their outcome is made up. What was run is left in the list."""
    ran = []

    def call(self, action, argument, name=""):
        if action == "check":
            return None
        ran.append(argument)
        return {"name": argument["name"], "title": "A title"}

    monkeypatch.setattr(report.NotebookWorkers, "_call", call)
    return ran


def test_a_notebook_runs_again_with_the_real_model_under_a_heading_of_its_own(notebooks, tmp_path, no_kernels):
    stand_in()
    lab, own = notebooks
    result = report.run([lab], tmp_path / "report", {"points": 7}, jobs=1, real=[own, lab])
    second = f"{lab.stem}-{MODEL}"
    assert result.ok and [run.name for run in result.runs] == [lab.stem, "12_own", second] and not result.missing
    assert [task["name"] for task in no_kernels] == ["12_own", second, lab.stem], "the long ones first"
    assert [task["parameters"] for task in no_kernels] == [{"points": 7, "model": MODEL}] * 2 + [{"points": 7}]
    before, after = result.index.read_text().split(real_pages.HEADING)
    assert "3, none failed, in" in before and f"{lab.stem}/" in before and second not in before
    assert f"{second}/" in after and "12_own/" in after and "4-bit" in after


def test_files_of_a_second_run_carry_its_name(notebooks, tmp_path, monkeypatch):
    monkeypatch.setattr(execution.papermill, "execute_notebook", lambda path, to, **_: shutil.copy(path, to))
    ended = execution.execute(notebooks[0], tmp_path, {}, 1, name="a-second")
    assert ended.name == "a-second" and {path.parent.name for path in tmp_path.glob("*/*.html")} == {"a-second"}
    assert {path.stem for path in (tmp_path / "a-second").iterdir()} == {"a-second", "picture"}


def test_without_the_model_the_report_is_complete_and_says_in_one_line_what_is_missing(
    notebooks, tmp_path, monkeypatch, no_kernels
):
    said = f"{MODEL} cannot be fetched: no index. `workbench models get {MODEL}` fetches it"
    fetch_by(monkeypatch, f"import sys; sys.exit({'error: ' + said!r})")
    lab, own = notebooks
    result = report.run([lab], tmp_path / "report", jobs=1, real=[own, lab])
    ran = [lab.stem, "12_own"]  # which has committed results to show
    assert result.ok and [run.name for run in result.runs] == [task["name"] for task in no_kernels] == ran
    assert result.missing == said
    before, after = result.index.read_text().split(real_pages.HEADING)
    assert "2, none failed, in" in before and said in after and said not in before and "12_own/" in after


def test_a_fetched_model_is_used_at_once(monkeypatch):
    fetch_by(monkeypatch, "import sys; sys.exit(1)")
    stand_in()
    with real_pages.Fetching(MODEL) as fetching:
        assert not fetching.is_busy and fetching.missing() == ""


def test_a_model_is_fetched_while_others_run(monkeypatch, cache):
    fetch_by(monkeypatch, f"import sys, pathlib; pathlib.Path({str(cache)!r}, sys.argv[1]).mkdir(parents=True)")
    with real_pages.Fetching(MODEL) as fetching:
        assert fetching.missing() == fetching.missing() == ""
        assert (cache / MODEL).is_dir()


@pytest.mark.parametrize(
    ("code", "limit_s", "what"),
    [
        ("raise OSError('disk full')", 60, "is missing (OSError: disk full)"),
        ("import sys; sys.exit(3)", 60, "is missing (its process ended with exit code 3)"),
        ("import time; time.sleep(60)", 0.2, "was not fetched within 0 seconds"),
    ],
)
def test_whatever_goes_wrong_is_one_sentence_with_the_command_and_ends_the_fetch(monkeypatch, code, limit_s, what):
    fetch_by(monkeypatch, code)
    with real_pages.Fetching(MODEL, limit_s=limit_s) as fetching:
        said = fetching.missing()
        assert not fetching.is_busy
    assert said.startswith(f"{MODEL} {what}: `workbench models get {MODEL}`") and "\n" not in said


def test_leaving_early_ends_the_fetch(monkeypatch):
    fetch_by(monkeypatch, "import time; time.sleep(60)")
    with real_pages.Fetching(MODEL) as fetching:
        assert fetching.is_busy
    assert not fetching.is_busy


def test_an_index_that_does_not_answer_is_not_waited_for_long(monkeypatch, cache):
    names = "PIP_DEFAULT_TIMEOUT PIP_RETRIES".split()
    monkeypatch.setenv(names[0], "60")
    monkeypatch.delenv(names[1], raising=False)
    write = f"import os; [open({str(cache)!r} + name, 'w').write(os.environ[name]) for name in {names}]"
    fetch_by(monkeypatch, write)
    with real_pages.Fetching(MODEL) as fetching:
        fetching.missing()
    chosen = [cache.with_name(cache.name + name).read_text() for name in names]
    assert chosen == ["60", real_pages.SHORT["PIP_RETRIES"]], "a user's own settings hold"


def test_notebooks_of_the_real_model_are_told_from_the_others(notebooks, tmp_path):
    lab, own = notebooks
    other, plain = tiny.write(tmp_path, "01_other", SAVE, model="lab-full"), tiny.write(tmp_path, "02_plain")
    assert real_pages.split([other, plain, lab, own]) == ([other, plain, lab], [own, lab])


@pytest.mark.parametrize(
    ("arguments", "is_real"),
    [
        ((), True),
        (("--no-real",), False),
        (("-p", "model=lab-block"), False),
        (("-p", "model=lab-block", "--real"), True),
    ],
)
def test_the_real_model_is_wanted_where_neither_notebooks_nor_a_model_are_named(
    notebooks, tmp_path, monkeypatch, arguments, is_real
):
    folder = tmp_path / "notebooks"
    folder.mkdir()
    for path in notebooks:
        path.rename(folder / path.name)
    monkeypatch.chdir(tmp_path)
    asked = {}
    missing = "" if not is_real else "smollm2 is missing"

    def run(chosen, out, given, jobs, real, docs):
        asked["plain"], asked["real"] = [path.stem for path in chosen], [path.stem for path in real]
        asked["docs"] = docs
        return report.ReportResult(out / "index.html", (), missing)

    monkeypatch.setattr(report, "run", run)
    result = invoke(*arguments)
    lab = real_pages.AGAIN[0]
    plain, again = ([lab], ["12_own", lab]) if is_real else ([lab, "12_own"], [])
    assert result.exit_code == 0 and (asked["plain"], asked["real"]) == (plain, again)
    assert asked["docs"] is not any(str(each).endswith(".ipynb") for each in arguments)
    assert result.stderr == (f"{missing}\n" if missing else "")


def test_notebooks_that_run_again_are_there():
    names = {path.stem for path in report.Path(__file__).parents[1].glob("notebooks/*.ipynb")}
    assert names.issuperset(real_pages.AGAIN)

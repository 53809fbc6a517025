"""Pages of a real model in a report: there where the model is fetched or can be, else one sentence. No network."""

import json
import shutil
import sys

import pytest
import report_notebooks as tiny
from test_report import invoke

from workbench.app.notebooks import run as notebook_run
from workbench.app.reports import real_pages, report
from workbench.data import assets
from workbench.models import pretrained
from workbench.models.gguf.header import VERSION

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

    def call(self, action, argument):
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
    monkeypatch.setattr(notebook_run.papermill, "execute_notebook", lambda path, to, **_: shutil.copy(path, to))
    ended = notebook_run.execute(notebooks[0], tmp_path, {}, 1, name="a-second")
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
    ("code", "sentence"),
    [
        ("raise OSError('disk full')", f"{MODEL} is missing (OSError: disk full): `workbench models get {MODEL}`"),
        ("import sys; sys.exit(3)", f"{MODEL} is missing (its process ended with exit code 3): `workbench models get"),
    ],
)
def test_whatever_goes_wrong_is_one_sentence_with_the_command(monkeypatch, code, sentence):
    fetch_by(monkeypatch, code)
    with real_pages.Fetching(MODEL) as fetching:
        said = fetching.missing()
    assert said.startswith(sentence) and "\n" not in said


def test_a_fetch_that_takes_too_long_is_ended(monkeypatch):
    fetch_by(monkeypatch, "import time; time.sleep(60)")
    with real_pages.Fetching(MODEL, limit_s=0.2) as fetching:
        assert fetching.missing().startswith(f"{MODEL} was not fetched within 0 seconds: `workbench models get")
        assert not fetching.is_busy


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
    [((), True), (("--no-real",), False), (("-p", "model=lab-block"), False), (("-p", "model=a", "--real"), True)],
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

"""Every documented command and snippet runs: quick ones on a tiny model, the others weekly as they are written."""

import re
from pathlib import Path

import documented
import pytest
import tiny
from documented import PAGES, blocks, name_of

from workbench.app.docs import methods as docs_methods
from workbench.methods.config import MethodConfig

RUN = [page for page in PAGES if any(block.is_run for block in blocks(page))]
QUICK = [page for page in RUN if any(block.is_run and block.note != "weekly" for block in blocks(page))]
OWN = {"README.md"}  # its snippets are run below, on the model that ships


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Writes a tiny model with random weights in place of the shipped and the fetched one, and few samples."""
    checkpoint = str(tiny.checkpoint(tmp_path_factory.mktemp("models") / "tiny"))

    def change(text: str) -> str:
        text = re.sub(r"\b(lab-full|smollm2)\b", checkpoint, text)
        text = re.sub(r"--samples \d+", "--samples 2", text)
        text = re.sub(r"(workbench claims[^#\n]*)", r"\1 --paper compact ", text)  # others take long
        text = re.sub(r"(workbench (trial|sweep).*)", r"\1 --timed 1 --max-new-tokens 2", text)
        text = re.sub(r"\bsamples=\d+\)", "samples=2)", text)
        text = re.sub(r"(Trial\([^)]*)\)", r"\1, timed=1, max_new_tokens=2)", text)
        return re.sub(r"(generate\([^)]*)\)", r"\1, max_new_tokens=2)", text)

    return change


def test_every_block_is_run_or_says_why_not():
    notes = {block.note.partition(":")[0] for page in PAGES for block in blocks(page) if block.kind in documented.KINDS}
    assert notes <= {"", "weekly", "not run"}
    for page in PAGES:
        for block in blocks(page):
            if block.is_run and block.kind == "sh" and name_of(page) not in OWN:
                assert all(words[0] == "workbench" for words in block.commands), name_of(page)


@pytest.mark.parametrize("page", [page for page in QUICK if name_of(page) not in OWN], ids=name_of)
def test_a_page_runs_from_top_to_bottom(page, small, monkeypatch, tmp_path, unknown_again):
    monkeypatch.chdir(tmp_path)
    assert documented.run(page, small) >= 1


@pytest.mark.weekly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("page", RUN, ids=name_of)
def test_a_page_runs_as_it_is_written(page, monkeypatch, tmp_path, unknown_again):
    for name in ("notebooks", "docs"):
        (tmp_path / name).symlink_to(documented.ROOT / name)
    monkeypatch.chdir(tmp_path)
    assert documented.run(page, weekly=True) >= 1


METHODS = [(folder, name) for folder in docs_methods.KINDS for name in docs_methods.names(folder)]


@pytest.mark.parametrize(("folder", "name"), METHODS)
def test_the_snippet_of_a_method_is_a_choice_that_is_allowed(folder, name):
    shell, python = re.findall(r"```(?:sh|python)\n(.*?)```", docs_methods.use(folder, name), re.S)
    names: dict = {}
    exec(python, names)
    names["method"].check()
    words = documented.Block("sh", shell).commands[0]
    given = dict(zip(words[2::2], words[3::2], strict=True))
    fields = docs_methods.fields(folder, name)
    assert {f"--{key}": str(value) for key, value in fields.items()}.items() <= given.items()
    assert MethodConfig(**fields) == names["method"]


@pytest.mark.weekly
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("folder", "name"), METHODS)
def test_the_command_of_a_method_runs(folder, name, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    documented.command(docs_methods.command(folder, name).split())


# --- The README's Python runs
README = (Path(__file__).parents[1] / "README.md").read_text()
SNIPPETS = re.findall(r"```python\n(.*?)```", README, re.S)


def test_its_snippets_run(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    assert len(SNIPPETS) == 3
    for snippet in SNIPPETS:
        quick = re.sub(r"samples=\d{2,}", "samples=2, timed=1, max_new_tokens=4", snippet)
        exec(compile(quick, "README.md", "exec"), names)
    assert len(names["tokens"]) and all(answer.text for answer in names["answers"])
    assert (names["table"].n[names["table"].kind == "all"] == 2).all()
    assert "rows_computed" in capsys.readouterr().out

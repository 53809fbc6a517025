"""Outputs that cannot be written are refused before any work; a disk that is full leaves nothing half-written."""

import json
import resource
from importlib import import_module
from pathlib import Path

import pytest
import tiny
from typer.main import get_command
from typer.testing import CliRunner

from tests.commands import refused_command
from tests.refusals import refused
from workbench import models
from workbench.app import cli
from workbench.app.console import option_checks
from workbench.core.utils.files import check_folder, check_place, write_text
from workbench.models.weights import delta_weights, export_hf

OPTIONS = {f"--{name}" for name in option_checks.OUTPUTS}


def writers(command, words):
    """Yield the words of every command below one that writes a file or folder, with the option that names it."""
    for name, inner in getattr(command, "commands", {}).items():
        yield from writers(inner, [*words, name])
    if not getattr(command, "commands", {}):
        for param in command.params:
            if found := OPTIONS.intersection(param.opts):
                needed = [each for each in command.params if each.required and each is not param]
                yield [*words, *(word for each in needed for word in value_of(each)), found.pop()]


def value_of(param):
    """Return a value that would do for a parameter that is needed."""
    value = {"model": "lab-full", "data": "lab"}.get(param.name, "file.json")
    return [param.opts[0], value] if param.opts[0].startswith("--") else [value]


COMMANDS = {
    " ".join(words): words
    for name, (module, _) in cli.COMMANDS.items()
    for words in writers(get_command(import_module(module, "workbench.app.commands").app), [name])
}
PLACES = ["", "file/below", "file/far/below", "x" * 300, "x" * 5000, "/dev/full"]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("mine")


@pytest.mark.parametrize("place", PLACES, ids=["empty", "below a file", "far below", "long", "longest", "device"])
@pytest.mark.parametrize("command", COMMANDS)
def test_an_output_that_cannot_be_written_is_refused_before_any_work(command, place, tmp_path):
    said = refused_command(*COMMANDS[command], place)
    assert said.startswith("error: --") and any(word in said for word in ("written", "needed"))
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert Path("/dev/full").is_char_device()


def test_equals_and_nothing_is_an_empty_name_too():
    assert CliRunner().invoke(cli.app, ["sweep", "--model", "lab-full", "--out="]).exit_code == 2


def test_a_place_that_can_be_made_is_taken(tmp_path):
    for place in ("file", "new", "new/folder/below", "."):
        check_place("--out", place)
    refused("--out 'file' is a file: a folder is needed", check_folder, "--out", "file")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_full_disk_is_one_sentence_and_leaves_what_stood_there(tmp_path):
    (tmp_path / "questions.jsonl").write_text("mine")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        done = CliRunner().invoke(cli.app, ["data", "lab", "--samples", "2", "--out", "questions.jsonl"])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert done.exit_code == 2 and done.stderr == "error: File too large; nothing half-written is left of it\n"
    assert (tmp_path / "questions.jsonl").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "questions.jsonl"]


def test_a_training_goes_into_no_folder_of_something_else(tmp_path):
    folder = tiny.checkpoint(tmp_path / "lab-full")
    for command in (("tune", "--model", str(folder)), ("lab", "train")):
        assert "holds 'config.json' and no run to go on with" in refused_command(*command, "--out", folder)


def test_a_rank_over_the_width_of_the_model_is_refused(folder, tmp_path):
    pytest.importorskip("peft")
    options = ["--lora-rank", "100000", "--max-length", "256", "--out", "new"]
    assert "lora_rank is 100000: at most 16" in refused_command("tune", "--model", folder, *options)
    assert not (tmp_path / "new").exists()


def test_text_that_cannot_be_written_leaves_no_file(tmp_path):
    with pytest.raises(UnicodeEncodeError):
        write_text(tmp_path / "a.txt", "\ud800")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


# --- What a command reads is not written over by it, and an output without a name is refused
ONE = {"question": "Who?", "answers": ["Ana"], "ctxs": [{"title": "A", "text": "Ana is here."}]}


@pytest.fixture
def there(tmp_path, monkeypatch):
    """A folder at hand with a file of more questions than are shown, a record's name and a model."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "q.jsonl").write_text(f"{json.dumps(ONE)}\n" * 9)
    (tmp_path / "r.json").write_text("{}")
    (tmp_path / "also.json").symlink_to("r.json")
    tiny.checkpoint(tmp_path / "model")
    return tmp_path


@pytest.mark.parametrize(
    "words",
    [
        "data q.jsonl --out q.jsonl",
        "data q.jsonl --out=./q.jsonl",
        "trace r.json --out r.json",
        "trace r.json --out also.json",
        "compare r.json q.jsonl --markdown r.json",
        "compare r.json q.jsonl --figure q.jsonl",
        "verify --model model --data q.jsonl --html q.jsonl",
        "verify --model model --html model/config.json --data=model/config.json",
        "compare r.json q.jsonl --markdown also.json --html also.json",
    ],
)
def test_a_file_that_is_read_is_not_written_over(there, words):
    before = {path: path.read_bytes() for path in there.rglob("*") if path.is_file()}
    assert "this command reads or writes otherwise" in refused_command(*words.split())
    assert {path: path.read_bytes() for path in there.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("words", ["store encode q.jsonl --model model --to", "compare r.json r.json --figure"])
def test_an_output_without_a_name_is_refused(there, words):
    assert "'': the name of a file or folder is needed" in refused_command(*words.split(), "")


def test_a_difference_takes_no_place_of_a_model_that_is_there(there):
    export_hf.write(str(there / "model"), there / "base")
    base = there / "base"
    refused("base is there already: a new folder is needed", delta_weights.save, base, base, str(base))
    assert models.load(there / "base")

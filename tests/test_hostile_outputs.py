"""Outputs that cannot be written are refused before any work; a disk that is full leaves nothing half-written."""

import resource
from pathlib import Path

import pytest
import tiny
from typer.testing import CliRunner

from workbench.app import cli
from workbench.core.errors import BadInput
from workbench.core.utils.files import check_folder, check_place, write_text

COMMANDS = {
    "trial": ("trial", "--model", "lab-full", "--out"),
    "sweep": ("sweep", "--model", "lab-full", "--out"),
    "data": ("data", "lab", "--out"),
    "tune": ("tune", "--model", "lab-full", "--out"),
    "prepare": ("prepare", "--model", "lab-full", "--out"),
    "trace": ("trace", "a.json", "--out"),
    "serve-bench": ("serve-bench", "--model", "lab-full", "--out"),
    "verify": ("verify", "--model", "lab-full", "--html"),
    "models": ("models", "--untrained"),
    "report": ("report", "a.ipynb", "--out"),
    "lab train": ("lab", "train", "--out"),
    "compare": ("compare", "a.json", "b.json", "--html"),
}
PLACES = ["", "file/below", "file/far/below", "x" * 300, "x" * 5000, "/dev/full"]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("mine")


@pytest.mark.parametrize("place", PLACES, ids=["empty", "below a file", "far below", "long", "longest", "device"])
@pytest.mark.parametrize("command", COMMANDS)
def test_an_output_that_cannot_be_written_is_refused_before_any_work(command, place, tmp_path):
    done = CliRunner().invoke(cli.app, [*COMMANDS[command], place])
    assert done.exit_code == 2 and done.stderr.startswith("error: --")
    assert done.stderr.count("\n") == 1 and any(word in done.stderr for word in ("written", "needed"))
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert Path("/dev/full").is_char_device()


def test_equals_and_nothing_is_an_empty_name_too():
    assert CliRunner().invoke(cli.app, ["sweep", "--model", "lab-full", "--out="]).exit_code == 2


def test_a_place_that_can_be_made_is_taken(tmp_path):
    for place in ("file", "new", "new/folder/below", "."):
        check_place("--out", place)
    with pytest.raises(BadInput, match="--out 'file' is a file: a folder is needed"):
        check_folder("--out", "file")
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
        done = CliRunner().invoke(cli.app, [*command, "--out", str(folder)])
        assert done.exit_code == 2 and "holds 'config.json' and no run to go on with" in done.stderr


def test_a_rank_over_the_width_of_the_model_is_refused(tmp_path):
    pytest.importorskip("peft")
    folder = tiny.checkpoint(tmp_path / "lab-full")
    options = ["--lora-rank", "100000", "--max-length", "256", "--out", "new"]
    done = CliRunner().invoke(cli.app, ["tune", "--model", str(folder), *options])
    assert done.exit_code == 2 and "lora_rank is 100000: at most 16" in done.stderr
    assert not (tmp_path / "new").exists()


def test_text_that_cannot_be_written_leaves_no_file(tmp_path):
    with pytest.raises(UnicodeEncodeError):
        write_text(tmp_path / "a.txt", "\ud800")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]

"""Files and folders appear whole or not at all, and what stood there before stays until then."""

from pathlib import Path

import pytest
import torch
from accelerate import Accelerator

from tests.random_models import model_of
from workbench.core.errors import BadInput
from workbench.core.utils.files import folder_atomically, old_folder_path, write_atomically, write_text
from workbench.methods import seer_gate
from workbench.training import common, run_folder
from workbench.training.common import Progress, Training

FAILURES = [OSError("disk full"), KeyboardInterrupt()]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("failure", FAILURES, ids=["error", "interruption"])
def test_a_write_that_ends_in_the_middle_leaves_the_earlier_file_alone(tmp_path, failure):
    def write(partial):
        partial.write_text("half")
        raise failure

    path = tmp_path / "file.json"
    for before in (None, "before"):
        if before:
            write_text(path, before)
        with pytest.raises(type(failure)):
            write_atomically(path, write)
        assert names(tmp_path) == (["file.json"] if before else [])
    assert path.read_text() == "before"


@pytest.mark.parametrize("failure", FAILURES, ids=["error", "interruption"])
def test_a_folder_that_ends_in_the_middle_leaves_the_earlier_folder_alone(tmp_path, failure):
    path = tmp_path / "runs" / "model"
    for there in (False, True):
        if there:
            with folder_atomically(path) as partial:
                (partial / "weights").write_text("before")
        with pytest.raises((BadInput, KeyboardInterrupt)), folder_atomically(path) as partial:
            (partial / "weights").write_text("half")
            raise failure
        assert names(path.parent) == (["model"] if there else [])
    assert (path / "weights").read_text() == "before"


def test_a_folder_takes_the_place_of_the_earlier_one_with_nothing_of_it(tmp_path):
    for name in ("first", "second"):
        with folder_atomically(tmp_path / "model") as partial:
            (partial / name).write_text(name)
    assert names(tmp_path) == ["model"] and names(tmp_path / "model") == ["second"]


def test_a_folder_that_cannot_be_moved_gives_the_earlier_one_back(tmp_path, monkeypatch):
    path, rename = tmp_path / "model", Path.rename
    with folder_atomically(path) as partial:
        (partial / "weights").write_text("before")

    def rename_aside_only(self, target):
        if self != path and target == path and self != old_folder_path(path):
            raise OSError("no")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", rename_aside_only)
    with pytest.raises(OSError, match="no"), folder_atomically(path) as partial:
        (partial / "weights").write_text("after")
    assert names(tmp_path) == ["model"] and (path / "weights").read_text() == "before"


def test_a_folder_that_a_killed_process_set_aside_is_removed_only_behind_the_next_one(tmp_path):
    path = tmp_path / "model"
    old_folder_path(path).mkdir()
    with pytest.raises(BadInput, match="full"), folder_atomically(path):
        raise OSError("full")
    assert names(tmp_path) == [".model.old"]
    with folder_atomically(path) as partial:
        (partial / "weights").write_text("new")
    assert names(tmp_path) == ["model"]


def test_a_gate_that_cannot_be_written_leaves_the_earlier_one_alone(tmp_path, monkeypatch):
    def save_half(tensors, path, metadata):
        Path(path).write_bytes(b"half")
        raise OSError("disk full")

    gate, path = seer_gate.new_gate(model_of("llama"), 8, 16), tmp_path / "gate.safetensors"
    gate.save(path)
    before = path.read_bytes()
    monkeypatch.setattr(seer_gate, "save_file", save_half)
    with pytest.raises(OSError, match="full"):
        gate.save(path)
    assert names(tmp_path) == ["gate.safetensors"] and path.read_bytes() == before


@pytest.fixture
def training(tmp_path):
    return Training(Accelerator(cpu=True), torch.nn.Linear(1, 1), [], None, {"recipe": {}}, tmp_path)


def saved_step(folder: Path) -> int | None:
    record = run_folder.saved_record(folder)
    return record and record["progress"]["step"]


@pytest.mark.parametrize("made_before", [False, True])
def test_a_state_that_cannot_be_written_leaves_the_state_before(training, tmp_path, monkeypatch, made_before):
    if made_before:
        training.save(Progress(1))
    monkeypatch.setattr(common, "RECORD", "no/such/folder.json")
    with pytest.raises(FileNotFoundError):
        training.save(Progress(2))
    monkeypatch.undo()
    assert names(tmp_path) == (["state"] if made_before else [])
    assert saved_step(tmp_path) == (1 if made_before else None)


@pytest.mark.parametrize("aside", ["state.old", ".state.old"])
def test_a_state_that_a_killed_process_set_aside_is_found(training, tmp_path, aside):
    training.save(Progress(1))
    (tmp_path / "state").rename(tmp_path / aside)
    assert training.resume(Progress()) == Progress(1)
    training.save(Progress(2))
    assert saved_step(tmp_path) == 2

"""Links, pipes, folders and damaged files where a file is expected: one clear sentence, nothing hangs, none is lost."""

import json
import os
import shutil
import tarfile
from io import BytesIO
from pathlib import Path

import pytest
from store_blocks import key_for, kv_of

from tests.commands import refused_command, told
from tests.refusals import refused
from workbench.app.notebooks.parameters import declared_parameters
from workbench.core.errors import shorten
from workbench.core.utils.files import check_place
from workbench.experiments.sweeps.sweep_grid import check as preflight
from workbench.experiments.trials import rows
from workbench.experiments.trials.trial import Trial
from workbench.store import FolderStore
from workbench.store.files.scrub import describe, verify
from workbench.store.files.transfer import pack, unpack
from workbench.training.gate_config import GateConfig
from workbench.training.lab.config import PretrainConfig
from workbench.training.tuning.config import TuneConfig

KEY = key_for(1)
QUICK = {"samples": 2, "passages": 2, "timed": 1, "max_new_tokens": 1}


@pytest.fixture(scope="module")
def records(loaded, tmp_path_factory) -> Path:
    """Records of two trials, their questions beside them."""
    place = tmp_path_factory.mktemp("records")
    for mode in ("full", "block"):
        rows.write(place / mode, mode, *Trial("tiny", mode=mode, **QUICK).run_each(loaded=loaded))
    return place


def test_a_link_to_a_folder_is_a_folder(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    check_place("--out", tmp_path / "link" / "new.json")
    told("data", "lab", "--samples", "1", "--out", tmp_path / "link" / "new.jsonl")
    assert (tmp_path / "real" / "new.jsonl").is_file()


@pytest.mark.parametrize("place", ["loop", "loop/below"])
def test_a_link_to_itself_is_no_place(tmp_path, place):
    (tmp_path / "loop").symlink_to("loop")
    assert "symbolic links" in refused_command("data", "lab", "--samples", "1", "--out", tmp_path / place)
    assert refused_command("trial", "--model", "lab-full", "--samples", "1", "--method-file", tmp_path / place)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_file_among_blocks_is_damaged_and_is_not_waited_for(tmp_path, make):
    FolderStore(tmp_path / "store", new=True).put(KEY, kv_of(1))
    make(tmp_path / "store" / "b.safetensors")
    assert [(finding.file, finding.detail) for finding in verify(tmp_path / "store").findings] == [
        ("b.safetensors", "it is no file")
    ]
    assert describe(tmp_path / "store")["set_aside"][0]["detail"] == "it is no file"
    assert FolderStore(tmp_path / "store").get(KEY) is not None
    refused("it is no file", pack, tmp_path / "store", tmp_path / "store.tar")
    assert not (tmp_path / "store.tar").exists()


def test_an_archive_that_holds_a_file_twice_is_refused_command(tmp_path):
    with tarfile.open(tmp_path / "twice.tar", "w") as tar:
        for _ in range(2):
            tar.addfile(tarfile.TarInfo("manifest.json"), BytesIO(b""))
    refused(r"holds 'manifest\.json' more than once", unpack, tmp_path / "twice.tar", tmp_path / "store")
    assert not (tmp_path / "store").exists()


def test_damaged_questions_beside_a_record_are_named(records, tmp_path):
    shutil.copytree(records / "full", tmp_path / "other")
    (tmp_path / "other" / "answers" / "trial@full.parquet").write_text("x")
    said = refused_command("compare", records / "full", tmp_path / "other")
    assert "trial@full.parquet cannot be read" in said


def test_no_output_overwrites_what_is_compared_or_another_output(records, tmp_path):
    runs = [records / "full", records / "block"]
    questions = records / "block" / "answers" / "trial@block.parquet"
    before = questions.read_bytes()
    said = refused_command("compare", *runs, "--html", questions)
    assert "is inside a RUN" in said and questions.read_bytes() == before
    both = tmp_path / "both"
    assert "written twice" in refused_command("compare", *runs, "--html", both, "--markdown", tmp_path / "." / "both")
    assert "name of a folder" in refused_command("compare", *runs, "--html", f"{both}/") and not both.exists()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"address": 5}', "\ufeff"])
def test_a_file_that_names_no_scheduler_is_refused_command(tmp_path, text):
    (tmp_path / "scheduler.json").write_text(text)
    said = refused_command("sweep", "--samples", 1, "--out", tmp_path / "out", "--cluster", tmp_path / "scheduler.json")
    assert "names no address of a Dask scheduler" in said


BROKEN = ["", "{", "[]", '{"nbformat": 2, "worksheets": []}', '{"nbformat": 4, "cells": [{"cell_type": "code"}]}']


@pytest.mark.parametrize("text", BROKEN)
def test_a_notebook_that_cannot_be_read_is_refused_before_anything_is_written(tmp_path, text):
    path = tmp_path / "01_broken.ipynb"
    path.write_text(text)
    refused(r"01_broken\.ipynb is no notebook that can be read", declared_parameters, path)
    if text == BROKEN[0]:
        for command in ("report", "sweep"):
            assert "is no notebook that can be read" in refused_command(command, path, "--out", tmp_path / "out")
        assert "is no notebook that can be read" in refused_command("report", path, "--real", "--out", tmp_path / "out")
    assert list(tmp_path.iterdir()) == [path]


def test_a_report_is_no_file(tmp_path):
    notebook = {"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": []}
    (tmp_path / "01_a.ipynb").write_text(json.dumps(notebook))
    (tmp_path / "mine").write_text("mine")
    assert "is a file: a folder is needed" in refused_command(
        "report", tmp_path / "01_a.ipynb", "--out", tmp_path / "mine"
    )
    assert (tmp_path / "mine").read_text() == "mine"


def test_a_sentence_stays_on_its_line_whatever_a_file_is_called():
    assert shorten("a\nb\r\nc") == r"a\nb\r\nc"
    assert refused_command("data", "a\nb.json") == r"error: a\nb.json: no such file"


@pytest.mark.parametrize("name", ["lab", "needles", "manuals"])
def test_more_questions_than_can_be_drawn_are_refused_command(name, tmp_path):
    assert "at most 1,000,000 are drawn" in refused_command("data", name, "--samples", 10**9)
    assert "at most 1,000,000 are drawn" in refused_command(
        "data", "lab", "--samples", 10**9, "--out", tmp_path / "a.jsonl"
    )


def test_a_sweep_says_before_its_first_trial_that_answers_are_too_long(loaded):
    both = [Trial("lab-full", samples=1), Trial("lab-full", samples=1, max_new_tokens=10**6)]
    refused(r"max_new_tokens is 1000000: [\d,]+ is the model's context", preflight, both, loaded)


SIZES = [  # of a configuration that is absurd, and what is said of it
    (PretrainConfig, {"layers": 10**9}, "is no lab model"),
    (PretrainConfig, {"hidden": 2**30, "heads": 8}, "is no lab model"),
    (PretrainConfig, {"head_dim": 3}, "head_dim is 3: an even number"),
    (GateConfig, {"width": 10**9}, "width is 1000000000"),
    *((config, {"batch": 10**9}, "batch is 1000000000") for config in (TuneConfig, GateConfig)),
    *(
        (PretrainConfig, {name: value}, f"recipe setting {name} is")
        for name in ("lr", "rope_theta", "clip", "weight_decay", "rest_weight")
        for value in (float("inf"), -1.0)
    ),
]


@pytest.mark.parametrize(("config", "sizes", "words"), SIZES)
def test_sizes_and_rates_of_a_training_are_finite_and_can_be(config, sizes, words):
    refused(words, config, **sizes)


def test_a_folder_that_is_gone_is_no_place_to_work_in(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert "no longer exists" in refused_command("data", "lab", "--out", "a.jsonl")


def test_a_prompt_that_is_too_long_is_told_once_and_in_our_words(tmp_path):
    long = {"question": "Who? " * 5000, "answers": ["Ada"], "ctxs": [{"title": "A", "text": "Ada."}]}
    (tmp_path / "long.jsonl").write_text(json.dumps(long))
    assert "the model's context is 4096" in refused_command("trial", "--data", tmp_path / "long.jsonl")

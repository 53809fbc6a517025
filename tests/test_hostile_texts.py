"""What a passage, a file's name or an option holds reaches neither the terminal nor a tokenizer as it is."""

import json
import os
import subprocess
import sys
from concurrent.futures import CancelledError

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from tests.scheduler_cases import PROMPTS, simulated
from workbench import fetch, models
from workbench.app.cli import app
from workbench.core.blocks import Block
from workbench.core.errors import BadInput, printable
from workbench.core.utils.runner import check_jobs
from workbench.data import layouts
from workbench.methods.preprocessing.precompute import Preparation
from workbench.methods.serving.tickets import DeadlineExceeded
from workbench.models import random_init
from workbench.store import MemoryStore

ODD = "\x1b[31mred\x1b]0;title\x07 \u202eright\u2066 \x9b2J\x00"


def test_text_that_moves_the_cursor_or_turns_writing_around_is_escaped():
    assert printable(ODD).isprintable() and "\\u202e" in printable(ODD) and "\\x1b" in printable(ODD)
    assert printable("naïve 漢字 \u0644\u200c, two\nlines") == "naïve 漢字 \u0644\u200c, two\nlines"


@pytest.mark.parametrize("as_json", [False, True])
def test_a_passage_that_is_shown_is_printable(tmp_path, as_json):
    sample = {"id": ODD, "kind": ODD, "question": ODD, "answers": [ODD], "ctxs": [{"title": ODD, "text": ODD}]}
    (tmp_path / "odd.jsonl").write_text(json.dumps(sample) + "\n")
    told = CliRunner().invoke(app, ["data", str(tmp_path / "odd.jsonl"), *["--json"] * as_json])
    assert told.exit_code == 0 and all(line.isprintable() for line in told.stdout.splitlines())
    assert not as_json or json.loads(told.stdout)["question"] == ODD


def test_the_name_of_a_file_that_is_refused_is_printable():
    told = CliRunner().invoke(app, ["data", f"{ODD[:-1]}.jsonl"])
    assert told.exit_code == 2 and "\x1b" not in told.output and "\u202e" not in told.output


REFUSED = [
    ["data", "lab", "--seed", "-1"],
    ["lab", "corpus", "--seed", "-1", "--out", "x"],
    ["trial", "--model", "lab-full", "--store", ""],
    ["trial", "--model", "lab-full", "--prepared", ""],
    ["report", "--jobs", "100000", "--out", "x"],
    ["sweep", "--model", "lab-full", "--jobs", "100000", "--out", "x"],
    ["tune", "--model", "lab-full", "--workers", "100000", "--out", "x"],
    ["prepare", "--model", "lab-full", "--data", "lab", "--workers", "100000", "--out", "x"],
    ["sweep", "--model", "lab-full", "--out", "/"],
]


@pytest.mark.parametrize("line", REFUSED, ids=" ".join)
def test_an_option_out_of_bounds_is_refused_by_name(tmp_path, monkeypatch, line):
    monkeypatch.chdir(tmp_path)
    told = CliRunner().invoke(app, line)
    option = line[-4] if line[-2] == "--out" and line[-1] == "x" else line[-2]
    assert told.exit_code == 2 and option.lstrip("-") in told.output and not any(tmp_path.iterdir())


def test_processes_are_a_small_multiple_of_the_cores_of_this_machine_alone():
    check_jobs(8 * (os.cpu_count() or 1), 0)
    check_jobs(100_000, 0, "slurm")
    with pytest.raises(BadInput, match="jobs is 100000: allowed are 1 to"):
        check_jobs(100_000, 0, "local")
    with pytest.raises(BadInput, match="workers"):
        Preparation("lab-full", "lab", "x", workers=10**6)


def test_a_terminal_without_width_is_written_to(tmp_path):
    command = [sys.executable, "-m", "workbench", "data", "lab", "--samples", "1"]
    told = subprocess.run(command, env={**os.environ, "COLUMNS": "0"}, capture_output=True, text=True, check=True)
    assert "Q " in told.stdout


def test_a_text_far_over_the_context_is_refused_before_it_is_tokenised():
    loaded = models.load("lab-full")
    with pytest.raises(BadInput, match="40,000,000 characters is over"):
        layouts.encode(["a " * 20_000_000], loaded.tokenizer)


def test_a_block_that_somebody_wrote_to_is_a_miss_and_is_made_again(loaded):
    store, blocks = MemoryStore(), [Block((5, 6, 7)), Block((8, 9))]
    first = [kv.clone() for kv in fetch(loaded.model, blocks, store)]
    for of in ("keys", "values"):
        with torch.no_grad():
            getattr(fetch(loaded.model, blocks, store)[0], of)[0].zero_()
        again = fetch(loaded.model, blocks, store)
        for one, other in zip(first, again, strict=True):
            torch.testing.assert_close(list(other.tensors()), list(one.tensors()))  # encoded alone: other roundings
    assert store.stats.reasons == {"never seen": 2, "damaged": 2}


@pytest.mark.parametrize(("end", "error"), [("cancel", CancelledError), ("late", DeadlineExceeded)])
def test_a_request_that_was_given_up_and_one_too_late_raise_errors_of_their_own(end, error):
    scheduler, tickets, _ = simulated("request", [50.0])
    late = scheduler.submit(PROMPTS[0], 1, deadline=10.0, name="0")
    ticket = late if end == "late" else tickets[0]
    with pytest.raises(TimeoutError, match="has not ended after 0 seconds"):
        ticket.result(0)
    if end == "cancel":
        ticket.cancel()
    scheduler.run()
    with pytest.raises(error):
        ticket.result(0)


def test_weights_in_two_files_of_another_format_or_zero_are_refused_or_told(tmp_path):
    folder = random_init.write(tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "fp8"}}))
    with pytest.raises(BadInput, match="fp8"):
        models.load(folder)
    (folder / "config.json").write_text(json.dumps(config))
    zeros = {name: torch.zeros_like(x) for name, x in weights.items()}
    save_file(zeros, folder / "model.safetensors", {"format": "pt"})
    with pytest.warns(UserWarning, match="weights are zero"):
        models.load(folder)
    (folder / "model.safetensors").unlink()
    name = sorted(weights)[0]
    save_file(weights, folder / "a.safetensors", {"format": "pt"})
    save_file({name: weights[name]}, folder / "b.safetensors", {"format": "pt"})
    index = {"metadata": {}, "weight_map": dict.fromkeys(weights, "a.safetensors") | {name: "b.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(BadInput, match="stands in two files"):
        models.load(folder)

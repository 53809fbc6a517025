"""What a command reads is not written over by it, and an output without a name is refused."""

import json

import pytest
import tiny
from typer.testing import CliRunner

from tests.refusals import refused
from workbench import models
from workbench.app.cli import app
from workbench.core.errors import BadInput
from workbench.experiments.sweeps.sweep import sweep
from workbench.experiments.trials.trial import Trial
from workbench.methods.preprocessing.precompute import Preparation
from workbench.models.weights import delta_weights, export_hf

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
    done = CliRunner().invoke(app, words.split())
    assert done.exit_code == 2 and "this command reads or writes otherwise" in done.stderr
    assert {path: path.read_bytes() for path in there.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("words", ["store encode q.jsonl --model model --to", "compare r.json r.json --figure"])
def test_an_output_without_a_name_is_refused(there, words):
    done = CliRunner().invoke(app, [*words.split(), ""])
    assert done.exit_code == 2 and "'': the name of a file or folder is needed" in done.stderr


def test_a_difference_takes_no_place_of_a_model_that_is_there(there):
    export_hf.write(str(there / "model"), there / "base")
    with pytest.raises(BadInput, match="base is there already: a new folder is needed"):
        delta_weights.save(there / "base", there / "base", str(there / "base"))
    assert models.load(there / "base")


def test_a_cluster_that_does_not_answer_leaves_nothing_of_a_preparation(there):
    pytest.importorskip("distributed")
    asked = {"data": "q.jsonl", "prepare": "independent", "cluster": "nowhere"}
    refused("no Dask scheduler answers at 'nowhere'", lambda: Preparation("model", there / "out", **asked).run())
    assert not (there / "out").exists()


def test_a_cluster_without_a_name_is_refused(there):
    pytest.importorskip("distributed")
    with pytest.raises(BadInput, match="no Dask scheduler answers at ''"):
        sweep(Trial("model", data="q.jsonl", samples=1), there / "out", cluster="")
    assert not (there / "out").exists()

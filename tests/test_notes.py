"""The notes on kernels quote committed reports, and predictions that were committed before them."""

import subprocess
from itertools import pairwise
from pathlib import Path

import notes
import pandas as pd
import pytest

from workbench.experiments.results import FOLDER

ROOT = Path(__file__).parents[1]


def test_the_notes_are_what_their_script_writes():
    assert notes.NOTES.read_text() == notes.notes(), "python data/benchmarks/notes.py"


def row(report, who, ms, **shape):
    return {"report": report, "work": "w", "who": who, "ms": ms, "shape": shape}


@pytest.mark.parametrize(("ours", "said"), [(1.0, "5"), (10.0, "**0.5**")])
def test_a_bar_is_met_or_bold(ours, said):
    rows = pd.DataFrame([row("decode", "ours", ours), row("decode", "flash", 5.0), row("decode", "flash 2", 9.0)])
    bar = notes.Bar("decode", "w", "flash", 2.5, 3.5)
    assert notes.measured(rows, bar) == said
    assert notes.measured(rows[:1], bar) == "not measured"


def test_recomputed_rows_are_held_to_their_bar_with_the_choice():
    bar = notes.Bar("recompute", "w", "stock", 4.5, 6)
    rows = [row("recompute", "ours", 1.0, rows=9), row("recompute", "stock", 6.0)]
    assert "not measured with the choice" in notes.measured(pd.DataFrame(rows), bar)
    rows[0]["shape"]["choice"] = "question-guided"
    assert notes.measured(pd.DataFrame(rows), bar) == "6"


def test_a_prediction_counts_where_its_commit_precedes_the_report(monkeypatch, tmp_path):
    def git(*arguments):
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        return subprocess.run(
            ["git", *who, *arguments], cwd=tmp_path, capture_output=True, text=True, check=True
        ).stdout

    git("init", "-q")
    predictions, report = tmp_path / "predictions.md", tmp_path / "decode.json"
    for name, value in (("FOLDER", tmp_path), ("PREDICTIONS", predictions)):
        monkeypatch.setattr(notes, name, value)
    early, late = "| decode | w | ours | 5 |", "| decode | v | ours | 6 |"
    for path, text in ((predictions, early), (report, '{"ms": 5.25}'), (predictions, f"{early}\n{late}")):
        path.write_text(text + "\n")
        git("add", ".")
        git("commit", "-q", "-m", "x")
    git("mv", "decode.json", "decoding.json")
    git("commit", "-q", "-m", "a report may be renamed")
    assert notes.predicted("decode", "w", "ours", 5.25) == "5"
    assert notes.predicted("decode", "v", "ours", 5.25) == "–", "it came after the report"
    assert notes.predicted("decode", "w", "flash", 5.25) == "–", "nobody predicted it"


def test_predictions_are_added_and_never_changed():
    log = ["git", "log", "--reverse", "--format=%H", "--", "data/benchmarks/predictions.md"]
    commits = subprocess.run(log, cwd=ROOT, capture_output=True, text=True, check=False).stdout.split()
    if not commits:
        pytest.skip("no history here")

    def show(commit):
        path = f"{commit}:data/benchmarks/predictions.md"
        return subprocess.check_output(["git", "show", path], cwd=ROOT, text=True)

    texts = [*map(show, commits), (FOLDER / "predictions.md").read_text()]
    assert all(later.startswith(earlier) for earlier, later in pairwise(texts))

"""The notes on kernels quote committed reports, and predictions that were committed before them."""

import subprocess
from itertools import pairwise
from pathlib import Path

import notes
import pandas as pd
import pytest

from workbench.results.reader import FOLDER

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


def test_a_prediction_is_shown_beside_the_time_that_came_after_it():
    (first, *_), said = notes.predictions(), notes.predicted
    assert said(*first) == notes.predictions()[first] and said("decode", "w", "nobody") == "–"


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

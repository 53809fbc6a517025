"""The measured tables of the README are what their script writes, in favour of whoever was faster."""

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import headline
import notes
import pandas as pd
import pytest
import touch

from workbench.app.docs import measured as docs_measured
from workbench.results.reader import FOLDER


def test_the_tables_of_the_readme_are_what_their_script_writes():
    text = headline.README.read_text()
    assert headline.renewed(text) == text, "python data/benchmarks/headline.py"


def test_a_readme_without_the_marks_is_refused():
    with pytest.raises(ValueError):
        headline.renewed("# No marks")


@pytest.mark.parametrize(("ours", "ratio"), [(2.0, "2.5×"), (10.0, "0.5×")])
def test_ours_is_set_beside_the_fastest_baseline(ours, ratio):
    times = {"ours": ours, "ours, another": 1.0, "transformers": 9.0, "transformers, cudnn": 5.0}
    work = next(line for line in headline.LINES if line.report == "decode")
    rows = pd.DataFrame([{"report": "decode", "work": work.work, "who": who, "ms": ms} for who, ms in times.items()])
    (line,) = headline.speed(rows).splitlines()[2:]
    assert f"| {ours:.3g} ms | transformers, cudnn: 5 ms | **{ratio}** |" in line
    assert len(headline.speed(rows[rows.who == "ours"]).splitlines()) == 2, "without a baseline there is no ratio"


def test_every_method_of_the_table_was_measured_on_the_questions_that_ship():
    table = headline.quality(headline.trials())
    assert [name for name in (*headline.METHODS, "full attention") if f"| {name}" not in table] == []


# --- The notes on kernels quote committed reports, and predictions that were committed before them
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


# --- data/benchmarks/touch.py: how long the prompt one can touch takes to show each kind of change
def test_every_change_is_answered_and_its_parts_come_in_order(loaded):
    rows = list(touch.measured(loaded, repeats=1, passages=3))
    assert [row["change"] for row in rows] == ["ratio", "selector", "order", "word"]
    assert all(0 < row["shown"] <= row["both"] <= row["all"] for row in rows)


# --- What the page on reuse says of its own commands is made of their numbers, and turns with them


def test_what_was_measured_are_the_commands_of_the_page(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import measured

    sys.modules.pop("measured")
    if not measured.KEPT.is_file():
        pytest.skip("python docs/measured.py has not been run: the page says so")
    kept = docs_measured.json.loads(measured.KEPT.read_text())
    assert [each["command"] for each in kept["took"]] == measured.commands(measured.PAGE.read_text())
    assert "moves predictions least" in docs_measured.verdict(kept["found"])

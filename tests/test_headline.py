"""The measured tables of the README are what their script writes, in favour of whoever was faster."""

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import headline
import made_up
import pandas as pd
import pytest
import torch
import touch

from tests.refusals import refused
from workbench.experiments import bench_reports
from workbench.results import expand_settings, read
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
    rows = pd.DataFrame(
        [
            {"report": "decode", "workload": work.work, "candidate": who, "ms": ms, "p5": ms, "p95": ms, "runs": 9}
            for who, ms in times.items()
        ]
    )
    (line,) = headline.speed(rows).splitlines()[2:]
    assert f"| {ours:.3g} ms | transformers, cudnn: 5 ms | **{ratio}** ({ratio[:-1]} to {ratio[:-1]}, 9 runs) |" in line
    assert len(headline.speed(rows[rows.candidate == "ours"]).splitlines()) == 2, "without a baseline there is no ratio"


def test_every_method_of_the_table_was_measured_on_the_questions_that_ship():
    table = headline.quality(headline.trials())
    assert [name for name in (*headline.METHODS, "full attention") if f"| {name}" not in table] == []


def test_the_rule_that_is_timed_as_the_nearest_is_the_nearest_of_its_table():
    (said,) = (line for line in headline.LINES if "least of a table below" in line.says)
    (questions,) = (part for part in headline.quality(headline.trials()).split("<details>") if "Natural Q" in part)
    lines = [line.split(" | ") for line in questions.splitlines()[4:] if line.startswith("| ")]
    kl = {name.removeprefix("| "): float(cells[0].split()[0]) for name, _, _, _, *cells in lines}
    kl.pop("full attention")
    assert (
        "answer-guided" in min(kl, key=kl.get)
        and said.mine == "ours, answer-guided"
        and len(kl) == len(headline.METHODS)
    )


# --- Predictions stand before what they predict
ROOT = Path(__file__).parents[1]


def test_predictions_are_added_and_never_changed():
    log = ["git", "log", "--reverse", "--format=%H", "--", "data/benchmarks/predictions.md"]
    commits = subprocess.run(log, cwd=ROOT, capture_output=True, text=True, check=False).stdout.split()
    if not commits:
        pytest.skip("no history here")

    def show(commit):
        path = f"{commit}:data/benchmarks/predictions.md"
        return subprocess.check_output(["git", "show", path], cwd=ROOT, text=True)

    texts = [*map(show, commits), (FOLDER / "predictions.md").read_text()]
    lines = [[line for line in text.splitlines() if line.startswith("|")] for text in texts]
    assert all(later[: len(earlier)] == earlier for earlier, later in pairwise(lines))


# --- data/benchmarks/touch.py: how long the prompt one can touch takes to show each kind of change
def test_every_change_is_answered_and_its_parts_come_in_order(loaded):
    rows = list(touch.measured(loaded, repeats=1, passages=3))
    assert [row["change"] for row in rows] == ["ratio", "selector", "order", "word"]
    assert all(0 < row["shown"] <= row["both"] <= row["all"] for row in rows)


# --- The page on reuse tells what its own commands took
def test_what_was_measured_are_the_commands_of_the_page(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    sys.modules.pop("measured", None)
    import measured

    for page in measured.PAGES:
        text = page.read_text()
        shown = {found[1]: found[3] for found in measured.PRINTED.finditer(text)}
        assert shown and all(shown.values()) and shown.keys() <= set(measured.commands(text)), page


# --- What `workbench bench` measures: written as rows of tables, and found again by workload
@pytest.fixture
def found(tmp_path):
    for name in made_up.WORKS:
        made_up.bench(tmp_path, name)
    return read(tmp_path)


def test_rows_hold_what_was_measured_and_what_did_not_run(found, tmp_path):
    timed, counts = (expand_settings(found.table(table, "bench"), "report", "who") for table in ("timings", "counts"))
    assert set(timed.device) == {made_up.CARD} and set(counts[counts.measure == "copy_tbps"].value) == {made_up.COPY}
    for name in made_up.WORKS:
        for work in made_up.report(name)["workloads"]:
            own = timed[(timed.report == name) & (timed.workload == work["name"])].set_index("candidate")
            shape = json.loads(own.setting.iloc[0])
            assert shape == {**work["shape"], "floor_ms": work["floor_ms"], "report": name}
            *ran, refused = work["contestants"]
            assert list(own.index) == [one["who"] for one in ran]
            for one in ran:
                known = {"flops": work["flops"], "bytes": work["bytes"], **one}
                for column in ("ms", "p5", "p95", "runs", "flops", "bytes"):
                    assert own[column][one["who"]] == pytest.approx(known[column])
            gone = counts[(counts.report == name) & (counts.workload == work["name"])]
            assert list(gone.who) == [refused["who"]] and list(gone.problem) == [refused["problem"]]
            timed_rows, refused_rows = bench_reports.earlier_workloads(tmp_path, name, made_up.CARD)[work["name"]]
            assert (len(timed_rows), len(refused_rows)) == (len(ran), 1)


def test_a_workload_that_is_measured_again_of_the_same_gpu_replaces_its_rows(found, tmp_path):
    assert bench_reports.earlier_workloads(tmp_path, "question", "another GPU") == {}
    ((name, rows),) = bench_reports.earlier_workloads(tmp_path, "question", made_up.CARD).items()
    renamed = [{**row, "workload": "renamed"} for row in rows[0]]
    bench_reports.write(tmp_path, made_up.report("question"), {"renamed": (renamed, rows[1])})
    timed = read(tmp_path).timings("bench")
    assert "renamed" in set(timed.workload) and name not in set(timed.workload)


def test_a_kernel_is_measured_here_only_where_it_can_be(found):
    refused("no_such", bench_reports.with_measured, found, ["no_such"], [])
    if not torch.cuda.is_available():
        pytest.importorskip("triton")
        for name in ("tile_attention", "question"):  # a kernel, a whole model
            refused("GPU", bench_reports.with_measured, found, [name], ["flash"])

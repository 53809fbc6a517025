"""Notebooks over lists of parameters: every combination once, taken up where it stopped, here or on Dask."""

import json
from pathlib import Path
from typing import ClassVar

import pandas as pd
import pytest
import report_notebooks
from typer.testing import CliRunner

from tests.commands import refused_command, told
from tests.refusals import refused
from workbench.app import cli
from workbench.app.notebooks import sweep as notebook_sweep
from workbench.app.notebooks.run import NotebookRun
from workbench.core.errors import BadInput

distributed = pytest.importorskip("distributed")


class Quick:
    """Runs no kernel: a notebook leaves its parameters as metrics, and fails for 3 points, or once for 4."""

    asked: ClassVar[list[int]] = []
    refusal = ""

    def __init__(self, jobs):
        self.jobs = jobs

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def check(self, tasks):
        if self.refusal:
            raise BadInput(self.refusal)

    def run(self, tasks):
        for task in tasks:
            points = task.parameters["points"]
            self.asked.append(points)
            bad = points == 3 or (points == 4 and self.asked.count(4) < 2)
            folder = Path(task.out) / task.name
            folder.mkdir(parents=True, exist_ok=True)
            if not bad:
                metrics = {"points": points, "of": {"mean": points / 2, "names": ["x"]}}
                (folder / "metrics.json").write_text(json.dumps(metrics))
                (folder / "_SUCCESS").write_text("")
            yield NotebookRun(task.name, "A curve", 0.1, "NameError: no" if bad else "")


@pytest.fixture
def curve(tmp_path, monkeypatch):
    monkeypatch.setattr(notebook_sweep, "NotebookWorkers", Quick)
    monkeypatch.setattr(Quick, "asked", [])
    return report_notebooks.write(tmp_path, "01_curve", report_notebooks.FIGURE, report_notebooks.SAVE)


def test_every_combination_is_a_run_once_and_is_taken_up_again(curve, tmp_path):
    out, told = tmp_path / "out", []
    ran = notebook_sweep.run([curve], out, {"points": [2, 5, 2]}, progress=lambda *done: told.append(done))
    assert Quick.asked == [2, 5] and told == [(0, 2), (1, 2), (2, 2)] and (out / "_SUCCESS").exists()
    assert ran.table.points.tolist() == [2, 5] and ran.table["of.mean"].tolist() == [1.0, 2.5]
    pd.testing.assert_frame_equal(pd.read_parquet(out / "runs.parquet"), ran.table)
    notebook_sweep.run([curve], out, {"points": [2, 5, 6]})
    assert Quick.asked == [2, 5, 6]
    report_notebooks.write(tmp_path, "01_curve", report_notebooks.FIGURE, report_notebooks.SAVE, title="Another")
    notebook_sweep.run([curve], out, {"points": [2]})
    assert Quick.asked == [2, 5, 6, 2], "the notebook has changed"


def test_a_run_that_fails_is_tried_again_so_often_and_the_others_go_on(curve, tmp_path):
    ran = notebook_sweep.run([curve], tmp_path / "out", {"points": [3, 4, 5]}, retries=1)
    assert sorted(Quick.asked) == [3, 3, 4, 4, 5] and list(ran.failures.values()) == ["NameError: no"]
    assert ran.table.ok.tolist() == [False, True, True] and not (tmp_path / "out" / "_SUCCESS").exists()
    assert pd.isna(ran.table["of.mean"][0]) and ran.table.message[0] == "NameError: no"


def test_a_cluster_finds_what_processes_here_find(curve, tmp_path):
    here = notebook_sweep.run([curve], tmp_path / "here", {"points": [3, 4, 5]})
    Quick.asked.clear()
    with distributed.LocalCluster(n_workers=1, processes=False, dashboard_address=None, protocol="tcp://") as cluster:
        there = notebook_sweep.run(
            [curve], tmp_path / "there", {"points": [3, 4, 5]}, cluster=cluster.scheduler_address
        )
    pd.testing.assert_frame_equal(there.table, here.table)
    assert there.failures == here.failures and sorted(Quick.asked) == [3, 3, 4, 4, 5]
    assert len(list((tmp_path / "there").glob("*/_SUCCESS"))) == 2


@pytest.mark.parametrize(
    ("lists", "words"),
    [({"speed": [1]}, "unknown parameter speed: the notebooks take points"), ({"points": [1]}, "points is 1")],
)
def test_what_is_wrong_is_said_before_the_first_run(curve, tmp_path, lists, words, monkeypatch):
    monkeypatch.setattr(Quick, "refusal", "points is 1: it must be between 2 and 100")
    refused(words, notebook_sweep.run, [curve], tmp_path / "out", lists)
    assert not (tmp_path / "out").exists() and Quick.asked == []
    refused("is no notebook file", notebook_sweep.run, [tmp_path / "no.ipynb"], tmp_path / "out", {})


def test_the_command_takes_notebooks_and_lists_of_their_parameters(curve, tmp_path):
    command = ["sweep", curve, "-p", "points=2,5", "--out", tmp_path / "out"]
    assert [json.loads(line)["points"] for line in told(*command, "--json").splitlines()] == [2, 5]
    assert "2 runs, 0 failed" in told(*command)
    failed = CliRunner().invoke(cli.app, ["sweep", str(curve), "-p", "points=3", "--out", str(tmp_path / "out")])
    assert failed.exit_code == 1 and "NameError: no" in failed.stderr
    for wrong, words in (
        ([str(curve), "--mode", "full"], "--mode is for trials"),
        (["-p", "points=2"], "no notebook is named"),
    ):
        assert words in refused_command("sweep", *wrong, "--out", tmp_path / "other")
        assert not (tmp_path / "other").exists()


@pytest.mark.weekly  # kernels and a worker process that import everything
def test_a_notebook_runs_in_a_worker_process(tmp_path):
    curve = report_notebooks.write(tmp_path, "01_curve", report_notebooks.FIGURE, report_notebooks.SAVE)
    ran = notebook_sweep.run([curve], tmp_path / "out", {"points": [2, 5]}, cluster="local", jobs=2)
    assert not ran.failures and ran.table.points.tolist() == [2, 5] and not ran.table.live.any()
    for name in ran.table.run:
        folder = tmp_path / "out" / name
        assert (folder / f"{name}.html").exists() and len(pd.read_parquet(folder / "curve.parquet"))
    refused("points", notebook_sweep.run, [curve], tmp_path / "wrong", {"points": [1]}, cluster="local")

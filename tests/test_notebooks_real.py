"""Every notebook with the real model, as `-p model=smollm2` runs it. It takes a while: `pytest -m weekly`."""

import resource
from contextlib import nullcontext

import pytest
from papermill.inspection import inspect_notebook
from short_runs import NOTEBOOKS

from workbench.app.notebooks import forked
from workbench.app.notebooks.run import NotebookTask, NotebookWorkers
from workbench.app.reports import html

LIMIT_S = 180  # on two cores
WITH_MODEL = [path for path in NOTEBOOKS if "model" in inspect_notebook(str(path))]


def cpu_seconds() -> float:
    """Seconds of all cores that ended processes of this one have taken."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.mark.weekly
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("path", WITH_MODEL, ids=lambda path: path.stem)
def test_a_notebook_runs_with_the_real_model_in_three_minutes(path, smollm2, tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.setenv("OMP_WAIT_POLICY", "passive")  # a thread that waits for one without a core does not count
    monkeypatch.setattr(
        forked, "serve_forks", lambda *_: nullcontext(forked.PLAIN)
    )  # a fork's seconds are not its asker's
    before = cpu_seconds()
    with NotebookWorkers(1) as workers:
        (run,) = workers.run([NotebookTask(str(path), str(tmp_path), {"model": "smollm2"}, cell_timeout_s=900)])
    used = cpu_seconds() - before
    print(f"{path.stem}: {run.seconds:.0f} s, {used:.0f} s of one core")  # shown by -rP
    assert run.ok, run.message
    assert run.metrics["model"] == "smollm2" and list(html.figures(tmp_path / path.stem / path.name))
    assert min(run.seconds, used) < LIMIT_S, "where others keep the machine busy, its work counts, as one core does it"

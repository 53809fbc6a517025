"""Processes of a report: forks of one that has imported the workbench, or none where a fork would be unsafe."""

import os
import sys
from pathlib import Path

import report_notebooks as tiny

from workbench.app.notebooks import forked
from workbench.app.notebooks.run import NotebookTask, NotebookWorkers


def test_a_notebook_and_its_kernel_run_in_forks(tmp_path, monkeypatch):
    save = tiny.SAVE.replace('"live"', '"parent": os.getppid(), "live"')
    path = tiny.write(tmp_path, "01_forked", "import os", tiny.FIGURE, save)
    monkeypatch.setattr(forked, "NOTEBOOK", ("workbench.app.notebooks.run",))
    with NotebookWorkers(1) as workers:
        (ended,) = workers.run([NotebookTask(str(path), str(tmp_path / "report"), {})])
        assert ended.ok, ended.message
        parent = Path(f"/proc/{ended.metrics['here']['parent']}/cmdline")
        assert {forked.__file__, "serve"} <= set(parent.read_text().split("\0"))
    assert not parent.exists() or not parent.read_text(), "it ends with the block"


def test_beside_a_gpu_nothing_is_forked(tmp_path, monkeypatch):
    monkeypatch.setattr(forked, "GPUS", (str(tmp_path),))
    with forked.served(os.environ, ()) as python:
        assert python == [sys.executable, "-m"]

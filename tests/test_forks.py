"""Processes of a report: forks of one that has imported the workbench, or none where a fork would be unsafe."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import report_notebooks as tiny

from workbench.app.notebooks import forked
from workbench.app.notebooks.run import NotebookTask, NotebookWorkers


def test_a_notebook_and_its_kernel_run_in_forks(tmp_path, monkeypatch):
    save = tiny.SAVE.replace('"live"', '"parent": os.getppid(), "live"')
    waits = "import os, time\ntime.sleep(2.5)"  # longer than two looks at the cells are apart
    path, counted = tiny.write(tmp_path, "01_forked", waits, tiny.FIGURE, save), []
    monkeypatch.setattr(forked, "NOTEBOOK", ("workbench.app.notebooks.run",))
    with NotebookWorkers(1) as workers:
        task = NotebookTask(str(path), str(tmp_path / "report"), {})
        (ended,) = workers.run([task], advance=lambda done, total: counted.append((done, total)))
        assert ended.ok, ended.message
        assert 0 < counted[0][0] < counted[0][1] and counted[-1][0] == counted[-1][1], "cells, as they end"
        parent = Path(f"/proc/{ended.metrics['here']['parent']}/cmdline")
        assert {forked.__file__, "serve"} <= set(parent.read_text().split("\0"))
    assert not parent.exists() or not parent.read_text(), "it ends with the block"


ENDLESS = "import os\nfrom pathlib import Path\n\nPath({!r}).write_text(str(os.getpid()))\nwhile True:\n    pass"
RUN = """import sys

from workbench.app.notebooks import forked
from workbench.app.notebooks.run import NotebookTask, NotebookWorkers

forked.NOTEBOOK = ("workbench.app.notebooks.run",)
with NotebookWorkers(1) as workers:
    list(workers.run([NotebookTask(*sys.argv[1:], {})]))"""


def test_a_kernel_ends_soon_after_the_process_that_runs_notebooks_is_killed(tmp_path):
    number = tmp_path / "number"
    path = tiny.write(tmp_path, "01_endless", ENDLESS.format(str(number)))
    process = subprocess.Popen([sys.executable, "-c", RUN, str(path), str(tmp_path / "report")])
    assert within(60, lambda: number.is_file() and number.read_text())
    kernel = Path("/proc", number.read_text())
    assert kernel.exists()
    process.kill()
    process.wait()
    assert within(20, lambda: not kernel.exists())


def test_a_kernel_ends_soon_after_the_process_that_runs_its_notebook(tmp_path, monkeypatch):
    number = tmp_path / "number"
    kill = f"Path({str(number)!r}).write_text(str(os.getpid()))\nos.kill(int(os.environ['JPY_PARENT_PID']), 9)"
    path = tiny.write(tmp_path, "01_killed", f"import os\nfrom pathlib import Path\n\n{kill}")
    monkeypatch.setattr(forked, "NOTEBOOK", ("workbench.app.notebooks.run",))
    with NotebookWorkers(1) as workers:
        (ended,) = workers.run([NotebookTask(str(path), str(tmp_path / "report"), {})])
    assert ended.message.startswith("its process ended with exit code -9")
    assert within(20, lambda: not Path("/proc", number.read_text()).exists())


def test_a_fork_ends_soon_after_the_serving_process_though_who_asked_for_it_lives(tmp_path):
    number = tmp_path / "number"
    (tmp_path / "endless.py").write_text(ENDLESS.format(str(number)))
    with forked.serve_forks(os.environ | {"PYTHONPATH": str(tmp_path)}, ()) as python:
        asks = subprocess.Popen([*python, "endless"], cwd=tmp_path)
        assert within(30, lambda: number.is_file() and number.read_text())
        os.kill(asks.pid, signal.SIGSTOP)  # it sees and does nothing
    try:
        assert within(20, lambda: not Path("/proc", number.read_text()).exists())
    finally:
        asks.kill()
        asks.wait()


def within(seconds, holds):
    """Whether it holds before so many seconds are over."""
    until = time.monotonic() + seconds
    while not holds() and time.monotonic() < until:
        time.sleep(0.1)
    return holds()


def test_beside_a_gpu_nothing_is_forked(tmp_path, monkeypatch):
    monkeypatch.setattr(forked, "GPUS", (str(tmp_path),))
    with forked.serve_forks(os.environ, ()) as python:
        assert python == [sys.executable, "-m"]

"""Run notebooks in separate processes, several at a time (`execution`)."""

import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from workbench.app.notebooks import forked
from workbench.core.errors import BadInput
from workbench.core.utils.stages import stage
from workbench.core.utils.watched import BATCH

LOOK_S = 1  # seconds between progress checks
HERE = Path(__file__).resolve().parents[3]  # the folder that holds the package


@dataclass(frozen=True)
class NotebookRun:
    """The outcome of one notebook. `message` says why it failed; `metrics` is its metrics.json."""

    name: str
    title: str
    seconds: float = 0.0
    message: str = ""
    metrics: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether it ran to its end and saved its results."""
        return not self.message


@dataclass(frozen=True)
class NotebookTask:
    """A notebook, its results folder and its parameters: JSON values, sent between processes."""

    path: str
    out: str
    parameters: Mapping[str, Any]
    cell_timeout_s: int = 600
    name: str = ""  #: of its folder and files; default: the notebook's


class NotebookWorkers:
    """Runs tasks in separate processes, `jobs` at a time; leaving the `with` block early ends them.

    If possible, these and their kernels are forks of a process that has imported what notebooks need.
    """

    def __init__(self, jobs: int) -> None:
        self.pool = ThreadPoolExecutor(jobs)
        self.stack = ExitStack()
        self.python = forked.PLAIN
        self.alive: set[subprocess.Popen[bytes]] = set()
        self.advance: Callable[[int, int], None] | None = None
        self.cells: dict[str, tuple[int, int]] = {}  # per notebook: (cells ended, cells)
        threads = os.environ.get("OMP_NUM_THREADS") or str(max(1, (os.cpu_count() or 1) // jobs))
        self.environment = os.environ | {
            BATCH: "1",
            "PLOTLY_RENDERER": "plotly_mimetype",  # a figure is stored once
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",  # bars stick in a stored notebook
            "TQDM_DISABLE": "1",
            "PYDEVD_DISABLE_FILE_VALIDATION": "1",
            "OMP_NUM_THREADS": threads,
            "PYTHONPATH": os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH")))),
        }

    def __enter__(self) -> "NotebookWorkers":
        return self

    def __exit__(self, *error: object) -> None:
        self.pool.shutdown(wait=False, cancel_futures=True)
        for process in list(self.alive):
            process.kill()  # its kernel notices and ends
        self.pool.shutdown()
        self.stack.close()

    def check(self, tasks: Sequence[NotebookTask]) -> None:
        """Raise BadInput if a notebook's own validation refuses its parameters."""
        stage("importing libraries to check notebook parameters")
        self.prepare()
        if refusal := self._call("check", [asdict(task) for task in tasks]):
            raise BadInput(refusal)

    def run(
        self,
        tasks: Sequence[NotebookTask],
        skip: Callable[[NotebookTask], bool] = lambda task: False,
        advance: Callable[[int, int], None] | None = None,
    ) -> Iterator[NotebookRun]:
        """Yield the outcomes, each as soon as its notebook has ended.

        `skip` is called when it is a task's turn, in a thread that may wait; skipped tasks have no outcome.
        `advance(ended, all)` is called with numbers of cells, from any thread.
        """
        self.prepare()
        self.advance, self.cells = advance, {task.name or task.path: (0, _cells(Path(task.path))) for task in tasks}
        futures = {self.pool.submit(self._run, task, skip): task for task in tasks}
        for future in as_completed(futures):
            path, name = Path(futures[future].path), futures[future].name
            try:
                if (outcome := future.result()) is not None:
                    yield NotebookRun(**outcome)
            except ProcessDied as error:
                from workbench.app.reports import html  # nbconvert: not before the first notebook runs

                yield NotebookRun(name or path.stem, html.title(path), message=str(error))

    def prepare(self) -> None:
        """Start the fork server, unless it runs; requests wait for its imports."""
        if self.python != forked.PLAIN:
            return
        self.python = self.stack.enter_context(forked.serve_forks(self.environment, forked.NOTEBOOK))
        if self.python != forked.PLAIN:
            folder = Path(self.stack.enter_context(tempfile.TemporaryDirectory()))
            paths = (forked.kernel_in(folder, self.python), os.environ.get("JUPYTER_PATH"))
            self.environment["JUPYTER_PATH"] = os.pathsep.join(filter(None, paths))

    def _run(self, task: NotebookTask, skip: Callable[[NotebookTask], bool]) -> Any:
        name = task.name or task.path
        if skip(task):
            self.cells[name] = 0, 0
            return None
        stage(f"running {task.name or Path(task.path).stem}")
        try:
            return self._call("run", asdict(task), name)
        finally:
            self._count(name, self.cells[name][1], self.cells[name][1])

    def _count(self, name: str, ended: int, cells: int) -> None:
        self.cells[name] = ended, cells
        if self.advance:
            done, total = map(sum, zip(*self.cells.values(), strict=True))
            self.advance(done, total)

    def _wait(self, process: subprocess.Popen[bytes], name: str, counted: Path) -> None:
        """Wait for a process to end, and report the progress of notebook `name` from its file `counted`."""
        said = ""
        while process.poll() is None:
            try:
                process.wait(LOOK_S)
            except subprocess.TimeoutExpired:
                ended, cells, heading = _ended(counted)
                if cells:
                    self._count(name, ended, cells)
                if heading != said:
                    said = heading
                    stage(f"running {Path(name).stem}, {heading}")

    def _call(self, action: str, argument: Any, name: str = "") -> Any:
        """Run `main` of `execution` in another process and return its answer; `name`: a notebook to count cells of."""
        with tempfile.TemporaryDirectory() as folder:
            question, answer, log, counted = (
                Path(folder, name) for name in ("question.json", "answer.json", "log", "cells")
            )
            question.write_text(json.dumps({**argument, "counted": str(counted)} if name else argument))
            command = [*self.python, "workbench.app.notebooks.execution", action, str(question), str(answer)]
            with log.open("wb") as output:
                process = subprocess.Popen(
                    command, env=self.environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
                )
            self.alive.add(process)
            self._wait(process, name, counted)
            self.alive.discard(process)
            if not answer.exists():
                last = log.read_text(errors="replace").strip().splitlines()[-1:]
                raise ProcessDied(": ".join([f"its process ended with exit code {process.returncode}", *last]))
            return json.loads(answer.read_text(encoding="utf-8"))


class ProcessDied(RuntimeError):
    """A worker process ended without an answer, e.g. for lack of memory."""


def _ended(file: Path) -> tuple[int, int, str]:
    """Return (cells ended, cells, last heading) of `counted_cells`; zeros before the first cell ends."""
    done, _, rest = (file.read_text(encoding="utf-8") if file.is_file() else "").partition(" ")
    total, _, heading = rest.partition(" ")
    return (int(done), int(total), heading) if done.isdigit() and total.isdigit() else (0, 0, "")


def _cells(path: Path) -> int:
    """Return the number of cells; 1 for an unreadable notebook, which fails when it runs."""
    try:
        return len(json.loads(path.read_text(encoding="utf-8"))["cells"])
    except (OSError, ValueError, KeyError, TypeError):
        return 1

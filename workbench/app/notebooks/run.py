"""Run a notebook in batch: check its parameters, execute it, make its page and picture, report its outcome.

<out>/<name>/<name>.ipynb, <name>.html   executed notebook; the same as one page, interactive without a network
             metrics.json, *.parquet     written by the notebook into its parameter `output` (`notebook.save`)
             picture.js                  picture of its main figure, for the index (`thumbnail`)
             _SUCCESS                    written last: a folder without it is partial or failed
"""

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

# isort: split
import papermill
from papermill.exceptions import PapermillExecutionError

from workbench.app.notebooks import counted_cells, forked, notebook
from workbench.app.notebooks.parameters import check, declared
from workbench.app.reports import html, thumbnail
from workbench.core.errors import BadInput
from workbench.core.utils.files import write_text
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
                yield NotebookRun(name or path.stem, html.title(path), message=str(error))

    def prepare(self) -> None:
        """Start the fork server, unless it runs; requests wait for its imports."""
        if self.python != forked.PLAIN:
            return
        self.python = self.stack.enter_context(forked.served(self.environment, forked.NOTEBOOK))
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
                ended, cells, heading = counted_cells.read(counted) or (0, 0, "")
                if cells:
                    self._count(name, ended, cells)
                if heading != said:
                    said = heading
                    stage(f"running {Path(name).stem}, {heading}")

    def _call(self, action: str, argument: Any, name: str = "") -> Any:
        """Run `main` of this module in another process and return its answer; `name`: a notebook to count cells of."""
        with tempfile.TemporaryDirectory() as folder:
            question, answer, log, counted = (
                Path(folder, name) for name in ("question.json", "answer.json", "log", "cells")
            )
            question.write_text(json.dumps({**argument, "counted": str(counted)} if name else argument))
            command = [*self.python, __name__, action, str(question), str(answer)]
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


def _cells(path: Path) -> int:
    """Return the number of cells; 1 for an unreadable notebook, which fails when it runs."""
    try:
        return len(json.loads(path.read_text(encoding="utf-8"))["cells"])
    except (OSError, ValueError, KeyError, TypeError):
        return 1


def execute(
    path: Path, out: Path, parameters: Mapping[str, Any], cell_timeout_s: int, name: str = "", counted: str = ""
) -> NotebookRun:
    """Execute one notebook in its own folder, and make its page and picture; `counted`: file for its progress."""
    name = name or path.stem
    folder = out / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    executed, started = folder / f"{name}.ipynb", time.monotonic()
    takes_output = "output" in declared(path)
    message = ""
    try:
        papermill.execute_notebook(
            path,
            executed,
            parameters={**parameters, **({"output": str(folder)} if takes_output else {})},
            kernel_name="python3",
            engine_name=counted_cells.NAME,
            counted=counted,
            cwd=path.parent,
            progress_bar=False,
            execution_timeout=cell_timeout_s,
            store_widget_state=False,
            extra_arguments=["--log-level=ERROR"],
        )
    except PapermillExecutionError as error:
        message = f"{error.ename}: {error.evalue}" if error.ename != BadInput.__name__ else str(error.evalue)
    except Exception as error:  # a dead kernel, a timeout, an unreadable file: ends this notebook, not the report
        message = f"{type(error).__name__}: {error}"
    success, metrics = folder / notebook.SUCCESS, None
    if success.exists():  # written by the notebook; ours also covers page and picture
        metrics = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
        success.unlink()
    if executed.exists():
        html.notebook_page(executed, folder / f"{name}.html", (metrics or {}).get(notebook.FINDING, ""))
        thumbnail.write(executed, folder)
    if not message and takes_output and metrics is None:
        message = "it ended without results: metrics.json was not written"
    if not message:
        write_text(success, "")
    return NotebookRun(name, html.title(path), time.monotonic() - started, message, metrics or {})


def main(action: str, question: Path, answer: Path) -> None:
    """Serve one call of `NotebookWorkers` in a separate process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that waits for this one
    logging.getLogger("papermill").setLevel(logging.ERROR)
    argument = json.loads(question.read_text(encoding="utf-8"))
    result: Any = None
    if action == "check":
        try:
            for task in argument:
                check(Path(task["path"]), task["parameters"])
        except BadInput as error:
            result = str(error)
    else:
        result = asdict(execute(Path(argument.pop("path")), Path(argument.pop("out")), **argument))
    write_text(answer, json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))

"""Run one notebook where nobody watches: its parameters checked first, its page and picture made, its end told.

<out>/<name>/<name>.ipynb, <name>.html   executed notebook; the same as one page, interactive without a network
             metrics.json, *.parquet     written by the notebook into its parameter `output` (`notebook.save`)
             thumbnail.png or .svg
             _SUCCESS                    written last: a folder without it is partial or failed
"""

import json
import logging
import multiprocessing
import os
import shutil
import signal
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nbformat
import papermill
from papermill.exceptions import PapermillExecutionError

from workbench import notebook, pages, thumbnail
from workbench.errors import BadInput
from workbench.whole import whole

HERE = Path(__file__).resolve().parents[1]  # the folder that holds the package


@dataclass(frozen=True)
class Run:
    """How one notebook ended. `message` says why it failed; `metrics` is its metrics.json."""

    name: str
    title: str
    seconds: float = 0.0
    message: str = ""
    metrics: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return not self.message


@contextmanager
def workers(jobs: int, notebooks: int) -> Iterator[ProcessPoolExecutor]:
    """Processes without threads or GPU state of this one. Ctrl-C ends them; a kernel ends when its process is gone."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(jobs, notebooks), context, _prepare, (jobs,)) as pool:
        try:
            yield pool
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in multiprocessing.active_children():
                worker.kill()
            raise


def _prepare(jobs: int) -> None:
    """Environment of the kernels: nobody watches, figures are stored once, cores are shared, this workbench is used."""
    os.environ |= {notebook.BATCH: "1", "PLOTLY_RENDERER": "plotly_mimetype", "PYDEVD_DISABLE_FILE_VALIDATION": "1"}
    os.environ |= {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "TQDM_DISABLE": "1"}  # bars stick in a stored notebook
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH"))))
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // jobs)))
    logging.getLogger("papermill").setLevel(logging.ERROR)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that waits for this one


def check(path: Path, parameters: Mapping[str, Any]) -> None:
    """Execute the cell tagged `parameters` and the one after it, which validates; BadInput comes back to the caller."""
    cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    tagged = [index for index, cell in enumerate(cells) if "parameters" in cell.metadata.get("tags", [])]
    if not tagged:
        return
    namespace: dict[str, Any] = {}
    try:
        exec(cells[tagged[0]].source, namespace)
        namespace |= parameters
        for cell in cells[tagged[0] + 1 : tagged[0] + 2]:
            exec(cell.source, namespace)
    except BadInput:
        raise
    except Exception:  # anything else is the notebook's own failure: running it shows it in full
        return


def run_one(path: Path, out: Path, parameters: Mapping[str, Any], cell_timeout_s: int) -> Run:
    """Execute one notebook in a folder of its own, and make its page and picture."""
    folder = out / path.stem
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    executed, started = folder / path.name, time.monotonic()
    takes_output = "output" in papermill.inspect_notebook(path)
    message = ""
    try:
        papermill.execute_notebook(
            path,
            executed,
            parameters={**parameters, **({"output": str(folder)} if takes_output else {})},
            kernel_name="python3",
            cwd=path.parent,
            progress_bar=False,
            execution_timeout=cell_timeout_s,
            store_widget_state=False,
            extra_arguments=["--log-level=ERROR"],
        )
    except PapermillExecutionError as error:
        message = f"{error.ename}: {error.evalue}" if error.ename != BadInput.__name__ else str(error.evalue)
    except Exception as error:  # a dead kernel, a time-out, an unreadable file: this notebook's end, not the report's
        message = f"{type(error).__name__}: {error}"
    metrics = _metrics(folder)
    (folder / notebook.SUCCESS).unlink(missing_ok=True)  # the notebook's own; ours covers page and picture too
    if executed.exists():
        pages.notebook_page(executed, folder / f"{path.stem}.html")
        thumbnail.write(next(pages.figures(executed), None), folder)
    if not message and takes_output and metrics is None:
        message = "it ended without results: metrics.json was not written"
    if not message:
        whole(folder / notebook.SUCCESS, lambda marker: marker.write_text(""))
    return Run(path.stem, pages.title(path), time.monotonic() - started, message, metrics or {})


def _metrics(folder: Path) -> dict[str, Any] | None:
    """metrics.json of a notebook that saved all of its results."""
    if not (folder / notebook.SUCCESS).exists():
        return None
    return json.loads((folder / "metrics.json").read_text(encoding="utf-8"))

"""Run notebooks over lists of their parameters by papermill: in local processes, or on a Dask cluster.

<out>/<notebook>-<key>/   the results of a run (`notebooks.run`), with _SUCCESS if complete
      runs.parquet        one row per run: {run, notebook, ok, message}, parameters, numeric metrics
      _SUCCESS            written last, if no run failed
"""

import json
import shutil
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd

from workbench.app.notebooks import notebook
from workbench.app.notebooks.parameters import accepted_parameters
from workbench.app.notebooks.run import NotebookRun, NotebookTask, NotebookWorkers
from workbench.app.reports import html
from workbench.core.utils.files import write_atomically, write_text
from workbench.core.utils.runner import Workers as Cluster
from workbench.core.utils.runner import check_jobs
from workbench.core.utils.stages import keeps, so_far

Advance = Callable[[int, int], None]  # (runs ended, runs)


@dataclass(frozen=True)
class NotebookRuns:
    """The table of a sweep of notebooks, as on disk; `failures`: {run: reason}."""

    table: pd.DataFrame
    failures: dict[str, str]


def tasks(
    notebooks: Sequence[Path], out: Path, lists: Mapping[str, Sequence[Any]], cell_timeout_s: int
) -> list[NotebookTask]:
    """Return a task for every combination of values, of every notebook with the parameters that it declares.

    Raises BadInput for a file that is not a notebook, and for a parameter that none declares.
    """
    found: dict[str, NotebookTask] = {}
    for path, names in accepted_parameters(notebooks, lists).items():
        own = {name: lists[name] for name in names}
        for values in product(*own.values()):
            given = dict(zip(own, values, strict=True))
            name = f"{path.stem}-{_key(path, given)}"
            found[name] = NotebookTask(str(path.resolve()), str(out.resolve()), given, cell_timeout_s, name)
    return list(found.values())


def _key(path: Path, given: Mapping[str, Any]) -> str:
    """Hash a run's parameters and the notebook itself, so that stale results are not taken as finished."""
    content = json.dumps(given, sort_keys=True, default=str).encode() + path.read_bytes()
    return sha256(content).hexdigest()[:10]


def run(
    notebooks: Sequence[Path],
    out: Path,
    lists: Mapping[str, Sequence[Any]],
    jobs: int = 1,
    cluster: str | None = None,
    retries: int = 1,
    progress: Advance | None = None,
    cell_timeout_s: int = 600,
) -> NotebookRuns:
    """Run what `out` lacks, and write the table.

    jobs     notebooks run at a time, or workers of a Dask cluster that is started here
    cluster  a Dask cluster to use instead: its workers need the notebooks under the same paths; results return to this
             process
    retries  how often a failed notebook is run again

    Raises BadInput, before the first run, if a notebook's own validation refuses its parameters.
    """
    check_jobs(jobs, retries, cluster)
    asked = tasks(notebooks, out, lists, cell_timeout_s)
    todo = [task for task in asked if not (out / task.name / notebook.SUCCESS).is_file()]

    def kept() -> str:
        return so_far(sum((out / task.name / notebook.SUCCESS).is_file() for task in asked), len(asked), "runs", out)

    with keeps(kept), ExitStack() as stack:
        workers = stack.enter_context(NotebookWorkers(jobs))
        workers.check(todo)
        gpu = [str(task.parameters.get("device", "")).startswith("cuda") for task in todo]
        there = _here(workers, todo, retries)
        if cluster and todo:
            there = _on(stack.enter_context(Cluster(jobs, cluster, gpu=any(gpu))), todo, retries, gpu)
        out.mkdir(parents=True, exist_ok=True)
        (out / notebook.SUCCESS).unlink(missing_ok=True)
        failures = {}
        if progress:
            progress(len(asked) - len(todo), len(asked))
        for done, ended in enumerate(stack.enter_context(closing(there)), len(asked) - len(todo) + 1):
            if not ended.ok:
                failures[ended.name] = ended.message
            if progress:
                progress(done, len(asked))
    table = pd.DataFrame([_row(task, failures.get(task.name, "")) for task in asked])
    write_atomically(out / "runs.parquet", table.to_parquet)
    if not failures:
        write_text(out / notebook.SUCCESS, "")
    return NotebookRuns(table, failures)


def _here(workers: NotebookWorkers, todo: Sequence[NotebookTask], retries: int) -> Generator[NotebookRun, None, None]:
    """Yield runs as they end, in local processes; failed ones come last, after their retries."""
    left = {task.name: task for task in todo}
    for allowed in reversed(range(retries + 1)):
        for ended in workers.run(list(left.values())):
            if ended.ok or not allowed:
                yield ended
                left.pop(ended.name)


def _on(
    cluster: Cluster, todo: Sequence[NotebookTask], retries: int, gpu: Sequence[bool]
) -> Generator[NotebookRun, None, None]:
    """Yield runs as they end on a Dask cluster; their files are written here, _SUCCESS last."""
    for task, outcome in cluster.run(_on_worker, todo, retries, gpu):
        ended, files = outcome.result or (None, {})
        if ended is None:
            yield NotebookRun(
                task.name, html.title(Path(task.path)), message=outcome.problem.removeprefix("NotebookFailed: ")
            )
            continue
        folder = Path(task.out) / task.name
        shutil.rmtree(folder, ignore_errors=True)
        for name in sorted(files, key=lambda name: name == notebook.SUCCESS):
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(files[name])
        yield NotebookRun(**ended)


class NotebookFailed(RuntimeError):
    """A notebook failed on a worker; Dask retries it."""


def _on_worker(task: NotebookTask) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Run a notebook in a process of a Dask worker; return its outcome and its files."""
    if not Path(task.path).is_file():
        raise NotebookFailed(f"a worker has no notebook {task.path}")
    with TemporaryDirectory() as scratch, NotebookWorkers(1) as workers:
        (ended,) = workers.run([replace(task, out=scratch)])
        if not ended.ok:
            raise NotebookFailed(ended.message)
        folder = Path(scratch) / task.name
        paths = [path for path in folder.rglob("*") if path.is_file()]
        return asdict(ended), {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def _row(task: NotebookTask, problem: str) -> dict[str, Any]:
    """Return a table row: numeric and text metrics, nested ones as `outer.inner`, of other sources as `source.name`."""
    file = Path(task.out) / task.name / "metrics.json"
    metrics = json.loads(file.read_text(encoding="utf-8")) if file.is_file() and not problem else {}
    about = {"run": task.name, "notebook": Path(task.path).stem, "ok": not problem, "message": problem}
    given = {
        name: value if isinstance(value, str | int | float) else str(value) for name, value in task.parameters.items()
    }
    (flat,) = pd.json_normalize({**metrics.pop(notebook.HERE, {}), **metrics}, sep=".").to_dict("records")
    return about | {name: value for name, value in flat.items() if isinstance(value, str | int | float)} | given

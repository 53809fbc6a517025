"""The trials of a sweep carried out: one by one, in processes or on a Dask cluster; files as they finish."""

import json
import multiprocessing
import threading
import traceback
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging

from workbench import models
from workbench.core import dask_cluster
from workbench.core.errors import BadInput
from workbench.core.files import write_text
from workbench.experiments import rows
from workbench.experiments.sweep_grid import Case, files_of
from workbench.experiments.trial import Progress, Trial
from workbench.metrics.answers import Records
from workbench.models.loading import Loaded
from workbench.store import MemoryStore

Ended = tuple[Case, str]  # a case with its problem, "" for none
AllEnded = Generator[Ended, None, None]
Measured = tuple[dict[str, Any], Records]  # a record as JSON, and a row a question


@dataclass(frozen=True)
class Runs:
    """How cases are run, and the folder of their files.

    loaded    the model of all of them, where it is in memory; of cases that run in this process
    keep_gib  cached blocks that a process keeps from trial to trial
    retries   how often a case that failed is tried again
    """

    folder: Path
    loaded: Loaded | None = None
    keep_gib: float = 0.0
    retries: int = 0

    def here(self, todo: Sequence[Case], jobs: int, tell: Progress) -> AllEnded:
        """Yield each case as soon as it is over, of this process or of `jobs` others; `tell` as `Trial.run` does."""
        todo = sorted(todo, key=self._order)
        if jobs == 1 or len(todo) < 2:
            for case in todo:
                yield case, self.attempt(case, tell)
            return
        left = dict.fromkeys(todo)
        alone = Runs(self.folder, None, self.keep_gib, self.retries)
        try:
            with pool(jobs) as processes:
                futures = {processes.submit(alone.attempt, case): case for case in todo}
                try:
                    for future in as_completed(futures):
                        problem = future.result()
                        del left[futures[future]]
                        yield futures[future], problem
                finally:
                    for future in futures:
                        future.cancel()
        except BrokenProcessPool:  # a process was killed and took all others along: what is left goes one by one
            for case in left:
                try:
                    with pool(1) as processes:
                        yield case, processes.submit(alone.attempt, case).result()
                except BrokenProcessPool:
                    yield case, self._fail(case, "its process ended, perhaps for lack of memory", "")

    def on(self, client: Any, todo: Sequence[Case], cluster: str, jobs: int) -> AllEnded:
        """Yield each case as soon as a worker of a Dask cluster has run it; its files are written here."""
        todo = sorted(todo, key=self._order)
        threads = max(1, torch.get_num_threads() // jobs) if cluster == dask_cluster.LOCAL else None
        tasks = [_Task(case, [each[:2] for each in files_of(case.trial)], self.keep_gib, threads) for case in todo]
        gpu = [needs_gpu(case.trial) for case in todo]
        for outcome in dask_cluster.carried_out(client, _on_worker, tasks, self.retries, gpu):
            case = todo[outcome.number]
            if problem := outcome.problem or outcome.result.get("refused", ""):
                yield case, self._fail(case, problem, outcome.trace)
            else:
                self._write(case, (outcome.result["record"], outcome.result["rows"]))
                yield case, ""

    def attempt(self, case: Case, tell: Progress | None = None) -> str:
        """Run a case, so often as is allowed, and write its files; return its problem, "" for none."""
        for left in reversed(range(self.retries + 1)):
            try:
                done = measured(case.trial, self.keep_gib, self.loaded, tell)
            except BadInput as problem:
                return self._fail(case, str(problem), "")
            except Exception as problem:  # this trial's end, not the sweep's
                if not left:
                    return self._fail(case, f"{type(problem).__name__}: {problem}", traceback.format_exc())
            else:
                self._write(case, done)
                return ""
        raise AssertionError("a case is tried at least once")

    def _write(self, case: Case, done: Measured) -> None:
        record, answers = done
        rows.write(self.folder.parent, case.key, record, answers, case.method)

    def _fail(self, case: Case, problem: str, trace: str) -> str:
        content = {"trial": case.trial.settings(), "problem": problem, "traceback": trace}
        write_text(self.folder / f"{case.key}.failed.json", json.dumps(content, indent=1))
        return problem

    def _order(self, case: Case) -> tuple[Any, ...]:
        """Sort trials so that each finds what it needs there.

        A model is loaded once, full attention is at hand for all others of it (`references`), and blocks that are kept
        are used while they are there.
        """
        trial = case.trial
        return *map(str, _loads(trial)), trial.mode != "full", self.keep_gib and trial.prepare


def connected(todo: Sequence[Case], cluster: str, jobs: int) -> AbstractContextManager[Any]:
    """Return a client of the Dask cluster for these cases: `jobs` workers where it is begun here."""
    return dask_cluster.connected(cluster, jobs, any(needs_gpu(case.trial) for case in todo))


def needs_gpu(trial: Trial) -> bool:
    """Return whether a trial takes a slot for a GPU."""
    return trial.device.startswith("cuda")


def pool(jobs: int) -> ProcessPoolExecutor:
    """Begin processes that share this one's threads."""
    threads = max(1, torch.get_num_threads() // jobs)
    return ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), torch.set_num_threads, (threads,))


def measured(
    trial: Trial, keep_gib: float = 0.0, loaded: Loaded | None = None, tell: Progress | None = None, device: str = ""
) -> Measured:
    """Run a trial with the model of this process; `device`: another one than it names."""
    store = _kept(keep_gib) if keep_gib and not (trial.prepared or trial.store) else None
    name, place, dtype, layout = _loads(trial)
    record, rows = trial.run_each(tell, loaded or load(name, device or place, dtype, layout), store)
    return record.to_json(), rows


@lru_cache(maxsize=1)
def _kept(gib: float) -> MemoryStore:
    """Return the store of this process; the keys of its blocks tell models and preparations apart."""
    return MemoryStore(int(gib * 2**30))


@lru_cache(maxsize=1)
def load(model: str, device: str, dtype: str | None, layout: str | None) -> Loaded:
    """Load the model of this process, which holds one at a time."""
    return models.load(model, device, dtype, layout)


def _loads(trial: Trial) -> tuple[str, str, str | None, str | None]:
    """Return what `load` takes."""
    return trial.model, trial.device, trial.dtype, trial.layout


@dataclass(frozen=True)
class _Task:
    """A case as it travels to a worker, with name and size of the files that it reads."""

    case: Case
    files: list[list[Any]]
    keep_gib: float
    threads: int | None


_ONE = threading.Lock()  # a process holds one model, however many threads its worker has


def _on_worker(task: _Task) -> dict[str, Any]:
    """Run a case in a Dask worker: its record and rows, or why it was refused, which no other worker changes."""
    trial = task.case.trial
    with _ONE:
        if task.threads:
            torch.set_num_threads(task.threads)
        logging.disable_progress_bar()
        try:
            if [each[:2] for each in files_of(trial)] != task.files:
                raise BadInput(f"files of model {trial.model!r} or of its data are others on a worker than here")
            device = dealt(trial.device)
            record, rows = measured(trial, task.keep_gib, device=device)
        except BadInput as problem:
            return {"refused": str(problem)}
    return {"record": record, "rows": rows}


def dealt(device: str, count: Callable[[], int] = torch.cuda.device_count) -> str:
    """Return the device of this worker: `cuda` is one of its machine's GPUs, by the worker's number."""
    if device != "cuda" or count() < 2:
        return device
    return f"cuda:{dask_cluster.worker_number() % count()}"

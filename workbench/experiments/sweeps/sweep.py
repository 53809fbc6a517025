"""Run every combination of lists of a trial's fields, and write each trial to disk when it finishes.

    table = sweep(Trial("lab-full"), out="runs/sweep", select=["none", "query_guided"], ratio=[0.05, 0.15])

<out>/answers|counts|timings   result tables, one part per trial (`workbench.results`)
      trials/<key>.json        a trial and its record; <key>.failed.json: why it failed
      _SUCCESS                 written last, if no trial failed
"""

import json
import math
import threading
from collections.abc import Generator, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
import torch
from transformers.utils import logging

from workbench import models
from workbench.core.errors import BadInput
from workbench.core.utils import runner
from workbench.core.utils.files import write_text
from workbench.core.utils.runner import Outcome, Workers, check_jobs, device_of_process
from workbench.core.utils.stages import keeps, so_far
from workbench.core.utils.watched import Progress, progress_shown
from workbench.experiments.sweeps import sweep_grid
from workbench.experiments.sweeps.sweep_grid import Case, cases, files_of
from workbench.experiments.trials import rows
from workbench.experiments.trials.record import Record
from workbench.experiments.trials.trial import Trial
from workbench.methods.own_function import is_function
from workbench.metrics.answers import Records
from workbench.models.loading import Loaded
from workbench.store import MemoryStore
from workbench.store.files.manifest import MANIFEST

Ended = tuple[Case, str]  # a case and its problem, or ""
Measured = tuple[dict[str, Any], Records]  # a record as JSON, and one row per question


@dataclass(frozen=True)
class TrialTask:
    """A case; `files` are names and sizes of the files it reads, to be checked on another machine."""

    case: Case
    files: list[list[Any]] | None = None


@dataclass(frozen=True)
class Runs:
    """Runs cases and writes their files to `folder`.

    loaded    the model of all cases, if it is in memory, for cases that run in this process
    keep_gib  GiB of cached blocks that a process keeps between trials
    retries   how often a failed case is run again
    """

    folder: Path
    loaded: Loaded | None = None
    keep_gib: float = 0.0
    retries: int = 0

    def run_cases(self, workers: Workers, todo: Sequence[Case], tell: Progress) -> Generator[Ended, None, None]:
        """Yield each case as soon as it ends; `tell` is the progress callback of `Trial.run`, for this process."""
        todo = sorted(todo, key=self._order)
        sent = workers.cluster is not None
        tasks = [TrialTask(case, _sizes(case.trial) if sent else None) for case in todo]
        work = partial(run_case, keep_gib=self.keep_gib)
        if workers.jobs == 1 and not sent:
            work = partial(work, loaded=self.loaded, tell=tell)
        for task, outcome in workers.run(work, tasks, self.retries, [needs_gpu(case.trial) for case in todo]):
            if outcome.problem:
                self._fail(task.case, outcome)
            else:
                self._write(task.case, outcome.result)
            yield task.case, outcome.problem

    def _write(self, case: Case, done: Measured) -> None:
        record, answers = done
        rows.write(self.folder.parent, case.key, record, answers, case.method, **dict(case.origin))

    def _fail(self, case: Case, outcome: Outcome) -> None:
        content = {"trial": case.trial.settings(), "problem": outcome.problem, "traceback": outcome.trace}
        write_text(self.folder / f"{case.key}.failed.json", json.dumps(content, indent=1))

    def _order(self, case: Case) -> tuple[Any, ...]:
        """Return the sort key of trials that lets them share work.

        A model is loaded once; its full attention precedes its other trials (`references`); trials that share cached
        blocks are adjacent.
        """
        trial = case.trial
        return *map(str, _loads(trial)), trial.mode != "full", self.keep_gib and trial.prepare


def needs_gpu(trial: Trial) -> bool:
    """Return whether a trial takes a slot for a GPU."""
    return trial.device.startswith("cuda")


_ONE = threading.Lock()  # a process has one model, even if its worker has several threads


def run_case(
    task: TrialTask, keep_gib: float = 0.0, loaded: Loaded | None = None, tell: Progress | None = None
) -> Measured:
    """Run a case with the model of this process, and return its record and rows."""
    trial = task.case.trial
    with _ONE:
        if task.files is not None:
            logging.disable_progress_bar()
            if _sizes(trial) != task.files:
                raise BadInput(f"files of model {trial.model!r} or of its data are others on a worker than here")
        store = _kept(keep_gib) if keep_gib and not (trial.prepared or trial.store) else None
        name, place, dtype, layout = _loads(trial)
        record, answers = trial.run_each(tell, loaded or load(name, device_of_process(place), dtype, layout), store)
    return record.to_json(), answers


def _sizes(trial: Trial) -> list[list[Any]]:
    return [each[:2] for each in files_of(trial)]


@lru_cache(maxsize=1)
def _kept(gib: float) -> MemoryStore:
    """Return the store of this process; keys distinguish models and preprocessing."""
    return MemoryStore(int(gib * 2**30))


@lru_cache(maxsize=1)
def load(model: str, device: str, dtype: str | None, layout: str | None) -> Loaded:
    """Load the model of this process, which holds one at a time."""
    return models.load(model, device, dtype, layout)


def _loads(trial: Trial) -> tuple[str, str, str | None, str | None]:
    """Return the arguments of `load`."""
    return trial.model, trial.device, trial.dtype, trial.layout


def cache_gib(trial: Trial, jobs: int) -> float:
    """Return how many GiB of cached blocks a process may keep: on a local GPU half its memory, shared by `jobs`."""
    if not needs_gpu(trial) or not torch.cuda.is_available():
        return trial.store_gib
    _, memory = torch.cuda.mem_get_info(trial.device)
    share = max(1, -(-jobs // torch.cuda.device_count()))
    return max(trial.store_gib, memory / 2**31 / share)


SUCCESS = "_SUCCESS"


@dataclass(frozen=True)
class SweepResult:
    """One row per trial and kind of question, one row per trial and question; `failures`: trial → why it failed."""

    table: pd.DataFrame
    answers: pd.DataFrame
    failures: dict[str, str]


class Failed(RuntimeError):
    """Some trials failed; `outcome` holds the results of the others."""

    def __init__(self, outcome: SweepResult):
        name, why = next(iter(outcome.failures.items()))
        super().__init__(f"{len(outcome.failures)} trials failed; the first was {name}: {why}")
        self.outcome = outcome


def sweep(
    base: Trial,
    out: str | Path | None = None,
    jobs: int = 1,
    progress: Progress | None = None,
    loaded: Loaded | None = None,
    cluster: str | None = None,
    **lists: Sequence[Any],
) -> pd.DataFrame:
    """Run all combinations of `lists`, with other fields from `base`; return one row per trial and kind of question.

    A list is named after a field of `Trial`, or `method` for published methods. Without `out`, nothing is kept on disk.
    `cluster` is that of `run`. Without `progress`, interactive sessions show a bar. Raises BadInput before the first
    trial, and `Failed` after the last one if some failed.
    """
    with TemporaryDirectory() as scratch, progress_shown("sweep", progress) as tell:
        outcome = run(cases(asdict(base), lists), Path(out or scratch), jobs, tell, loaded, cluster=cluster)
    if outcome.failures:
        raise Failed(outcome)
    return outcome.table


def run(
    cases: Sequence[Case],
    out: Path,
    jobs: int = 1,
    progress: Progress | None = None,
    loaded: Loaded | None = None,
    keep_gib: float = 0.0,
    cluster: str | None = None,
    retries: int = 1,
) -> SweepResult:
    """Run the trials that `out` lacks, including failed ones, and write the tables.

    jobs      number of processes, each with one model in memory at a time (times to first token suffer); or number of
              workers of a cluster that is started here
    keep_gib  GiB of cached blocks that each process keeps between trials (hit rates are then of a warm store)
    cluster   a Dask cluster that runs the trials instead (`core.utils.runner`); its workers need the files of models
              and data under the same names, and results come back to this process
    retries   how often a failed trial is run again

    Finished trials are not run again, however an earlier process ended. Raises BadInput, before the first trial, for
    trials that cannot run.
    """
    _check(out, jobs, retries, cluster, keep_gib)
    folder = out / rows.FOLDER
    todo = [case for case in cases if not (folder / f"{case.key}.json").is_file()]
    sweep_grid.check([case.trial for case in todo], loaded, here=cluster in (None, runner.LOCAL))
    if (jobs > 1 or cluster is not None) and (own := [x.trial.select for x in todo if is_function(x.trial.select)]):
        raise BadInput(f"select {own[0]} is a function of this process, which others do not know: put it into a file")
    runs = Runs(folder, loaded, keep_gib, retries)
    total = sum(case.trial.samples for case in cases)
    done = total - sum(case.trial.samples for case in todo)

    def tell(answered: int, _questions: int = 0) -> None:
        if progress:
            progress(done + answered, total)

    failures = {}

    def kept() -> str:
        return so_far(sum((folder / f"{case.key}.json").is_file() for case in cases), len(cases), "trials", out)

    with keeps(kept), ExitStack() as stack:
        parallel = jobs if len(todo) > 1 or cluster is not None else 1
        gpu = any(needs_gpu(case.trial) for case in todo)
        workers = stack.enter_context(Workers(parallel, cluster if todo else None, gpu=gpu))
        folder.mkdir(parents=True, exist_ok=True)
        (out / SUCCESS).unlink(missing_ok=True)
        tell(0)
        for case, problem in stack.enter_context(closing(runs.run_cases(workers, todo, tell))):
            done += case.trial.samples
            tell(0)
            if problem:
                failures[case.name] = problem
    outcome = SweepResult(*_tables(cases, folder), failures)
    if not failures:
        write_text(out / SUCCESS, "")
    return outcome


def _check(out: Path, jobs: int, retries: int, cluster: str | None, keep_gib: float) -> None:
    check_jobs(jobs, retries, cluster)
    if not 0 <= keep_gib < math.inf:
        raise BadInput(f"keep_gib is {keep_gib}: a number of at least 0 is needed")
    if out.is_file() or (out / MANIFEST).is_file():
        kind = "a file" if out.is_file() else "a folder of cached blocks"
        raise BadInput(f"{out} is {kind}: results need a folder of their own")


def _tables(cases: Sequence[Case], folder: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    table: list[dict[str, Any]] = []
    answers = []
    for case in cases:
        if not (path := folder / f"{case.key}.json").is_file():
            continue
        record = Record.from_json(json.loads(path.read_text(encoding="utf-8"))["record"])
        table += _rows(case, record)
        answers.append(pd.DataFrame(rows.answers_of(folder.parent, case.key)).assign(trial=case.key))
    return pd.DataFrame(table), pd.concat(answers, ignore_index=True) if answers else pd.DataFrame()


def _rows(case: Case, record: Record) -> list[dict[str, Any]]:
    costs = {name: value for name, value in record.to_json().items() if isinstance(value, float | int)}
    times = {f"ttft_{name}": value for name, value in asdict(record.ttft_s).items() if name != "n"}
    judged = {f"faithfulness_{name}": value for name, value in (record.faithfulness or {}).items()}
    answered = {f"answered_{name}": value for name, value in (record.answered or {}).items()}
    trial = {"trial": case.key, "method": case.method, "way": record.label} | case.trial.settings()
    trial["note"] = record.note
    if case.trial.mode != "block":
        trial["ratio"] = None
    return [trial | {"kind": row["kind"]} | costs | row | times | judged | answered | trial for row in record.rows()]

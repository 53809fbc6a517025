"""Run the trials of a sweep on `core.utils.runner`; each writes its files as it finishes."""

import json
import threading
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from transformers.utils import logging

from workbench import models
from workbench.core.errors import BadInput
from workbench.core.utils.files import write_text
from workbench.core.utils.runner import Outcome, Workers, dealt
from workbench.experiments.sweeps.sweep_grid import Case, files_of
from workbench.experiments.trials import rows
from workbench.experiments.trials.trial import Progress, Trial
from workbench.metrics.answers import Records
from workbench.models.loading import Loaded
from workbench.store import MemoryStore

Ended = tuple[Case, str]  # a case with its problem, "" for none
Measured = tuple[dict[str, Any], Records]  # a record as JSON, and a row a question


@dataclass(frozen=True)
class TrialTask:
    """A case, and name and size of the files that it reads where it travels to another machine."""

    case: Case
    files: list[list[Any]] | None = None


@dataclass(frozen=True)
class Runs:
    """How cases are run, and the folder of their files, which are written here.

    loaded    the model of all of them, where it is in memory; of cases that run in this process
    keep_gib  cached blocks that a process keeps from trial to trial
    retries   how often a case that failed is tried again
    """

    folder: Path
    loaded: Loaded | None = None
    keep_gib: float = 0.0
    retries: int = 0

    def over(self, workers: Workers, todo: Sequence[Case], tell: Progress) -> Generator[Ended, None, None]:
        """Yield each case as soon as it is over; `tell` as `Trial.run` does, of cases in this process."""
        todo = sorted(todo, key=self._order)
        sent = workers.cluster is not None
        tasks = [TrialTask(case, _sizes(case.trial) if sent else None) for case in todo]
        work = partial(run, keep_gib=self.keep_gib)
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
        """Sort trials so that each finds what it needs there.

        A model is loaded once, full attention is at hand for all others of it (`references`), and blocks that are kept
        are used while they are there.
        """
        trial = case.trial
        return *map(str, _loads(trial)), trial.mode != "full", self.keep_gib and trial.prepare


def needs_gpu(trial: Trial) -> bool:
    """Return whether a trial takes a slot for a GPU."""
    return trial.device.startswith("cuda")


_ONE = threading.Lock()  # a process holds one model, however many threads its worker has


def run(task: TrialTask, keep_gib: float = 0.0, loaded: Loaded | None = None, tell: Progress | None = None) -> Measured:
    """Run a case with the model of this process, and return its record and rows."""
    trial = task.case.trial
    with _ONE:
        if task.files is not None:
            logging.disable_progress_bar()
            if _sizes(trial) != task.files:
                raise BadInput(f"files of model {trial.model!r} or of its data are others on a worker than here")
        store = _kept(keep_gib) if keep_gib and not (trial.prepared or trial.store) else None
        name, place, dtype, layout = _loads(trial)
        record, answers = trial.run_each(tell, loaded or load(name, dealt(place), dtype, layout), store)
    return record.to_json(), answers


def _sizes(trial: Trial) -> list[list[Any]]:
    return [each[:2] for each in files_of(trial)]


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

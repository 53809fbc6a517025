"""Many trials: every combination of lists of a trial's fields, on disk as they finish.

    table = sweep(Trial("lab-full"), out="runs/sweep", select=["none", "query_guided"], ratio=[0.05, 0.15])

<out>/trials/<key>.json      a trial and its record; <key>.parquet its questions; <key>.failed.json why it failed
      trials.parquet         a row a trial and kind of question: the trial's fields, scores and costs
      answers.parquet        a row a trial and question: {trial, id, kind, answer, expected, em, f1}, and what
                             `metrics.fidelity.compare` returns of it
      _SUCCESS               written last, where no trial failed
"""

import json
import multiprocessing
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
import torch

from workbench import data, models
from workbench.core.errors import BadInput
from workbench.core.files import write_atomically, write_text
from workbench.experiments.record import Record
from workbench.experiments.sweep_grid import Case, cases
from workbench.experiments.trial import Progress, Trial
from workbench.metrics.answers import Interval, bootstrap
from workbench.models.loading import Loaded
from workbench.store import MemoryStore

SUCCESS = "_SUCCESS"


@dataclass(frozen=True)
class SweepResult:
    """The tables of a sweep, as on disk; `failures` say why a trial failed, by its name."""

    table: pd.DataFrame
    answers: pd.DataFrame
    failures: dict[str, str]


class Failed(RuntimeError):
    """Some trials failed; `outcome` holds the result of the others."""

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
    **lists: Sequence[Any],
) -> pd.DataFrame:
    """Return one row a trial and kind of question, over all combinations of `lists`; other fields are those of `base`.

    A list is named after a field of `Trial`, or `method` for published ones. Without `out` nothing is kept on disk.
    Raises BadInput before the first trial, and `Failed` after the last where some failed.
    """
    with TemporaryDirectory() as scratch:
        outcome = run(cases(asdict(base), lists), Path(out or scratch), jobs, progress, loaded)
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
) -> SweepResult:
    """Run what `out` does not hold yet, a failure or not, and write the tables.

    `jobs` processes run trials side by side, each with one model in memory at a time (times to first token suffer).
    `keep_gib`: each of them keeps so much of cached blocks from trial to trial (hit rates are then of a warm store).
    """
    if jobs < 1:
        raise BadInput(f"jobs is {jobs}: at least 1 process is needed")
    _check([case.trial for case in cases], loaded)
    folder = out / "trials"
    folder.mkdir(parents=True, exist_ok=True)
    (out / SUCCESS).unlink(missing_ok=True)
    todo = [case for case in cases if not (folder / f"{case.key}.json").is_file()]
    todo.sort(key=lambda case: _order(case.trial, keep_gib))
    total = sum(case.trial.samples for case in cases)
    done = total - sum(case.trial.samples for case in todo)

    def tell(answered: int, _questions: int = 0) -> None:
        if progress:
            progress(done + answered, total)

    failures = {}
    for case, problem in _outcomes(todo, folder, jobs, loaded, tell, keep_gib):
        done += case.trial.samples
        tell(0)
        if problem:
            failures[case.name] = problem
    outcome = SweepResult(*_tables(cases, folder), failures)
    for name, table in (("trials", outcome.table), ("answers", outcome.answers)):
        write_atomically(out / f"{name}.parquet", table.to_parquet)
    if not failures:
        write_text(out / SUCCESS, "")
    return outcome


def difference(
    answers: pd.DataFrame, one: str, other: str, score: str = "em", kind: str | None = None
) -> tuple[float, Interval]:
    """Return how much more trial `one` scores than `other`, with a bootstrap 95% interval paired by question.

    `score` is a column of `answers`: em, f1, nll, kl, agree, … Questions that lack it are left out. `compare.paired`
    says more of two methods.
    """
    rows = answers if kind is None else answers[answers["kind"] == kind]
    first, second = (rows[rows["trial"] == key].set_index("id")[score] for key in (one, other))
    if not len(first) or not first.index.equals(second.index):
        raise BadInput(f"trials {one!r} and {other!r} have not answered the same questions")
    gap = (first - second).dropna().tolist()
    if not gap:
        raise BadInput(f"no question of trials {one!r} and {other!r} has a score {score!r}")
    return sum(gap) / len(gap), bootstrap(gap)


def _order(trial: Trial, keep_gib: float) -> tuple[Any, ...]:
    """Sort trials so that a model is loaded once, full attention is at hand for all others of it (`references`), and
    blocks that are kept are used while they are there."""
    return *map(str, _loads(trial)), trial.mode != "full", keep_gib and trial.prepare


def _check(trials: Sequence[Trial], loaded: Loaded | None) -> None:
    """Raise BadInput for files and names that no trial could read, before the first of them."""
    for name in dict.fromkeys(trial.model for trial in trials if loaded is None):
        models.check(models.folder(name))
    for device in dict.fromkeys(trial.device for trial in trials if loaded is None):
        models.device_of(device)
    for name, passages in dict.fromkeys((trial.data, trial.passages) for trial in trials):
        data.load(name, 1, 0, passages, answered=False)


def _outcomes(
    todo: Sequence[Case], folder: Path, jobs: int, loaded: Loaded | None, tell: Progress, keep_gib: float
) -> Iterator[tuple[Case, str]]:
    """Yield each case with its problem ("" for none) as soon as it is over."""
    if jobs == 1 or len(todo) < 2:
        for case in todo:
            yield case, _try(case, folder, keep_gib, loaded, tell)
        return
    left = dict.fromkeys(todo)
    try:
        with _pool(jobs) as pool:
            futures = {pool.submit(_try, case, folder, keep_gib): case for case in todo}
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
                with _pool(1) as pool:
                    yield case, pool.submit(_try, case, folder, keep_gib).result()
            except BrokenProcessPool:
                yield case, _fail(case, folder, "its process ended, perhaps for lack of memory", "")


def _pool(jobs: int) -> ProcessPoolExecutor:
    threads = max(1, torch.get_num_threads() // jobs)
    return ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), torch.set_num_threads, (threads,))


def _try(
    case: Case, folder: Path, keep_gib: float, loaded: Loaded | None = None, progress: Progress | None = None
) -> str:
    trial = case.trial
    try:
        store = _kept(keep_gib) if keep_gib and not (trial.prepared or trial.store) else None
        record, rows = trial.run_each(progress, loaded or _load(*_loads(trial)), store)
    except BadInput as problem:
        return _fail(case, folder, str(problem), "")
    except Exception as problem:  # this trial's end, not the sweep's
        return _fail(case, folder, f"{type(problem).__name__}: {problem}", traceback.format_exc())
    answers = pd.DataFrame(rows)
    write_atomically(folder / f"{case.key}.parquet", answers.to_parquet)
    line = json.dumps({"method": case.method, "record": record.to_json()}, allow_nan=False)
    write_text(folder / f"{case.key}.json", line)
    (folder / f"{case.key}.failed.json").unlink(missing_ok=True)
    return ""


@lru_cache(maxsize=1)
def _kept(gib: float) -> MemoryStore:
    """Return the store of this process; the keys of its blocks tell models and preparations apart."""
    return MemoryStore(int(gib * 2**30))


@lru_cache(maxsize=1)
def _load(model: str, device: str, dtype: str | None, layout: str | None) -> Loaded:
    return models.load(model, device, dtype, layout)


def _loads(trial: Trial) -> tuple[str, str, str | None, str | None]:
    """Return what `_load` takes."""
    return trial.model, trial.device, trial.dtype, trial.layout


def _fail(case: Case, folder: Path, problem: str, trace: str) -> str:
    text = json.dumps({"trial": case.trial.settings(), "problem": problem, "traceback": trace}, indent=1)
    write_text(folder / f"{case.key}.failed.json", text)
    return problem


def _tables(cases: Sequence[Case], folder: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    rows: list[dict[str, Any]] = []
    answers = []
    for case in cases:
        if not (path := folder / f"{case.key}.json").is_file():
            continue
        record = Record.from_json(json.loads(path.read_text(encoding="utf-8"))["record"])
        rows += _rows(case, record)
        answers.append(pd.read_parquet(path.with_suffix(".parquet")).assign(trial=case.key))
    return pd.DataFrame(rows), pd.concat(answers, ignore_index=True) if answers else pd.DataFrame()


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

"""Tasks run side by side: outcomes, retries, refusals, processes that die; Dask's side is in test_sweep_cluster."""

import os
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool

import pytest

from workbench.core.errors import BadInput
from workbench.core.utils import runner
from workbench.core.utils.runner import Outcome, Workers


class Work:
    """Halves even numbers, refuses 3, and fails at 5 until it was asked three times; counts what it was asked."""

    def __init__(self):
        self.asked = []

    def __call__(self, task):
        self.asked.append(task)
        if task == 3:
            raise BadInput("3 is refused")
        if task == 5 and self.asked.count(5) < 3:
            raise MemoryError("no room")
        return task / 2


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize(("retries", "fifth"), [(0, "MemoryError: no room"), (1, "MemoryError: no room"), (2, "")])
def test_every_task_has_an_outcome_and_only_what_may_change_is_tried_again(jobs, retries, fifth, monkeypatch):
    monkeypatch.setattr(runner, "pool", lambda processes, shared: ThreadPoolExecutor(1))
    work = Work()
    with Workers(jobs) as workers:
        outcomes = dict(workers.run(work, [2, 3, 5, 4], retries))
    assert (outcomes[2], outcomes[4]) == (Outcome(1.0), Outcome(2.0))
    assert outcomes[3] == Outcome(problem="3 is refused", refused=True) and work.asked.count(3) == 1
    assert outcomes[5].problem == fifth and work.asked.count(5) == retries + 1
    assert ("in __call__" in outcomes[5].trace) == bool(fifth)


def test_an_outcome_gives_its_value_or_raises_its_problem():
    assert Outcome(4).value() == 4
    with pytest.raises(BadInput, match="not this"):
        Outcome(problem="not this", refused=True).value()
    with pytest.raises(RuntimeError, match="no room\nwhere"):
        Outcome(problem="no room", trace="where").value()


def number_of(shared, task):
    if task == "dies":
        os._exit(3)
    return shared, runner.worker_number(), os.getpid()


def test_a_process_that_dies_takes_its_own_task_only():
    with Workers(2, shared=("given",)) as workers:
        outcomes = dict(workers.run(number_of, ["a", "dies", "b"]))
    assert outcomes["dies"] == Outcome(problem=runner.DIED, died=True)
    for task in "ab":
        shared, number, process = outcomes[task].value()
        assert shared == "given" and number in (0, 1) and process != os.getpid()


def test_leaving_early_cancels_what_has_not_begun(monkeypatch):
    class Slow(ThreadPoolExecutor):
        def submit(self, work, task, *given):
            return super().submit(work, task, *given) if task == 2 else self.submit_never()

        def submit_never(self):
            futures.append(super().submit(lambda: None).__class__())
            return futures[-1]

    futures = []
    monkeypatch.setattr(runner, "pool", lambda processes, shared: Slow(1))
    with Workers(2) as workers:
        running = workers.run(Work(), [2, 4, 6])
        assert next(running)[0] == 2
        running.close()
    assert len(futures) == 2 and all(future.cancelled() for future in futures)


def test_tasks_that_were_over_when_a_process_died_are_not_run_again(monkeypatch):
    class Breaks(ThreadPoolExecutor):
        def submit(self, work, task, *given):
            return super().submit(self.broken if task == 4 else work, task, *given)

        def broken(self, *given):
            raise BrokenProcessPool

    monkeypatch.setattr(runner, "pool", lambda processes, shared: Breaks(1))
    work = Work()
    with Workers(2) as workers:
        outcomes = dict(workers.run(work, [2, 4, 6]))
    assert outcomes[4].died and outcomes[2].value() == 1 and outcomes[6].value() == 3
    assert work.asked.count(2) == 1


def test_a_gpu_is_dealt_by_the_number_of_the_worker(monkeypatch):
    monkeypatch.setattr(runner, "worker_number", lambda: 5)
    assert runner.dealt("cuda", lambda: 4) == "cuda:1" and runner.dealt("cuda", lambda: 1) == "cuda"
    assert runner.dealt("cpu", lambda: 4) == "cpu" and runner.dealt("cuda:2", lambda: 4) == "cuda:2"

"""Trials on a Dask cluster of real processes: results equal one process's, also where a worker or this process dies."""

import os
import signal
import subprocess
from contextlib import ExitStack
from dataclasses import asdict

import pandas as pd
import pytest
import torch

from tests.refusals import refused
from tests.test_sweep import MEASURED
from workbench.core.errors import BadInput
from workbench.core.utils import runner
from workbench.experiments.sweeps import sweep as sweeps
from workbench.experiments.sweeps.sweep import cases
from workbench.experiments.sweeps.sweep_grid import Case
from workbench.experiments.trials.trial import Trial
from workbench.methods.preprocessing.precompute import Preparation
from workbench.store import FolderStore

distributed = pytest.importorskip("distributed")
QUESTIONS = {"samples": 2, "passages": 3, "max_new_tokens": 3, "timed": 1, "fidelity": False}


@pytest.fixture(scope="module")
def base(folder):
    return Trial(str(folder), **QUESTIONS)


@pytest.fixture
def two_workers(python):
    """The address of a scheduler with two worker processes, none of them forked of this one, which has threads."""
    with ExitStack() as stack:
        cluster = stack.enter_context(runner._start_cluster(distributed, "local", 0, None))
        command = [*python, "distributed.cli.dask_worker", cluster.scheduler_address, "--nthreads", "1", "--no-nanny"]
        for _ in range(2):
            worker = subprocess.Popen([*command, "--no-dashboard"], stderr=subprocess.DEVNULL)
            stack.callback(worker.wait)
            stack.callback(worker.kill)
        yield cluster.scheduler_address


def many(base, seeds):
    return cases(asdict(base), {"seed": range(seeds), "mode": ["full", "block"]})


def kill_a_worker(client):
    os.kill(min(client.run(os.getpid).values()), signal.SIGKILL)


def assert_killed_equals_alone(found, cluster, tmp_path, monkeypatch):
    alone = sweeps.run(found, tmp_path / "alone")
    connected, clients, told = runner.connected, [], []

    def remembered(*given):
        context = connected(*given)

        class Kept:
            def __enter__(self):
                clients.append(context.__enter__())
                return clients[-1]

            def __exit__(self, *error):
                return context.__exit__(*error)

        return Kept()

    def progress(done, total):
        if len(told) == 1:
            kill_a_worker(clients[-1])
        told.append((done, total))

    monkeypatch.setattr(runner, "connected", remembered)
    many = sweeps.run(found, tmp_path / "many", jobs=2, progress=progress, cluster=cluster)
    assert told[-1] == (2 * len(found), 2 * len(found)) and not many.failures
    pd.testing.assert_frame_equal(many.table.drop(columns=MEASURED), alone.table.drop(columns=MEASURED))
    pd.testing.assert_frame_equal(many.answers, alone.answers)
    assert (tmp_path / "many" / "_SUCCESS").exists() and not list((tmp_path / "many" / "trials").glob(".*"))


def test_two_workers_one_of_which_is_killed_find_what_one_process_finds(base, two_workers, tmp_path, monkeypatch):
    assert_killed_equals_alone(many(base, 6), two_workers, tmp_path, monkeypatch)


@pytest.mark.weekly  # processes that import everything
def test_two_hundred_trials_on_workers_of_which_one_is_killed(base, tmp_path, monkeypatch):
    assert_killed_equals_alone(many(base, 100), "local", tmp_path, monkeypatch)


@pytest.fixture(scope="module")
def scheduler():
    """A scheduler with one worker in this process, which an address is known of."""
    options = {"n_workers": 1, "threads_per_worker": 2, "processes": False, "dashboard_address": None}
    with distributed.LocalCluster(**options, protocol="tcp://") as cluster:
        yield cluster.scheduler_address


def test_what_was_finished_when_it_was_killed_is_not_run_again(base, tmp_path, scheduler, monkeypatch):
    found = many(base, 3)

    def interrupt(done, total):
        if done >= 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweeps.run(found, tmp_path, progress=interrupt, cluster=scheduler)
    kept = {path: path.stat().st_mtime_ns for path in tmp_path.glob("trials/*.json")}
    assert len(kept) == 3 and not (tmp_path / "_SUCCESS").exists()
    outcome = sweeps.run(found, tmp_path, cluster=scheduler)
    assert outcome.table.trial.nunique() == 6 and all(path.stat().st_mtime_ns == at for path, at in kept.items())
    monkeypatch.setattr(Trial, "run_each", None)
    sweeps.run(found, tmp_path, cluster="tcp://127.0.0.1:9")  # nothing is left: no cluster is asked


def test_a_trial_that_fails_is_tried_again_so_often_and_no_further(base, tmp_path, scheduler, monkeypatch):
    run, calls = Trial.run_each, []

    def fail(trial, *given):
        calls.append(trial.seed)
        if trial.seed == 1 or (trial.seed == 2 and calls.count(2) < 3):
            raise MemoryError("no room")
        return run(trial, *given)

    monkeypatch.setattr(Trial, "run_each", fail)
    outcome = sweeps.run(cases(asdict(base), {"seed": [0, 1, 2]}), tmp_path, cluster=scheduler, retries=2)
    assert (calls.count(0), calls.count(1), calls.count(2)) == (1, 3, 3)
    ((name, why),) = outcome.failures.items()
    assert "seed=1" in name and why == "MemoryError: no room" and set(outcome.table.seed) == {0, 2}
    (failed,) = tmp_path.glob("trials/*.failed.json")
    assert "in fail" in failed.read_text() and not (tmp_path / "_SUCCESS").exists()


def test_what_a_worker_refuses_is_not_tried_again(base, tmp_path, scheduler, monkeypatch):
    calls = []

    def refuse(trial, *given):
        calls.append(trial)
        raise BadInput("this cannot be")

    monkeypatch.setattr(Trial, "run_each", refuse)
    outcome = sweeps.run(cases(asdict(base), {"seed": [0]}), tmp_path, cluster=scheduler, retries=5)
    assert list(outcome.failures.values()) == ["this cannot be"] and len(calls) == 1


def test_a_worker_with_other_files_than_here_refuses(base, monkeypatch):
    with pytest.raises(BadInput, match="are others on a worker than here"):
        sweeps.run_case(sweeps.TrialTask(Case(base), [["model.safetensors", 1]]))


def test_a_trial_on_a_gpu_needs_workers_with_slots(base, tmp_path, scheduler):
    with pytest.raises(BadInput, match="no worker of the cluster has a slot for a GPU: begin them with `--resources"):
        sweeps.run(cases(asdict(base), {"device": ["cuda"]}), tmp_path / "out", cluster=scheduler)


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("tcp://127.0.0.1:9", "no Dask scheduler answers at 'tcp://127.0.0.1:9'"),
        ("missing.json", "no Dask scheduler has written 'missing.json'"),
        ("", "no Dask scheduler answers at ''"),
        ("ssh:", "ssh:HOST,HOST is needed"),
        ("slurm", "dask-jobqueue"),
        ("kubernetes", "dask-kubernetes"),
    ],
)
def test_a_cluster_that_cannot_be_had_is_one_sentence_and_nothing_is_written(
    base, tmp_path, address, words, monkeypatch
):
    monkeypatch.setattr(runner, "ANSWER", 0.5)
    refused(words, sweeps.run, many(base, 1), tmp_path / "out", cluster=address)
    assert not (tmp_path / "out").exists()


def test_deployers_of_dask_are_begun_by_name_with_as_many_workers(monkeypatch):
    scaled = []

    class Deployed:
        def scale(self, workers):
            scaled.append(workers)

    monkeypatch.setattr(runner, "import_module", lambda name: type("module", (), {"SLURMCluster": Deployed}))
    assert isinstance(runner._start_cluster(distributed, "slurm", 3, None), Deployed) and scaled == [3]
    hosts = []
    monkeypatch.setattr(distributed, "SSHCluster", lambda names, worker_options: hosts.append((names, worker_options)))
    runner._start_cluster(distributed, "ssh:a,b", 1, {"GPU": 1})
    assert hosts == [(["a", "a", "b"], {"nthreads": 1, "resources": {"GPU": 1}})]
    assert runner._start_cluster(distributed, "tcp://x:1", 1, None) is None


def test_a_worker_has_the_number_that_dask_names_it_by():
    options = {"processes": False, "dashboard_address": None}
    with distributed.LocalCluster(3, threads_per_worker=1, **options) as cluster, distributed.Client(cluster) as client:
        for name, worker in cluster.workers.items():
            asked = client.submit(runner.worker_number, workers=[worker.address], pure=False)
            dealt = client.submit(runner.device_of_process, "cuda", lambda: 2, workers=[worker.address], pure=False)
            assert (asked.result(), dealt.result()) == (name, f"cuda:{name % 2}")
    assert runner.worker_number() == 0


@pytest.mark.parametrize(("name", "number"), [(7, 7), ("7", 7), ("tcp://a:1", 3658067238)])
def test_a_worker_that_is_named_otherwise_has_a_number_of_its_name(name, number, monkeypatch):
    monkeypatch.setattr(distributed, "get_worker", lambda: type("worker", (), {"name": name}))
    assert runner.worker_number() == number


# --- A corpus encoded by Dask workers, in processes of their own: the result equals one process's, also where one d
ASKED = {"samples": 8, "passages": 3, "prepare": "after_system", "shard": 1}


@pytest.mark.weekly  # three processes that import torch
def test_two_workers_one_of_which_is_killed_make_what_one_process_makes(folder, loaded, tmp_path, monkeypatch):
    alone = Preparation(str(folder), tmp_path / "alone", **ASKED).run(loaded=loaded)
    killed = []

    def kill_one(done, total):
        if not killed:
            victim = min(clients[-1].run(os.getpid).values())
            os.kill(victim, signal.SIGKILL)
            killed.append(victim)

    clients = []

    class Client(distributed.Client):
        def __init__(self, *given, **options):
            super().__init__(*given, **options)
            clients.append(self)

    monkeypatch.setattr(distributed, "Client", Client)
    found = Preparation(str(folder), tmp_path / "many", workers=2, cluster="local", **ASKED).run(kill_one, loaded)
    assert killed and found.made == alone.made and (tmp_path / "many" / "_SUCCESS").exists()
    one, many = FolderStore(alone.folder), FolderStore(found.folder)
    assert set(one) == set(many) and len(one) == alone.passages + 1
    for key in one:
        a, b = one.get(key), many.get(key)
        assert a.start == b.start and all(map(torch.equal, a.tensors(), b.tensors()))
    assert not list((tmp_path / "many").glob(".*"))


def test_a_cluster_that_does_not_answer_is_one_sentence(folder, loaded, tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "ANSWER", 0.5)
    for address in ("tcp://127.0.0.1:9", "nonsense://x", "nowhere"):
        preparation = Preparation(str(folder), tmp_path / "a", cluster=address, **ASKED)
        refused(f"no Dask scheduler answers at '{address}'", preparation.run, loaded=loaded)
    assert not (tmp_path / "a").exists()

"""Run one function over many tasks: in this process, in several processes, or on a Dask cluster.

    with Workers(jobs=4) as workers:
        for task, outcome in workers.run(work, tasks):
            print(task, outcome.value())

Outcomes are yielded in order of completion. A task that raises, or whose process is killed, has an outcome too, and
the others continue. Leaving the loop early cancels tasks that have not started.
"""

import json
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from logging import ERROR
from pathlib import Path
from threading import current_thread, main_thread
from traceback import format_exc, format_exception
from typing import Any, TypeVar
from zlib import crc32

import torch

from workbench.core.errors import BadInput
from workbench.core.utils.annotations import check, check_processes

LOCAL, SSH = "local", "ssh:"
ANSWER = 10.0  # timeout of a scheduler in seconds
GRACE = 2.0  # seconds for a process to end after Ctrl-C
GPU = "GPU"  # Dask resource, of which a GPU task takes one: `dask worker --resources GPU=1`
DEPLOYERS = {  # name → module, class and package
    "slurm": ("dask_jobqueue", "SLURMCluster", "dask-jobqueue"),
    "kubernetes": ("dask_kubernetes.operator", "KubeCluster", "dask-kubernetes"),
}


@contextmanager
def connected(address: str, workers: int = 1, gpu: bool = False, retries: int = 3) -> Iterator[Any]:
    """Yield a Dask client; a cluster that is started for it is closed after the block.

    address  "local", "ssh:HOST,HOST", "slurm" or "kubernetes" start a cluster; else a running scheduler's address, or
             its `.json` file
    workers  processes (`local`) or jobs (`slurm`, `kubernetes`) to start
    gpu      give each worker a GPU slot (`local` and `ssh`)
    retries  how many workers may die over a task, in clusters that are started here

    Raises BadInput without Dask or the deployer's package, and for a scheduler that does not respond within 10 s.
    """
    if workers < 1:
        raise BadInput(f"workers is {workers}: at least 1 is needed")
    if address.endswith(".json") and not Path(address).is_file():
        raise BadInput(f"no Dask scheduler has written {address!r}")
    if address.endswith(".json") and not _names_scheduler(Path(address)):
        raise BadInput(f"{address!r} names no address of a Dask scheduler: the file that a scheduler wrote is needed")
    try:
        import dask
        import distributed
    except ImportError:
        raise BadInput("a cluster needs Dask: pip install 'cached-block-workbench[cluster]'") from None
    with ExitStack() as stack:
        stack.enter_context(dask.config.set({"distributed.scheduler.allowed-failures": retries}))
        cluster = _start_cluster(distributed, address, workers, {GPU: 1} if gpu else None)
        if cluster is not None:
            stack.callback(cluster.close)
        place = {"scheduler_file": address} if address.endswith(".json") else {"address": cluster or address}
        try:
            client = distributed.Client(**place, timeout=ANSWER, set_as_default=False)
        except (OSError, TimeoutError, ValueError) as problem:
            raise BadInput(f"no Dask scheduler answers at {address!r}: {problem}") from None
        stack.callback(client.close)
        yield client


def _names_scheduler(file: Path) -> bool:
    """Return whether a file contains a scheduler's address, as `dask scheduler --scheduler-file` writes it."""
    try:
        known = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(known, dict) and isinstance(known.get("address"), str)


def _start_cluster(distributed: Any, address: str, workers: int, slots: dict[str, int] | None) -> Any:
    """Start a cluster by name; return None for an address."""
    if address == LOCAL:
        options = {"dashboard_address": "127.0.0.1:0", "silence_logs": ERROR, "memory_limit": 0, "resources": slots}
        return distributed.LocalCluster(n_workers=workers, threads_per_worker=1, **options)
    if address.startswith(SSH):
        hosts = [host for host in address.removeprefix(SSH).split(",") if host]
        if not hosts:
            raise BadInput(f"cluster {address!r}: {SSH}HOST,HOST is needed")
        options = {"nthreads": 1} | ({"resources": slots} if slots else {})
        return _deployed("asyncssh", lambda: distributed.SSHCluster([hosts[0], *hosts], worker_options=options))
    if address in DEPLOYERS:
        module, name, package = DEPLOYERS[address]
        cluster = _deployed(package, lambda: getattr(import_module(module), name)())
        cluster.scale(workers)
        return cluster
    return None


def _deployed(package: str, make: Callable[[], Any]) -> Any:
    try:
        return make()
    except ImportError:
        raise BadInput(f"this cluster needs {package}: pip install {package}") from None
    except Exception as problem:  # deployers raise errors of any type for their settings
        reason = f"{type(problem).__name__}: {' '.join(str(problem).split())}"
        raise BadInput(f"the cluster could not be started ({reason}): see {package}") from None


def check_slots(client: Any) -> None:
    """Raise BadInput if a cluster has workers and none has a GPU slot; without workers, they may follow later."""
    known = client.scheduler_info()["workers"].values()
    if known and not any(worker["resources"].get(GPU) for worker in known):
        raise BadInput(f"no worker of the cluster has a slot for a GPU: begin them with `--resources {GPU}=1`")


def dask_worker_number() -> int:
    """Return the number by which this Dask worker selects a GPU: its name, or a hash of it."""
    from distributed import get_worker

    name = str(get_worker().name)
    return int(name) if name.isdigit() else crc32(name.encode())


T = TypeVar("T")
Work = Callable[..., Any]
DIED = "its process ended, perhaps for lack of memory"


@dataclass(frozen=True)
class Outcome:
    """The result of a task, or the reason why it has none.

    problem  one line; "" if there is a result
    trace    traceback of the last attempt
    refused  the input is invalid, so the task was not retried
    died     the process of the task ended
    """

    result: Any = None
    problem: str = ""
    trace: str = ""
    refused: bool = False
    died: bool = False

    def value(self) -> Any:
        """Return the result. Raises BadInput for invalid input, RuntimeError for any other problem."""
        if self.refused:
            raise BadInput(self.problem)
        if self.problem:
            raise RuntimeError("\n".join(filter(None, (self.problem, self.trace))))
        return self.result


def check_jobs(jobs: int, retries: int, cluster: str | None = None) -> None:
    """Raise BadInput for an invalid number of processes, or negative `retries`."""
    check_processes("jobs", jobs, here=cluster in (None, "local"))
    check("retries", retries, int)
    if retries < 0:
        raise BadInput(f"retries is {retries}: at least 0 is needed")


class Workers:
    """Run tasks in parallel; processes and clusters that it starts end with its `with` block.

    jobs     number of processes, which share this one's threads (1: this process), or of workers of a new cluster
    cluster  address of a Dask cluster to use instead (`connected`)
    shared   first arguments of `work`, sent to each process once
    gpu      workers of a new cluster get a GPU slot

    Raises BadInput, on entering, for a cluster that does not respond.
    """

    def __init__(self, jobs: int = 1, cluster: str | None = None, shared: tuple[Any, ...] = (), gpu: bool = False):
        self.jobs, self.cluster, self.shared, self.gpu = jobs, cluster, shared, gpu
        self._stack, self._client, self._pool = ExitStack(), None, None  # type: ExitStack, Any, Executor | None

    def __enter__(self) -> "Workers":
        if self.cluster is not None:
            self._client = self._stack.enter_context(connected(self.cluster, self.jobs, self.gpu))
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._end_pool(stopped=kind is KeyboardInterrupt)
        self._stack.close()

    def run(
        self, work: Work, tasks: Sequence[T], retries: int = 0, gpu: Sequence[bool] = ()
    ) -> Generator[tuple[T, Outcome], None, None]:
        """Yield each task with the outcome of `work(*shared, task)`, as soon as it ends.

        retries  how often a task that raised is retried, unless it raised BadInput
        gpu      for each task, whether it takes a GPU slot on the cluster
        """
        if self._client is not None:
            yield from self._on_cluster(work, tasks, retries, gpu)
        elif self.jobs > 1:
            yield from self._in_processes(work, tasks, retries)
        else:
            for task in tasks:
                yield task, run_with_retries(task, work, retries, self.shared)

    def _in_processes(self, work: Work, tasks: Sequence[T], retries: int) -> Iterator[tuple[T, Outcome]]:
        left = dict(enumerate(tasks))
        with suppress(BrokenProcessPool):  # a killed process breaks the pool: run the rest one by one
            for number, outcome in self._submitted(work, left, retries, self.jobs):
                yield left.pop(number), outcome
        for number, task in left.items():
            try:
                ((_, outcome),) = self._submitted(work, {number: task}, retries, 1)
            except BrokenProcessPool:
                outcome = Outcome(problem=DIED, died=True)
            yield task, outcome

    def _submitted(
        self, work: Work, tasks: Mapping[int, Any], retries: int, processes: int
    ) -> Iterator[tuple[int, Outcome]]:
        self._pool = pool(processes, self.shared) if self._pool is None else self._pool
        futures = {}
        try:
            with _ignoring_interrupts():
                futures = {
                    self._pool.submit(run_with_retries, task, work, retries): number for number, task in tasks.items()
                }
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BrokenProcessPool:
            self._end_pool()
            raise
        finally:
            for future in futures:
                future.cancel()

    def _end_pool(self, stopped: bool = False) -> None:
        """End the pool once running tasks are done, or at once after Ctrl-C (`stopped`)."""
        if self._pool is not None:
            processes = list(getattr(self._pool, "_processes", {}).values()) if stopped else []
            self._pool.shutdown(wait=not stopped, cancel_futures=True)
            for process in processes:
                process.join(GRACE)  # it received Ctrl-C too: time to clean up
                process.terminate()
            self._pool = None

    def _on_cluster(
        self, work: Work, tasks: Sequence[T], retries: int, gpu: Sequence[bool]
    ) -> Iterator[tuple[T, Outcome]]:
        import distributed

        if any(gpu):
            check_slots(self._client)
        share = _share(self.jobs) if self.cluster == LOCAL else None
        futures = {}
        for number, (task, slot) in enumerate(zip(tasks, gpu or [False] * len(tasks), strict=True)):
            options = {"retries": retries, "priority": -number, "resources": {GPU: 1} if slot else None}
            future = self._client.submit(_on_worker, task, work, self.shared, share, pure=False, **options)
            futures[future] = task
        try:
            for future in distributed.as_completed(futures, loop=self._client.loop):
                yield futures.pop(future), _outcome(future)
                future.release()
        finally:
            self._client.cancel(list(futures))


SHARED_GPU = "WORKBENCH_SHARED_GPU"  # environment variable, set if several processes share a GPU


def pool(processes: int, shared: tuple[Any, ...] = ()) -> Executor:
    """Return an executor of new processes, which share this one's threads and are numbered (`worker_number`).

    If they outnumber the GPUs, `WORKBENCH_SHARED_GPU` is set in each.
    """
    context = multiprocessing.get_context("spawn")
    numbers = context.SimpleQueue()
    for number in range(processes):
        numbers.put(number)
    return ProcessPoolExecutor(processes, context, _begin, (numbers, _share(processes), shared))


def _share(processes: int) -> tuple[int, bool]:
    """Return (threads per process, whether several processes share a GPU)."""
    return max(1, torch.get_num_threads() // processes), processes > torch.cuda.device_count()


def _settle(threads: int, crowded: bool) -> None:
    """Apply the share of this machine from `_share`."""
    torch.set_num_threads(threads)
    if crowded:
        os.environ[SHARED_GPU] = "1"


_PROCESS: dict[str, Any] = {"number": 0, "shared": ()}  # state of a worker process of a pool


@contextmanager
def _ignoring_interrupts() -> Iterator[None]:
    """Let processes started within the block ignore Ctrl-C until they are ready, so they print no tracebacks."""
    if current_thread() is not main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _begin(numbers: Any, share: tuple[int, bool], shared: tuple[Any, ...]) -> None:
    signal.signal(signal.SIGINT, _exit)
    _settle(*share)
    _PROCESS.update(number=numbers.get(), shared=shared)


def _exit(*_: Any) -> None:
    """End this process silently; its parent handles the interrupt."""
    sys.exit(128 + signal.SIGINT)


def run_with_retries(task: Any, work: Work, retries: int, shared: tuple[Any, ...] | None = None) -> Outcome:
    """Run a task until it succeeds, raises BadInput, or has failed `retries` + 1 times."""
    shared = _PROCESS["shared"] if shared is None else shared
    outcome = Outcome()
    for _ in range(retries + 1):
        try:
            return Outcome(work(*shared, task))
        except BadInput as problem:
            return Outcome(problem=str(problem), refused=True)
        except Exception as problem:  # ends this task only
            outcome = Outcome(problem=_line(problem), trace=format_exc())
    return outcome


def _on_worker(task: Any, work: Work, shared: tuple[Any, ...], share: tuple[int, bool] | None) -> Outcome:
    """Run a task on a Dask worker; Dask retries a task that raises, possibly on another worker."""
    if share:
        _settle(*share)
    try:
        return Outcome(work(*shared, task))
    except BadInput as problem:
        return Outcome(problem=str(problem), refused=True)


def _outcome(future: Any) -> Outcome:
    import distributed

    problem = future.exception()
    if problem is None:
        return future.result()
    if isinstance(problem, distributed.KilledWorker):
        return Outcome(problem="its worker ended repeatedly, perhaps for lack of memory", died=True)
    return Outcome(problem=_line(problem), trace="".join(format_exception(type(problem), problem, future.traceback())))


def _line(problem: BaseException) -> str:
    return f"{type(problem).__name__}: {problem}"


def worker_number() -> int:
    """Return the number of this process in its pool, from 0; 0 in the process that started the pool."""
    if "distributed" in sys.modules:
        with suppress(ValueError):  # not a Dask worker
            return dask_worker_number()
    return int(_PROCESS["number"])


def device_of_process(device: str, count: Callable[[], int] = torch.cuda.device_count) -> str:
    """Return the device of this process: "cuda" becomes one of the machine's GPUs, by process number."""
    return f"cuda:{worker_number() % count()}" if device == "cuda" and count() > 1 else device

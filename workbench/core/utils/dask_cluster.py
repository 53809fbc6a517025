"""Dask clusters: one that answers at an address, or one that is begun here. `core.utils.runner` runs tasks on them.

`--cluster` takes
    local               worker processes of this machine (Dask's LocalCluster)
    slurm, kubernetes   begun by Dask's own deployers (dask-jobqueue, dask-kubernetes), set up by Dask's configuration
    ssh:HOST,HOST       the scheduler on the first host, a worker on each (Dask's SSHCluster)
    an address          of a scheduler that runs, tcp://10.0.0.1:8786, or the JSON file that it wrote
"""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from logging import ERROR
from pathlib import Path
from typing import Any
from zlib import crc32

from workbench.core.errors import BadInput

LOCAL, SSH = "local", "ssh:"
ANSWER = 10.0  # seconds in which a scheduler answers
GPU = "GPU"  # Dask's resource of which a task on a GPU takes one; `dask worker --resources GPU=1`
DEPLOYERS = {  # name → module, class and package
    "slurm": ("dask_jobqueue", "SLURMCluster", "dask-jobqueue"),
    "kubernetes": ("dask_kubernetes.operator", "KubeCluster", "dask-kubernetes"),
}


@contextmanager
def connected(address: str, workers: int = 1, gpu: bool = False, retries: int = 3) -> Iterator[Any]:
    """Yield a client of a cluster; what is begun for it ends with the block.

    workers  processes (`local`) or jobs (`slurm`, `kubernetes`) that are begun
    gpu      give each of them a slot for a GPU
    retries  how many workers may die over a task, of clusters that are begun here

    Raises BadInput without Dask or the deployer's package, and for a scheduler that does not answer.
    """
    if workers < 1:
        raise BadInput(f"workers is {workers}: at least 1 is needed")
    if address.endswith(".json") and not Path(address).is_file():
        raise BadInput(f"no Dask scheduler has written {address!r}")
    if address.endswith(".json") and not _names_scheduler(Path(address)):
        raise BadInput(f"{address!r} names no address of a Dask scheduler: the file that one has written is needed")
    try:
        import dask
        import distributed
    except ImportError:
        raise BadInput("a cluster needs Dask: pip install 'cached-block-workbench[cluster]'") from None
    with ExitStack() as stack:
        stack.enter_context(dask.config.set({"distributed.scheduler.allowed-failures": retries}))
        made = _begun(distributed, address, workers, {GPU: 1} if gpu else None)
        if made is not None:
            stack.callback(made.close)
        place = {"scheduler_file": address} if address.endswith(".json") else {"address": made or address}
        try:
            client = distributed.Client(**place, timeout=ANSWER, set_as_default=False)
        except (OSError, TimeoutError, ValueError) as problem:
            raise BadInput(f"no Dask scheduler answers at {address!r}: {problem}") from None
        stack.callback(client.close)
        yield client


def _names_scheduler(file: Path) -> bool:
    """Return whether a file says where a scheduler is, as `dask scheduler --scheduler-file` writes it."""
    try:
        known = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(known, dict) and isinstance(known.get("address"), str)


def _begun(distributed: Any, address: str, workers: int, slots: dict[str, int] | None) -> Any:
    """Begin the cluster that is named; None for an address."""
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
        made = _deployed(package, lambda: getattr(import_module(module), name)())
        made.scale(workers)
        return made
    return None


def _deployed(package: str, make: Callable[[], Any]) -> Any:
    try:
        return make()
    except ImportError:
        raise BadInput(f"this cluster needs {package}: pip install {package}") from None
    except Exception as problem:  # whatever a deployer raises of its settings
        said = " ".join(str(problem).split())
        raise BadInput(f"the cluster could not be begun ({type(problem).__name__}: {said}): see {package}") from None


def check_slots(client: Any) -> None:
    """Refuse a cluster whose workers, those there are, have no slot for a GPU; workers may also come later."""
    known = client.scheduler_info()["workers"].values()
    if known and not any(worker["resources"].get(GPU) for worker in known):
        raise BadInput(f"no worker of the cluster has a slot for a GPU: begin them with `--resources {GPU}=1`")


def worker_number() -> int:
    """Return a number of this Dask worker, by which GPUs are dealt out: those of one machine count up."""
    from distributed import get_worker

    name = str(get_worker().name)
    return int(name) if name.isdigit() else crc32(name.encode())

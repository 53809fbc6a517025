"""Shards of a corpus carried out: in this process, in worker processes, or on a Dask cluster."""

import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.utils import logging

from workbench import models
from workbench.core import dask_cluster
from workbench.core.blocks import Block, Prompt
from workbench.core.errors import BadInput
from workbench.core.kv import KV
from workbench.methods.prepare import Prepare
from workbench.models.spec import attach
from workbench.store import FolderStore, MemoryStore, fingerprint
from workbench.store.misses import identity_of
from workbench.store.places import Where, is_begun, opened, within
from workbench.store.remote import RemoteStore
from workbench.store.views import StagingStore

Shard = tuple[str, tuple[Block, ...]]  # name of a file, and the passages it holds
Made = tuple[float, float, int, int]  # of a shard: begin, end, its passages, and how many of them were encoded
UNPREPARED = "unprepared"
RETRIES = 5  # of a shard whose Dask worker died


@dataclass(frozen=True)
class PrepareStage:
    """Shards that are prepared by one policy, all before the next stage begins."""

    policy: Prepare
    folder: Where
    shards: list[Shard]

    @property
    def passages(self) -> list[Block]:
        return [block for _, blocks in self.shards for block in blocks]


Make = Callable[[PrepareStage], Iterator[Made]]


def named(store: FolderStore | RemoteStore | None, number: int, blocks: tuple[Block, ...]) -> Shard:
    """Return a shard under its number, or under a name of its content where its number stands for another corpus."""
    shard = f"passages-{number:06d}", blocks
    if store is None or (isinstance(store, FolderStore) and not store.has_file(shard[0])):
        return shard
    return shard if is_written(store, shard) or _is_part(store, shard) else _by_content(blocks)


def is_written(store: FolderStore | RemoteStore, shard: Shard) -> bool:
    """Return whether a shard is there, with all its passages."""
    name, blocks = shard
    if not store.has_file(name) or isinstance(store, RemoteStore):
        return store.has_file(name)
    everywhere = name == _by_content(blocks)[0]  # its others were in other files when it was written
    held = [identity_of(key) for key in (store if everywhere else store.blocks_of(name))]
    if any(identity is None for identity in held):  # of an earlier version, which filled a folder once
        return True
    return {identity.block for identity in held if identity} >= {block.content for block in blocks}


def _is_part(store: FolderStore | RemoteStore, shard: Shard) -> bool:
    """Return whether the file of a shard holds some of its passages, and nothing else: the others were damaged."""
    name, blocks = shard
    if isinstance(store, RemoteStore) or not (held := store.blocks_of(name)):
        return False
    contents = {block.content for block in blocks}
    return all(key.identity is not None and key.identity.block in contents for key in held)


def _by_content(blocks: tuple[Block, ...]) -> Shard:
    content = "".join(block.content for block in blocks)
    return f"passages-{sha256(content.encode()).hexdigest()[:16]}", blocks


class ShardMaker:
    """Prepares shards in one process, with its model and its stores."""

    def __init__(self, model: PreTrainedModel, policy: Prepare, folder: Where, system: tuple[Block, ...]):
        self.model, self.policy, self.system = model, policy, system
        self.out, below = opened(folder), within(folder, UNPREPARED)
        self.below = [MemoryStore(behind=opened(below))] if is_begun(below) else []

    def make(self, shard: Shard) -> Made:
        """Prepare the passages of one shard and write them, unless another process has written them meanwhile."""
        begin = time.monotonic()
        name, blocks = shard
        if blocks and is_written(self.out, shard):  # what is there would not be staged, and be written over
            return begin, time.monotonic(), len(blocks), 0
        store = StagingStore(self.out, *self.below) if blocks else StagingStore()
        last = (blocks or self.system)[0]  # stands for a question, which is not cached
        self.policy(self.model, [Prompt((*self.system, *blocks, last))], store)
        fresh = {identity.block for key in store.staged if (identity := identity_of(key))}
        all_fresh = fresh >= {block.content for block in blocks} and not self.out.has_file(name)
        if blocks and not all_fresh and not _is_part(self.out, shard):
            name, _ = _by_content(blocks)  # some of its passages are in other files
        if isinstance(self.out, RemoteStore):
            self.out.write(name, store.staged, sorted(store.there))
        else:
            self.out.write(name, self._kept(name) | store.staged)
        return begin, time.monotonic(), len(blocks), sum(block.content in fresh for block in blocks)

    def _kept(self, name: str) -> dict[str, KV]:
        """Return what a file holds that is written with other blocks again."""
        assert isinstance(self.out, FolderStore)
        return {key: kv for key in self.out.blocks_of(name) if (kv := self.out.get(key)) is not None}


def here(model: PreTrainedModel, system: tuple[Block, ...]) -> Make:
    """Return a function that prepares a stage in this process."""
    return lambda stage: map(ShardMaker(model, stage.policy, stage.folder, system).make, stage.shards)


Named = tuple[str, str | None, str | None]  # of a model: its name, dtype and layout


@contextmanager
def processes(
    workers: int, device: str, named: Named, stages: Sequence[PrepareStage], system: tuple[Block, ...]
) -> Iterator[Make]:
    """Yield a function that prepares a stage in worker processes, each of which loads the model once."""
    context = multiprocessing.get_context("spawn")
    places = context.SimpleQueue()
    for i in range(workers):
        places.put(_device(device, i))
    policies = {stage.folder: stage.policy for stage in stages}
    given = (places, named, max(1, torch.get_num_threads() // workers), policies, system)
    with ProcessPoolExecutor(workers, context, _begin, given) as pool:

        def there(stage: PrepareStage) -> Iterator[Made]:
            futures = [pool.submit(_next, stage.folder, shard) for shard in stage.shards]
            try:
                yield from (future.result() for future in as_completed(futures))
            except BrokenProcessPool:
                raise RuntimeError(
                    "a worker process ended, perhaps for lack of memory; what is written stays: run again to go on"
                ) from None
            finally:
                for future in futures:
                    future.cancel()

        yield there


@contextmanager
def cluster(
    address: str, workers: int, device: str, named: Named, system: tuple[Block, ...], model: str
) -> Iterator[Make]:
    """Yield a function that prepares a stage on a Dask cluster (`core.dask_cluster`).

    A cluster that is begun here has `workers` processes.

    A worker that dies is replaced, and its shard prepared by another. `model` is the fingerprint that every worker's
    model must have. Raises BadInput without Dask, and for a cluster that does not answer.
    """
    threads = max(1, torch.get_num_threads() // workers) if address == dask_cluster.LOCAL else None
    with dask_cluster.connected(address, workers) as client:
        import distributed

        def there(stage: PrepareStage) -> Iterator[Made]:
            shared = (named, device, threads, stage.folder, stage.policy, system, model)
            begin = time.monotonic()  # clocks of other machines say other times
            futures = [client.submit(_on_cluster, shared, shard, pure=False, retries=RETRIES) for shard in stage.shards]
            try:
                for future in distributed.as_completed(futures, loop=client.loop):
                    yield begin, time.monotonic(), *future.result()[2:]
            except distributed.KilledWorker as problem:
                raise RuntimeError(
                    f"workers ended again and again, perhaps for lack of memory; what is written stays: {problem}"
                ) from None
            finally:
                client.cancel(futures)

        yield there


def _device(device: str, number: int) -> str:
    return f"cuda:{number % torch.cuda.device_count()}" if device == "cuda" else device


_GIVEN: list[Any] = []  # of a worker process: its model, the policy of every folder and the system block


def _begin(places: Any, named: Named, threads: int, policies: dict[Where, Prepare], system: tuple[Block, ...]) -> None:
    """Load the model of a worker process."""
    _GIVEN[:] = [_loaded(named, places.get(), threads), policies, system]


@cache
def _loaded(named: Named, device: str, threads: int | None) -> PreTrainedModel:
    name, dtype, layout = named
    if threads:
        torch.set_num_threads(threads)
    logging.disable_progress_bar()
    model, _, _ = models.load(name, device, dtype, layout)
    attach(model)
    return model


@cache
def _maker(folder: Where) -> ShardMaker:
    model, policies, system = _GIVEN
    return ShardMaker(model, policies[folder], folder, system)


def _next(folder: Where, shard: Shard) -> Made:
    return _maker(folder).make(shard)


def _on_cluster(shared: tuple[Any, ...], shard: Shard) -> Made:
    """Prepare a shard in a Dask worker, which may have died over it before."""
    named, device, threads, folder, policy, system, wanted = shared
    number = dask_cluster.worker_number() if device == "cuda" else 0
    model = _loaded(named, _device(device, number), threads)
    if fingerprint(model) != wanted:
        raise BadInput(f"a worker's model {named[0]!r} has other weights than the one here")
    return ShardMaker(model, policy, folder, system).make(shard)

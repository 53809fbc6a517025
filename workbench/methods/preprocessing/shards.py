"""Prepare the shards of a corpus: in this process, in others, or on a Dask cluster."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache
from hashlib import sha256

from transformers import PreTrainedModel
from transformers.utils import logging

from workbench import models
from workbench.core.blocks import Block, Prompt
from workbench.core.errors import BadInput
from workbench.core.kv import KV
from workbench.core.utils.runner import Workers, dealt
from workbench.methods.prepare import Prepare
from workbench.models.spec import attach
from workbench.store import FolderStore, MemoryStore, fingerprint
from workbench.store.misses import identity_of
from workbench.store.remote import RemoteStore
from workbench.store.urls import Where, is_begun, opened, within
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


@dataclass(frozen=True, eq=False)
class Workplace:
    """What every worker needs: where the model runs, its name, the policy of every folder, the system block.

    `fingerprint` is that of the model here, which every worker's model must have.
    """

    device: str
    named: Named
    policies: Mapping[Where, Prepare]
    system: tuple[Block, ...]
    fingerprint: str


@contextmanager
def elsewhere(workers: int, cluster: str | None, given: Workplace) -> Iterator[Make]:
    """Yield a function that prepares a stage in `workers` processes, or on a Dask cluster; each loads the model once.

    A worker of a cluster that dies is replaced, and its shard prepared by another. Raises BadInput without Dask, and
    for a cluster that does not answer.
    """
    with Workers(workers, cluster, (given,)) as there:

        def make(stage: PrepareStage) -> Iterator[Made]:
            begin = time.monotonic()  # clocks of other machines say other times
            tasks = [(stage.folder, shard) for shard in stage.shards]
            with closing(there.run(_make, tasks, retries=RETRIES if cluster else 0)) as running:
                for _, outcome in running:
                    if outcome.died:
                        raise RuntimeError(f"a worker process: {outcome.problem}; what is written stays: run again")
                    made = outcome.value()
                    yield (begin, time.monotonic(), *made[2:]) if cluster else made

        yield make


def _make(given: Workplace, task: tuple[Where, Shard]) -> Made:
    """Prepare a shard in a worker, which may have died over it before."""
    folder, shard = task
    return _maker(given, folder).make(shard)


@lru_cache(maxsize=2)  # of a process that is given its workplace once; on a cluster every shard brings it
def _maker(given: Workplace, folder: Where) -> ShardMaker:
    model = _loaded(given.named, dealt(given.device))
    if fingerprint(model) != given.fingerprint:
        raise BadInput(f"a worker's model {given.named[0]!r} has other weights than the one here")
    return ShardMaker(model, given.policies[folder], folder, given.system)


@cache
def _loaded(named: Named, device: str) -> PreTrainedModel:
    name, dtype, layout = named
    logging.disable_progress_bar()
    model, _, _ = models.load(name, device, dtype, layout)
    attach(model)
    return model

"""Preprocess a corpus into a store, with several processes; an interrupted run can be resumed.

<out>/manifest.json, *.safetensors    a `FolderStore`
      prepared.json                   settings and costs of the runs
      _SUCCESS                        written last: the block files, one per line
      unprepared/                     KV of neighbours, deleted at the end
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, fields
from functools import cache, lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel
from transformers.utils import logging

from workbench import data, models
from workbench.core.blocks import Block, Prompt
from workbench.core.errors import BadInput, first_line
from workbench.core.utils.annotations import check_fields, check_processes
from workbench.core.utils.files import is_url
from workbench.core.utils.runner import Workers, device_of_process
from workbench.core.utils.stages import keeps, so_far
from workbench.core.utils.stages import stage as say_stage
from workbench.data import layouts
from workbench.data.retrieval_corpus import Corpus
from workbench.methods import prepare, registry
from workbench.methods.prepare import Prepare
from workbench.methods.prepare.after_system import AfterSystem
from workbench.methods.prepare.with_neighbours import WithNeighbours
from workbench.methods.preprocessing.fields import PreparationFields
from workbench.models.loading import Loaded
from workbench.models.spec import attach
from workbench.store import FolderStore, MemoryStore, fingerprint
from workbench.store.files.block_file import SUFFIX
from workbench.store.files.manifest import CHECKSUM, MODEL_NAME, SUCCESS, TOKENIZER, checksum, files_of
from workbench.store.keys import vocabulary
from workbench.store.misses import identity_of
from workbench.store.remote import RemoteStore, file_system
from workbench.store.urls import Where, forget, is_begun, join_place, note, opened, read_note
from workbench.store.views import StagingStore

Shard = tuple[str, tuple[Block, ...]]  # name of a file, and its passages
Made = tuple[float, float, int, int]  # of a shard: start, end, number of passages, number of newly encoded ones
Progress = Callable[[int, int], None]  # (passages done, total)
Named = tuple[str, str | None, str | None]  # name, dtype and layout of a model
UNPREPARED, ASKED = "unprepared", "prepared.json"
RETRIES = 5  # attempts for a shard whose Dask worker died


@dataclass(frozen=True)
class PrepareStage:
    """Shards that are preprocessed by one policy; stages run one after the other."""

    policy: Prepare
    folder: Where
    shards: list[Shard]

    @property
    def passages(self) -> list[Block]:
        return [block for _, blocks in self.shards for block in blocks]


Make = Callable[[PrepareStage], Iterator[Made]]


def shard_of(blocks: tuple[Block, ...]) -> Shard:
    """Return a shard of these passages; its file is named after a hash of their content."""
    content = "".join(block.content for block in blocks)
    return f"passages-{sha256(content.encode()).hexdigest()[:16]}", blocks


def is_written(store: FolderStore | RemoteStore, shard: Shard) -> bool:
    """Return whether a store contains all passages of a shard, in any of its files."""
    name, blocks = shard
    if isinstance(store, RemoteStore):  # has a note per shard
        return store.has_file(name)
    stored = {identity.block for key in store if (identity := identity_of(key))}
    return stored >= {block.content for block in blocks}


class ShardMaker:
    """Preprocesses shards in one process, with its model and stores."""

    def __init__(self, model: PreTrainedModel, policy: Prepare, folder: Where, system: tuple[Block, ...]):
        self.model, self.policy, self.system = model, policy, system
        self.out, below = opened(folder), join_place(folder, UNPREPARED)
        self.below = [MemoryStore(behind=opened(below))] if is_begun(below) else []

    def make(self, shard: Shard) -> Made:
        """Preprocess and write the passages of a shard, unless another process has just written them."""
        begin = time.monotonic()
        name, blocks = shard
        if blocks and is_written(self.out, shard):  # existing blocks are not staged, and would be lost
            return begin, time.monotonic(), len(blocks), 0
        store = StagingStore(self.out, *self.below) if blocks else StagingStore()
        last = (blocks or self.system)[0]  # dummy question, which is not cached
        self.policy(self.model, [Prompt((*self.system, *blocks, last))], store)
        fresh = {identity.block for key in store.staged if (identity := identity_of(key))}
        if isinstance(self.out, RemoteStore):
            self.out.write(name, store.staged, sorted(store.there))
        else:  # keep the intact blocks of a damaged file
            intact = {key: kv for key in self.out.blocks_of(name) if (kv := self.out.get(key)) is not None}
            self.out.write(name, intact | store.staged)
        return begin, time.monotonic(), len(blocks), sum(block.content in fresh for block in blocks)


def in_this_process(model: PreTrainedModel, system: tuple[Block, ...]) -> Make:
    """Return a function that preprocesses a stage in this process."""
    return lambda stage: map(ShardMaker(model, stage.policy, stage.folder, system).make, stage.shards)


@dataclass(frozen=True, eq=False)
class WorkerSettings:
    """Settings of the workers: device, model, the policy of every folder, the system block.

    `fingerprint` is that of the parent's model; a worker's model must have the same.
    """

    device: str
    named: Named
    policies: Mapping[Where, Prepare]
    system: tuple[Block, ...]
    fingerprint: str


@contextmanager
def in_workers(workers: int, cluster: str | None, given: WorkerSettings) -> Iterator[Make]:
    """Yield a function that preprocesses a stage in `workers` processes or on a Dask cluster, one model load each.

    The shard of a cluster worker that dies is retried on another one. Raises BadInput without Dask, and for a cluster
    that does not respond.
    """
    with Workers(workers, cluster, (given,)) as pool:

        def make(stage: PrepareStage) -> Iterator[Made]:
            begin = time.monotonic()  # clocks of other machines differ
            tasks = [(stage.folder, shard) for shard in stage.shards]
            with closing(pool.run(_make, tasks, retries=RETRIES if cluster else 0)) as running:
                for _, outcome in running:
                    if outcome.died:
                        raise RuntimeError(f"a worker process: {outcome.problem}; what is written stays: run again")
                    made = outcome.value()
                    yield (begin, time.monotonic(), *made[2:]) if cluster else made

        yield make


def _make(given: WorkerSettings, task: tuple[Where, Shard]) -> Made:
    """Preprocess a shard in a worker process."""
    folder, shard = task
    return _maker(given, folder).make(shard)


@lru_cache(maxsize=2)  # on a cluster, every task brings an equal Workplace
def _maker(given: WorkerSettings, folder: Where) -> ShardMaker:
    model = _loaded(given.named, device_of_process(given.device))
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


@dataclass(frozen=True)
class Prepared:
    """Result of a run; `passages_per_second` is measured from the start of its first shard to the end of its last."""

    folder: str
    prepare: str
    passages: int
    made: int  #: passages encoded in this run; the others existed
    tokens: int
    bytes: int  #: of the whole store
    seconds: float
    passages_per_second: float
    workers: int
    blocks: int = 0  #: of the whole store
    written: int = 0  #: bytes by which this run made it larger


@dataclass(frozen=True)
class Preparation(PreparationFields):
    """The passages of a data set, preprocessed by one policy and stored in the folder `out`.

    These are the passages of all samples of a data file. Each of the `workers` loads the model; a file contains `shard`
    passages. Raises BadInput before anything is written, also for a folder of another model or preprocessing.
    """

    def __post_init__(self) -> None:
        check_fields(self)
        layouts.check(self.layout)
        registry.find_policy(prepare.__name__, self.prepare, ("corpus", "system"))
        check_processes("workers", self.workers, here=self.cluster in (None, "local"))
        if self.shard < 1:
            raise BadInput(f"shard is {self.shard}: a whole number of at least 1 is needed")
        if is_url(self.out):
            file_system(str(self.out))  # raises for an unknown file system
        else:
            object.__setattr__(self, "out", Path(self.out))

    def run(self, progress: Progress | None = None, loaded: Loaded | None = None) -> Prepared:
        """Preprocess missing passages; `loaded` is the model, if it is already in memory."""
        samples = data.corpus(self.data, self.samples, self.seed, self.passages)
        drawn = {"samples": self.samples, "passages": self.passages, "seed": self.seed or None}
        given = next((name for name, value in drawn.items() if value is not None), None)
        if given and not data.is_generated(self.data):
            raise BadInput(f"{given} {drawn[given]} is for generated data, as lab: all of {self.data} is encoded")
        if not any(passage.text.strip() for sample in samples for passage in sample.ctxs):
            raise BadInput(f"{self.data} holds no text")
        loaded = Loaded(*(loaded or models.load(self.model, self.device, self.dtype, self.layout)))
        model, tokenizer, layout = loaded.with_layout(self.layout)
        corpus = Corpus.of(samples, layout, tokenizer)
        first = layout.prompts(samples[:1], tokenizer)[0]
        system = first.context[: len(first.context) - len(samples[0].ctxs)]
        policy = prepare.from_spec(self.prepare, corpus=corpus, system=len(system))
        prepare.few_neighbours_note(
            policy, attach(model).context, [Prompt((*system, block, block)) for block in corpus.blocks]
        )
        if is_begun(self.out):
            opened(self.out, kind_of(model, policy, tokenizer))  # raises for a store of a different kind
        stages = self._stages(policy, corpus)
        kept, size = self._kept(), opened(self.out).bytes if is_begun(self.out) else 0
        made, total, done, seconds = 0, sum(len(stage.passages) for stage in stages), 0, 0.0
        say_stage("encoding passages")
        before = len(corpus) - len(stages[-1].passages) if stages else len(corpus)
        makers = self._makers(model, system, stages)  # raises for a cluster that does not respond
        with keeps(lambda: so_far(before + done, before + total, "passages", self.out)), makers as make:
            if progress:
                progress(done, total)
            opened(self.out, kind_of(model, policy, tokenizer), new=True)
            forget(self.out, SUCCESS)
            for stage in stages:
                opened(stage.folder, kind_of(model, stage.policy, tokenizer), new=True)
                if system and not opened(stage.folder).has_file("system"):
                    ShardMaker(model, stage.policy, stage.folder, system).make(("system", ()))
            for stage in stages:
                begin, end, made = float("inf"), 0.0, 0  # of this stage; the last stage makes the final passages
                for started, ended, count, fresh in make(stage):
                    begin, end, done, made = min(begin, started), max(end, ended), done + count, made + fresh
                    if progress:
                        progress(done, total)
                seconds += end - begin
        return self._finish(policy, corpus, made, seconds, kept, size)

    def _kept(self) -> set[str]:
        """Return the files of earlier runs. Raises BadInput if a file is missing that this run would not recreate."""
        if is_url(self.out):  # has a note per shard instead
            return set()
        kept = files_of(Path(self.out))
        lost = sorted(name for name in kept if not (Path(self.out) / name).is_file())
        if lost and self.data not in {each["data"] for each in asked_before(self.out)}:
            raise BadInput(f"{self.out} lacks {lost[0]}, which it had: `workbench store repair {self.out}` first")
        return kept

    def _stages(self, policy: Prepare, corpus: Corpus) -> list[PrepareStage]:
        """Return the remaining stages with their missing shards; a shard with a damaged header counts as missing."""
        shards = [shard_of(corpus.blocks[i : i + self.shard]) for i in range(0, len(corpus), self.shard)]
        policies: list[tuple[Prepare, Where]] = [(policy, self.out)]
        if isinstance(policy, WithNeighbours) and policy.n:
            policies.insert(0, (AfterSystem(policy.system), join_place(self.out, UNPREPARED)))
        stages = []
        for each, folder in policies:
            store = opened(folder) if is_begun(folder) else None
            missing = [shard for shard in shards if store is None or not is_written(store, shard)]
            stages.append(PrepareStage(each, folder, missing))
        return [stage for stage in stages if stage.shards] if stages[-1].shards else []

    @contextmanager
    def _makers(self, model: PreTrainedModel, system: tuple[Block, ...], stages: list[PrepareStage]) -> Iterator[Make]:
        """Yield a function that preprocesses a stage: here, in `workers` other processes, or on a cluster."""
        alone = self.workers == 1 or all(len(stage.shards) == 1 for stage in stages)
        if not stages or (alone and self.cluster is None):
            yield in_this_process(model, system)
            return
        policies = {stage.folder: stage.policy for stage in stages}
        named = (self.model, self.dtype, self.layout)
        given = WorkerSettings(self.device, named, policies, system, fingerprint(model))
        with in_workers(self.workers, self.cluster, given) as make:
            yield make

    def _finish(
        self, policy: Prepare, corpus: Corpus, made: int, seconds: float, kept: set[str], before_bytes: int
    ) -> Prepared:
        """Write the record of this run, and the list of all files, including those `kept` from earlier runs."""
        forget(self.out, UNPREPARED)
        store = opened(self.out)
        tokens, size = sum(map(len, corpus.blocks)), store.bytes
        speed = made / seconds if made else 0.0
        written = max(0, size - before_bytes)
        counts = (len(corpus), made, tokens, size, seconds, speed, self.workers, len(store), written)
        prepared = Prepared(str(self.out), registry.spec_of(policy), *counts)
        try:
            before = [each for each in asked_before(self.out) if each["data"] != self.data]
        except BadInput:  # unreadable: replaced
            before = []
        record = {"asked": asdict(self) | {"out": str(self.out)}, "before": before, "found": asdict(prepared)}
        note(self.out, ASKED, json.dumps({**record, CHECKSUM: checksum(record)}, indent=1))
        if not is_url(self.out):
            kept |= {path.name for path in Path(self.out).glob(f"*{SUFFIX}")}
        note(self.out, SUCCESS, "".join(f"{name}\n" for name in sorted(kept)))
        return prepared


def asked_before(place: Where) -> list[dict[str, Any]]:
    """Return the settings of earlier runs from `prepared.json`; [] if it is missing. Raises BadInput if damaged."""
    text = read_note(place, ASKED)
    if text is None:
        return []
    try:
        record = json.loads(text)
        if record.pop(CHECKSUM, None) not in (None, checksum(record)):
            raise ValueError("its checksum is wrong")
        return [dict(each) for each in (*record.get("before", ()), record["asked"])]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as problem:
        raise BadInput(
            f"{ASKED} of {place} is corrupt ({first_line(problem)}): run the command that made the store once more, "
            "which encodes what is missing and writes it anew"
        ) from None


def repeat_earlier_runs(place: Where, progress: Progress | None = None) -> list[Prepared]:
    """Repeat the earlier runs of a place, to restore missing passages. Raises BadInput as `asked_before` does."""
    known = {field.name for field in fields(Preparation)}
    runs = [{name: value for name, value in each.items() if name in known} for each in asked_before(place)]
    drawn = {"samples": None, "passages": None, "seed": 0}  # had no effect on other data in earlier versions
    runs = [each if data.is_generated(each["data"]) else each | drawn for each in runs]
    return [Preparation(**each | {"out": place, "cluster": None}).run(progress) for each in runs]


def kind_of(model: PreTrainedModel, policy: Prepare, tokenizer: Any = None) -> dict[str, Any]:
    """Return the properties that all blocks of a store share, for `FolderStore(folder, kind_of(model, policy))`."""
    corpus = getattr(policy, "corpus", None)
    words = {} if tokenizer is None else {TOKENIZER: vocabulary(tokenizer)}
    called = {MODEL_NAME: name} if (name := _name_of(model)) else {}
    return words | {
        "model": fingerprint(model),
        **called,
        "dtype": str(model.dtype),
        "preparation": registry.spec_of(policy),
        "corpus": corpus.key if corpus is not None else "any",
    }


def _name_of(model: PreTrainedModel) -> str:
    """Return the name of a model's folder, or owner/name in the Hugging Face cache; "" if it was not loaded."""
    path = Path(model.config.name_or_path or "")
    if path.parent.name == "snapshots":
        return path.parent.parent.name.removeprefix("models--").replace("--", "/")
    return path.name

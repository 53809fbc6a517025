"""A whole corpus prepared into a folder, once: by several processes, and taken up again where it was interrupted.

<out>/manifest.json, *.safetensors    a `FolderStore`
      prepared.json                   what it took
      _SUCCESS                        written last
      unprepared/                     KV that neighbours are stitched from; removed at the end
"""

import json
import multiprocessing
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import torch
from transformers import PreTrainedModel
from transformers.utils import logging

from workbench import data, models
from workbench.core.blocks import Block, Prompt
from workbench.core.errors import BadInput
from workbench.core.files import write_text
from workbench.data import layouts
from workbench.data.retrieval_corpus import Corpus
from workbench.methods import prepare, registry
from workbench.methods.config import DataName, DeviceName, LayoutName, ModelName
from workbench.methods.prepare import Prepare
from workbench.methods.prepare.after_system import AfterSystem
from workbench.methods.prepare.with_neighbours import WithNeighbours
from workbench.models.loading import Loaded
from workbench.models.spec import prepare_model
from workbench.store import FolderStore, MemoryStore, fingerprint
from workbench.store.manifest import MANIFEST
from workbench.store.views import StagingStore

Progress = Callable[[int, int], None]  # (passages done, of how many)
Shard = tuple[str, tuple[Block, ...]]  # name of a file, and the passages it holds
Made = tuple[float, float, int]  # (begin, end, passages) of a shard
UNPREPARED, SUCCESS = "unprepared", "_SUCCESS"


@dataclass(frozen=True)
class Prepared:
    """What came out. `passages_per_second` is of this run, from the first shard's begin to the last one's end."""

    folder: str
    prepare: str
    passages: int
    made: int  # in this run; the others were there
    tokens: int
    bytes: int
    seconds: float
    passages_per_second: float
    workers: int


@dataclass(frozen=True)
class PrepareStage:
    """Shards that are prepared by one policy, all before the next stage begins."""

    policy: Prepare
    folder: Path
    shards: list[Shard]

    @property
    def passages(self) -> list[Block]:
        return [block for _, blocks in self.shards for block in blocks]


@dataclass(frozen=True)
class Preparation:
    """All passages of a data set, prepared by one policy and kept in the folder `out`.

    Of a data file, these are all passages of all samples. Each of the `workers` has a model of its own; `shard`
    passages make a file.
    Raises BadInput before anything is written, also for a folder that another model or preparation has filled.
    """

    model: ModelName
    out: Annotated[Path, "Folder for the cached passages; run again to go on after an interruption"]
    data: DataName = "lab"
    prepare: Annotated[str, "independent, after_system or with_neighbours; options in brackets"] = "with_neighbours"
    samples: Annotated[int | None, "Of lab: how many questions to take the passages of"] = None
    seed: Annotated[int, "Of lab: seed of the draw"] = 0
    passages: Annotated[int | None, "Of lab: passages a question"] = None
    device: DeviceName = "cpu"
    dtype: Annotated[str | None, "float32, bfloat16 or float16"] = None
    workers: Annotated[int, "Processes; with --device cuda, dealt out over the GPUs"] = 1
    shard: int = 64
    layout: LayoutName = None

    def __post_init__(self) -> None:
        layouts.check(self.layout)
        registry.found(prepare.__name__, self.prepare, ("corpus", "system"))
        for name in ("workers", "shard"):
            if not registry.is_whole(value := getattr(self, name), 1):
                raise BadInput(f"{name} is {value!r}: a whole number of at least 1 is needed")

    def run(self, progress: Progress | None = None, loaded: Loaded | None = None) -> Prepared:
        """Prepare what the folder lacks. `loaded` is the model where it is in memory already."""
        samples = data.corpus(self.data, self.samples, self.seed, self.passages)
        loaded = Loaded(*(loaded or models.load(self.model, self.device, self.dtype, self.layout)))
        model, tokenizer, layout = loaded.with_layout(self.layout)
        prepare_model(model)
        corpus = Corpus.of(samples, layout, tokenizer)
        first = layout.prompts(samples[:1], tokenizer)[0]
        system = first.context[: len(first.context) - len(samples[0].ctxs)]
        policy = prepare.named(self.prepare, corpus=corpus, system=len(system))
        FolderStore(self.out, kind_of(model, policy), new=True)  # refuses a folder of another kind
        (self.out / SUCCESS).unlink(missing_ok=True)
        stages = self._stages(model, policy, corpus)
        made = len(stages[-1].passages) if stages else 0
        for stage in stages:
            if system and not FolderStore(stage.folder).has_file("system"):
                ShardMaker(model, stage.policy, stage.folder, system).make(("system", ()))
        total, done, seconds = sum(len(stage.passages) for stage in stages), 0, 0.0
        with self._makers(model, system, stages) as make:
            for stage in stages:
                begin, end = float("inf"), 0.0
                for begun, ended, count in make(stage):
                    begin, end, done = min(begin, begun), max(end, ended), done + count
                    if progress:
                        progress(done, total)
                seconds += end - begin
        return self._finish(policy, corpus, made, seconds)

    def _stages(self, model: PreTrainedModel, policy: Prepare, corpus: Corpus) -> list[PrepareStage]:
        """Return what is left to do: no stage where all shards are written. A shard with a damaged header is not."""
        cuts = range(0, len(corpus), self.shard)
        shards = [(f"passages-{i // self.shard:06d}", corpus.blocks[i : i + self.shard]) for i in cuts]
        policies = [(policy, self.out)]
        if isinstance(policy, WithNeighbours) and policy.n:
            policies.insert(0, (AfterSystem(policy.system), self.out / UNPREPARED))
        stages = []
        for each, folder in policies:
            store = FolderStore(folder) if (folder / MANIFEST).is_file() else None
            missing = [shard for shard in shards if store is None or not store.has_file(shard[0])]
            stages.append(PrepareStage(each, folder, missing))
        if not stages[-1].shards:
            return []
        for stage in stages[:-1]:
            FolderStore(stage.folder, kind_of(model, stage.policy), new=True)
        return [stage for stage in stages if stage.shards]

    @contextmanager
    def _makers(
        self, model: PreTrainedModel, system: tuple[Block, ...], stages: list[PrepareStage]
    ) -> Iterator[Callable[[PrepareStage], Iterator[Made]]]:
        """Yield a function that prepares a stage: in this process, or in `workers` others that load the model once."""

        def here(stage: PrepareStage) -> Iterator[Made]:
            return map(ShardMaker(model, stage.policy, stage.folder, system).make, stage.shards)

        if self.workers == 1 or all(len(stage.shards) == 1 for stage in stages):
            yield here
            return
        context = multiprocessing.get_context("spawn")
        places = context.SimpleQueue()
        for i in range(self.workers):
            places.put(f"cuda:{i % torch.cuda.device_count()}" if self.device == "cuda" else self.device)
        policies = {stage.folder: stage.policy for stage in stages}
        named = (self.model, self.dtype, self.layout)
        given = (places, named, max(1, torch.get_num_threads() // self.workers), policies, system)
        with ProcessPoolExecutor(self.workers, context, _begin, given) as pool:

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

    def _finish(self, policy: Prepare, corpus: Corpus, made: int, seconds: float) -> Prepared:
        shutil.rmtree(self.out / UNPREPARED, ignore_errors=True)
        tokens, size = sum(map(len, corpus.blocks)), FolderStore(self.out).bytes
        speed = made / seconds if made else 0.0
        whole = (len(corpus), made, tokens, size, seconds, speed, self.workers)
        prepared = Prepared(str(self.out), registry.spec_of(policy), *whole)
        asked = asdict(self) | {"out": str(self.out)}
        found = json.dumps({"asked": asked, "found": asdict(prepared)}, indent=1)
        write_text(self.out / "prepared.json", found, durable=True)
        write_text(self.out / SUCCESS, "", durable=True)
        return prepared


def kind_of(model: PreTrainedModel, policy: Prepare) -> dict[str, Any]:
    """What the blocks of a folder have in common: `FolderStore(folder, kind_of(model, policy))` refuses other ones."""
    corpus = getattr(policy, "corpus", None)
    return {
        "model": fingerprint(model),
        "dtype": str(model.dtype),
        "preparation": registry.spec_of(policy),
        "corpus": corpus.key if corpus is not None else "any",
    }


class ShardMaker:
    """Prepares shards in one process, with its model and its folders."""

    def __init__(self, model: PreTrainedModel, policy: Prepare, folder: Path, system: tuple[Block, ...]):
        self.model, self.policy, self.system = model, policy, system
        self.out, below = FolderStore(folder), folder / UNPREPARED
        self.below = [MemoryStore(behind=FolderStore(below))] if below.is_dir() else []

    def make(self, shard: Shard) -> Made:
        """Prepare the passages of one shard and write them."""
        begin = time.monotonic()
        name, blocks = shard
        store = StagingStore(self.out, *self.below) if blocks else StagingStore()
        last = (blocks or self.system)[0]  # stands for a question, which is not cached
        self.policy(self.model, [Prompt((*self.system, *blocks, last))], store)
        self.out.write(name, store.staged)
        return begin, time.monotonic(), len(blocks)


_GIVEN: list[Any] = []  # of a worker process: its model, the policy of every folder and the system block


def _begin(
    places: Any,
    named: tuple[str, str | None, str | None],
    threads: int,
    policies: dict[Path, Prepare],
    system: tuple[Block, ...],
) -> None:
    """Load the model of a worker process; `named` are its name, dtype and layout."""
    name, dtype, layout = named
    torch.set_num_threads(threads)
    logging.disable_progress_bar()
    model, _, _ = models.load(name, places.get(), dtype, layout)
    prepare_model(model)
    _GIVEN[:] = [model, policies, system]


@cache
def _maker(folder: Path) -> ShardMaker:
    model, policies, system = _GIVEN
    return ShardMaker(model, policies[folder], folder, system)


def _next(folder: Path, shard: Shard) -> Made:
    return _maker(folder).make(shard)

"""Serve questions through the scheduler and measure each mode: time to first token, throughput, idle engine time.

    loaded = models.load("lab-full")
    prompts = loaded.layout.prompts(data.load("lab", samples=24), loaded.tokenizer)
    for run in measure(loaded, prompts):
        print(run.mode, run.ttft.p50, run.per_second, run.idle)

On a GPU, requests share the pages of a pool and read cached blocks in place; on a CPU, each has a contiguous KV.
Baselines are in `baselines`, result rows in `served`.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from time import perf_counter, sleep
from typing import cast

import numpy as np

from workbench.core.blocks import Prompt
from workbench.core.errors import BadInput
from workbench.core.utils.stages import stage
from workbench.engine.graphs.cuda_graphs import Runner
from workbench.engine.pages.paged_pool import Pool
from workbench.experiments.serving.serve_fields import check_load
from workbench.experiments.serving.served import Served
from workbench.methods import Method
from workbench.methods.engines import PAGE, EngineChoice, choose_engine
from workbench.methods.method_fields import check_schedulers
from workbench.methods.modes.reuse import Reuse
from workbench.methods.serving import MODES, Engine, Scheduler, Ticket
from workbench.methods.serving.contiguous import ContiguousEngine
from workbench.methods.serving.paged import PagedEngine
from workbench.methods.serving.scheduler import Mode
from workbench.models.loading import Loaded
from workbench.models.model_names import check_length
from workbench.store import UNLIMITED, FolderStore, HostTier, StoreTier, TieredStore
from workbench.store.events import Events, idle_share
from workbench.store.tiering.pages import PageTier

WARM_UP = 2  # questions answered before timing on a CPU


def measure(
    loaded: Loaded,
    prompts: Sequence[Prompt],
    modes: Sequence[str] = MODES,
    method: Method | None = None,
    *,
    contiguous: type[ContiguousEngine] = ContiguousEngine,
    start: str = "cold",
    engine: str = "auto",
    rate: float | None = None,
    batch: int = 8,
    loaders: int = 2,
    max_new_tokens: int = 8,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> list[Served]:
    """Serve all prompts once in each mode of the scheduler, and return one `Served` per mode.

    method      a `Reuse`, with or without recomputation; None: `Reuse()`. Other methods must start "empty"
    contiguous  class of the engine with one contiguous KV per request
    start       initial location of blocks: "cold" on disk, "warm" in memory, "hot" in the pages of a pool ("warm" if
                there is none), "empty" nowhere: they are encoded when missed
    engine      "paged", "contiguous" or "auto", as in `generate`
    rate        prompts per second, with Poisson arrivals drawn by `seed`; None: all arrive at once
    batch       maximum number of prompts computed together
    progress    called before each mode as progress(finished modes, number of modes)

    Each mode starts with the same blocks in the same tiers. On Linux, their files are evicted from the page cache.

    Raises BadInput, before any work, for a value that is not allowed.
    """
    check_schedulers(modes)
    check_load(batch, loaders, max_new_tokens, start, rate)
    if not prompts:
        raise BadInput("no prompts: at least one is needed")
    loaded = Loaded(*loaded)
    check_length(max_new_tokens, loaded.spec.context)
    method = Reuse() if method is None else method
    choice = _choice(loaded, method, prompts, max_new_tokens, engine)
    served = []
    with TemporaryDirectory() as place:
        bench = _Bench(loaded, prompts, method, choice, batch, loaders, max_new_tokens, start, contiguous)
        bench.check()
        stage("writing blocks")
        stores = _stores(bench, Path(place) / "blocks")
        bench.warm_up(next(stores))
        arrivals = _arrivals(len(prompts), rate, seed)
        for number, mode in enumerate(modes):
            stage(f"mode {mode}")
            if progress is not None:
                progress(number, len(modes))
            served.append(bench.serve(mode, next(stores), prompts, arrivals))
    return served


@dataclass
class _Bench:
    """A model, its prompts and its engine; all modes share the pool."""

    loaded: Loaded
    prompts: Sequence[Prompt]
    method: Method
    choice: EngineChoice
    batch: int
    loaders: int
    max_new_tokens: int
    start: str
    contiguous: type[ContiguousEngine]

    def __post_init__(self) -> None:
        paged = self.choice.name == "paged"
        self.pool = Pool(self.loaded.model, self._pages(), PAGE) if paged else None
        self.runner = None if self.pool is None else Runner(self.loaded.model, self.pool, coarse=True)

    def check(self) -> None:
        """Raise BadInput for a prompt that the engine cannot compute."""
        engine = self._engine(TieredStore([HostTier()]))
        for number, prompt in enumerate(self.prompts):
            engine.check(Ticket(f"{number}", prompt, self.max_new_tokens))

    def warm_up(self, store: TieredStore) -> None:
        """Start threads and, with pages, capture steps for each number of requests, as a server does at start."""
        few = self.prompts if self.pool is not None else self.prompts[:WARM_UP]
        self.serve("request", store, few, [0.0] * len(few))
        count = 1
        while self.pool is not None and count < 2 * self.batch:
            self.serve("sync", store, few[:count], [0.0] * len(few[:count]))
            count *= 2

    def serve(self, mode: str, store: TieredStore, prompts: Sequence[Prompt], arrivals: Sequence[float]) -> Served:
        """Serve prompts that arrive at the given seconds. Raises the error of a failed request."""
        engine = self._engine(store)
        if self.start == "hot":  # fill the pages by serving the same questions
            self._run(engine, mode, prompts, [0.0] * len(prompts), Events())
        events, begin = Events(), perf_counter()
        tickets = self._run(engine, mode, prompts, arrivals, events)
        seconds = perf_counter() - begin
        answers = [ticket.result(0) for ticket in tickets]
        if isinstance(engine, PagedEngine):
            for key in list(engine.pages):
                engine.pages.drop(key)
        blocks = [block for one in answers if one.receipt is not None for block in one.receipt.blocks]
        return Served(
            mode=mode,
            engine=str(self.choice),
            questions=len(answers),
            seconds=seconds,
            ttfts=tuple(one.ttft for one in answers),
            idle=idle_share(events),
            hit_rate=sum(block.status == "reused" for block in blocks) / max(1, len(blocks)),
            rows_computed=float(np.mean([one.rows_computed for one in answers])),
        )

    def _run(
        self, engine: Engine, mode: str, prompts: Sequence[Prompt], arrivals: Sequence[float], events: Events
    ) -> list[Ticket]:
        scheduler = Scheduler(engine, cast(Mode, mode), self.loaders, self.batch, self.batch, events)
        with closing(scheduler):
            return _served(scheduler, prompts, arrivals, self.max_new_tokens)

    def _engine(self, store: TieredStore) -> Engine:
        model, tokenizer, layout = self.loaded
        if self.runner is None or not isinstance(self.method, Reuse):
            return self.contiguous(model, tokenizer, store, self.method, stop=layout.stop)
        return PagedEngine(self.runner, PageTier(self.runner.pool, store), tokenizer, self.method, stop=layout.stop)

    def _pages(self) -> int:
        """Return the number of pages for the blocks, and for the computed tokens of concurrent requests."""
        largest = max(sum(-(-len(block) // PAGE) for block in set(prompt.context)) for prompt in self.prompts)
        blocks = sum(-(-len(block) // PAGE) for block in {b for prompt in self.prompts for b in prompt.context})
        together = 2 * self.batch
        computed = [len(p) if getattr(self.method, "select", None) else len(p.question) for p in self.prompts]
        cached = blocks if self.start == "hot" else min(blocks, together * largest)
        return 1 + cached + together * -(-(max(computed) + self.max_new_tokens) // PAGE)


def _choice(loaded: Loaded, method: Method, prompts: Sequence[Prompt], count: int, engine: str) -> EngineChoice:
    choice = choose_engine(loaded.model, method, prompts, count, engine)
    if engine == "auto" and not getattr(method, "plain", True):
        return EngineChoice("contiguous", "the method writes to cached tokens, or changes what tokens attend to")
    return choice


def _stores(bench: _Bench, folder: Path) -> Iterator[TieredStore]:
    """Yield the tiers for each run, with each block of the prompts in its initial tier."""
    pinned = bench.pool is not None and bench.pool.device.type == "cuda"
    host = partial(HostTier, UNLIMITED, pinned=pinned)
    while bench.start == "empty" or not isinstance(bench.method, Reuse):
        yield TieredStore([host()])
    cold = bench.start == "cold"
    store = FolderStore(folder, new=True, durable=False) if cold else TieredStore([host()])
    for prompt in bench.prompts:
        bench.method.prepare(bench.loaded.model, [prompt], store)
    while isinstance(store, TieredStore):
        yield store
    while True:
        disk = FolderStore(folder, durable=False, pinned=pinned)
        forget(folder)
        yield TieredStore([host(), StoreTier(disk)], loaders=bench.loaders)


def forget(folder: Path) -> None:
    """Evict block files from the system's page cache, so that they are read from disk."""
    for path in folder.glob("*.safetensors") if hasattr(os, "posix_fadvise") else ():
        with path.open("rb") as opened:
            os.fsync(opened.fileno())
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _arrivals(count: int, rate: float | None, seed: int) -> list[float]:
    """Return the arrival times of prompts in seconds, the first at 0."""
    if rate is None:
        return [0.0] * count
    gaps = np.random.default_rng(seed).exponential(1 / rate, count - 1)
    return [0.0, *np.cumsum(gaps).tolist()]


def _served(
    scheduler: Scheduler, prompts: Sequence[Prompt], arrivals: Sequence[float], max_new_tokens: int
) -> list[Ticket]:
    """Run the scheduler in this thread for requests from another thread; return their tickets when all have ended."""
    if not any(arrivals):
        return scheduler.run(prompts, max_new_tokens)
    tickets: list[Ticket] = []

    def submit() -> None:
        begin = perf_counter()
        try:
            for prompt, at in zip(prompts, arrivals, strict=True):
                sleep(max(0.0, begin + at - perf_counter()))
                tickets.append(scheduler.submit(prompt, max_new_tokens))
        finally:
            scheduler.close()

    submitter = Thread(target=submit, daemon=True)
    submitter.start()
    scheduler.serve()
    submitter.join()
    return tickets

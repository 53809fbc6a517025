"""Loaders: threads that read blocks into memory or pages while the engine computes."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from threading import Lock, current_thread
from typing import Any, Literal, Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel

from workbench.core.errors import BadInput
from workbench.core.kv import KV
from workbench.engine.pages.paged_prompt import PagedPrompt
from workbench.methods.prepare import Prepare
from workbench.methods.prepare.independent import Independent
from workbench.methods.preprocessing.lookups import KeyProbe
from workbench.methods.request_report import Lookup
from workbench.methods.serving.tickets import Arrived, Ticket
from workbench.models.spec import spec_for
from workbench.store import fingerprint, key_of
from workbench.store.events import Events
from workbench.store.tiering.pages import PageTier

REMEMBERED = 1 << 16  # maximum number of look-ups kept


@dataclass
class HeldPages:
    """State of one request over pages.

    keys     store keys of its context blocks, in reading order
    own      number of pages that are promised to it, until they are allocated
    rows     positions of context tokens that are recomputed
    """

    keys: list[str]
    own: int
    lookups: list[Lookup]
    paged: PagedPrompt | None = None
    rows: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.long))
    encoding: float = 0.0
    used: Any = None  #: GPU event after all work that may read its pages
    random: torch.Generator = field(default_factory=torch.Generator)


class PageLoads:
    """Loads blocks, preprocessed by `prepare`, from the tiers behind `pages` into pages."""

    def __init__(self, model: PreTrainedModel, pages: PageTier, prepare: Prepare):
        self.model, self.pages, self.prepare = model, pages, prepare
        self._hits: dict[str, Lookup] = {}  # key → look-up of a block in pages
        self._turn = Lock()

    def load(self, ticket: Ticket, own: int, arrived: Arrived | None = None) -> dict[str, Any]:
        """Load the blocks of a request into pages, and promise it `own` more; return {bytes, tier}.

        With `arrived`, load layer by layer. Pages of blocks that no tier contains stay empty. Look-ups of requests are
        serialized, so that copies of one overlap the look-ups of the next. Raises NoRoom.
        """
        keys, store = self.keys(ticket), self.pages.behind
        lengths = {key: len(block) for key, block in zip(keys, ticket.prompt.context, strict=True)}
        with self._turn:
            mine = self.pages.reserve(lengths, own)
            held = ticket.held = HeldPages(keys, own, [])
            found = self._found(held, mine, ticket)
        try:
            self.pages.mark_missed(key for key in mine if key not in found)
            if arrived is None:
                self.pages.fill(found)
            others = lengths.keys() - set(mine)
            self.pages.wait(others)
            empty = set(self.pages.empty(others))
            for key in lengths:
                if key in others:
                    held.lookups.append(
                        Lookup(key, miss=store.miss_reason(key)) if key in empty else self._hit(key, lengths)
                    )
            if arrived is not None:
                self.pages.fill(found, None if self.pages.empty(keys) else arrived)
        except BaseException:
            self.pages.mark_missed(mine)
            raise
        tiers = sorted({lookup.tier for lookup in held.lookups if lookup.tier})
        return {"bytes": sum(kv.nbytes for kv in found.values()), "tier": ", ".join(tiers)}

    def _found(self, held: HeldPages, keys: Sequence[str], ticket: Ticket) -> dict[str, KV]:
        """Return {key: KV} of the blocks found in a tier; {} for a cancelled request."""
        store, found = self.pages.behind, dict[str, KV]()
        requested = keys if not ticket.cancelled else []
        try:
            for key, below in zip(requested, store.find_all(requested, ticket.name), strict=True):
                if below is None:
                    held.lookups.append(Lookup(key, miss=store.miss_reason(key)))
                else:
                    found[key] = below.kv
                    held.lookups.append(Lookup(key, below.tier, below.kv.nbytes))
        except BaseException:
            self.pages.mark_missed(keys)
            raise
        return found

    def admit(self, ticket: Ticket, own: int) -> dict[str, Any] | None:
        """Admit a request whose blocks are all in pages, and promise it `own` more; None otherwise. Raises NoRoom."""
        keys = self.keys(ticket)
        if not self.pages.admit(keys, own):
            return None
        lengths = {key: len(block) for key, block in zip(keys, ticket.prompt.context, strict=True)}
        ticket.held = HeldPages(keys, own, [self._hit(key, lengths) for key in lengths])
        return {"bytes": 0, "tier": self.pages.name}

    def keys(self, ticket: Ticket) -> list[str]:
        """Return the key under which the preprocessing looks up every context block."""
        if isinstance(self.prepare, Independent):
            model_key, dtype = fingerprint(self.model), self.model.dtype
            return [key_of(model_key, dtype, block) for block in ticket.prompt.context]
        probe = KeyProbe(spec_for(self.model).empty(1))
        (kvs,) = self.prepare(self.model, [ticket.prompt], probe)
        key_of_kv = {id(kv): key for key, kv in probe.keys.items()}
        return [key_of_kv[id(kv)] for kv in kvs]

    def _hit(self, key: str, lengths: Mapping[str, int]) -> Lookup:
        """Return the look-up of a block in pages; the same object for every request."""
        if (known := self._hits.get(key)) is None:
            if len(self._hits) >= REMEMBERED:
                self._hits.clear()
            size = lengths[key] * self.pages.page_bytes // self.pages.pool.size
            known = self._hits[key] = Lookup(key, self.pages.name, size)
        return known


Job = Callable[[Ticket, Arrived | None], dict[str, Any]]  # `Engine.load`


@dataclass(frozen=True)
class Report:
    """Progress of a load: its first layer has arrived, it is done, or it failed."""

    ticket: Ticket
    what: Literal["begun", "done", "failed"]
    problem: BaseException | None = None


class Loaders(Protocol):
    """Interface of loaders; each loads the blocks of one request at a time."""

    def start(self, ticket: Ticket, job: Job, by_layer: bool) -> None:
        """Start the load as soon as a loader is free."""

    def inline(self, ticket: Ticket, job: Job) -> None:
        """Load now, in the engine's thread. Raises the exceptions of the job."""

    def poll(self) -> list[Report]:
        """Return the reports since the last call."""

    def wait(self, until: float | None) -> None:
        """Wait for a report, or until a moment on the scheduler's clock."""

    def wake(self) -> None:
        """Make `wait` return."""

    def close(self) -> None:
        """Shut down the loaders."""


class ThreadLoaders:
    """Loaders as threads."""

    def __init__(self, count: int, events: Events):
        if count < 1:
            raise BadInput(f"loaders is {count}: at least 1 is needed")
        self.events = events
        self._threads = ThreadPoolExecutor(count, "loader")
        self._mail: SimpleQueue[Report | None] = SimpleQueue()
        self._read: list[Report] = []

    def start(self, ticket: Ticket, job: Job, by_layer: bool) -> None:
        """Start the load as soon as a thread is free."""
        self._threads.submit(self._run, ticket, job, by_layer)

    def inline(self, ticket: Ticket, job: Job) -> None:
        """Load now, in the calling thread."""
        with self.events.span("load", lane="engine", request=ticket.name) as about:
            about |= job(ticket, None)

    def poll(self) -> list[Report]:
        """Return the reports since the last call."""
        while True:
            try:
                if (report := self._mail.get_nowait()) is not None:
                    self._read.append(report)
            except Empty:
                break
        read, self._read = self._read, []
        return read

    def wait(self, until: float | None) -> None:
        """Wait for a report, or until a moment on the events' clock."""
        try:
            report = self._mail.get(timeout=None if until is None else max(0.0, until - self.events.now()))
            if report is not None:
                self._read.append(report)
        except Empty:
            pass

    def wake(self) -> None:
        """Make `wait` return."""
        self._mail.put(None)

    def close(self) -> None:
        """Shut down the threads; loads that have not started are dropped."""
        self._threads.shutdown(cancel_futures=True)

    def _run(self, ticket: Ticket, job: Job, by_layer: bool) -> None:
        lane = current_thread().name.replace("_", " ")

        def arrived(layer: int) -> None:
            ticket.arrivals.add(layer)
            if layer == 0:
                self._mail.put(Report(ticket, "begun"))

        try:
            with self.events.span("load", lane=lane, request=ticket.name) as about:
                if not ticket.cancelled:
                    about |= job(ticket, arrived if by_layer else None)
        except BaseException as problem:  # reported with the request, and raised in the thread that waits for it
            ticket.arrivals.fail(problem)
            self._mail.put(Report(ticket, "failed", problem))
        else:
            ticket.arrivals.add(1 << 30)
            self._mail.put(Report(ticket, "done"))

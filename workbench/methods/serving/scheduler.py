"""The scheduler: one thread that decides, in rounds, which requests are loaded and which are computed."""

import gc
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from threading import Lock

from workbench.core.blocks import Prompt
from workbench.core.errors import BadInput
from workbench.methods.method_fields import SCHEDULERS, SchedulerMode, check_schedulers
from workbench.methods.serving.computation import Computation
from workbench.methods.serving.loaders import Loaders, ThreadLoaders
from workbench.methods.serving.tickets import CancelledError, Engine, NoRoom, Queues, Ticket
from workbench.store.events import Events

Mode = SchedulerMode
MODES = SCHEDULERS


class Scheduler:
    """Serves requests with one engine, which has no other user.

    mode      "sync", "request" or "layer" (see `workbench.methods.serving`)
    loaders   number of loading threads, or an object with the interface `Loaders`
    batch     maximum number of requests computed together (continuous batching)
    loading   maximum number of requests that are loading or waiting to be computed; their blocks are pinned
    events    event recorder
    gather    an idle engine waits briefly for requests that are almost loaded (`serving.computation`)

    A request that fails or is cancelled does not affect others.
    """

    def __init__(
        self,
        engine: Engine,
        mode: Mode = "request",
        loaders: int | Loaders = 2,
        batch: int = 8,
        loading: int = 8,
        events: Events | None = None,
        gather: bool = True,
    ):
        check_schedulers([mode])
        for name, value in (("batch", batch), ("loading", loading)):
            if value < 1:
                raise BadInput(f"{name} is {value}: at least 1 is needed")
        self.engine, self.mode, self.batch, self.loading = engine, mode, batch, loading
        self.events = Events() if events is None else events
        self.loaders: Loaders = ThreadLoaders(loaders, self.events) if isinstance(loaders, int) else loaders
        self.queues = Queues(engine, self.events, loading)
        self._inbox = deque[Ticket]()  # submitted by any thread
        self.computation = Computation(engine, self.queues, self.events, batch, gather)
        self._overlaps = mode != "sync" and engine.overlaps
        if engine.overlaps:
            engine.meanwhile = self._meanwhile if self._overlaps else bool
        self._lock, self._closed, self._numbers = Lock(), False, count()

    def submit(self, prompt: Prompt, max_new_tokens: int = 64, name: str = "") -> Ticket:
        """Submit a request, from any thread, and return its ticket. Raises BadInput for a prompt that does not fit."""
        if max_new_tokens < 1:
            raise BadInput(f"max_new_tokens {max_new_tokens}: it is 1 or more")
        number = next(self._numbers)
        ticket = Ticket(name or f"{number}", prompt, max_new_tokens, number=number, wake=self.loaders.wake)
        self.engine.check(ticket)
        with self._lock:
            if self._closed:
                raise BadInput("the scheduler is closed")
            ticket.arrived = ticket.since = self.events.now()
            self.events.add("arrive", ticket.arrived, lane="scheduler", request=ticket.name, tokens=len(prompt))
            self._inbox.append(ticket)
        self.loaders.wake()
        return ticket

    def run(self, prompts: Iterable[Prompt] = (), max_new_tokens: int = 64) -> list[Ticket]:
        """Submit prompts, run until every request has ended, and return the tickets."""
        tickets = [self.submit(prompt, max_new_tokens) for prompt in prompts]
        with low_latency():
            while self._left():
                self.step()
        return tickets

    def serve(self) -> None:
        """Serve requests until `close` is called; for a separate thread."""
        with low_latency():
            while not self._closed or self._left():
                self.step(idle=True)

    def close(self) -> None:
        """Reject new requests, and shut down idle loaders; `serve` returns when its requests have ended."""
        with self._lock:
            self._closed = True
        self.loaders.wake()
        if not self._left():
            self.loaders.close()

    def step(self, idle: bool = False) -> None:
        """Run one round; if there is nothing to do, wait for a loader (with `idle`, also for a new request)."""
        while self._inbox:
            self.queues.waiting.append(self._inbox.popleft())
        done = self._collect()
        done |= self._sweep()
        done |= self._load()
        chosen, waits = self.computation.choose()
        if chosen and self.mode != "sync" and not self._overlaps:
            self._load()  # loaders work while these are computed
        done |= self.computation.run_round(chosen, waits)
        done |= self._conclude()
        if not done and (self.queues.loading or idle):
            self.loaders.wait(self.computation.until)

    def _meanwhile(self) -> bool:
        """Do one pending task while the engine's device computes; return whether there was one."""
        return self._collect() or self.queues.conclude() or self._load_one()

    def _conclude(self) -> bool:
        """Build answers now, unless that can overlap with the next step."""
        later = self._overlaps and bool(self.queues.ready or self.queues.running)
        before = self.queues.ends
        while len(self.queues.concluding) > (self.batch if later else 0):
            self.queues.conclude()
        return self.queues.ends > before

    def _collect(self) -> bool:
        """Process the loaders' reports; return whether there were any."""
        reports = self.loaders.poll()
        for report in reports:
            if report.what == "begun":
                if report.ticket in self.queues.loading and not report.ticket.done.is_set():
                    self.queues.begun.append(report.ticket)
            else:
                self._loaded(report.ticket, report.problem)
        return bool(reports)

    def _loaded(self, ticket: Ticket, problem: BaseException | None) -> None:
        """Advance a request whose loading has ended; end it, or put it back, if loading failed."""
        queues = self.queues
        queues.drop(ticket, queues.loading, queues.begun)
        if ticket.done.is_set():  # cancelled or failed while loading
            self.engine.release(ticket)
        elif ticket.state == "running":
            return  # layerwise load: already being computed
        elif isinstance(problem, NoRoom):
            queues.put_back(ticket, problem)
        elif problem is not None:
            queues.end(ticket, "fail", problem)
        else:
            queues.arrived(ticket)

    def _sweep(self) -> bool:
        """End cancelled requests; return whether there were any."""
        cancelled = [ticket for ticket in self.queues if ticket.cancelled and not ticket.done.is_set()]
        for ticket in cancelled:
            self.queues.end(ticket, "cancel", CancelledError(f"request {ticket.name} was cancelled"))
        return bool(cancelled)

    def _load(self) -> bool:
        started = 0
        while self._load_one():
            started += 1
        return started > 0

    def _load_one(self) -> bool:
        """Start to load the next request if there is one and room for it; return whether it was started."""
        queues = self.queues
        if not queues.waiting or queues.blocked:
            return False
        if self.mode == "sync" and len(queues.ready) + len(queues.running) >= self.batch:
            return False
        ticket, queues.full = queues.waiting.popleft(), False
        queues.leave_queue(ticket, "loading", "to load")
        if self.mode == "sync":
            self._load_inline(ticket)
        elif not self._admitted(ticket):
            by_layer = self.mode == "layer" and not (queues.loading or queues.ready or queues.running)
            queues.loading.append(ticket)
            self.loaders.start(ticket, self.engine.load, by_layer)
        return True

    def _admitted(self, ticket: Ticket) -> bool:
        """Admit a request that needs no loading; return False if it must go to the loaders."""
        begin = self.events.now()
        try:
            if (about := self.engine.admit(ticket)) is None:
                return False
        except NoRoom as problem:
            self.queues.put_back(ticket, problem)
        except Exception as problem:
            self.queues.end(ticket, "fail", problem)
        else:
            seconds = self.events.now() - begin
            self.events.add("load", begin, seconds=seconds, lane="scheduler", request=ticket.name, **about)
            self.queues.arrived(ticket)
        return True

    def _load_inline(self, ticket: Ticket) -> None:
        try:
            self.loaders.inline(ticket, self.engine.load)
        except NoRoom as problem:
            self.queues.put_back(ticket, problem)
        except Exception as problem:
            self.queues.end(ticket, "fail", problem)
        else:
            self.queues.arrived(ticket)

    def _left(self) -> bool:
        return bool(self._inbox or self.queues.waiting) or self.queues.active


TURN = 2e-4  # seconds: thread switch interval, 5e-3 by default


@contextmanager
def low_latency() -> Iterator[None]:
    """Shorten the thread switch interval, and exclude existing objects from garbage collection.

    The engine's thread waits for the device and for loaders, so a short interval lowers its latency.
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(min(TURN, before))
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        sys.setswitchinterval(before)

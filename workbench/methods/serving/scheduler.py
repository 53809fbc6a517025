"""Which request is loaded and which is computed: one round after the other, by one thread."""

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from threading import Condition
from typing import Literal, get_args

from workbench.core.blocks import Prompt
from workbench.core.errors import BadInput
from workbench.methods.serving.loaders import Loaders, ThreadLoaders
from workbench.methods.serving.queues import Queues
from workbench.methods.serving.tickets import Engine, NoRoom, Ticket, Wait
from workbench.store.events import Events, What

Mode = Literal["sync", "request", "layer"]
MODES: tuple[Mode, ...] = get_args(Mode)
STALL = 1e-4  # seconds; less is no pause of the engine
TURN = 2e-4  # seconds for which a loader's Python may keep the engine's thread waiting; Python's own are 5e-3


class Busy(BadInput):
    """The queue of requests is full: ask again when some have ended."""


class Scheduler:
    """Serves requests by one engine, which is used by nobody else.

    mode      "sync", "request" or "layer" (see `workbench.methods.serving`)
    loaders   threads that load, or an object that stands for them
    batch     requests that are computed together, at most (continuous batching: one joins as soon as one ends)
    loading   requests that are being loaded, or wait to be computed, at most: what they hold is not evicted
    waiting   requests that may wait to be loaded; then `submit` waits, or raises Busy
    events    what happens is recorded there

    A request that fails, is cancelled or is too late ends alone; the others go on.
    """

    def __init__(
        self,
        engine: Engine,
        mode: Mode = "request",
        loaders: int | Loaders = 2,
        batch: int = 8,
        loading: int = 8,
        waiting: int = 1024,
        events: Events | None = None,
    ):
        if mode not in MODES:
            raise BadInput(f"mode is {mode!r}: allowed are {', '.join(MODES)}")
        for name, value in (("batch", batch), ("loading", loading), ("waiting", waiting)):
            if value < 1:
                raise BadInput(f"{name} is {value}: at least 1 is needed")
        self.engine, self.mode, self.batch, self.loading, self.waiting = engine, mode, batch, loading, waiting
        self.events = Events() if events is None else events
        self.loaders: Loaders = ThreadLoaders(loaders, self.events) if isinstance(loaders, int) else loaders
        self.queues = Queues(engine, self.events)
        self._inbox = deque[Ticket]()  # from other threads
        self._stalls: list[tuple[float, float]] = []  # of the present prefill
        self._changed, self._closed, self._numbers = Condition(), False, count()

    def submit(
        self,
        prompt: Prompt,
        max_new_tokens: int = 64,
        deadline: float | None = None,
        name: str = "",
        block: bool = True,
        timeout: float | None = None,
    ) -> Ticket:
        """Ask for an answer, from any thread. `deadline`: seconds from now, after which it is not wanted any more.

        Where the queue is full, wait for room (`block`, at most `timeout` seconds), or raise Busy. Raises BadInput for
        what cannot be computed.
        """
        if max_new_tokens < 1:
            raise BadInput(f"max_new_tokens {max_new_tokens}: it is 1 or more")
        if deadline is not None and deadline <= 0:
            raise BadInput(f"deadline is {deadline}: a positive number of seconds is needed")
        ticket = Ticket(name or f"{next(self._numbers)}", prompt, max_new_tokens, wake=self.loaders.wake)
        self.engine.check(ticket)
        with self._changed:
            if not self._changed.wait_for(self._has_place, timeout if block else 0):
                self.events.add("reject", lane="scheduler", request=ticket.name, detail="the queue is full")
                raise Busy(f"{self.waiting} requests are waiting, and no more are taken")
            if self._closed:
                raise BadInput("the scheduler is closed")
            ticket.arrived = ticket.since = self.events.now()
            ticket.deadline = None if deadline is None else ticket.arrived + deadline
            self.events.add("arrive", ticket.arrived, lane="scheduler", request=ticket.name, tokens=len(prompt))
            self._inbox.append(ticket)
        self.loaders.wake()
        return ticket

    def run(self, prompts: Iterable[Prompt] = (), max_new_tokens: int = 64) -> list[Ticket]:
        """Submit prompts, and compute until nothing is left to do; return their tickets."""
        tickets = []
        with _short_turns():
            for prompt in prompts:
                while not self._has_place():
                    self.step()
                tickets.append(self.submit(prompt, max_new_tokens))
            while self._left():
                self.step()
        return tickets

    def serve(self) -> None:
        """Compute until `close` is called: what a thread of its own is for."""
        with _short_turns():
            while not self._closed or self._left():
                self.step(idle=True)

    def close(self) -> None:
        """Take no more requests, and end the loaders; `serve` returns when those it has are done."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self.loaders.wake()
        if not self._left():
            self.loaders.close()

    def step(self, idle: bool = False) -> None:
        """Do what can be done now; where that is nothing, wait for a loader (`idle`: or for a request)."""
        while self._inbox:
            self.queues.waiting.append(self._inbox.popleft())
        done = self._collect()
        done |= self._sweep()
        done |= self._load()
        done |= self._prefill()
        done |= self._decode()
        if not done and (self.queues.loading or idle):
            self.loaders.wait(self._next_deadline())

    def _collect(self) -> bool:
        queues, reports = self.queues, self.loaders.poll()
        for report in reports:
            ticket = report.ticket
            if report.what == "begun":
                if ticket in queues.loading and not ticket.done.is_set():
                    queues.begun.append(ticket)
                continue
            queues.drop(ticket, queues.loading, queues.begun)
            if ticket.done.is_set():  # it ended meanwhile
                self.engine.release(ticket)
            elif ticket.state == "running":  # layer by layer, it was computed as they came
                continue
            elif isinstance(report.problem, NoRoom):
                queues.put_back(ticket, report.problem)
            elif report.problem is not None:
                queues.end(ticket, "fail", report.problem)
            else:
                queues.arrived(ticket)
        return bool(reports)

    def _sweep(self) -> bool:
        """End what is cancelled or too late."""
        now, ended = self.events.now(), 0
        for ticket in self.queues:
            late = ticket.deadline is not None and now >= ticket.deadline
            if ticket.done.is_set() or not (ticket.cancelled or late):
                continue
            words = "was cancelled" if ticket.cancelled else "has no answer by its deadline"
            how: What = "cancel" if ticket.cancelled else "expire"
            self.queues.end(ticket, how, TimeoutError(f"request {ticket.name} {words}"))
            ended += 1
        return ended > 0

    def _load(self) -> bool:
        queues, started = self.queues, 0
        while queues.waiting and not (queues.full and queues.active):
            held = len(queues.loading) + len(queues.ready)
            if held >= self.loading or (self.mode == "sync" and held + len(queues.running) >= self.batch):
                break
            with self._changed:
                ticket = queues.waiting.popleft()
                self._changed.notify_all()
            queues.full = False
            queues.turn(ticket, "loading", "to load")
            started += 1
            if self.mode == "sync":
                self._load_inline(ticket)
            else:
                queues.loading.append(ticket)
                self.loaders.start(ticket, self.engine.load, self.mode == "layer")
        return started > 0

    def _load_inline(self, ticket: Ticket) -> None:
        try:
            self.loaders.inline(ticket, self.engine.load)
        except NoRoom as problem:
            self.queues.put_back(ticket, problem)
        except Exception as problem:
            self.queues.end(ticket, "fail", problem)
        else:
            self.queues.arrived(ticket)

    def _prefill(self) -> bool:
        queues, waits = self.queues, dict[str, Wait]()
        room = max(0, self.batch - len(queues.running))
        chosen = queues.ready[:room]
        if not chosen and queues.begun and room:
            chosen = queues.begun[:1]  # alone: nobody else waits for its layers
            waits = {ticket.name: self._stalling(ticket) for ticket in chosen}
        for ticket in chosen:
            queues.drop(ticket, queues.ready, queues.begun)
            queues.turn(ticket, "running", "to run")
        if chosen:
            self._compute(chosen, lambda group: self.engine.prefill(group, [waits.get(t.name) for t in group]), True)
        return bool(chosen)

    def _decode(self) -> bool:
        group, self.queues.running = self.queues.running, []
        if group:
            self._compute(group, self.engine.decode, False)
        return bool(group)

    def _compute(self, group: Sequence[Ticket], work: Callable[[Sequence[Ticket]], list[bool]], prefill: bool) -> None:
        """Run the engine; where a prefill of several requests fails, once more for each alone."""
        at, before = self.events.now(), sum(len(ticket.tokens) for ticket in group)
        self._stalls.clear()
        try:
            ended = work(group)
        except Exception as problem:
            if prefill and len(group) > 1:
                for ticket in group:
                    self._compute([ticket], work, prefill)
            else:
                for ticket in group:
                    self.queues.end(ticket, "fail", problem)
            return
        now = self.events.now()
        made = sum(len(ticket.tokens) for ticket in group) - before
        words = f"{'prefill' if prefill else 'decode'}: {', '.join(ticket.name for ticket in group)}"
        begins, ends = [at, *(end for _, end in self._stalls)], [*(begin for begin, _ in self._stalls), now]
        for begin, end in zip(begins, ends, strict=True):
            tokens = made if end == now else 0
            self.events.add("run", begin, seconds=end - begin, lane="engine", tokens=tokens, detail=words)
        for ticket, over in zip(group, ended, strict=True):
            if prefill:
                self.queues.first_token(ticket, at, now)
            if over:
                self.queues.finish(ticket)
            else:
                self.queues.running.append(ticket)

    def _stalling(self, ticket: Ticket) -> Wait:
        """Return a wait that notes when the engine stood still for a layer."""

        def wait(layer: int) -> None:
            begin = self.events.now()
            ticket.arrivals.wait(layer)
            if self.events.now() - begin > STALL:
                self._stalls.append((begin, self.events.now()))

        return wait

    def _left(self) -> bool:
        return bool(self._inbox or self.queues.waiting) or self.queues.active

    def _has_place(self) -> bool:
        return len(self._inbox) + len(self.queues.waiting) < self.waiting or self._closed

    def _next_deadline(self) -> float | None:
        return min((t.deadline for t in self.queues if t.deadline is not None and not t.done.is_set()), default=None)


@contextmanager
def _short_turns() -> Iterator[None]:
    """Let threads take turns sooner: the engine's own waits for the device, and then for a loader."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(min(TURN, before))
    try:
        yield
    finally:
        sys.setswitchinterval(before)

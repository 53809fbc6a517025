"""Requests of the scheduler (tickets), the interface of engines, and the request queues."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from threading import Condition, Event
from typing import Any, Literal, Protocol

from workbench.core.blocks import Prompt
from workbench.core.errors import BadInput
from workbench.methods.answered import Generation
from workbench.store.events import Events, What
from workbench.store.tiering.pages import NoRoom

__all__ = ["Arrivals", "Arrived", "CancelledError", "Engine", "HostEngine", "NoRoom", "State", "Ticket", "Wait"]

State = Literal["waiting", "loading", "ready", "running", "finished", "cancelled", "failed"]
Arrived = Callable[[int], None]  # (layer): called when a layer has arrived
Wait = Callable[[int], None]  # (layer): returns when a layer has arrived


class Arrivals:
    """Counts the arrived layers of a request's blocks; shared by its loader and the engine."""

    def __init__(self) -> None:
        self._layers, self._changed = 0, Condition()
        self._problem: BaseException | None = None

    def add(self, layer: int) -> None:
        """Report that `layer` and all lower layers have arrived."""
        with self._changed:
            self._layers = max(self._layers, layer + 1)
            self._changed.notify_all()

    def fail(self, problem: BaseException) -> None:
        """Report that loading failed."""
        with self._changed:
            self._problem = problem
            self._changed.notify_all()

    def wait(self, layer: int) -> None:
        """Wait until a layer has arrived. Raises the loader's exception if it failed."""
        with self._changed:
            self._changed.wait_for(lambda: self._layers > layer or self._problem is not None)
            if self._layers <= layer and self._problem is not None:
                raise self._problem


@dataclass(eq=False)
class Ticket:
    """One request; times are in seconds on the scheduler's clock.

    number, state          order of arrival, and its queue; `since` is when it entered that state
    arrived, first, ended  times of its arrival, its first and its last token
    loading                time when its load started
    held                   the engine's state for it
    seconds                {stage: seconds}, for its receipt
    wake                   wakes the scheduler
    """

    name: str
    prompt: Prompt
    max_new_tokens: int = 64
    number: int = 0
    arrived: float = 0.0
    state: State = "waiting"
    tokens: list[int] = field(default_factory=list)
    since: float = 0.0
    loading: float = 0.0
    first: float | None = None
    ended: float | None = None
    error: BaseException | None = None
    generation: Generation | None = None
    held: Any = None
    seconds: dict[str, float] = field(default_factory=dict)
    arrivals: Arrivals = field(default_factory=Arrivals)
    done: Event = field(default_factory=Event)
    cancelled: bool = False
    wake: Callable[[], object] = field(default=bool, repr=False)

    def cancel(self) -> None:
        """Cancel the request; it ends in the scheduler's next round."""
        self.cancelled = True
        self.wake()

    def result(self, timeout: float | None = None) -> Generation:
        """Wait for the answer and return it.

        Raises the request's exception if it failed, CancelledError if it was cancelled, and TimeoutError after
        `timeout` seconds, which does not end the request.
        """
        if not self.done.wait(timeout):
            raise TimeoutError(f"request {self.name} has not ended after {timeout} seconds")
        if self.generation is None:
            assert self.error is not None
            raise self.error
        return self.generation


class Engine(Protocol):
    """Interface of engines, which compute requests; all methods except `load` are called from one thread.

    overlaps    whether its work runs on a device while the calling thread is free
    meanwhile   set by the scheduler: does one pending task and returns whether there was one; an engine that overlaps
                calls it instead of waiting
    """

    overlaps: bool
    meanwhile: Callable[[], bool]

    def check(self, ticket: Ticket) -> None:
        """Raise BadInput for a request that cannot be computed; called before any work on it."""

    def rows(self, ticket: Ticket) -> int:
        """Estimate how many tokens the prefill of a request computes."""

    def load(self, ticket: Ticket, arrived: Arrived | None = None) -> dict[str, Any]:
        """Load the blocks of a request into the model's cache; called from a loader.

        Returns fields of the event: bytes, tier. With `arrived`, layers are loaded one by one if possible. Raises
        NoRoom if others must end first.
        """

    def admit(self, ticket: Ticket) -> dict[str, Any] | None:
        """Admit a request whose blocks are all in the model's cache, and return as `load` does; None: load them.

        Raises NoRoom if others must end first.
        """

    def prefill(self, tickets: Sequence[Ticket], waits: Sequence[Wait | None]) -> list[bool]:
        """Compute the first tokens of requests and append them to `tokens`; return which requests have ended.

        `waits[i](layer)` returns when a layer of request i has arrived; None: all layers have.
        """

    def decode(self, tickets: Sequence[Ticket]) -> list[bool]:
        """Compute one or more tokens of running requests; return which have ended."""

    def finish(self, ticket: Ticket) -> Generation:
        """Return the answer of a request that has ended."""

    def release(self, ticket: Ticket) -> None:
        """Free the resources of a request that has ended for any reason."""


class HostEngine:
    """Defaults for engines whose calls are synchronous, and whose blocks all come from loaders."""

    overlaps: bool = False
    meanwhile: Callable[[], bool] = bool

    def rows(self, ticket: Ticket) -> int:
        """Return the tokens of the question, as if all others were cached."""
        return len(ticket.prompt.question)

    def admit(self, ticket: Ticket) -> dict[str, Any] | None:
        """Return None: every request goes to the loaders."""
        return None


ENDS: dict[What, State] = {"cancel": "cancelled", "fail": "failed"}


class Queues:
    """The queues: waiting → loading → (begun: first layer arrived) → ready → running → concluding → ended.

    concluding    requests that have their last token, but not yet their answer and receipt
    full          whether a request found no room, so that another must end before one is loaded
    loading_most  maximum number of requests that are loading or waiting to be computed
    """

    def __init__(self, engine: Engine, events: Events, loading_most: int):
        self.engine, self.events, self.full, self.loading_most = engine, events, False, loading_most
        self.ends, self._seen = 0, dict[str, int]()  # ended requests: now, and per request when its load started
        self.waiting, self.concluding = deque[Ticket](), deque[Ticket]()
        self.loading, self.begun, self.ready, self.running = (list[Ticket]() for _ in range(4))

    def __iter__(self) -> Iterator[Ticket]:
        """Yield each request that does not have its last token yet."""
        return iter({id(t): t for t in (*self.waiting, *self.loading, *self.ready, *self.running)}.values())

    @property
    def active(self) -> bool:
        """Whether some requests hold pages that others may wait for."""
        return bool(self.loading or self.ready or self.running or self.concluding)

    @property
    def blocked(self) -> bool:
        """Whether no request can be loaded before a ready or running one ends."""
        return (self.full and self.active) or len(self.loading) + len(self.ready) >= self.loading_most

    def drop(self, ticket: Ticket, *queues: deque[Ticket] | list[Ticket]) -> None:
        """Remove a request from some queues."""
        for queue in queues:
            if ticket in queue:
                queue.remove(ticket)

    def leave_queue(self, ticket: Ticket, state: State, what: str) -> None:
        """Record that a request leaves a queue "to load" or "to run", and how long it has waited."""
        now = self.events.now()
        ticket.seconds["wait"] = ticket.seconds.get("wait", 0.0) + now - ticket.since
        about = {"seconds": now - ticket.since, "lane": "scheduler", "detail": what}
        self.events.add("wait", ticket.since, request=ticket.name, **about)
        ticket.state, ticket.since = state, now
        if state == "loading":
            ticket.loading = now
        self._seen[ticket.name] = self.ends

    def arrived(self, ticket: Ticket) -> None:
        """Record that the blocks of a request have arrived."""
        now = self.events.now()
        ticket.seconds["load"] = now - ticket.since
        ticket.state, ticket.since = "ready", now
        self.events.add("ready", now, lane="scheduler", request=ticket.name)
        self.ready.append(ticket)

    def put_back(self, ticket: Ticket, problem: NoRoom) -> None:
        """Requeue a request until another ends; it fails if there is no other."""
        if not self.active and self._seen.get(ticket.name) == self.ends:  # none has ended since the last attempt
            self.end(ticket, "fail", BadInput(f"request {ticket.name} finds no room: {problem}"))
            return
        self.full = self.active
        ticket.state, ticket.since, ticket.arrivals = "waiting", self.events.now(), Arrivals()
        earlier = sum(other.number < ticket.number for other in self.waiting)
        self.waiting.insert(earlier, ticket)  # requests keep their order

    def first_token(self, ticket: Ticket, at: float, now: float) -> None:
        """Record the first token of a request, from a step that started `at`."""
        ticket.first = ticket.since = now
        ticket.seconds["prefill"] = now - at
        ticket.seconds.setdefault("load", now - ticket.loading)  # a layerwise load, which overlaps the prefill
        self.events.add("prefill", at, seconds=now - at, lane="engine", request=ticket.name)
        if encoding := getattr(ticket.held, "encoding", 0.0):  # missed blocks are encoded first
            self.events.add("encode", at, seconds=min(encoding, now - at), lane="engine", request=ticket.name)
        self.events.add("first_token", now, lane="engine", request=ticket.name)

    def finish(self, ticket: Ticket) -> None:
        """Record the last token of a request; `conclude` builds its answer."""
        ticket.ended = self.events.now()
        ticket.seconds["decode"] = ticket.ended - ticket.since
        about = {"seconds": ticket.seconds["decode"], "lane": "engine", "tokens": len(ticket.tokens)}
        self.events.add("decode", ticket.since, request=ticket.name, **about)
        self.events.add("finish", ticket.ended, lane="scheduler", request=ticket.name, tokens=len(ticket.tokens))
        self.drop(ticket, self.running)
        self.concluding.append(ticket)

    def conclude(self) -> bool:
        """Build the answer of the first request in `concluding`, and release it; return whether there was one."""
        if not self.concluding:
            return False
        ticket = self.concluding[0]
        ticket.generation = self.engine.finish(ticket)
        self.concluding.popleft()
        self._ended(ticket, "finished")
        return True

    def end(self, ticket: Ticket, how: What, problem: BaseException) -> None:
        """End a request without an answer, by "cancel" or "fail"."""
        ticket.ended, ticket.error = self.events.now(), problem
        self.events.add(how, ticket.ended, lane="scheduler", request=ticket.name, detail=str(problem))
        self.drop(ticket, self.waiting, self.begun, self.ready, self.running)
        self._ended(ticket, ENDS[how])

    def _ended(self, ticket: Ticket, state: State) -> None:
        if ticket not in self.loading:  # else released when its load has ended
            self.engine.release(ticket)
        self.full, ticket.state, self.ends = False, state, self.ends + 1
        self._seen.pop(ticket.name, None)
        ticket.done.set()

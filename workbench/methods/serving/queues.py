"""The requests of a scheduler by what they wait for, and their way from one queue to the next."""

from collections import deque
from collections.abc import Iterator

from workbench.core.errors import BadInput
from workbench.methods.serving.tickets import Arrivals, Engine, NoRoom, State, Ticket
from workbench.store.events import Events, What

ENDS: dict[What, State] = {"cancel": "cancelled", "expire": "expired", "fail": "failed"}


class Queues:
    """waiting → loading → (begun: its first layer is there) → ready → running → concluding → ended.

    concluding   requests whose last token is there, and whose answer and receipt are not made yet
    full         a request found no room; another must end before one is loaded
    loading_most requests that are being loaded, or wait to be computed, at most
    """

    def __init__(self, engine: Engine, events: Events, loading_most: int):
        self.engine, self.events, self.full, self.loading_most = engine, events, False, loading_most
        self.ends, self._seen = 0, dict[str, int]()  # how many have ended: in all, and when one began to be loaded
        self.waiting, self.concluding = deque[Ticket](), deque[Ticket]()
        self.loading, self.begun, self.ready, self.running = (list[Ticket]() for _ in range(4))

    def __iter__(self) -> Iterator[Ticket]:
        """Yield all that have not their last token, each once."""
        return iter({id(t): t for t in (*self.waiting, *self.loading, *self.ready, *self.running)}.values())

    @property
    def active(self) -> bool:
        """Whether some hold what others may wait for."""
        return bool(self.loading or self.ready or self.running or self.concluding)

    @property
    def blocked(self) -> bool:
        """Whether none can be loaded before one of those that are ready, or run, makes room."""
        return (self.full and self.active) or len(self.loading) + len(self.ready) >= self.loading_most

    def drop(self, ticket: Ticket, *queues: deque[Ticket] | list[Ticket]) -> None:
        """Take a request out of some queues."""
        for queue in queues:
            if ticket in queue:
                queue.remove(ticket)

    def turn(self, ticket: Ticket, state: State, what: str) -> None:
        """Note that it is a request's turn, "to load" or "to run", and how long it has waited for it."""
        now = self.events.now()
        ticket.seconds["wait"] = ticket.seconds.get("wait", 0.0) + now - ticket.since
        about = {"seconds": now - ticket.since, "lane": "scheduler", "detail": what}
        self.events.add("wait", ticket.since, request=ticket.name, **about)
        ticket.state, ticket.since = state, now
        if state == "loading":
            ticket.loading = now
        self._seen[ticket.name] = self.ends

    def arrived(self, ticket: Ticket) -> None:
        """Note that the blocks of a request are there."""
        now = self.events.now()
        ticket.seconds["load"] = now - ticket.since
        ticket.state, ticket.since = "ready", now
        self.events.add("ready", now, lane="scheduler", request=ticket.name)
        self.ready.append(ticket)

    def put_back(self, ticket: Ticket, problem: NoRoom) -> None:
        """Let a request wait until another ends; where there is none, it never finds room."""
        if not self.active and self._seen.get(ticket.name) == self.ends:  # no request has ended since it was tried
            self.end(ticket, "fail", BadInput(f"request {ticket.name} finds no room: {problem}"))
            return
        self.full = self.active
        ticket.state, ticket.since, ticket.arrivals = "waiting", self.events.now(), Arrivals()
        earlier = sum(other.number < ticket.number for other in self.waiting)
        self.waiting.insert(earlier, ticket)  # several that are put back keep their order

    def first_token(self, ticket: Ticket, at: float, now: float) -> None:
        """Note that a request has its first token, by a step that began `at`."""
        ticket.first = ticket.since = now
        ticket.seconds["prefill"] = now - at
        ticket.seconds.setdefault("load", now - ticket.loading)  # layer by layer, while it was computed
        self.events.add("prefill", at, seconds=now - at, lane="engine", request=ticket.name)
        if encoding := getattr(ticket.held, "encoding", 0.0):  # its missed blocks come first
            self.events.add("encode", at, seconds=min(encoding, now - at), lane="engine", request=ticket.name)
        self.events.add("first_token", now, lane="engine", request=ticket.name)

    def finish(self, ticket: Ticket) -> None:
        """Note that a request has its last token; `conclude` makes its answer."""
        ticket.ended = self.events.now()
        ticket.seconds["decode"] = ticket.ended - ticket.since
        about = {"seconds": ticket.seconds["decode"], "lane": "engine", "tokens": len(ticket.tokens)}
        self.events.add("decode", ticket.since, request=ticket.name, **about)
        self.events.add("finish", ticket.ended, lane="scheduler", request=ticket.name, tokens=len(ticket.tokens))
        self.drop(ticket, self.running)
        self.concluding.append(ticket)

    def conclude(self) -> bool:
        """Make the answer of the request that ended first, and let it go; return whether there was one."""
        if not self.concluding:
            return False
        ticket = self.concluding[0]
        ticket.generation = self.engine.finish(ticket)
        self.concluding.popleft()
        self._ended(ticket, "finished")
        return True

    def end(self, ticket: Ticket, how: What, problem: BaseException) -> None:
        """Let a request end without an answer: by "cancel", "expire" or "fail"."""
        ticket.ended, ticket.error = self.events.now(), problem
        self.events.add(how, ticket.ended, lane="scheduler", request=ticket.name, detail=str(problem))
        self.drop(ticket, self.waiting, self.begun, self.ready, self.running)
        self._ended(ticket, ENDS[how])

    def _ended(self, ticket: Ticket, state: State) -> None:
        if ticket not in self.loading:  # else its loader still writes: it is released when that is done
            self.engine.release(ticket)
        self.full, ticket.state, self.ends = False, state, self.ends + 1
        self._seen.pop(ticket.name, None)
        ticket.done.set()

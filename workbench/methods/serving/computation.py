"""Batching: which requests are computed together.

Ready requests may wait for others, because a step has a fixed cost `a`: it reads the weights once for any number of
requests. With r requests ready and B loading, one step less saves `a` for each of the B, and a second of waiting costs
each of the B + r a second. So an idle engine waits up to a · B / (B + r) seconds for the next request, then starts with
those that are ready. Each arrival restarts the wait.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence

from workbench.methods.method import Method
from workbench.methods.modes.reuse import Reuse
from workbench.methods.serving.tickets import Engine, Queues, Ticket, Wait
from workbench.store.events import Events

STALL = 1e-4  # seconds; shorter waits are not recorded as pauses of the engine
TOKENS = 8192  # maximum per prefill of several requests: saturates a GPU, as in vLLM
Waits = Mapping[str, Wait]  # by request name


def rows_of(method: Method, ticket: Ticket) -> int:
    """Estimate how many tokens a prefill by `method` computes; all tokens if that depends on the selector."""
    prompt = ticket.prompt
    if not isinstance(method, Reuse):
        return len(prompt)
    share = 0.0 if method.select is None else 1.0 if method.ratio is None else method.ratio
    return len(prompt.question) + int(share * prompt.starts[-1])


class Computation:
    """Runs the engine on ready and running requests, at most `batch` at once."""

    def __init__(self, engine: Engine, queues: Queues, events: Events, batch: int, gather: bool = True):
        self.engine, self.queues, self.events, self.batch = engine, queues, events, batch
        self.gathering = BatchingWindow() if gather else None
        self.until: float | None = None  # until when ready requests wait for loading ones
        self._free = 0.0  # time when the engine last became idle
        self._stalls: list[tuple[float, float]] = []  # (begin, end) within the current prefill

    def choose(self) -> tuple[list[Ticket], Waits]:
        """Take the ready requests that fit into the batch and into one prefill.

        If the engine is otherwise idle, take requests whose first layer has arrived.
        """
        queues, waits = self.queues, dict[str, Wait]()
        room = max(0, self.batch - len(queues.running))
        ready = queues.ready[:room]
        chosen = self._together(ready)
        if len(chosen) == len(ready) and self._gathers(len(chosen), room):
            return [], waits
        if not chosen and not queues.running:
            chosen = queues.begun[:room]
            waits = {ticket.name: self._stalling(ticket) for ticket in chosen}
        for ticket in chosen:
            queues.drop(ticket, queues.ready, queues.begun)
            queues.leave_queue(ticket, "running", "to run")
            queues.running.append(ticket)
        return chosen, waits

    def run_round(self, chosen: Sequence[Ticket], waits: Waits) -> bool:
        """Compute the first tokens of `chosen` requests, and the next tokens of running requests."""
        at, alone = self.events.now(), len(chosen) == len(self.queues.running) and not waits
        done = self.prefill(chosen, waits)
        done |= self.decode()
        if done:
            self._free = self.events.now()
        if chosen and alone and self.gathering is not None:
            self.gathering.note(len(chosen), self._free - at)
        return done

    def _together(self, ready: Sequence[Ticket]) -> list[Ticket]:
        """Return the leading requests for one prefill; its tokens are limited, since each request waits for all."""
        chosen, tokens = list[Ticket](), 0
        for ticket in ready:
            tokens += self.engine.rows(ticket)
            if chosen and tokens > TOKENS:
                break
            chosen.append(ticket)
        return chosen

    def _gathers(self, ready: int, room: int) -> bool:
        """Return whether ready requests wait for requests that are loading."""
        queues, self.until = self.queues, None
        if self.gathering is None or queues.running or not queues.loading or not 0 < ready < room:
            return False
        since = max(self._free, *(ticket.since for ticket in queues.ready))
        until = self.gathering.start_time(since, ready, len(queues.loading))
        if self.events.now() >= until:
            return False
        self.until = until
        return True

    def prefill(self, chosen: Sequence[Ticket], waits: Waits) -> bool:
        """Compute the first tokens of requests."""
        if chosen:
            self._compute(chosen, lambda group: self.engine.prefill(group, [waits.get(t.name) for t in group]), True)
        return bool(chosen)

    def decode(self) -> bool:
        """Compute further tokens of running requests."""
        if group := list(self.queues.running):
            self._compute(group, self.engine.decode, False)
        return bool(group)

    def _compute(self, group: Sequence[Ticket], work: Callable[[Sequence[Ticket]], list[bool]], prefill: bool) -> None:
        """Run the engine; if a prefill of several requests fails, retry each of them alone."""
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

    def _stalling(self, ticket: Ticket) -> Wait:
        """Return a function that waits for a layer, and records the stall."""

        def wait(layer: int) -> None:
            begin = self.events.now()
            ticket.arrivals.wait(layer)
            if self.events.now() - begin > STALL:
                self._stalls.append((begin, self.events.now()))

        return wait


KEPT = 16  # number of latest rounds kept per number of requests


class BatchingWindow:
    """Estimates the fixed cost of an engine round from rounds with different numbers of requests."""

    def __init__(self) -> None:
        self._rounds: dict[int, deque[float]] = {}

    def note(self, requests: int, seconds: float) -> None:
        """Record the duration of a round that started without running requests."""
        self._rounds.setdefault(requests, deque(maxlen=KEPT)).append(seconds)

    @property
    def fixed_seconds(self) -> float:
        """Fixed seconds of a round, extrapolated from rounds with the fewest and the most requests; 0 if unknown."""
        if len(self._rounds) < 2:
            return 0.0
        few, many = min(self._rounds), max(self._rounds)
        least = {count: min(seconds) for count, seconds in self._rounds.items()}  # the first one of a shape is slow
        more = (least[many] - least[few]) / (many - few)
        return max(0.0, min(least[few] - more * few, *least.values()))

    def start_time(self, since: float, ready: int, behind: int) -> float:
        """Return the time to start at; `since` is when the engine became idle, or the last request ready, if later."""
        return since + self.fixed_seconds * behind / (behind + ready)

"""Which requests are computed together, and what becomes of them."""

from collections.abc import Callable, Mapping, Sequence

from workbench.methods.serving.gathering import Gathering
from workbench.methods.serving.queues import Queues
from workbench.methods.serving.tickets import Engine, Ticket, Wait
from workbench.store.events import Events

STALL = 1e-4  # seconds; less is no pause of the engine
Waits = Mapping[str, Wait]  # by the name of a request


class Computation:
    """Runs the engine over requests that are ready or running, at most `batch` at once."""

    def __init__(self, engine: Engine, queues: Queues, events: Events, batch: int, gather: bool = True):
        self.engine, self.queues, self.events, self.batch = engine, queues, events, batch
        self.gathering = Gathering() if gather else None
        self.until: float | None = None  # those that are ready wait for others, until this moment
        self._free = 0.0  # the engine's last work ended
        self._stalls: list[tuple[float, float]] = []  # of the present prefill

    def choose(self) -> tuple[list[Ticket], Waits]:
        """Take all that are ready, as far as they find a place.

        Where nothing else can be computed, those whose first layer has come.
        """
        queues, waits = self.queues, dict[str, Wait]()
        room = max(0, self.batch - len(queues.running))
        chosen = queues.ready[:room]
        if self._gathers(len(chosen), room):
            return [], waits
        if not chosen and not queues.running:
            chosen = queues.begun[:room]
            waits = {ticket.name: self._stalling(ticket) for ticket in chosen}
        for ticket in chosen:
            queues.drop(ticket, queues.ready, queues.begun)
            queues.turn(ticket, "running", "to run")
            queues.running.append(ticket)
        return chosen, waits

    def round(self, chosen: Sequence[Ticket], waits: Waits) -> bool:
        """Compute the first tokens of those that were chosen, and the next ones of all that run."""
        at, alone = self.events.now(), len(chosen) == len(self.queues.running) and not waits
        done = self.prefill(chosen, waits)
        done |= self.decode()
        if done:
            self._free = self.events.now()
        if chosen and alone and self.gathering is not None:
            self.gathering.note(len(chosen), self._free - at)
        return done

    def _gathers(self, ready: int, room: int) -> bool:
        """Return whether those that are ready wait for others, which are being loaded."""
        queues, self.until = self.queues, None
        if self.gathering is None or queues.running or not queues.loading or not 0 < ready < room:
            return False
        since = max(self._free, *(ticket.since for ticket in queues.ready))
        until = self.gathering.until(since, ready, len(queues.loading))
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
        """Compute further tokens of all that run."""
        if group := list(self.queues.running):
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

    def _stalling(self, ticket: Ticket) -> Wait:
        """Return a wait that notes when the engine stood still for a layer."""

        def wait(layer: int) -> None:
            begin = self.events.now()
            ticket.arrivals.wait(layer)
            if self.events.now() - begin > STALL:
                self._stalls.append((begin, self.events.now()))

        return wait

"""Serving on a simulated clock, for tests and for timelines of other machines."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count as count_from
from typing import Any

from workbench.core.errors import BadInput
from workbench.methods.answered import Generation
from workbench.methods.serving.loaders import Job, Report
from workbench.methods.serving.tickets import Arrivals, Arrived, Engine, HostEngine, Ticket, Wait
from workbench.store.events import Events

Seconds = Callable[[Ticket], float]


@dataclass
class SimulatedClock:
    """Simulated seconds since the start, for `Events(clock)`."""

    seconds: float = 0.0

    def __call__(self) -> float:
        return self.seconds

    def advance_to(self, moment: float) -> None:
        """Advance the clock to a moment, unless it has passed."""
        self.seconds = max(self.seconds, moment)


class SimulatedLoaders:
    """`count` loaders, each of which needs `seconds` per request; layers arrive at equal intervals.

    The job itself is executed at once, and reported when its simulated time has passed.
    """

    def __init__(self, count: int, seconds: Seconds, clock: SimulatedClock, events: Events, layers: int = 1):
        if count < 1 or layers < 1:
            raise BadInput(f"{count} loaders of {layers} layers: at least 1 of each is needed")
        self.seconds, self.clock, self.events, self.layers = seconds, clock, events, layers
        self._free = [0.0] * count
        self._due: list[tuple[float, int, Report]] = []
        self._numbers = count_from()

    def start(self, ticket: Ticket, job: Job, by_layer: bool) -> None:
        """Start the load when a loader is free."""
        lane = min(range(len(self._free)), key=self._free.__getitem__)
        begin = max(self.events.now(), self._free[lane])
        end = self._free[lane] = begin + self.seconds(ticket)
        if by_layer:
            ticket.arrivals = _TimedArrivals(
                self.clock, [begin + (end - begin) * (i + 1) / self.layers for i in range(self.layers)]
            )
        problem: BaseException | None = None
        about: dict[str, Any] = {}
        try:
            about = job(ticket, ticket.arrivals.add if by_layer else None)
            ticket.arrivals.add(self.layers)
        except BaseException as raised:
            problem = raised
            ticket.arrivals.fail(raised)
        self.events.add("load", begin, seconds=end - begin, lane=f"loader {lane}", request=ticket.name, **about)
        if by_layer and problem is None:
            self._report(begin + (end - begin) / self.layers, Report(ticket, "begun"))
        self._report(end, Report(ticket, "failed" if problem else "done", problem))

    def inline(self, ticket: Ticket, job: Job) -> None:
        """Load in the engine's thread, which waits."""
        begin = self.events.now()
        try:
            about = job(ticket, None)
        finally:
            self.clock.advance_to(begin + self.seconds(ticket))
        seconds = self.events.now() - begin
        self.events.add("load", begin, seconds=seconds, lane="engine", request=ticket.name, **about)

    def poll(self) -> list[Report]:
        """Return the reports that are due."""
        now = self.events.now()
        due = sorted((entry for entry in self._due if entry[0] <= now), key=lambda entry: entry[:2])
        self._due = [entry for entry in self._due if entry[0] > now]
        return [report for _, _, report in due]

    def wait(self, until: float | None) -> None:
        """Advance the clock until a report is due."""
        moments = [moment for moment, _, _ in self._due] + ([] if until is None else [until])
        if moments:
            self.clock.advance_to(min(moments))

    def wake(self) -> None:
        """Do nothing: no thread waits."""

    def close(self) -> None:
        """Do nothing."""

    def _report(self, moment: float, report: Report) -> None:
        self._due.append((moment, next(self._numbers), report))


class _TimedArrivals(Arrivals):
    """Arrivals of layers at given times of a simulated clock."""

    def __init__(self, clock: SimulatedClock, moments: list[float]):
        super().__init__()
        self._clock, self._moments = clock, moments

    def wait(self, layer: int) -> None:
        """Advance the clock to the arrival of a layer."""
        super().wait(layer)
        self._clock.advance_to(self._moments[layer])


@dataclass
class SimulatedEngine(HostEngine):
    """An engine that takes simulated time; `engine`, if given, computes the answers.

    prefill_seconds, decode_seconds  seconds for a request's first token, and for one decoding step of all requests
    step                             fixed seconds of a prefill, for any number of requests
    layers                           number of layers, which arrive one by one in layer mode
    released                         names of released requests
    """

    clock: SimulatedClock
    prefill_seconds: Seconds
    decode_seconds: float = 0.0
    layers: int = 1
    engine: Engine | None = None
    released: list[str] = field(default_factory=list)
    step: float = 0.0

    def check(self, ticket: Ticket) -> None:
        """Accept any request that `engine`, if any, accepts."""
        if self.engine:
            self.engine.check(ticket)

    def rows(self, ticket: Ticket) -> int:
        """Return the value of the engine, if any."""
        return self.engine.rows(ticket) if self.engine else super().rows(ticket)

    def load(self, ticket: Ticket, arrived: Arrived | None = None) -> dict[str, Any]:
        """Load with the engine, if any."""
        return self.engine.load(ticket, arrived) if self.engine else {}

    def prefill(self, tickets: Sequence[Ticket], waits: Sequence[Wait | None]) -> list[bool]:
        """Advance the clock by the time of all prefills, layer by layer for requests with a wait."""
        self.clock.seconds += self.step
        for ticket, wait in zip(tickets, waits, strict=True):
            for layer in range(self.layers):
                if wait is not None:
                    wait(layer)
                self.clock.seconds += self.prefill_seconds(ticket) / self.layers
        if self.engine:
            return self.engine.prefill(tickets, waits)
        return self._more(tickets)

    def decode(self, tickets: Sequence[Ticket]) -> list[bool]:
        """Advance the clock by one step."""
        self.clock.seconds += self.decode_seconds
        return self.engine.decode(tickets) if self.engine else self._more(tickets)

    def finish(self, ticket: Ticket) -> Generation:
        """Return the engine's answer, or tokens 0, 1, …."""
        if self.engine:
            return self.engine.finish(ticket)
        return Generation(tuple(ticket.tokens), "", 0, 0, (ticket.first or 0.0) - ticket.arrived, ())

    def release(self, ticket: Ticket) -> None:
        """Record the request as released."""
        self.released.append(ticket.name)
        if self.engine:
            self.engine.release(ticket)

    def _more(self, tickets: Sequence[Ticket]) -> list[bool]:
        for ticket in tickets:
            ticket.tokens.append(len(ticket.tokens))
        return [len(ticket.tokens) >= ticket.max_new_tokens for ticket in tickets]

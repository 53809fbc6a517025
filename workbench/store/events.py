"""Events of serving requests, as one flat table for receipts, traces and figures.

An `Event` is a row. Times are seconds on the recorder's clock, which begins at 0; `seconds` is 0 for a moment.

    what      at: begin of the span, or the moment       request   key   tier   bytes   tokens     detail
    --------- ------------------------------------------ --------- ----- ------ ------- ---------- -------------------
    spans of a request; lane is the thread that was busy
    wait      from arrival, or from ready, to its turn   yes                                       "to load", "to run"
    load      its blocks come to where the model reads   yes             from   loaded
    encode    blocks that were missed are computed       yes
    prefill   until its first token                      yes
    decode    from then until its last token             yes                            generated
    moments of a request
    arrive                                               yes                            its prompt
    ready, first_token                                   yes
    finish                                               yes                            generated
    cancel, fail                                         yes                                       why
    spans of a block (from one tier to another, by promotion, demotion)
    read      out of a tier                              no        yes   from   moved
    write     into a tier                                no        yes   into   moved
    moments of a block
    hit       it was found                               may be    yes   where  its size
    miss      it was not found                           may be    yes                             reason: detail
    evict     it had to make room                        no        yes   from   freed
    spans of the engine as a whole
    run       one step, whatever it computes             no                             generated  requests of the batch

`lane` is "engine", "loader 0", "loader 1", …, "store" or "scheduler". A run is idle where no `run` covers the lane
"engine".
"""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import Any, Literal, get_args

from workbench.core.errors import BadInput

Span = Literal["wait", "load", "encode", "prefill", "decode", "read", "write", "run"]
Moment = Literal["arrive", "ready", "first_token", "finish", "cancel", "fail", "hit", "miss", "evict"]
What = Span | Moment
SPANS: tuple[Span, ...] = get_args(Span)
MOMENTS: tuple[Moment, ...] = get_args(Moment)
Clock = Callable[[], float]  # seconds; never goes back


@dataclass(frozen=True)
class Event:
    """One row of the table; see the head of this module."""

    what: What
    at: float
    seconds: float = 0.0
    lane: str = "store"
    request: str = ""
    key: str = ""
    tier: str = ""
    bytes: int = 0
    tokens: int = 0
    detail: str = ""

    def __post_init__(self) -> None:
        if self.what not in SPANS and self.what not in MOMENTS:
            raise BadInput(f"event {self.what!r}: it is one of {', '.join((*SPANS, *MOMENTS))}")

    @property
    def end(self) -> float:
        return self.at + self.seconds


class Events:
    """Recorder of events, thread-safe. At most `most` are kept; later ones are counted in `dropped`."""

    def __init__(self, clock: Clock = time.perf_counter, most: int = 1_000_000):
        self.clock, self.most, self.dropped = clock, most, 0
        self._begin, self._rows, self._lock = clock(), list[Event](), Lock()

    def now(self) -> float:
        """Return the seconds since the recorder was made."""
        return self.clock() - self._begin

    def add(self, what: What, at: float | None = None, **about: Any) -> Event:
        """Add and return an event at this moment, or one that began `at`; `about` are further fields of `Event`."""
        event = Event(what, self.now() if at is None else at, **about)
        with self._lock:
            if len(self._rows) < self.most:
                self._rows.append(event)
            else:
                self.dropped += 1
        return event

    @contextmanager
    def span(self, what: Span, **about: Any) -> Iterator[dict[str, Any]]:
        """Add a span that lasts as long as the block; fields may be put into the dictionary that is yielded."""
        at, later = self.now(), dict[str, Any]()
        try:
            yield later
        finally:
            self.add(what, at, seconds=self.now() - at, **{**about, **later})

    def __iter__(self) -> Iterator[Event]:
        with self._lock:
            return iter(list(self._rows))

    def __len__(self) -> int:
        return len(self._rows)


def busy(events: Iterable[Event], lane: str = "engine", what: Span = "run") -> float:
    """Return the seconds in which a lane was busy; spans that overlap count once."""
    spans = sorted((event.at, event.end) for event in events if event.what == what and event.lane == lane)
    total, until = 0.0, float("-inf")
    for begin, end in spans:
        total += max(0.0, end - max(begin, until))
        until = max(until, end)
    return total


def idle_share(events: Iterable[Event], lane: str = "engine") -> float:
    """Return the share of the time from first arrival to last finish, 0 to 1, in which the engine was idle."""
    listed = list(events)
    begins = [event.at for event in listed if event.what == "arrive"]
    ends = [event.at for event in listed if event.what in ("finish", "cancel", "fail")]
    if not begins or not ends or max(ends) <= min(begins):
        return 0.0
    return 1 - busy(listed, lane) / (max(ends) - min(begins))

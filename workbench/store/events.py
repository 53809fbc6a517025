"""Serving events, as one flat table for receipts, traces and figures.

Each `Event` is one row. Times are seconds on the recorder's clock, which starts at 0; `seconds` is 0 for a moment.

    what      at: start of the span, or the moment       request   key   tier   bytes   tokens     detail
    --------- ------------------------------------------ --------- ----- ------ ------- ---------- -------------------
    spans of a request; lane is the thread that was busy
    wait      in the queue, since arrival or ready       yes                                       "to load", "to run"
    load      cached blocks are copied to the engine     yes             from   loaded
    encode    missing blocks are computed                yes
    prefill   until the first token                      yes
    decode    from the first to the last token           yes                            generated
    moments of a request
    arrive                                               yes                            its prompt
    ready, first_token                                   yes
    finish                                               yes                            generated
    cancel, fail                                         yes                                       why
    spans of a block that is promoted or demoted
    read      from a tier                                no        yes   from   moved
    write     into a tier                                no        yes   into   moved
    moments of a block
    hit       found                                      may be    yes   where  its size
    miss      not found                                  may be    yes                             reason: detail
    evict     evicted to make room                       no        yes   from   freed
    spans of the engine
    run       one engine step, of any kind               no                             generated  requests of the batch

`lane` is "engine", "loader 0", "loader 1", …, "store" or "scheduler". The engine is idle when its lane has no `run`.
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
    """One row of the table in the docstring of this module."""

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
    """Thread-safe event recorder. At most `most` events are kept; later ones are only counted, in `dropped`."""

    def __init__(self, clock: Clock = time.perf_counter, most: int = 1_000_000):
        self.clock, self.most, self.dropped = clock, most, 0
        self._begin, self._rows, self._lock = clock(), list[Event](), Lock()

    def now(self) -> float:
        """Return the seconds since the recorder was created."""
        return self.clock() - self._begin

    def add(self, what: What, at: float | None = None, **about: Any) -> Event:
        """Add and return an event that starts `at` (None: now); `about` are further fields of `Event`."""
        event = Event(what, self.now() if at is None else at, **about)
        with self._lock:
            if len(self._rows) < self.most:
                self._rows.append(event)
            else:
                self.dropped += 1
        return event

    @contextmanager
    def span(self, what: Span, **about: Any) -> Iterator[dict[str, Any]]:
        """Record the `with` block as a span; the caller may add fields to the dictionary that is yielded."""
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
    """Return the busy seconds of a lane; overlapping spans count once."""
    spans = sorted((event.at, event.end) for event in events if event.what == what and event.lane == lane)
    total, until = 0.0, float("-inf")
    for begin, end in spans:
        total += max(0.0, end - max(begin, until))
        until = max(until, end)
    return total


def idle_share(events: Iterable[Event], lane: str = "engine") -> float:
    """Return the idle fraction of the engine between the first arrival and the last finish, 0 to 1."""
    listed = list(events)
    begins = [event.at for event in listed if event.what == "arrive"]
    ends = [event.at for event in listed if event.what in ("finish", "cancel", "fail")]
    if not begins or not ends or max(ends) <= min(begins):
        return 0.0
    return 1 - busy(listed, lane) / (max(ends) - min(begins))

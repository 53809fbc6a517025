"""Loaders bring blocks to the engine while it computes."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import current_thread
from typing import Any, Literal, Protocol

from workbench.core.errors import BadInput
from workbench.methods.serving.tickets import Arrived, Ticket
from workbench.store.events import Events

Job = Callable[[Ticket, Arrived | None], dict[str, Any]]  # `Engine.load`


@dataclass(frozen=True)
class Report:
    """What became of a load: its first layer has come, it is done, or it failed."""

    ticket: Ticket
    what: Literal["begun", "done", "failed"]
    problem: BaseException | None = None


class Loaders(Protocol):
    """Some loaders, each of which brings the blocks of one request at a time."""

    def start(self, ticket: Ticket, job: Job, by_layer: bool) -> None:
        """Begin to load, as soon as one is free."""

    def inline(self, ticket: Ticket, job: Job) -> None:
        """Load now, in the engine's own thread. Raises what the job raises."""

    def poll(self) -> list[Report]:
        """Return what has happened since the last call."""

    def wait(self, until: float | None) -> None:
        """Return when something has happened, or at a moment of the scheduler's clock."""

    def wake(self) -> None:
        """Let `wait` return."""

    def close(self) -> None:
        """End the loaders."""


class ThreadLoaders:
    """Loaders that are threads."""

    def __init__(self, count: int, events: Events):
        if count < 1:
            raise BadInput(f"loaders is {count}: at least 1 is needed")
        self.events = events
        self._threads = ThreadPoolExecutor(count, "loader")
        self._mail: SimpleQueue[Report | None] = SimpleQueue()
        self._read: list[Report] = []

    def start(self, ticket: Ticket, job: Job, by_layer: bool) -> None:
        """Begin to load, as soon as a thread is free."""
        self._threads.submit(self._run, ticket, job, by_layer)

    def inline(self, ticket: Ticket, job: Job) -> None:
        """Load now, in this thread."""
        with self.events.span("load", lane="engine", request=ticket.name) as about:
            about |= job(ticket, None)

    def poll(self) -> list[Report]:
        """Return what has happened since the last call."""
        while True:
            try:
                if (report := self._mail.get_nowait()) is not None:
                    self._read.append(report)
            except Empty:
                break
        read, self._read = self._read, []
        return read

    def wait(self, until: float | None) -> None:
        """Return when something has happened, or at a moment of the events' clock."""
        try:
            report = self._mail.get(timeout=None if until is None else max(0.0, until - self.events.now()))
            if report is not None:
                self._read.append(report)
        except Empty:
            pass

    def wake(self) -> None:
        """Let `wait` return."""
        self._mail.put(None)

    def close(self) -> None:
        """End the threads; loads that have not begun are dropped."""
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
        except BaseException as problem:  # it is the request's, whose waiter raises it
            ticket.arrivals.fail(problem)
            self._mail.put(Report(ticket, "failed", problem))
        else:
            ticket.arrivals.add(1 << 30)
            self._mail.put(Report(ticket, "done"))

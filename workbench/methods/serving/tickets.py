"""A request on its way through the scheduler, and what an engine does for it."""

from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from threading import Condition, Event
from typing import Any, Literal, Protocol

from workbench.core.blocks import Prompt
from workbench.methods.answered import Generation
from workbench.store.tiering.pages import NoRoom

__all__ = ["Arrivals", "Arrived", "CancelledError", "DeadlineExceeded"]
__all__ += ["Engine", "NoRoom", "OnHost", "State", "Ticket", "Wait"]

State = Literal["waiting", "loading", "ready", "running", "finished", "cancelled", "expired", "failed"]
Arrived = Callable[[int], None]  # (layer): it is where the model reads it
Wait = Callable[[int], None]  # (layer): returns when it has arrived


class DeadlineExceeded(Exception):
    """A request has no answer by its deadline: it ended without one."""


class Arrivals:
    """How many layers of a request's blocks have arrived; shared by its loader and the engine."""

    def __init__(self) -> None:
        self._layers, self._changed = 0, Condition()
        self._problem: BaseException | None = None

    def add(self, layer: int) -> None:
        """Note that `layer` and those below it are there."""
        with self._changed:
            self._layers = max(self._layers, layer + 1)
            self._changed.notify_all()

    def fail(self, problem: BaseException) -> None:
        """Note that no more will come."""
        with self._changed:
            self._problem = problem
            self._changed.notify_all()

    def wait(self, layer: int) -> None:
        """Return when a layer is there. Raises what its loader has raised."""
        with self._changed:
            self._changed.wait_for(lambda: self._layers > layer or self._problem is not None)
            if self._layers <= layer and self._problem is not None:
                raise self._problem

    def __len__(self) -> int:
        return self._layers


@dataclass(eq=False)
class Ticket:
    """One request. `deadline`, `arrived`, `first`, `ended` are seconds on the scheduler's clock.

    held       what the engine keeps for it; `about` what its loader read: {bytes, tier}
    seconds    by stage, for its receipt
    """

    name: str
    prompt: Prompt
    max_new_tokens: int = 64
    deadline: float | None = None
    number: int = 0  # in the order of their arrival
    arrived: float = 0.0
    state: State = "waiting"
    tokens: list[int] = field(default_factory=list)
    since: float = 0.0  # it is in this state
    loading: float = 0.0  # its load began
    first: float | None = None
    ended: float | None = None
    error: BaseException | None = None
    generation: Generation | None = None
    held: Any = None
    seconds: dict[str, float] = field(default_factory=dict)
    arrivals: Arrivals = field(default_factory=Arrivals)
    done: Event = field(default_factory=Event)
    cancelled: bool = False
    wake: Callable[[], object] = field(default=bool, repr=False)  # lets the scheduler look

    def cancel(self) -> None:
        """Give the request up: it ends with the scheduler's next step, wherever it is."""
        self.cancelled = True
        self.wake()

    def result(self, timeout: float | None = None) -> Generation:
        """Wait for the answer.

        Raises what the request failed with: CancelledError for one that was given up, DeadlineExceeded for one that is
        too late; TimeoutError after `timeout` seconds, when it goes on.
        """
        if not self.done.wait(timeout):
            raise TimeoutError(f"request {self.name} has not ended after {timeout} seconds")
        if self.generation is None:
            assert self.error is not None
            raise self.error
        return self.generation


class Engine(Protocol):
    """Computes requests; all but `load` is called from one thread.

    overlaps    its work runs on a device, while the thread that began it has time for other things
    meanwhile   does one of them, and returns whether there was one; called by an engine that overlaps, where it would
                only wait
    """

    overlaps: bool
    meanwhile: Callable[[], bool]

    def check(self, ticket: Ticket) -> None:
        """Raise BadInput for a request that cannot be computed; called before anything is done for it."""

    def load(self, ticket: Ticket, arrived: Arrived | None = None) -> dict[str, Any]:
        """Bring the blocks of a request to where the model reads them; called from a loader.

        Returns fields of the event: bytes, tier. With `arrived`, layers are brought one by one where that can be done.
        Raises NoRoom where others must end first.
        """

    def admit(self, ticket: Ticket) -> dict[str, Any] | None:
        """Take a request whose blocks all lie where the model reads them, and return what `load` does; None: load them.

        Raises NoRoom where others must end first.
        """

    def prefill(self, tickets: Sequence[Ticket], waits: Sequence[Wait | None]) -> list[bool]:
        """Compute the first tokens of requests, which are put into `tokens`; return which have ended.

        `waits[i](layer)` returns when a layer of request i has arrived; None: all have.
        """

    def decode(self, tickets: Sequence[Ticket]) -> list[bool]:
        """Compute the next token, or several, of running requests; return which have ended."""

    def finish(self, ticket: Ticket) -> Generation:
        """Return the answer of a request that has ended."""

    def release(self, ticket: Ticket) -> None:
        """Give back what is held for a request, which has ended, whatever for."""


class OnHost:
    """What an engine says whose work is done when its calls return, and whose blocks are all brought by loaders."""

    overlaps: bool = False
    meanwhile: Callable[[], bool] = bool

    def admit(self, ticket: Ticket) -> dict[str, Any] | None:
        """Return None."""
        return None

"""Progress messages of long work, `stage("loading lab-full")`, for whoever displays them; by default nobody does.

`with keeps(…)` adds to an interruption (Ctrl-C) what of the work was kept.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

NOTHING = "nothing was kept; the same command begins again"
_listeners: list[Callable[[str], None]] = []


def stage(what: str) -> None:
    """Report the stage that begins now to the innermost listener."""
    for tell in _listeners[-1:]:
        tell(what)


def are_heard() -> bool:
    """Return whether stages have a listener."""
    return bool(_listeners)


@contextmanager
def heard(by: Callable[[str], None]) -> Iterator[None]:
    """Call `by` with every stage that begins within the block."""
    _listeners.append(by)
    try:
        yield
    finally:
        _listeners.remove(by)


@contextmanager
def keeps(kept: Callable[[], str]) -> Iterator[None]:
    """Give a KeyboardInterrupt from within the block the message `kept()`, unless an inner block gave it one.

    The message says what was kept and how to go on; the command line shows it in place of a traceback, by default
    `NOTHING`.
    """
    try:
        yield
    except KeyboardInterrupt as stop:
        stop.args = stop.args or (kept(),)
        raise


def so_far(done: int, of: int, what: str, where: object) -> str:
    """Return the message for `keeps` of work whose parts are each saved as they end: "3 of 8 … are kept in …"."""
    return f"{done} of {of} {what} are saved in {where}: rerun to resume" if done else NOTHING

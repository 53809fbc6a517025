"""What long work is at, said to whoever shows its progress: `stage("loading lab-full")`. Nobody listens by default.

And what is kept of it where a person stops it (Ctrl-C), said by the code that knows: `with keeps(…)`.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

NOTHING = "nothing was kept"
_listeners: list[Callable[[str], None]] = []


def stage(what: str) -> None:
    """Say what begins now."""
    for tell in _listeners[-1:]:
        tell(what)


def are_heard() -> bool:
    """Return whether someone shows them."""
    return bool(_listeners)


@contextmanager
def heard(by: Callable[[str], None]) -> Iterator[None]:
    """Call `by` with every stage that begins, until the end."""
    _listeners.append(by)
    try:
        yield
    finally:
        _listeners.remove(by)


@contextmanager
def keeps(kept: Callable[[], str]) -> Iterator[None]:
    """Let an interruption tell what is `kept` of the work inside, and how to go on; the innermost that knows says it.

    The command line shows it in place of a traceback, NOTHING where nobody knows.
    """
    try:
        yield
    except KeyboardInterrupt as stop:
        stop.args = stop.args or (kept(),)
        raise


def so_far(done: int, of: int, what: str, where: object) -> str:
    """Return what `keeps` tells of parts that are each kept as they end."""
    return f"{done} of {of} {what} are kept in {where}: run again to go on" if done else NOTHING

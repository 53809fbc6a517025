"""Progress messages of long work, `stage("loading lab-full")`, for a listener that displays them; by default none.

`with keeps(…)` adds what was saved to the message of an interruption (Ctrl-C).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

NOTHING = "nothing was kept; the same command begins again"
_listeners: list[Callable[[str], None]] = []


def stage(what: str) -> None:
    """Report the start of a stage to the innermost listener."""
    for listener in _listeners[-1:]:
        listener(what)


def are_heard() -> bool:
    """Return whether stages have a listener."""
    return bool(_listeners)


@contextmanager
def stages_reported_to(by: Callable[[str], None]) -> Iterator[None]:
    """Call `by` for each stage that starts within the block."""
    _listeners.append(by)
    try:
        yield
    finally:
        _listeners.remove(by)


@contextmanager
def keeps(kept: Callable[[], str]) -> Iterator[None]:
    """Set the message of a KeyboardInterrupt within the block to `kept()`, unless an inner block has set one.

    The message states what was saved and how to resume. The command line shows it instead of a traceback; the default
    is `NOTHING`.
    """
    try:
        yield
    except KeyboardInterrupt as stop:
        stop.args = stop.args or (kept(),)
        raise


def so_far(done: int, of: int, what: str, where: object) -> str:
    """Return the message for `keeps` of work that saves each part: "3 of 8 … are saved in …"."""
    return f"{done} of {of} {what} are saved in {where}: rerun to resume" if done else NOTHING

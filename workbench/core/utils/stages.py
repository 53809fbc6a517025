"""What long work is at, said to whoever shows its progress: `stage("loading lab-full")`. Nobody listens by default."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

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

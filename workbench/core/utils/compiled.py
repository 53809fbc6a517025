"""Long calls of compiled code, which hears no Ctrl-C itself."""

from collections.abc import Callable
from threading import Thread
from typing import TypeVar

T = TypeVar("T")
LISTENING = 0.2  # seconds between two checks for Ctrl-C


def stoppable_call(work: Callable[[], T]) -> T:
    """Return what a call returns, or raise what it raises; Ctrl-C is raised meanwhile, and the call left to itself.

    It goes on in a thread for which the process does not wait at its end.
    """
    made: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            made.append(work())
        except BaseException as problem:
            failed.append(problem)

    thread = Thread(target=run, daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(LISTENING)
    for problem in failed:
        raise problem
    return made[0]

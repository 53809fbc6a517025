"""Long calls of compiled code that does not handle Ctrl-C."""

from collections.abc import Callable
from threading import Thread
from typing import TypeVar

T = TypeVar("T")
LISTENING = 0.2  # seconds between two checks for Ctrl-C


def stoppable_call(work: Callable[[], T]) -> T:
    """Run a call in a thread; return what it returns, or raise what it raises. Ctrl-C is raised at once.

    After Ctrl-C the call continues in a daemon thread, which the process does not wait for.
    """
    results: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as problem:
            failed.append(problem)

    thread = Thread(target=run, daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(LISTENING)
    for problem in failed:
        raise problem
    return results[0]

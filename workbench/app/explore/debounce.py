"""Debounce: run only the latest request, in a background thread; and progress bars of interactive sessions."""

import atexit
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from workbench.app.notebooks import notebook
from workbench.core.utils import watched


def progress(label: str) -> Callable[[int, int], None] | None:
    """Return a callback (done, of how many) that moves a bar; None outside a notebook or terminal."""
    if not notebook.is_live():
        return None
    ending = ExitStack()
    shown = ending.enter_context(watched.bar(label))

    def moved(done: int, total: int) -> None:
        watched.move(shown, done, total)
        if done >= total:
            ending.close()

    return moved


DEBOUNCE_S = 0.015
ENDS_WITHIN_S = 60  # how long the interpreter waits at exit for a thread


class Superseded(Exception):
    """Raised in the worker when a newer request has replaced the current one."""


class Debounced:
    """Runs the latest request in a background thread, which ends when idle."""

    def __init__(self, run: Callable[[Any, Callable[[], None]], None]):
        self.run = run
        self._changed = threading.Condition()
        self._closed = False
        self._next: list[Any] = []
        self._busy = False

    def ask(self, wish: Any) -> None:
        """Request `wish`; cancel an earlier request that has not finished."""
        with self._changed:
            if self._closed:
                return
            self._next = [wish]
            self._changed.notify_all()
            if not self._busy:
                self._busy = True
                _WORKING.add(self)
                threading.Thread(target=self._work, daemon=True).start()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until idle; return whether it is."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._busy, timeout)

    def close(self, timeout: float | None = None) -> None:
        """Cancel the current request, accept no more, and wait for the thread to end."""
        with self._changed:
            self._closed, self._next = True, []
            self._changed.notify_all()
        self.wait(timeout)

    def _alive(self) -> None:
        if self._next or self._closed:
            raise Superseded

    def _work(self) -> None:
        while True:
            with self._changed:
                while self._changed.wait_for(lambda: bool(self._next), 0) and self._changed.wait(DEBOUNCE_S):
                    continue  # a newer request arrived
                if not self._next:
                    self._busy = False
                    _WORKING.discard(self)
                    self._changed.notify_all()
                    return
                wish = self._next.pop()
            try:
                self.run(wish, self._alive)
            except Superseded:
                continue


_WORKING = set[Debounced]()


@atexit.register
def _end_all() -> None:
    """End all threads before interpreter exit: one still inside torch would abort the process."""
    for newest in list(_WORKING):
        newest.close(ENDS_WITHIN_S)

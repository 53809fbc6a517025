"""Order of work on pages that threads queue on several CUDA streams, by an event after each piece of work.

Pages are allocated and freed on the host: the thread that frees pages has queued its work on them before, and the
thread that allocates them queues work afterwards. So work that waits for the events of all earlier work is in order for
each page. The device waits, never the host.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

import torch

Current = Callable[[], Any]  # returns the current stream; None without CUDA, and during a graph capture


def current_stream(device: torch.device) -> Current:
    """Return a function that returns the device's current stream; None without CUDA, and during a graph capture."""
    if device.type != "cuda":
        return lambda: None
    return lambda: None if torch.cuda.is_current_stream_capturing() else torch.cuda.current_stream(device)


class StreamOrder:
    """Factory of context managers: work queued within one runs after the work of all earlier ones."""

    def __init__(self, current: Current):
        self.current = current
        self._ended: dict[Any, Any] = {}  # stream → event after the last work queued on it
        self._lock = Lock()

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Queue work in order, including work queued before an exception."""
        stream = self.current()
        if stream is None:
            yield
            return
        with self._lock:
            for other, event in self._ended.items():
                if other != stream:
                    stream.wait_event(event)
        try:
            yield
        finally:
            with self._lock:
                self._ended[stream] = stream.record_event()

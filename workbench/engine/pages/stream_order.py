"""The order of work on pages that threads queue on several CUDA streams: an event behind each piece of work.

Pages change hands on the host. Who hands a block out or gives pages back has queued his work on them before; who reads
or takes them queues his afterwards. So work that waits for the events of all that was queued before is in order, page
by page. The device waits, never the host, and work that goes on meanwhile is of other pages, or reads the same.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

import torch

Current = Callable[[], Any]  # the stream that a thread queues on now; None: there is none, or a graph is captured on it


def current_stream(device: torch.device) -> Current:
    """Return what tells the current stream of a device; None off CUDA, and while the stream is captured."""
    if device.type != "cuda":
        return lambda: None
    return lambda: None if torch.cuda.is_current_stream_capturing() else torch.cuda.current_stream(device)


class StreamOrder:
    """Calling it gives a context: what is queued within runs behind all that was queued in earlier ones."""

    def __init__(self, current: Current):
        self.current = current
        self._ended: dict[Any, Any] = {}  # by stream: the event behind what was queued there last
        self._lock = Lock()

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Queue work. It may raise: what it queued until then counts."""
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

"""Bounds on code that came with a checkpoint: seconds, and bytes of new memory."""

import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import RLock
from types import FrameType
from typing import Any

_TURN = RLock()  # a bound on memory is the whole process's: the last to leave would put back another's
MAPPED = Path("/proc/self/statm")  # pages of address space first


@contextmanager
def bounded(seconds: float, new_bytes: int) -> Iterator[None]:
    """Raise TimeoutError in Python code that runs longer, MemoryError where the process grows by more (on Linux).

    Every line of Python that is begun within the block looks at the clock: not for code that must be fast. Threads take
    turns, and wait for it before their seconds begin.
    """
    tracer = sys.gettrace()

    def watch(frame: FrameType, event: str, argument: Any) -> Any:
        if time.monotonic() > ends:
            raise TimeoutError(f"it takes more than {seconds:g} seconds")
        return watch

    with _TURN, ExitStack() as stack:
        stack.callback(sys.settrace, tracer)
        if MAPPED.is_file():
            import resource  # not on every system

            soft, hard = resource.getrlimit(resource.RLIMIT_AS)
            most = int(MAPPED.read_text().split()[0]) * resource.getpagesize() + new_bytes
            if soft == resource.RLIM_INFINITY or most < soft:
                stack.callback(resource.setrlimit, resource.RLIMIT_AS, (soft, hard))
                resource.setrlimit(resource.RLIMIT_AS, (most, hard))
        ends = time.monotonic() + seconds
        sys.settrace(watch)
        yield

"""Python's own pauses, kept out of the way of the thread that serves."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

TURN = 2e-4  # seconds for which a loader's Python may keep the engine's thread waiting; Python's own are 5e-3


@contextmanager
def steady() -> Iterator[None]:
    """Let threads take turns sooner: the engine's own waits for the device, and then for a loader.

    What is there already is no garbage: Python does not look through it again and again.
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(min(TURN, before))
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        sys.setswitchinterval(before)

"""Ctrl-C while a command is imported, or has ended: the process ends at once, where Python would print where it was.

A module that is being imported may also swallow the interruption, and the command goes on. Only a process that `begin`
took for a command's is ended so; in a notebook, or wherever else the package is imported, nothing changes.
"""

import os
import signal
import sys
from types import FrameType

from workbench.core.utils.stages import NOTHING

CODE = 128 + signal.SIGINT
LINE = f"stopped: {NOTHING}\n".encode()
CLEARED = b"\r\x1b[2K\x1b[?25h"  # a bar's line on a terminal, and the cursor that it hides
_own: list[bool] = []  # one True in a process that is a command


def begin() -> None:
    """Let Ctrl-C end this process, a command's, at once; not one that ignores it, as behind `nohup`."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        _own[:] = [True]
        arm()


def arm() -> bool:
    """Let Ctrl-C end a command's process in one line; return whether it interrupted work before."""
    return _exchange(signal.default_int_handler, _leave)


def disarm() -> None:
    """Let Ctrl-C interrupt a command's process, as work needs that says what is kept of it."""
    _exchange(_leave, signal.default_int_handler)


def end() -> None:
    """Let Ctrl-C end a command's process without a word: all is said."""
    disarm()
    _exchange(signal.default_int_handler, _hush)


def _exchange(before: object, after: object) -> bool:
    if not _own or signal.getsignal(signal.SIGINT) is not before:
        return False
    try:
        signal.signal(signal.SIGINT, after)  # type: ignore[arg-type]
    except ValueError:  # not in the main thread, which alone hears signals
        return False
    return True


def _leave(number: int, frame: FrameType | None) -> None:
    del number, frame
    cleared = CLEARED if os.isatty(2) and os.environ.get("TERM", "dumb") != "dumb" else b""
    try:
        os.write(2, cleared + LINE)
    finally:
        os._exit(CODE)


def _hush(number: int, frame: FrameType | None) -> None:
    del number, frame
    try:
        sys.stdout.flush()
    finally:
        os._exit(CODE)

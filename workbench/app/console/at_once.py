"""Ctrl-C during imports, or after a command has finished: exit at once, without Python's traceback.

A module being imported might also swallow the interrupt. Only processes in which `end_on_interrupt` was called exit
this way; in notebooks and other programs nothing changes.
"""

import os
import signal
import sys
from types import FrameType

from workbench.core.utils.stages import NOTHING

CODE = 128 + signal.SIGINT
LINE = f"stopped: {NOTHING}\n".encode()
CLEARED = b"\r\x1b[2K\x1b[?25h"  # clear the progress bar's line, show the cursor
_own: list[bool] = []  # [True] in a command's process


def end_on_interrupt() -> None:
    """Let Ctrl-C end this command's process at once, unless the process ignores it, as under `nohup`."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        _own[:] = [True]
        arm()


def arm() -> bool:
    """Let Ctrl-C end a command's process with one line; return whether it interrupted work before."""
    return _exchange(signal.default_int_handler, _leave)


def disarm() -> None:
    """Let Ctrl-C raise KeyboardInterrupt, so that work can report what is kept."""
    _exchange(_leave, signal.default_int_handler)


def end() -> None:
    """Let Ctrl-C end a command's process silently: its output is complete."""
    disarm()
    _exchange(signal.default_int_handler, _hush)


def _exchange(before: object, after: object) -> bool:
    if not _own or signal.getsignal(signal.SIGINT) is not before:
        return False
    try:
        signal.signal(signal.SIGINT, after)  # type: ignore[arg-type]
    except ValueError:  # not in the main thread, the only one that receives signals
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

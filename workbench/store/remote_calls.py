"""What is asked of a remote: within a deadline, and not again at once where it stalled."""

import time
from collections.abc import Callable
from threading import Thread
from typing import Any, TypeVar

from workbench.core.errors import BadInput

DEADLINE, PAUSE = 10.0, 30.0  # seconds: of a look-up, after a stall
Answer = TypeVar("Answer")


class Unreachable(Exception):
    """A remote that stalls or fails."""


class RemoteCalls:
    """Calls of one remote, named by its URL; one that stalls is not asked again for `pause` seconds."""

    def __init__(self, url: str, deadline: float = DEADLINE, pause: float = PAUSE):
        if not deadline > 0:
            raise BadInput(f"deadline is {deadline}: a positive number of seconds is needed")
        self.url, self.deadline, self.pause = url, deadline, pause
        self._silent_until = 0.0

    def needed(self, what: str, ask: Callable[[], Answer]) -> Answer:
        """Return the answer without which nothing can go on. Raises BadInput, and FileNotFoundError."""
        try:
            return self.within(what, ask)
        except Unreachable as problem:
            raise BadInput(f"{self.url} cannot be reached: {problem}") from None

    def within(self, what: str, ask: Callable[[], Answer], seconds: float | None = None) -> Answer:
        """Return the answer. Raises Unreachable where it fails or does not come in time, and FileNotFoundError.

        `seconds` it may take: the deadline where they are not given.
        """
        seconds = self.deadline if seconds is None else seconds
        if time.monotonic() < self._silent_until:
            raise Unreachable("it did not answer a moment ago")
        given: list[Answer] = []
        failed: list[BaseException] = []

        def work() -> None:
            try:
                given.append(ask())
            except BaseException as problem:
                failed.append(problem)

        thread = Thread(target=work, daemon=True, name=f"ask {self.url}")
        thread.start()
        thread.join(seconds)
        if given:
            return given[0]
        if not failed:
            self._silent_until = time.monotonic() + self.pause
            raise Unreachable(f"it did not {what} in {seconds:g} s")
        if isinstance(failed[0], FileNotFoundError):
            raise failed[0]
        reason = getattr(failed[0], "strerror", None) or str(failed[0]) or type(failed[0]).__name__
        raise Unreachable(f"{type(failed[0]).__name__}: {' '.join(str(reason).split())[:200]}") from None


def content(fs: Any, path: str) -> bytes:
    """Return the bytes of a file. Raises TypeError where a file system answers with something else."""
    found = fs.cat_file(path)
    if not isinstance(found, bytes | bytearray | memoryview):
        raise TypeError(f"its file system gives {type(found).__name__} for a file")
    return bytes(found)


def file_system(url: str) -> tuple[Any, str]:
    """Return fsspec's file system for a URL, and the path on it. Raises BadInput."""
    import fsspec

    scheme = url.partition("://")[0]
    try:
        fsspec.get_filesystem_class(scheme)
        fs, root = fsspec.core.url_to_fs(url, use_listings_cache=False)
    except ImportError as problem:
        raise BadInput(f"{scheme}:// needs a package that is not installed: {problem}") from None
    except ValueError as problem:
        if scheme in fsspec.available_protocols():
            raise BadInput(f"{url!r} cannot be opened: {problem}") from None
        known = "a folder, or a URL that fsspec knows, as memory://, file://, s3://, gs://, sftp://"
        raise BadInput(f"unknown scheme {scheme!r} of {url!r}: allowed are {known}") from None
    except (OSError, TypeError) as problem:
        raise BadInput(f"{url!r} cannot be opened: {problem}") from None
    if not str(root).strip("/"):
        raise BadInput(f"{url!r} names no place below {scheme}://")
    return fs, str(root).rstrip("/")

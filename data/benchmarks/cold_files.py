"""Files of blocks that the system holds no longer in memory, and how fast their disk is read."""

import ctypes
import mmap
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import TypeVar

import numpy as np

T = TypeVar("T")
THREADS = 16
LOOKED_AT = 64  # files whose pages are counted


def forget(paths: Iterable[Path]) -> None:
    """Let the system drop what it holds of files in memory, so that they are read from the disk."""
    if hasattr(os, "posix_fadvise"):
        side_by_side(_forget, paths)


def resident(paths: Iterable[Path]) -> float | None:
    """Return the share of the pages of some of the files that the system holds in memory; None where it cannot tell."""
    try:
        mincore = ctypes.CDLL(None, use_errno=True).mincore
    except (AttributeError, OSError, TypeError):
        return None
    shares = [_resident(path, mincore) for path in islice(paths, LOOKED_AT)]
    return None if None in shares or not shares else float(np.mean([share for share in shares if share is not None]))


def raw_rate(paths: Sequence[Path], threads: int = THREADS) -> dict[str, float]:
    """Read files as a whole, several at once, with no checksum; return {bytes, seconds, gbps}."""
    begin = perf_counter()
    size = sum(side_by_side(_size_read, paths, threads))
    seconds = perf_counter() - begin
    return {"bytes": float(size), "seconds": seconds, "gbps": size / seconds / 1e9}


def file_system(path: Path) -> str:
    """Return the kind of file system that a path lies in, such as "ext4"; "" where that is not known."""
    try:
        mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    except OSError:
        return ""
    above = [(len(at), kind) for _, at, kind, *_ in mounts if path.resolve().is_relative_to(at)]
    return max(above)[1] if above else ""


def side_by_side(work: Callable[[Path], T], paths: Iterable[Path], threads: int = THREADS) -> list[T]:
    """Do something with every file, several at once."""
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(work, paths))


def _forget(path: Path) -> None:
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
        os.posix_fadvise(opened, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(opened)


def _resident(path: Path, mincore: Callable[..., int]) -> float | None:
    with path.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY) as pages:
        array = np.frombuffer(pages, np.uint8)
        marks = np.zeros(-(-array.size // mmap.PAGESIZE), np.uint8)
        failed = mincore(
            ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(array.size), ctypes.c_void_p(marks.ctypes.data)
        )
        del array
    return None if failed else float((marks & 1).mean())


def _size_read(path: Path) -> int:
    memory = np.empty(path.stat().st_size, np.uint8)
    with path.open("rb", buffering=0) as opened:
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_WILLNEED)
        at = 0
        while at < memory.size and (count := opened.readinto(memory.data[at:])):
            at += count
    return at

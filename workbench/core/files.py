"""Files and folders that appear whole or not at all.

They are filled under a hidden name beside their place and then moved there. What stood there before stays until then;
what an error or an interruption leaves half-written is removed.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from workbench.core.errors import BadInput

CHUNK = 1 << 20  # bytes read at once


def write_atomically(path: Path, write: Callable[[Path], Any]) -> None:
    """Let `write` fill a file under the name it is given, then move that file to `path`."""
    partial = _beside(path)
    try:
        write(partial)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file (UTF-8)."""
    write_atomically(path, lambda partial: partial.write_text(text, encoding="utf-8"))


@contextmanager
def folder_atomically(path: Path) -> Iterator[Path]:
    """Make a folder to be filled; at the end of the block it takes the place of `path`."""
    partial = _beside(path)
    partial.mkdir(parents=True)
    try:
        yield partial
        replace_folder(partial, path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def replace_folder(new: Path, path: Path) -> None:
    """Move folder `new` to `path`, and remove the folder that stood there.

    Folders cannot be exchanged in one step: a process that is killed between the two moves leaves the earlier folder
    at `earlier(path)`.
    """
    old = earlier(path)
    if path.exists():
        shutil.rmtree(old, ignore_errors=True)
        path.rename(old)
    try:
        new.rename(path)
    except BaseException:
        if old.exists():
            old.rename(path)
        raise
    shutil.rmtree(old, ignore_errors=True)


def earlier(path: Path) -> Path:
    """Where folder `path` stands for a moment while another takes its place."""
    return path.with_name(f".{path.name}.old")


def need_room(path: Path, size: int) -> None:
    """Refuse to write `size` bytes to where `path` will be if the disk has not as much free."""
    there = next(parent for parent in path.absolute().parents if parent.is_dir())
    free = shutil.disk_usage(there).free
    if free < size:
        raise BadInput(f"{path} needs {size / 1e6:,.0f} MB and {free / 1e6:,.0f} MB are free in {there}")


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn a disk that is full or must not be written to into one sentence."""
    try:
        yield
    except (OSError, SafetensorError) as problem:
        reason = getattr(problem, "strerror", None) or str(problem)
        raise BadInput(f"{path} cannot be written: {reason}; nothing is left of it") from problem


def digest(file: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    hashed = sha256()
    with file.open("rb") as opened:
        while chunk := opened.read(CHUNK):
            hashed.update(chunk)
    return hashed.hexdigest()


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}")

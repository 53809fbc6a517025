"""Atomic writes of files and folders.

They are written under a hidden name in the same folder, then moved to their path, which keeps its content until then.
Partial files are removed after errors and interruptions; those of killed processes by `remove_leftovers`.
"""

import os
import platform
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from secrets import token_hex
from typing import Any

from safetensors import SafetensorError

from workbench.core.errors import BadInput, did_you_mean, format_value, shorten

CHUNK = 1 << 20  # bytes read at once
HOST = sha256(platform.node().encode()).hexdigest()[:8]  # process numbers are unique per host only
PARTIAL = re.compile(r"\..+\.(?:(?P<host>[0-9a-f]{8})-(?P<pid>\d+)-[0-9a-f]{8}|(?P<earlier>\d+))")
FORGOTTEN = 24 * 3600  # seconds after which a partial file counts as abandoned


def write_atomically(path: Path, write: Callable[[Path], Any], durable: bool = False, new: bool = False) -> None:
    """Call `write(partial)` to write a temporary file, then move it to `path`.

    With `new`, raises FileExistsError if `path` exists by then. With `durable`, file and name are synced to disk before
    this returns, so they survive a crash of the machine.
    """
    partial = _temporary(path)
    try:
        write(partial)
        if durable:
            sync(partial)
        if new:
            _rename_new(partial, path)
        else:
            partial.replace(path)
        if durable:
            sync(path.parent)
    finally:
        partial.unlink(missing_ok=True)


def _rename_new(partial: Path, path: Path) -> None:
    """Rename a file. Raises FileExistsError if the new name is taken."""
    try:
        os.link(partial, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        if path.exists():
            raise FileExistsError(path) from None
        partial.replace(path)


def write_text(path: Path, text: str, durable: bool = False) -> None:
    """Write a text file (UTF-8) atomically."""
    write_atomically(path, lambda partial: partial.write_text(text, encoding="utf-8"), durable)


def write_new(path: Path, text: str, durable: bool = False) -> None:
    """Write a text file (UTF-8) atomically, unless it exists."""
    with suppress(FileExistsError):
        write_atomically(path, lambda partial: partial.write_text(text, encoding="utf-8"), durable, new=True)


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on disk (fsync)."""
    if path.is_dir() and os.name == "nt":
        return  # Windows persists names itself, and cannot open folders
    opened = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def remove_leftovers(folder: Path, suffix: str = "") -> list[Path]:
    """Remove partial files `*suffix` that killed processes left in a folder, and return their paths.

    Partial files of running processes and of other hosts are kept until they are a day old.
    """
    found = [path for path in folder.glob(f".*{suffix}.*") if PARTIAL.fullmatch(path.name) and _abandoned(path)]
    removed = []
    for path in found:
        with suppress(OSError):  # the folder is read-only, or another process removed the file
            path.unlink()
            removed.append(path)
    return removed


@contextmanager
def folder_atomically(path: Path) -> Iterator[Path]:
    """Yield a new folder to fill; after the block it replaces `path`, after an error it is removed."""
    partial = _temporary(path)
    partial.mkdir(parents=True)
    try:
        with writing(path):
            yield partial
        replace_folder(partial, path)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def replace_folder(new: Path, path: Path) -> None:
    """Move folder `new` to `path` and remove the folder that was there.

    This takes two moves; if the process is killed between them, the old folder is at `old_folder_path(path)`.
    """
    old = old_folder_path(path)
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


def old_folder_path(path: Path) -> Path:
    """Return the path of the old folder `path` between the two moves of `replace_folder`."""
    return path.with_name(f".{path.name}.old")


def is_file(path: str | os.PathLike[str]) -> bool:
    """Return whether a file exists; False for an invalid name."""
    return os.path.isfile(path)


def is_dir(path: str | os.PathLike[str]) -> bool:
    """Return whether a folder exists; False for an invalid name."""
    return os.path.isdir(path)


def meant_beside(path: str | os.PathLike[str]) -> str:
    """Return "; did you mean ...?" with the most similar name in a missing path's folder; "" if there is none."""
    folder, name = os.path.split(os.fspath(path).rstrip(os.sep))
    try:
        names = [one for one in os.listdir(folder or ".") if not one.startswith(".")]
    except (OSError, ValueError):
        return ""
    return did_you_mean(os.path.join(folder, name), [os.path.join(folder, one) for one in names])


def is_url(place: str | os.PathLike[str]) -> bool:
    """Return whether `place` is a URL, not a path."""
    return isinstance(place, str) and "://" in place


def check_folder(name: str, path: str | os.PathLike[str]) -> None:
    """Raise BadInput for a path where no folder can be created or written; `name` is the option's name."""
    check_place(name, path)
    if is_file(path):
        raise BadInput(f"{name} {format_value(str(path))} is a file: a folder is needed")


def check_file(name: str, path: str | os.PathLike[str]) -> None:
    """Raise BadInput for a path where no file can be created or written; `name` is the option's name."""
    check_place(name, path)
    if is_dir(path):
        raise BadInput(f"{name} {format_value(str(path))} is a folder: a file is needed")


def check_place(name: str, path: str | os.PathLike[str]) -> None:
    """Raise BadInput for a path where neither a file nor a folder can be created; `name` is the option's name.

    These are an empty or invalid name, the root, a path below a file, a read-only folder and a device.
    """
    if reason := _reason_against(Path(path)) if str(path) else "it is empty":
        raise BadInput(f"{name} {format_value(str(path))}: nothing can be written there ({reason})")


def _reason_against(path: Path) -> str:
    try:
        if Path(os.path.realpath(path)) == Path(path.anchor or "/"):  # `resolve` fails on a loop of links
            return "it is the root of the file system: name a folder in it"
        if not stat.S_IFMT(os.stat(path).st_mode) & (stat.S_IFREG | stat.S_IFDIR):
            return "it is neither a file nor a folder"
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, ValueError) as problem:  # too long, or with an invalid character
        return getattr(problem, "strerror", None) or str(problem)
    above = next(each for each in (path.absolute(), *path.absolute().parents) if os.path.lexists(each))
    if above.is_file() and above == path.absolute():
        above = above.parent
    if not above.is_dir():
        return "" if above == path.absolute() else f"{shorten(above)} is no folder"
    try:
        with tempfile.TemporaryFile(dir=above):  # unnamed: leaves no file
            return ""
    except OSError as problem:
        return f"{shorten(above)}: {problem.strerror}"


def need_room(path: Path, size: int) -> None:
    """Raise BadInput if the disk of `path` has fewer than `size` bytes free."""
    folder = next(parent for parent in path.absolute().parents if parent.is_dir())
    free = shutil.disk_usage(folder).free
    if free < size:
        raise BadInput(f"{path} needs {size / 1e6:,.0f} MB and {free / 1e6:,.0f} MB are free in {folder}")


def bytes_of(text: str) -> int:
    """Parse a number of bytes: `10GB`, `1.5 TiB`, `4096`. Raises BadInput for anything else."""
    units = {"": 1, "b": 1} | {f"{letter}b": 1000**i for i, letter in enumerate("kmgt", 1)}
    units |= {f"{letter}ib": 1024**i for i, letter in enumerate("kmgt", 1)}
    digits = text.strip().rstrip("KMGTBkmgtib ")
    unit = text.strip()[len(digits) :].strip().lower()
    try:
        return int(float(digits) * units[unit])
    except (ValueError, KeyError, OverflowError):
        raise BadInput(f"{text!r} is no size: a number with {', '.join(list(units)[2:])} is needed, as 10GB") from None


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Convert errors of writing `path` within the block (disk full, no permission) to BadInput."""
    try:
        yield
    except (OSError, SafetensorError) as problem:
        reason = getattr(problem, "strerror", None) or str(problem)
        raise BadInput(f"{path} cannot be written: {reason}; nothing is left of it") from problem


def digest(file: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    hashed = sha256()
    with file.open("rb") as opened:
        while chunk := opened.read(CHUNK):
            hashed.update(chunk)
    return hashed.hexdigest()


def _temporary(path: Path) -> Path:
    """Return a temporary name in the same folder, unique among threads, processes and hosts."""
    return path.with_name(f".{path.name}.{HOST}-{os.getpid()}-{token_hex(4)}")


def _abandoned(path: Path) -> bool:
    match = PARTIAL.fullmatch(path.name)
    assert match is not None
    with suppress(OSError):
        if time.time() - path.stat().st_mtime > FORGOTTEN:
            return True
    pid = match["earlier"] or (match["pid"] if match["host"] == HOST else None)
    return pid is not None and not _runs(int(pid))


def _runs(pid: int) -> bool:
    """Return whether a process of this host runs; True if unknown."""
    if os.name == "nt":
        return True  # on Windows, signal 0 would end it
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True
    return True

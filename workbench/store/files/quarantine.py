"""Quarantine and tombstones: why a block of a folder is unavailable (damaged, evicted, removed, another version).

Files that must not be served are copied to `<folder>/set_aside`, with a text file that contains the reason. Evicted
blocks are listed in `<folder>/evicted.jsonl` with time and reason, which later misses report.
"""

import json
import logging
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from itertools import count
from pathlib import Path

from workbench.core.errors import BadInput
from workbench.core.kv import KV
from workbench.core.utils.files import write_text
from workbench.store.files.block_file import SUFFIX, Unusable
from workbench.store.misses import Index, Miss

log = logging.getLogger(__name__)
ASIDE, EVICTED = "set_aside", "evicted.jsonl"
REMEMBERED = 1 << 16  # maximum number of evicted keys listed per folder
GONE = 1 << 12  # maximum number of removed blocks kept in memory to explain later misses


def keep(path: Path, reason: str) -> Path | None:
    """Copy the file `path` to `set_aside`, with the reason; return the copy's path, or None if it cannot be written.

    Files of the same name are numbered. The caller replaces or deletes the original.
    """
    folder = path.parent / ASIDE
    try:
        folder.mkdir(exist_ok=True)
        for number in count():
            place = folder / (f"{path.name}.{number}" if number else path.name)
            try:
                _link(path, place)
                break
            except FileExistsError:
                continue
        place.with_name(f"{place.name}.reason.txt").write_text(f"{reason}\n", encoding="utf-8")
    except OSError as problem:
        log.warning("%s is not set aside: %s", path, problem)
        return None
    return place


class RepairingStore:
    """Base of stores that keep files: replaces damaged blocks."""

    _counts: Counter[str]
    put: Callable[[str, KV], None]
    miss_reason: Callable[[str], Miss]

    def is_damaged(self, key: str) -> bool:
        """Return whether the block under `key` was found to be damaged."""
        return self.miss_reason(key).reason == "damaged"

    def repair(self, key: str, kv: KV) -> None:
        """Replace the block under `key` by `kv` if it is damaged; a failed write is only logged."""
        if not self.is_damaged(key):
            return
        try:
            self.put(key, kv)
        except BadInput as problem:
            log.warning("a damaged block is not replaced: %s", problem)
        else:
            self._counts["repaired"] += 1


def reasons(folder: Path) -> dict[str, str]:
    """Return {file: reason} of the quarantined files of a folder."""
    found = {}
    for path in sorted((folder / ASIDE).glob("*.reason.txt")):
        with suppress(OSError, ValueError):
            found[path.name.removesuffix(".reason.txt")] = path.read_text(encoding="utf-8").strip()
    return found


def clear(folder: Path) -> int:
    """Delete the quarantined files of a folder; return their size in bytes."""
    size = sum(path.stat().st_size for path in (folder / ASIDE).glob("*") if path.is_file())
    shutil.rmtree(folder / ASIDE, ignore_errors=True)
    return size


def note_evicted(folder: Path, keys: Iterable[str], why: str) -> None:
    """Add evicted blocks with time and reason to the list of a folder, which keeps the latest entries."""
    now = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())
    notes = dict(evicted_blocks(folder))
    for key in keys:
        notes.pop(key, None)
        notes[str(key)] = f"{now} UTC, {why}"
    latest = list(notes.items())[-REMEMBERED:]
    write_text(folder / EVICTED, "".join(json.dumps(pair) + "\n" for pair in latest))


def evicted_blocks(folder: Path) -> Mapping[str, str]:
    """Return {key: time and reason} of blocks evicted from a folder; unreadable lines are skipped."""
    notes = {}
    with suppress(OSError, UnicodeDecodeError):
        for line in (folder / EVICTED).read_text(encoding="utf-8").splitlines():
            with suppress(ValueError, TypeError):
                key, why = json.loads(line)
                notes[str(key)] = str(why)
    return notes


def _link(path: Path, place: Path) -> None:
    try:
        os.link(path, place)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        with path.open("rb") as source, place.open("xb") as target:
            shutil.copyfileobj(source, target)


class UnavailableBlocks:
    """Why blocks of a folder are unavailable.

    files     unreadable files, with the fault of each
    blocks    damaged blocks: their file and the fault
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.files: dict[Path, Unusable] = {}
        self.blocks: dict[str, tuple[Path, str]] = {}
        self._gone: dict[str, str] = {}
        self._evicted: tuple[int, Mapping[str, str]] = (0, {})  # modification time and content of EVICTED
        self._present = Index()

    def mark_available(self, key: str) -> None:
        """Mark a block as available."""
        self.blocks.pop(key, None)
        self._gone.pop(key, None)
        self._present.add(key)

    def mark_unavailable(self, key: str, why: str = "") -> None:
        """Mark a block as unavailable; the latest reasons `why` are kept."""
        self._present.remove(key)
        if why:
            self._gone[str(key)] = why
            if len(self._gone) > GONE:
                del self._gone[next(iter(self._gone))]

    def problem(self, path: Path) -> str:
        """Return the known faults of a file; "" if it is intact or missing."""
        if path in self.files:
            return self.files[path].detail
        return "; ".join(sorted({detail for file, detail in self.blocks.values() if file == path}))

    def miss_reason(self, key: str) -> Miss:
        """Return why a block is unavailable."""
        if key in self.blocks:
            path, detail = self.blocks[key]
            return Miss(key, "damaged", f"{path.name}: {detail}")
        if gone := self._gone.get(key) or self._notes().get(key):
            return Miss(key, "evicted", gone)
        if (later := self.files.get(self.folder / f"{key}{SUFFIX}")) and later.kind == "later":
            return Miss(key, "other format version", later.detail)
        miss = self._present.miss(key)
        lost = [(path, each) for path, each in self.files.items() if each.kind == "damaged" and len(path.stem) < 64]
        if miss.reason == "never seen" and lost:
            path, each = lost[0]
            return Miss(key, "damaged", f"or never seen: what {path.name} held is not known; {each.detail}")
        return miss

    def _notes(self) -> Mapping[str, str]:
        """Return the list of evicted blocks, which is read again after a change."""
        try:
            written = (self.folder / EVICTED).stat().st_mtime_ns
        except OSError:
            return {}
        if written != self._evicted[0]:
            self._evicted = written, evicted_blocks(self.folder)
        return self._evicted[1]

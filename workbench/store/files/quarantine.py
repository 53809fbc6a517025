"""Files that must not be served are set aside, with the reason beside them, in `<folder>/set_aside`.

What was evicted on purpose is noted in `<folder>/evicted.jsonl`, so that a later miss can say when and why.
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
from workbench.store.misses import Miss

log = logging.getLogger(__name__)
ASIDE, EVICTED = "set_aside", "evicted.jsonl"
REMEMBERED = 1 << 16  # evicted keys that are remembered in a folder


def keep(path: Path, reason: str) -> Path | None:
    """Keep the file `path` in `set_aside` too, with the reason; return where, or None where nothing can be written.

    Several damaged files of one name are kept side by side. The file stays where it is: it is replaced or deleted by
    whoever calls.
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


class Repairing:
    """What a store of files does where a block was found to be damaged."""

    _counts: Counter[str]
    put: Callable[[str, KV], None]
    why: Callable[[str], Miss]

    def is_damaged(self, key: str) -> bool:
        """Return whether the block under `key` was found to be damaged."""
        return self.why(key).reason == "damaged"

    def repair(self, key: str, kv: KV) -> None:
        """Put `kv` where the block under `key` is damaged; else, and where it cannot be written, do nothing."""
        if not self.is_damaged(key):
            return
        try:
            self.put(key, kv)
        except BadInput as problem:
            log.warning("a damaged block is not replaced: %s", problem)
        else:
            self._counts["repaired"] += 1


def reasons(folder: Path) -> dict[str, str]:
    """Return the files of a folder that were set aside, and why."""
    found = {}
    for path in sorted((folder / ASIDE).glob("*.reason.txt")):
        with suppress(OSError, ValueError):
            found[path.name.removesuffix(".reason.txt")] = path.read_text(encoding="utf-8").strip()
    return found


def clear(folder: Path) -> int:
    """Delete what was set aside; return its bytes."""
    size = sum(path.stat().st_size for path in (folder / ASIDE).glob("*") if path.is_file())
    shutil.rmtree(folder / ASIDE, ignore_errors=True)
    return size


def note_evicted(folder: Path, keys: Iterable[str], why: str) -> None:
    """Note that blocks were evicted now, and why. The latest notes are kept."""
    now = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime())
    notes = dict(evicted(folder))
    for key in keys:
        notes.pop(key, None)
        notes[str(key)] = f"{now} UTC, {why}"
    latest = list(notes.items())[-REMEMBERED:]
    write_text(folder / EVICTED, "".join(json.dumps(pair) + "\n" for pair in latest))


def evicted(folder: Path) -> Mapping[str, str]:
    """Return the keys that were evicted from a folder, with when and why; of a damaged list, what can be read."""
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

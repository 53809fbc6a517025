"""A persistent store of cached blocks in a folder.

<folder>/manifest.json      model, dtype and preprocessing, which all blocks of a folder share
         *.safetensors      keys and values of one or more blocks; written atomically
         set_aside/         quarantine: damaged files that were replaced, each with its reason
         evicted.jsonl      blocks that `gc` deleted, when and why
"""

import logging
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from workbench.core.errors import BadInput
from workbench.core.kv import KV
from workbench.core.utils import annotations
from workbench.core.utils.files import remove_leftovers, write_atomically, writing
from workbench.store.files import block_file, manifest, quarantine
from workbench.store.files.block_file import POPULATES, SUFFIX, Contents, Unusable
from workbench.store.files.file_header import NAME, Opened, open_without_atime
from workbench.store.files.packed import packed_block
from workbench.store.files.quarantine import UnavailableBlocks
from workbench.store.keys import Key
from workbench.store.misses import Miss
from workbench.store.stats import Stats

log = logging.getLogger(__name__)
NOTED = 60  # minimum seconds between two updates of a file's access time
FILES = 1 << 12  # maximum number of files whose last update is remembered


class FolderStore(quarantine.RepairingStore):
    """A store on disk; the KV that it returns is read-only and in CPU memory.

    kind      the properties that all blocks share: any JSON object, such as {"model": fingerprint, "preparation":
              "after_system"}, which must equal the folder's; None: any folder
    new       create the folder if it is missing
    durable   `put` syncs file and folder to disk, to survive a crash of the machine
    mapped    return memory-mapped pages of the file instead of a copy (`store.files.block_file`): faster, for immediate
              use; stores that keep blocks copy them. False: for network file systems, and for files that other programs
              modify in place
    pinned    read blocks into page-locked memory (`store.files.packed`), for a `HostTier(pinned=True)` above; without a
              GPU, ordinary memory with the same layout

    A damaged file or block is a miss with that reason; when the block is put again, the file is quarantined and
    replaced. Several processes may share a folder. Raises BadInput for a folder of another kind, naming what differs,
    a folder that is no store, and one that cannot be written.
    """

    def __init__(
        self,
        folder: str | Path,
        kind: Mapping[str, Any] | None = None,
        new: bool = False,
        durable: bool = True,
        mapped: bool = POPULATES,
        pinned: bool = False,
    ):
        annotations.check("folder", folder, str | Path)
        self.folder, self.durable = Path(folder), durable
        self.mapped, self.pinned = mapped, pinned
        self.kind = manifest.opened(self.folder, kind, new, durable)
        self._absent = UnavailableBlocks(self.folder)
        self._files: dict[str, Path] = {}
        self._contents: dict[Path, Contents] = {}
        self._noted: dict[Path, float] = {}
        self._counts, self._reasons = Counter[str](), Counter[str]()
        for suffix in (SUFFIX, manifest.MANIFEST):
            remove_leftovers(self.folder, suffix)
        for path in sorted(self.folder.glob(f"*{SUFFIX}")):
            self._register(path)

    @annotations.checked
    def get(self, key: str) -> KV | None:
        """Return the KV under `key`, read from disk and verified, or None."""
        path = self._files.get(key) or self._find(key)
        kv = None if path is None else self._read(path, key)
        self._counts["hits" if kv is not None else "misses"] += 1
        if kv is None:
            self._reasons[self.miss_reason(key).reason] += 1
        return kv

    @annotations.checked
    def put(self, key: str, kv: KV) -> None:
        """Store `kv` under `key`, in a separate file, or in the file of the damaged block that it replaces."""
        blocks, name = {key: kv}, key
        if key in self._absent.blocks and (path := self._absent.blocks[key][0]) not in self._absent.files:
            others = [other for other, file in self._files.items() if file == path]
            blocks |= {other: found for other in others if (found := self._read(path, other)) is not None}
            name = path.stem
        self.write(name, blocks)

    def is_damaged(self, key: str) -> bool:
        """Return whether the block itself was found to be damaged, not only a file that may have contained it."""
        return key in self._absent.blocks

    def write(self, name: str, blocks: Mapping[str, KV]) -> None:
        """Write blocks into one file `<name>.safetensors`, atomically."""
        if not NAME.fullmatch(name):
            raise BadInput(f"{name!r} is no name for a file of blocks: letters, digits, '_', '-' and '.' are allowed")
        path = self.folder / f"{name}{SUFFIX}"
        if problem := self._absent.problem(path):
            quarantine.keep(path, problem)
        with writing(path):
            write_atomically(path, lambda partial: block_file.save(partial, blocks), self.durable)
        self._register(path)

    def remove(self, key: str, why: str = "it was removed") -> None:
        """Remove a block: delete its file, or rewrite the file without it. Unknown keys are ignored."""
        if (path := self._files.get(key)) is None:
            return
        others = [other for other, file in self._files.items() if file == path and other != key]
        left = {other: kv for other in others if (kv := self._read(path, other)) is not None}
        if left:
            self.write(path.stem, left)
        else:
            with writing(path):
                path.unlink(missing_ok=True)
                manifest.forget_files(self.folder, {path.name})
            self._contents.pop(path, None)
        self._forget(key, why)

    def size_of(self, key: str) -> int:
        """Return the size of a block's keys and values in bytes; 0 for an unknown key."""
        known = self._contents.get(self._files.get(key, Path()))
        return sum(place.size for place in known.extent(key).places) if known else 0

    def miss_reason(self, key: str) -> Miss:
        """Return why `get(key)` misses."""
        return self._absent.miss_reason(key)

    @property
    def set_aside(self) -> Mapping[Path, Unusable]:
        """Unreadable files, with the fault of each."""
        return self._absent.files

    @property
    def stats(self) -> Stats:
        """Counters since the folder was opened."""
        return Stats(**self._counts, reasons=dict(self._reasons), bytes=self.bytes, entries=len(self))

    @property
    def bytes(self) -> int:
        """Total size of its files in bytes."""
        return sum(self._contents[path].state[2] for path in set(self._files.values()))

    def has_file(self, name: str) -> bool:
        """Return whether the file `<name>.safetensors` exists with an intact header."""
        return self.folder / f"{name}{SUFFIX}" in self._contents

    def file_of(self, key: str) -> Path:
        """Return the path of a block's file. Raises KeyError for an unknown key."""
        return self._files[key]

    def blocks_of(self, name: str) -> list[Key]:
        """Return the keys in the file `<name>.safetensors`; [] if it is missing."""
        known = self._contents.get(self.folder / f"{name}{SUFFIX}")
        return known.blocks() if known else []

    def __len__(self) -> int:
        return len(self._files)

    def __contains__(self, key: str) -> bool:
        return key in self._files

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def _read(self, path: Path, key: str) -> KV | None:
        try:
            with open_without_atime(path) as opened:
                known, state = self._contents[path], block_file.state_of(opened)
                if known.state != state:  # replaced by a different process
                    known = self._contents[path] = block_file.contents(opened)
                if key not in known.starts:
                    self._forget(key, f"{path.name} holds it no longer")
                    return None
                kv: KV | None = packed_block(opened, key, known) if self.pinned else None
                if kv is None:
                    kv = block_file.block(opened, key, known, self.mapped)
                self._touch(path, opened, state)
        except FileNotFoundError:
            self._forget(key, f"{path.name} was deleted")
        except (Unusable, OSError) as problem:
            self._forget(key)
            detail = getattr(problem, "detail", str(problem))
            self._absent.blocks[key] = path, detail
            log.warning("damaged: %s: %s; the block is encoded again", path, detail)
        else:
            return kv
        return None

    def _touch(self, path: Path, opened: Opened, state: block_file.State) -> None:
        """Update the file's access time, at most once a minute; `collect_garbage` evicts by it."""
        now = time.monotonic()
        if now - self._noted.get(path, float("-inf")) < NOTED:
            return
        if len(self._noted) >= FILES:
            self._noted.clear()
        self._noted[path] = now
        with suppress(OSError, NotImplementedError, TypeError):  # read-only, or not supported
            os.utime(opened.fileno(), ns=(time.time_ns(), state[1]))

    def _find(self, key: str) -> Path | None:
        """Return the file of a key that a different process has written or repaired since the last look-up."""
        path = self._absent.blocks[key][0] if key in self._absent.blocks else self.folder / f"{key}{SUFFIX}"
        if not NAME.fullmatch(key) or not path.is_file():
            return None
        stat = path.stat()
        known = self._contents.get(path)
        if known is None or known.state != (stat.st_ino, stat.st_mtime_ns, stat.st_size):
            self._register(path)
        return self._files.get(key)

    def _register(self, path: Path) -> None:
        try:
            with open_without_atime(path) as opened:
                known = block_file.contents(opened)
        except FileNotFoundError:
            return
        except (Unusable, OSError) as problem:
            self._set_aside(path, problem if isinstance(problem, Unusable) else Unusable(str(problem)))
            return
        self._absent.files.pop(path, None)
        self._contents[path] = known
        for key in known.blocks():
            self._files[key] = path
            self._absent.mark_available(key)

    def _set_aside(self, path: Path, problem: Unusable) -> None:
        self._absent.files[path] = problem
        self._contents.pop(path, None)
        for key in [key for key, file in self._files.items() if file == path]:
            self._forget(key)
            self._absent.blocks[key] = path, problem.detail
        if problem.kind == "damaged":
            self._absent.blocks.setdefault(path.stem, (path, problem.detail))
        log.warning("%s: %s is not used: %s", problem.kind, path, problem.detail)

    def _forget(self, key: str, gone: str = "") -> None:
        self._files.pop(key, None)
        self._absent.mark_unavailable(key, gone)

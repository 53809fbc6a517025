"""Evict the least recently read files of a store folder, to meet a budget."""

from dataclasses import dataclass
from pathlib import Path

from workbench.core.errors import BadInput
from workbench.core.utils.files import remove_leftovers, sync, writing
from workbench.store.files import manifest, quarantine
from workbench.store.files.block_file import SUFFIX
from workbench.store.folder import FolderStore


@dataclass(frozen=True)
class GarbageCollected:
    """Result of `collect_garbage`; sizes are in bytes of files."""

    folder: str
    budget: int
    before: int  #: including quarantined and partial files
    after: int
    files: int  #: number of deleted files
    blocks: int


def collect_garbage(folder: Path, budget: int) -> GarbageCollected:
    """Delete files until at most `budget` bytes are left, the least recently read first.

    Quarantined and partial files are deleted before any other. A file is deleted with all its blocks, which are then
    misses of reason "evicted", because access times are per file. To evict single blocks, store one per file, as `put`
    does, or use tiers with a budget (`store.tiering.tier`). Processes that have a file open can read it to the end.
    Raises BadInput for a budget under 1, a folder that is no store, and one that cannot be written.
    """
    if budget <= 0:
        raise BadInput(f"budget is {budget}: at least 1 byte is needed; delete the folder to keep nothing")
    store = FolderStore(folder)
    with writing(folder):
        before = store.bytes + quarantine.clear(folder) + sum(path.lstat().st_size for path in store.set_aside)
        remove_leftovers(folder, SUFFIX)
        keys_of: dict[Path, list[str]] = {}
        for key in store:
            keys_of.setdefault(store.file_of(key), []).append(key)
        for path, problem in store.set_aside.items():
            if problem.kind == "damaged":
                path.unlink(missing_ok=True)
        size = sum(path.lstat().st_size for path in folder.glob(f"*{SUFFIX}"))
        gone: list[str] = []
        deleted = set[str]()
        try:
            for path in sorted(keys_of, key=_last_read):
                if size <= budget:
                    break
                size -= path.stat().st_size
                gone += keys_of[path]
                deleted.add(path.name)
                path.unlink()
        finally:  # record deletions even after an interruption
            if gone:
                manifest.forget_files(folder, deleted)
                quarantine.note_evicted(folder, gone, f"to make room: the budget is {budget / 1e6:,.1f} MB")
        sync(folder)
    return GarbageCollected(str(folder), budget, before, size, len(deleted), len(gone))


def _last_read(path: Path) -> tuple[float, str]:
    stat = path.stat()
    return max(stat.st_atime, stat.st_mtime), path.name

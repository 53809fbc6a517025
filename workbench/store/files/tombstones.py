"""Blocks that a folder does not hand out, and why: damaged, evicted, removed, of another version, or never there."""

from collections.abc import Mapping
from pathlib import Path

from workbench.store.files import quarantine
from workbench.store.files.block_file import SUFFIX, Unusable
from workbench.store.misses import Index, Miss

GONE = 1 << 12  # blocks that are gone and are remembered, to say why they are missed


class Absent:
    """What the store of a folder knows of blocks that it cannot give.

    files     files of which nothing can be read, and what is wrong with each
    blocks    damaged blocks: the file, and what is wrong with it
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.files: dict[Path, Unusable] = {}
        self.blocks: dict[str, tuple[Path, str]] = {}
        self._gone: dict[str, str] = {}
        self._evicted: tuple[int, Mapping[str, str]] = (0, {})  # when the notes of `gc` were written, and what they say
        self._present = Index()

    def came(self, key: str) -> None:
        """Note that a block is there."""
        self.blocks.pop(key, None)
        self._gone.pop(key, None)
        self._present.add(key)

    def went(self, key: str, why: str = "") -> None:
        """Note that a block is not there any more; `why` is remembered for the latest ones."""
        self._present.remove(key)
        if why:
            self._gone[str(key)] = why
            if len(self._gone) > GONE:
                del self._gone[next(iter(self._gone))]

    def problem(self, path: Path) -> str:
        """Return what is wrong with a file, as far as is known; "" of one that is whole or not there."""
        if path in self.files:
            return self.files[path].detail
        return "; ".join(sorted({detail for file, detail in self.blocks.values() if file == path}))

    def why(self, key: str) -> Miss:
        """Return why a block is not there."""
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
        """Return what `gc` has noted, read again where it was written since."""
        try:
            written = (self.folder / quarantine.EVICTED).stat().st_mtime_ns
        except OSError:
            return {}
        if written != self._evicted[0]:
            self._evicted = written, quarantine.evicted(self.folder)
        return self._evicted[1]

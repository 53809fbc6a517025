"""A disk that forgets what was not fsynced: what a folder of cached blocks is after a loss of power."""

import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from tests.stress.store_faults import Count, block, name
from workbench.core.utils.files import write_text
from workbench.store import FolderStore
from workbench.store.files.manifest import MANIFEST


class ForgetfulDisk:
    """Watches a folder: which bytes and which names were on the disk when they were last fsynced.

    After the loss, every file has the bytes of its last fsync, and what was never fsynced is cut, zeroed or empty.
    Every name is that of the folder's last fsync, or a later one where the disk had got so far.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self._kept: dict[int, bytes] = {}  # file number: bytes
        self._names: dict[str, int] = {}
        self._open: list[int] = []  # so that no number is given out twice

    @contextmanager
    def watching(self, moment: Callable[[], None]) -> Iterator[None]:
        """Note every fsync of the folder and its files; call `moment` before each, and after every renaming."""
        fsync, replace = os.fsync, Path.replace

        def noted(opened: int) -> None:
            moment()
            fsync(opened)
            if not os.path.isdir(f"/proc/self/fd/{opened}"):
                self._open.append(os.dup(opened))
                self._kept[os.fstat(opened).st_ino] = Path(f"/proc/self/fd/{opened}").read_bytes()
            elif os.path.samefile(f"/proc/self/fd/{opened}", self.folder):
                self._names = self._listed()

        def renamed(path: Path, target: Path) -> Path:
            found = replace(path, target)
            moment()
            return found

        try:
            with patch("os.fsync", noted), patch("pathlib.Path.replace", renamed):
                yield
        finally:
            for opened in self._open:
                os.close(opened)

    def after_loss(self, place: Path, draw: random.Random) -> None:
        """Make `place` what the folder is after power was lost now."""
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        now = self._listed()
        data = {number: (self.folder / path).read_bytes() for path, number in now.items()}
        for path in {**self._names, **now}:
            number = draw.choice([self._names.get(path), now.get(path)])
            if number is None:
                continue
            kept = self._kept.get(number)
            (place / path).write_bytes(_half(data.get(number, b""), draw) if kept is None else kept)

    def _listed(self) -> dict[str, int]:
        return {entry.name: entry.inode() for entry in os.scandir(self.folder) if entry.is_file()}


def _half(data: bytes, draw: random.Random) -> bytes:
    """Return what may be on a disk of bytes that were not fsynced."""
    cut = draw.randrange(len(data) + 1)
    return draw.choice((data[:cut], data[:cut] + bytes(len(data) - cut), b"", bytes(len(data))))


def losses(folder: Path, times: int, durable: bool = True, seed: int = 0, keys: int = 8) -> Count:
    """Lose power at every moment at which blocks are put and replaced; look for what was acknowledged until then."""
    draw, count = random.Random(seed), Count("lost writes that were not fsynced")
    live, after = folder / "live", folder / "after"
    FolderStore(live, {"model": "m"}, new=True)
    disk, said = ForgetfulDisk(live), set[int]()

    def moment() -> None:
        if not said or count.tried >= times:
            return
        disk.after_loss(after, draw)
        found = FolderStore(after)
        for number in said:
            count.answer(found.get(name(number)), number, must=True)
        count.tried += 1

    with disk.watching(moment):
        write_text(live / MANIFEST, (live / MANIFEST).read_text(), durable=True)
        store, number = FolderStore(live, durable=durable), 0
        while count.tried < times:
            number += 1
            store.put(name(number), block(number))
            said.add(number)
            moment()
            if draw.random() < 0.3:
                again = draw.choice(sorted(said))
                store.put(name(again), block(again))
            if len(said) > keys:
                store.remove(name(gone := min(said)))
                said.discard(gone)
    return count

"""Cached blocks at any URL that fsspec knows: memory://, file://, s3://, gs://, sftp://, …

<url>/manifest.json        model, dtype and preparation of the blocks
      <key>.safetensors    one block each, with its checksums
      <name>.written       list of blocks that were written together, made after the last of them

A remote that stalls, fails or returns part of a block gives a miss with that reason, within `deadline` seconds; after a
stall it is not asked again for `pause` seconds.
"""

import io
import logging
import tempfile
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from threading import Lock, Thread
from typing import Any, TypeVar

from workbench.core.errors import BadInput
from workbench.core.kv import KV
from workbench.store.files import block_file, manifest, quarantine
from workbench.store.files.block_file import SUFFIX, Unusable
from workbench.store.files.file_header import NAME
from workbench.store.keys import Key
from workbench.store.misses import Miss
from workbench.store.stats import Stats

DEADLINE, PAUSE = 10.0, 30.0  # seconds: timeout of a look-up, pause after a stall
Answer = TypeVar("Answer")


class Unreachable(Exception):
    """Raised for a remote that stalls or fails."""


class RemoteCalls:
    """Calls of the remote at `url`, with a deadline in seconds; after a stall it is not asked for `pause` seconds."""

    def __init__(self, url: str, deadline: float = DEADLINE, pause: float = PAUSE):
        if not deadline > 0:
            raise BadInput(f"deadline is {deadline}: a positive number of seconds is needed")
        self.url, self.deadline, self.pause = url, deadline, pause
        self._silent_until = 0.0

    def needed(self, what: str, ask: Callable[[], Answer]) -> Answer:
        """Return the answer of a call that must succeed. Raises BadInput if it fails, and FileNotFoundError."""
        try:
            return self.within(what, ask)
        except Unreachable as problem:
            raise BadInput(f"{self.url} cannot be reached: {problem}") from None

    def within(self, what: str, ask: Callable[[], Answer], seconds: float | None = None) -> Answer:
        """Return the answer of a call within `seconds` (None: the deadline).

        Raises Unreachable where it fails or is late, and FileNotFoundError.
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
    """Return the bytes of a file. Raises TypeError where the file system returns something else."""
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


log = logging.getLogger(__name__)
LOOKED_AT = 4  # blocks from which the model is read if the manifest is corrupt
WRITING = 300.0  # timeout of a write in seconds
REMEMBERED = 1 << 16  # maximum number of misses whose reason is remembered
WRITTEN = ".written"
Data = bytes  # within the class, `bytes` is the size of its blocks


class RemoteStore(quarantine.Repairing):
    """A store behind a URL; the KV that it returns is in memory (CPU) and read-only.

    `kind` and `new` are those of `FolderStore`; `deadline` and `pause` are seconds. Raises BadInput for an unknown
    scheme, one whose package is not installed, a place that cannot be reached or read, and blocks of another kind.
    """

    def __init__(
        self,
        url: str,
        kind: Mapping[str, Any] | None = None,
        new: bool = False,
        deadline: float = DEADLINE,
        pause: float = PAUSE,
    ):
        self.url = url.rstrip("/")
        self._calls = RemoteCalls(self.url, deadline, pause)
        self.fs, self.root = file_system(url)
        self._counts, self._reasons, self._lock = Counter[str](), Counter[str](), Lock()
        self._why: OrderedDict[str, Miss] = OrderedDict()
        self._bytes = 0
        self.kind = self._opened(kind, new)

    def get(self, key: str) -> KV | None:
        """Return the KV under `key`, fetched and verified, or None."""
        begin, missed = time.monotonic(), None
        try:
            kv = self.read(key)
        except FileNotFoundError:
            missed = Miss(key, "never seen")
        except Unusable as problem:
            missed = Miss(key, "other format version" if problem.kind == "later" else "damaged", problem.detail)
        except Unreachable as problem:
            missed = Miss(key, "unreachable", f"{problem}, after {time.monotonic() - begin:.1f} s")
        with self._lock:
            self._counts["hits" if missed is None else "misses"] += 1
            if missed is None:
                self._why.pop(key, None)
                return kv
            self._reasons[missed.reason] += 1
            self._why[str(key)] = missed
            if len(self._why) > REMEMBERED:
                self._why.popitem(last=False)
        if missed.reason != "never seen":
            log.warning("%s: %s", self.url, missed)
        return None

    def put(self, key: str, kv: KV) -> None:
        """Keep `kv` under `key`. Raises BadInput where it cannot be written."""
        path = self._path(key)
        with tempfile.TemporaryDirectory() as folder:
            block_file.save(Path(folder, "block"), {key: kv})
            data = Path(folder, "block").read_bytes()
        self._write(path, data)
        self._bytes += len(data)
        self._why.pop(key, None)

    def write(self, name: str, blocks: Mapping[str, KV], there: Iterable[str] = ()) -> None:
        """Keep many blocks, then write a note `name` that lists them and those that were `there` before."""
        path = self._path(name, WRITTEN)
        for key, kv in blocks.items():
            self.put(key, kv)
        self._write(path, "".join(f"{key}\n" for key in dict.fromkeys((*blocks, *there))).encode())

    def forget_written(self, keys: Container[str]) -> None:
        """Delete the notes of `write` that list any of these blocks, so that they are written again."""
        for path, named in self.notes():
            if any(key in keys for key in named):
                self._calls.needed("delete a note", partial(self.fs.rm_file, path))

    def notes(self) -> Iterator[tuple[str, list[str]]]:
        """Yield (path, listed keys) of the notes of `write`."""
        pattern = f"{self.root}/*{WRITTEN}"
        for path in self._calls.needed("list its notes", lambda: list(self.fs.glob(pattern))):
            text = self._calls.needed("give a note", partial(content, self.fs, path))
            yield path, text.decode(errors="replace").split()

    def has_file(self, name: str) -> bool:
        """Return whether `write(name, …)` has finished."""
        return self._calls.needed("look for a name", lambda: bool(self.fs.exists(self._path(name, WRITTEN))))

    def why(self, key: str) -> Miss:
        """Return why the last `get(key)` found nothing."""
        return self._why.get(key) or Miss(key, "never seen")

    @property
    def stats(self) -> Stats:
        """Counters since the store was opened; bytes and entries are those that were put."""
        return Stats(**self._counts, reasons=dict(self._reasons), bytes=self._bytes)

    @property
    def bytes(self) -> int:
        """Bytes of its blocks."""
        return sum(self.listed().values())

    def listed(self) -> dict[str, int]:
        """Return {key: bytes} of its blocks."""

        def sizes() -> dict[str, int]:
            found = self.fs.ls(self.root, detail=True, refresh=True)
            return {str(each["name"]).rstrip("/").rpartition("/")[2]: int(each.get("size") or 0) for each in found}

        names = self._calls.needed("list its blocks", sizes)
        return {name.removesuffix(SUFFIX): size for name, size in sorted(names.items()) if name.endswith(SUFFIX)}

    def __len__(self) -> int:
        return len(self.listed())

    def __iter__(self) -> Iterator[str]:
        return iter(self.listed())

    def __contains__(self, key: str) -> bool:
        try:
            return bool(self._calls.within("look", lambda: self.fs.exists(self._path(key))))
        except Unreachable:
            return False

    def remove(self, key: str, why: str = "it was removed") -> None:
        """Delete a block; an unknown key is ignored."""
        if key in self:
            self._calls.needed("delete a block", lambda: self.fs.rm_file(self._path(key)))
            self._why[str(key)] = Miss(key, "evicted", why)

    def read(self, key: str) -> KV:
        """Return a verified block. Raises FileNotFoundError, Unusable and Unreachable."""
        if not NAME.fullmatch(key):
            raise FileNotFoundError(key)
        opened, known = self._header(key)
        if key not in known.starts:
            raise Unusable("it holds another block")
        identity = getattr(key, "identity", None) or known.identities.get(key)
        return block_file.block(opened, Key(key, identity), known)

    def _header(self, key: str) -> tuple[io.BytesIO, block_file.Contents]:
        path = self._path(key)
        data = self._calls.within("give a block", lambda: content(self.fs, path))
        opened = io.BytesIO(data)
        return opened, block_file.contents(opened, (0, 0, len(data)))

    def _path(self, name: str, suffix: str = SUFFIX) -> str:
        if not NAME.fullmatch(name):
            raise BadInput(f"{name!r} is no name for a block: letters, digits, '_', '-' and '.' are allowed")
        return f"{self.root}/{name}{suffix}"

    def _opened(self, kind: Mapping[str, Any] | None, new: bool) -> dict[str, Any]:
        path = f"{self.root}/{manifest.MANIFEST}"
        try:
            there = manifest.parsed(self._calls.needed("give its manifest", lambda: content(self.fs, path)))
        except manifest.Damaged as problem:
            if kind is None:
                raise BadInput(f"{self.url}/{manifest.MANIFEST} is corrupt: {problem}") from None
            for key in islice(self.listed(), LOOKED_AT):
                with suppress(Unusable, FileNotFoundError):
                    manifest.check_identities(self.url, self._header(key)[1], kind, problem)
            there = self._begun(path, kind)
        except FileNotFoundError:
            if not new:
                raise BadInput(f"{self.url} is no store of cached blocks: it has no {manifest.MANIFEST}") from None
            there = self._begun(path, kind or {})
        return manifest.agreed(self.url, there, kind)

    def _begun(self, path: str, kind: Mapping[str, Any]) -> dict[str, Any]:
        self._write(path, manifest.text(kind).encode())
        return manifest.parsed(manifest.text(kind).encode())

    def _write(self, path: str, data: Data) -> None:
        def written() -> None:
            self.fs.makedirs(path.rpartition("/")[0], exist_ok=True)
            self.fs.pipe_file(path, data)

        try:
            self._calls.within("take a block", written, WRITING)
        except (Unreachable, FileNotFoundError) as problem:
            raise BadInput(f"{self.url} cannot be written: {problem}") from None

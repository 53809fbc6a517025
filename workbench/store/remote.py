"""Remote store of cached blocks at any URL that fsspec supports: memory://, file://, s3://, gs://, sftp://, …

<url>/manifest.json        model, dtype and preprocessing of the blocks
      <key>.safetensors    one block per file, with its checksums
      <name>.written       list of blocks that were written together; created after the last of them

A remote that stalls, fails or returns a truncated block is a miss with that reason, within `deadline` seconds. After a
stall, calls fail at once for `pause` seconds.
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

log = logging.getLogger(__name__)
DEADLINE, PAUSE = 10.0, 30.0  # seconds: timeout of a look-up, pause after a stall
WRITING = 300.0  # timeout of a write in seconds
SAMPLED = 4  # number of blocks whose headers are checked if the manifest is corrupt
REMEMBERED = 1 << 16  # maximum number of misses whose reason is kept
WRITTEN = ".written"
Data = bytes  # `RemoteStore.bytes` hides the builtin
T = TypeVar("T")


class Unreachable(Exception):
    """Raised if a remote stalls or fails."""


class RemoteCalls:
    """Calls to the remote at `url` with a deadline in seconds; after a stall, they fail at once for `pause` seconds."""

    def __init__(self, url: str, deadline: float = DEADLINE, pause: float = PAUSE):
        if not deadline > 0:
            raise BadInput(f"deadline is {deadline}: a positive number of seconds is needed")
        self.url, self.deadline, self.pause = url, deadline, pause
        self._paused_until = 0.0

    def call_required(self, what: str, call: Callable[[], T]) -> T:
        """Return the result of a call that must succeed. Raises BadInput if it fails, and FileNotFoundError."""
        try:
            return self.call_within(what, call)
        except Unreachable as problem:
            raise BadInput(f"{self.url} cannot be reached: {problem}") from None

    def call_within(self, what: str, call: Callable[[], T], seconds: float | None = None) -> T:
        """Return the result of a call within `seconds` (None: the deadline).

        Raises Unreachable if it fails or times out, and FileNotFoundError.
        """
        seconds = self.deadline if seconds is None else seconds
        if time.monotonic() < self._paused_until:
            raise Unreachable("it did not answer a moment ago")
        results: list[T] = []
        errors: list[BaseException] = []

        def work() -> None:
            try:
                results.append(call())
            except BaseException as problem:
                errors.append(problem)

        thread = Thread(target=work, daemon=True, name=f"call {self.url}")
        thread.start()
        thread.join(seconds)
        if results:
            return results[0]
        if not errors:
            self._paused_until = time.monotonic() + self.pause
            raise Unreachable(f"it did not {what} in {seconds:g} s")
        error = errors[0]
        if isinstance(error, FileNotFoundError):
            raise error
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise Unreachable(f"{type(error).__name__}: {' '.join(str(reason).split())[:200]}") from None


def content(fs: Any, path: str) -> bytes:
    """Return the bytes of a file. Raises TypeError if the file system returns another type."""
    found = fs.cat_file(path)
    if not isinstance(found, bytes | bytearray | memoryview):
        raise TypeError(f"its file system gives {type(found).__name__} for a file")
    return bytes(found)


def file_system(url: str) -> tuple[Any, str]:
    """Return the fsspec file system of a URL, and the path in it. Raises BadInput."""
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


class RemoteStore(quarantine.RepairingStore):
    """A store at a URL; the KV that it returns is read-only and in CPU memory.

    `kind` and `new` are those of `FolderStore`; `deadline` and `pause` are in seconds. Raises BadInput for an unknown
    scheme or one whose package is not installed, an unreachable or unreadable URL, and blocks of another kind.
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
        self.kind = self._open(kind, new)

    def get(self, key: str) -> KV | None:
        """Return the KV under `key`, fetched and verified, or None."""
        begin, missed = time.monotonic(), None
        try:
            kv = self.fetch_block(key)
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
        """Store `kv` under `key`. Raises BadInput if it cannot be written."""
        path = self._path(key)
        with tempfile.TemporaryDirectory() as folder:
            block_file.save(Path(folder, "block"), {key: kv})
            data = Path(folder, "block").read_bytes()
        self._write(path, data)
        self._bytes += len(data)
        self._why.pop(key, None)

    def write(self, name: str, blocks: Mapping[str, KV], there: Iterable[str] = ()) -> None:
        """Store many blocks, then write a note `name` that lists them and the blocks that were `there` before."""
        path = self._path(name, WRITTEN)
        for key, kv in blocks.items():
            self.put(key, kv)
        self._write(path, "".join(f"{key}\n" for key in dict.fromkeys((*blocks, *there))).encode())

    def forget_written(self, keys: Container[str]) -> None:
        """Delete the notes of `write` that list any of these blocks; their blocks are then written again."""
        for path, named in self.notes():
            if any(key in keys for key in named):
                self._calls.call_required("delete a note", partial(self.fs.rm_file, path))

    def notes(self) -> Iterator[tuple[str, list[str]]]:
        """Yield (path, keys) of every note of `write`."""
        pattern = f"{self.root}/*{WRITTEN}"
        for path in self._calls.call_required("list its notes", lambda: list(self.fs.glob(pattern))):
            text = self._calls.call_required("give a note", partial(content, self.fs, path))
            yield path, text.decode(errors="replace").split()

    def has_file(self, name: str) -> bool:
        """Return whether `write(name, …)` has finished."""
        return self._calls.call_required("look for a name", lambda: bool(self.fs.exists(self._path(name, WRITTEN))))

    def miss_reason(self, key: str) -> Miss:
        """Return why the last `get(key)` missed."""
        return self._why.get(key) or Miss(key, "never seen")

    @property
    def stats(self) -> Stats:
        """Counters since the store was opened; `bytes` counts the files written since then."""
        return Stats(**self._counts, reasons=dict(self._reasons), bytes=self._bytes)

    @property
    def bytes(self) -> int:
        """Total size of its blocks in bytes."""
        return sum(self.block_sizes().values())

    def block_sizes(self) -> dict[str, int]:
        """Return {key: bytes} of all blocks."""

        def sizes() -> dict[str, int]:
            found = self.fs.ls(self.root, detail=True, refresh=True)
            return {str(each["name"]).rstrip("/").rpartition("/")[2]: int(each.get("size") or 0) for each in found}

        names = self._calls.call_required("list its blocks", sizes)
        return {name.removesuffix(SUFFIX): size for name, size in sorted(names.items()) if name.endswith(SUFFIX)}

    def __len__(self) -> int:
        return len(self.block_sizes())

    def __iter__(self) -> Iterator[str]:
        return iter(self.block_sizes())

    def __contains__(self, key: str) -> bool:
        try:
            return bool(self._calls.call_within("look", lambda: self.fs.exists(self._path(key))))
        except Unreachable:
            return False

    def remove(self, key: str, why: str = "it was removed") -> None:
        """Delete a block; unknown keys are ignored."""
        if key in self:
            self._calls.call_required("delete a block", lambda: self.fs.rm_file(self._path(key)))
            self._why[str(key)] = Miss(key, "evicted", why)

    def fetch_block(self, key: str) -> KV:
        """Fetch and verify a block. Raises FileNotFoundError, Unusable and Unreachable."""
        if not NAME.fullmatch(key):
            raise FileNotFoundError(key)
        opened, known = self._header(key)
        if key not in known.starts:
            raise Unusable("it holds another block")
        identity = getattr(key, "identity", None) or known.identities.get(key)
        return block_file.block(opened, Key(key, identity), known)

    def _header(self, key: str) -> tuple[io.BytesIO, block_file.Contents]:
        path = self._path(key)
        data = self._calls.call_within("give a block", lambda: content(self.fs, path))
        opened = io.BytesIO(data)
        return opened, block_file.contents(opened, (0, 0, len(data)))

    def _path(self, name: str, suffix: str = SUFFIX) -> str:
        if not NAME.fullmatch(name):
            raise BadInput(f"{name!r} is no name for a block: letters, digits, '_', '-' and '.' are allowed")
        return f"{self.root}/{name}{suffix}"

    def _open(self, kind: Mapping[str, Any] | None, new: bool) -> dict[str, Any]:
        path = f"{self.root}/{manifest.MANIFEST}"
        try:
            stored = manifest.parsed(self._calls.call_required("give its manifest", lambda: content(self.fs, path)))
        except manifest.Damaged as problem:
            if kind is None:
                raise BadInput(f"{self.url}/{manifest.MANIFEST} is corrupt: {problem}") from None
            for key in islice(self.block_sizes(), SAMPLED):
                with suppress(Unusable, FileNotFoundError):
                    manifest.check_identities(self.url, self._header(key)[1], kind, problem)
            stored = self._create(path, kind)
        except FileNotFoundError:
            if not new:
                raise BadInput(f"{self.url} is no store of cached blocks: it has no {manifest.MANIFEST}") from None
            stored = self._create(path, kind or {})
        return manifest.check_kind(self.url, stored, kind)

    def _create(self, path: str, kind: Mapping[str, Any]) -> dict[str, Any]:
        data = manifest.text(kind).encode()
        self._write(path, data)
        return manifest.parsed(data)

    def _write(self, path: str, data: Data) -> None:
        def written() -> None:
            self.fs.makedirs(path.rpartition("/")[0], exist_ok=True)
            self.fs.pipe_file(path, data)

        try:
            self._calls.call_within("take a block", written, WRITING)
        except (Unreachable, FileNotFoundError) as problem:
            raise BadInput(f"{self.url} cannot be written: {problem}") from None

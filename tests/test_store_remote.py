"""Stores behind URLs: the same blocks; a remote that stalls, fails or gives half of a block is a miss in time."""

import threading
import time
from typing import ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFile, MemoryFileSystem

from tests.refusals import refused
from tests.store_blocks import key_for, kv_of, same
from workbench.store import FolderStore, MemoryStore
from workbench.store.files import block_file, scrub
from workbench.store.remote import RemoteStore
from workbench.store.urls import is_begun, opened

ASKED = threading.Event()  # set at the end of a test: whoever stalls goes on


class FaultyFileSystem(MemoryFileSystem):
    """memory:// that does as it is told: `stall`, `fail`, `forbid`, `half`, `flip`, `full`, `none`, or nothing."""

    protocol = "faulty"
    store: ClassVar[dict[str, MemoryFile]] = {}  # of all instances, as fsspec has it
    pseudo_dirs: ClassVar[list[str]] = [""]
    fault = ""

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(path.removeprefix("faulty://"))

    def cat_file(self, path, start=None, end=None, **given):
        self._act()
        if type(self).fault == "none":
            return None
        data = super().cat_file(path, start, end, **given)
        if type(self).fault == "half":
            return data[: len(data) // 2]
        if type(self).fault == "flip":
            return data[:-5] + bytes([data[-5] ^ 1]) + data[-4:]
        return data

    def pipe_file(self, path, value, mode="overwrite", **given):
        self._act()
        if type(self).fault == "full":
            raise OSError(28, "No space left on device")
        super().pipe_file(path, value, mode, **given)

    def exists(self, path, **given):
        self._act()
        return super().exists(path, **given)

    def ls(self, path, detail=True, **given):
        self._act()
        return None if type(self).fault == "none" else super().ls(path, detail)

    def _act(self):
        if type(self).fault == "stall":
            ASKED.wait(20)
        if type(self).fault == "fail":
            raise ConnectionResetError(104, "Connection reset by peer")
        if type(self).fault == "forbid":
            raise PermissionError(13, "Access denied")


fsspec.register_implementation("faulty", FaultyFileSystem, clobber=True)


@pytest.fixture
def fault():
    """A function that lets the remote fail from now on."""
    ASKED.clear()
    FaultyFileSystem.store.clear()
    yield lambda name: setattr(FaultyFileSystem, "fault", name)
    FaultyFileSystem.fault = ""
    ASKED.set()


@pytest.mark.parametrize("url", ["memory://{}/kept", "file://{}/kept", "faulty://{}/kept"])
def test_what_is_put_at_a_url_is_found_there_bit_for_bit(url, tmp_path, fault):
    url = url.format(str(tmp_path).lstrip("/") if "file" not in url else tmp_path)
    store = RemoteStore(url, {"model": "m"}, new=True)
    for seed in (1, 2):
        assert store.get(key_for(seed)) is None and store.miss_reason(key_for(seed)).reason == "never seen"
        store.put(key_for(seed), kv_of(seed))
    again = opened(url, {"model": "m"})
    assert isinstance(again, RemoteStore) and is_begun(url)
    assert all(same(again.get(key_for(seed)), kv_of(seed)) for seed in (1, 2))
    assert len(again) == 2 and set(again) == {key_for(1), key_for(2)} and key_for(2) in again and "x" not in again
    assert (again.stats.hits, again.stats.misses, store.stats.reasons) == (2, 0, {"never seen": 2})
    again.remove(key_for(1))
    assert again.get(key_for(1)) is None and len(again) == 1
    refused("holds blocks of another model: m, and not n", RemoteStore, url, {"model": "n"})


@pytest.mark.parametrize(
    "name, reason, says",
    [
        ("stall", "unreachable", "it did not give a block in 0.2 s"),
        ("fail", "unreachable", "ConnectionResetError: Connection reset by peer"),
        ("forbid", "unreachable", "PermissionError: Access denied"),
        ("none", "unreachable", "its file system gives NoneType for a file"),
        ("half", "damaged", "bytes, and the file"),
        ("flip", "damaged", "the checksum of the values of layer 1 is wrong"),
    ],
)
def test_a_remote_that_does_not_give_a_whole_block_is_a_miss_with_its_reason_in_time(fault, name, reason, says):
    store = RemoteStore("faulty://kept", new=True, deadline=0.2, pause=0.05)
    store.put(key_for(1), kv_of(1))
    memory = MemoryStore(behind=store)
    fault(name)
    assert memory.get(key_for(1)) is None, "who stalls would give it at last"
    assert store.miss_reason(key_for(1)).reason == memory.miss_reason(key_for(1)).reason == reason
    assert says in store.miss_reason(key_for(1)).detail and memory.stats.reasons == {reason: 1}
    fault("")
    time.sleep(0.06 if name == "stall" else 0)
    assert same(memory.get(key_for(1)), kv_of(1)), "it is asked again"


def test_a_remote_that_stalled_is_left_alone_for_a_while(fault):
    store = RemoteStore("faulty://kept", new=True, deadline=0.1, pause=60)
    store.put(key_for(1), kv_of(1))
    fault("stall")
    assert store.get(key_for(1)) is None
    assert not any(store.get(key_for(1)) for _ in range(100))
    assert "it did not answer a moment ago" in store.miss_reason(key_for(1)).detail


def test_a_damaged_block_is_made_again_and_replaced(fault):
    store = RemoteStore("faulty://kept", new=True)
    store.put(key_for(1), kv_of(1))
    path = next(path for path in FaultyFileSystem.store if path.endswith(".safetensors"))
    data = store.fs.cat_file(path)
    store.fs.pipe_file(path, data[:-1] + bytes([data[-1] ^ 128]))
    found = scrub.verify_remote("faulty://kept")
    assert not found.intact and len(found.findings) == 1 and "values of layer 1" in str(found.findings[0])
    memory = MemoryStore(behind=store)
    assert memory.get(key_for(1)) is None
    memory.put(key_for(1), kv_of(1))
    assert memory.stats.repaired == 1 and scrub.verify_remote("faulty://kept").intact
    store.fs.pipe_file(path, b"nothing")
    found = scrub.verify_remote("faulty://kept", repair=True)
    assert found.removed == (f"{key_for(1)}.safetensors",) and scrub.verify_remote("faulty://kept").blocks == 0


def test_files_of_a_later_version_or_of_another_block_are_not_served(fault, monkeypatch):
    store = RemoteStore("faulty://kept", new=True)
    store.put(key_for(2), kv_of(2))
    store.fs.cp_file(f"{store.root}/{key_for(2)}.safetensors", f"{store.root}/{key_for(1)}.safetensors")
    assert store.get(key_for(1)) is None and store.miss_reason(key_for(1)).detail == "it holds another block"
    monkeypatch.setattr("workbench.store.files.file_header.FORMAT", 2)
    store.put(key_for(1), kv_of(1))
    monkeypatch.undo()
    assert store.get(key_for(1)) is None and store.miss_reason(key_for(1)).reason == "other format version"


@pytest.mark.parametrize(
    "url, name, says",
    [
        ("nowhere://a", "", "unknown scheme 'nowhere' of 'nowhere://a': allowed are .*memory"),
        ("memory://", "", "names no place below memory://"),
        ("faulty://kept", "forbid", "faulty://kept cannot be reached: PermissionError: Access denied"),
        ("faulty://kept", "fail", "cannot be reached: ConnectionResetError: Connection reset by peer"),
        ("faulty://kept", "stall", "cannot be reached: it did not give its manifest in 0.1 s"),
        ("faulty://kept", "none", "cannot be reached: TypeError: its file system gives NoneType"),
        ("faulty://kept", "full", "faulty://kept cannot be written: OSError: No space left on device"),
    ],
)
def test_a_place_that_cannot_be_used_is_one_sentence(fault, url, name, says):
    fault(name)
    refused(says, RemoteStore, url, new=True, deadline=0.1)
    assert not FaultyFileSystem.store


def test_a_scheme_without_its_package_says_which(monkeypatch):
    def missing(*given, **options):
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(fsspec.core, "url_to_fs", missing)
    refused("s3:// needs a package that is not installed: Install s3fs to access S3", RemoteStore, "s3://bucket/kept")


def test_names_of_users_make_no_paths(fault):
    store = RemoteStore("faulty://kept", new=True)
    for name in ("../escape", "/etc/passwd", "a/b", "", "x" * 300):
        assert store.get(name) is None
        refused("is no name for a block", store.put, name, kv_of(1))
    assert len(FaultyFileSystem.store) == 1


def test_a_put_that_is_refused_leaves_what_was_there(fault, tmp_path):
    store = RemoteStore("faulty://kept", new=True)
    store.put(key_for(1), kv_of(1))
    fault("full")
    refused("cannot be written", store.put, key_for(1), kv_of(2))
    fault("")
    assert same(store.get(key_for(1)), kv_of(1))
    refused("deadline is 0: a positive number", RemoteStore, "faulty://kept", deadline=0)


def test_a_folder_and_a_url_hold_files_of_one_format(tmp_path):
    store = RemoteStore(f"file://{tmp_path}/kept", {"model": "m"}, new=True)
    store.put(key_for(1), kv_of(1))
    assert same(FolderStore(tmp_path / "kept", {"model": "m"}).get(key_for(1)), kv_of(1))
    FolderStore(tmp_path / "kept").put(key_for(2), kv_of(2))
    assert same(store.get(key_for(2)), kv_of(2)) and block_file.SUFFIX == ".safetensors"

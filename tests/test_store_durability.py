"""What a folder of cached blocks has acknowledged is there after a crash; many may write to it at one time."""

import os
import resource
from pathlib import Path

import pytest
from forked import ended, forked

from tests.store_blocks import key_for, kv_of, same
from workbench.core.errors import BadInput
from workbench.core.utils import files
from workbench.core.utils.files import remove_leftovers, write_text
from workbench.store import FolderStore, MemoryStore
from workbench.store.files import scrub

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def trace(monkeypatch):
    """What is done to files, in order, as (what, name of the file)."""
    done: list[tuple[str, str]] = []
    replace, fsync = Path.replace, os.fsync
    link = os.link

    def traced_replace(self, target):
        done.append(("rename", Path(target).name))
        return replace(self, target)

    def traced_fsync(opened):
        name = Path(os.readlink(f"/proc/self/fd/{opened}"))
        partial = files.PARTIAL.fullmatch(name.name)
        done.append(("fsync", name.name.split(".safetensors")[0].removeprefix(".") if partial else f"{name.name}/"))
        return fsync(opened)

    def traced_link(partial, target):
        done.append(("rename", Path(target).name))
        return link(partial, target)

    monkeypatch.setattr(Path, "replace", traced_replace)
    monkeypatch.setattr(os, "link", traced_link)
    monkeypatch.setattr(os, "fsync", traced_fsync)
    return done


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="names of open files are read from /proc")
def test_a_block_is_on_the_disk_before_it_has_a_name_and_its_name_before_put_returns(tmp_path, trace):
    store = FolderStore(tmp_path / "a", new=True)
    assert trace[0] == ("fsync", f"{tmp_path.name}/")  # the folder itself
    assert trace[-2:] == [("rename", "manifest.json"), ("fsync", "a/")]
    trace.clear()
    store.write("shard", {key_for(1): kv_of(1)})
    assert trace == [("fsync", "shard"), ("rename", "shard.safetensors"), ("fsync", "a/")]
    trace.clear()
    FolderStore(tmp_path / "a", durable=False).write("shard", {key_for(1): kv_of(1)})
    write_text(tmp_path / "notes.json", "{}")
    assert trace == [("rename", "shard.safetensors"), ("rename", "notes.json")]


def test_two_writers_of_one_key_leave_one_whole_file_and_readers_never_see_half_of_it(tmp_path):
    FolderStore(tmp_path / "a", new=True).put("key", kv_of(7, tokens=300))

    def write():
        store = FolderStore(tmp_path / "a", durable=False)
        for _ in range(60):
            store.put("key", kv_of(7, tokens=300))

    store = FolderStore(tmp_path / "a")
    writers, reads = [forked(write) for _ in range(2)], 0
    while writers:
        assert same(store.get("key"), kv_of(7, tokens=300))
        reads += 1
        if (done := os.waitpid(writers[-1], os.WNOHANG))[0]:
            assert done[1] == 0
            writers.pop()
    assert store.stats.hits == reads > 10 and not store.stats.misses
    assert sorted(p.name for p in (tmp_path / "a").iterdir()) == ["key.safetensors", "manifest.json"]
    assert scrub.verify(tmp_path / "a").whole


def test_processes_that_begin_one_folder_at_one_time_share_it(tmp_path):
    def begin():
        FolderStore(tmp_path / "a", {"model": "m"}, new=True).put(f"key-{os.getpid()}", kv_of(1))

    assert [ended(pid) for pid in [forked(begin) for _ in range(4)]] == [0] * 4
    assert len(FolderStore(tmp_path / "a", {"model": "m"})) == 4


def test_a_store_finds_what_another_process_puts_later_and_replaces(tmp_path):
    store, other = FolderStore(tmp_path / "a", new=True), FolderStore(tmp_path / "a")
    assert store.get("key") is None and store.why("key").reason == "never seen"
    other.put("key", kv_of(1))
    assert same(store.get("key"), kv_of(1))
    other.put("key", kv_of(2, tokens=9))
    assert same(store.get("key"), kv_of(2, tokens=9))
    (tmp_path / "a" / "key.safetensors").unlink()
    assert store.get("key") is None
    assert str(store.why("key")) == "evicted: key.safetensors was deleted"
    other.put("key", kv_of(3))
    assert same(store.get("key"), kv_of(3))
    assert store.stats.reasons == {"never seen": 1, "evicted": 1}


def test_a_full_disk_is_one_sentence_and_nothing_is_left_half_written(tmp_path):
    store = FolderStore(tmp_path / "a", new=True)
    store.put("small", kv_of(1))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))  # a file that grows over it cannot be written
    try:
        with pytest.raises(BadInput, match=r"large\.safetensors cannot be written: .*; nothing is left of it"):
            store.put("large", kv_of(2, tokens=100_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert sorted(p.name for p in (tmp_path / "a").iterdir()) == ["manifest.json", "small.safetensors"]
    assert same(store.get("small"), kv_of(1)) and store.get("large") is None
    store.put("large", kv_of(2, tokens=100))
    assert len(FolderStore(tmp_path / "a")) == 2


def test_only_what_nobody_writes_any_more_is_removed_when_a_folder_is_opened(tmp_path):
    store = FolderStore(tmp_path / "a", new=True)
    gone = forked(lambda: None)
    assert ended(gone) == 0
    names = {
        f".k.safetensors.{files.HOST}-{gone}-00000000": False,
        f".k.safetensors.{gone}": False,  # of earlier versions
        f".k.safetensors.{files.HOST}-{os.getpid()}-00000000": True,
        f".k.safetensors.{'0' * 8}-{gone}-00000000": True,  # of another host
        ".k.safetensors.mine": True,
    }
    for name in names:
        (store.folder / name).write_text("half")
    old = store.folder / f".old.safetensors.{'0' * 8}-{gone}-00000000"
    old.write_text("half")
    os.utime(old, (0, 0))
    FolderStore(tmp_path / "a")
    assert {p.name for p in store.folder.glob(".*")} == {name for name, stays in names.items() if stays}
    assert remove_leftovers(store.folder, ".json") == []


def test_a_folder_that_was_begun_by_a_process_that_was_killed_is_begun_again(tmp_path):
    (tmp_path / "a").mkdir()
    gone = forked(lambda: None)
    ended(gone)
    (tmp_path / "a" / f".manifest.json.{files.HOST}-{gone}-00000000").write_text("{")
    FolderStore(tmp_path / "a", new=True)
    assert [p.name for p in (tmp_path / "a").iterdir()] == ["manifest.json"]


def test_memory_over_a_folder_counts_a_block_that_another_process_deletes_as_evicted(tmp_path):
    store = FolderStore(tmp_path / "a", new=True)
    store.put(key_for(1), kv_of(1))
    memory = MemoryStore(behind=store)
    next((tmp_path / "a").glob("*.safetensors")).unlink()
    assert memory.get(key_for(1)) is None and memory.stats.reasons == {"evicted": 1}

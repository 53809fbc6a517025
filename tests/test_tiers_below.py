"""Tiers that lie in stores: disks that are full or fail, files that come and go, blocks on their way, budgets."""

from threading import Event as Signal
from threading import Thread

import pytest
import torch

from tests.random_models import block_of, model_of
from tests.tier_cases import Shelf, kv_of, two
from workbench.core.errors import BadInput
from workbench.engine.encoding import encode
from workbench.store import FolderStore, MemoryStore, key_of
from workbench.store.remote import RemoteStore
from workbench.store.tiering.tier import HostTier, StoreTier
from workbench.store.tiering.tiered_store import TieredStore


def test_a_disk_that_is_full_costs_an_encoding_and_no_answer():
    store = two(16)
    store.tiers[1].store.broken = True
    for key in "ab":
        store.put(key, kv_of(1))
    assert store.get("b") is not None and store.get("a") is None
    assert "no space left" in store.recent[-1].detail


def test_a_disk_that_cannot_be_written_to_keeps_what_it_holds():
    store = two(16, 16)
    store.put("a", kv_of(1))
    store.put("b", kv_of(1))
    store.tiers[1].store.broken = True
    store.put("c", kv_of(1))
    assert [store.where(key) for key in "abc"] == ["disk", None, "host"] and store.get("a") is not None


def test_a_budget_smaller_than_a_block_is_one_clear_error_and_nothing_is_written():
    store = two(16, 32)
    with pytest.raises(BadInput, match=r"a block of 48 bytes is larger than every budget \(host 16, disk 32 bytes\)"):
        store.put("a", kv_of(3))
    store.put("b", kv_of(2))
    assert store.where("a") is None and store.where("b") == "disk"


def test_a_folder_that_holds_more_than_its_budget_is_refused_and_left_alone():
    shelf = Shelf()
    shelf.put("a", kv_of(2))
    with pytest.raises(BadInput, match="disk holds 32 bytes of blocks already"):
        StoreTier(shelf, 16)
    with pytest.raises(BadInput, match="removes no blocks"):
        StoreTier(MemoryStore(), 16)
    assert list(shelf) == ["a"]


@pytest.mark.parametrize("options", [{"write": "never"}, {"loaders": 0}])
def test_options_are_checked(options):
    with pytest.raises(BadInput, match=next(iter(options))):
        two(16, **options)
    with pytest.raises(BadInput, match="each with its own name"):
        TieredStore([HostTier(1), HostTier(1)])


class Slow(Shelf):
    """Reads wait until they are let go."""

    def __init__(self):
        super().__init__()
        self.reads, self.begun, self.go = 0, Signal(), Signal()

    def get(self, key):
        self.reads += 1
        self.begun.set()
        assert self.go.wait(10)
        return super().get(key)


def test_a_block_on_its_way_is_read_once_and_missed_by_those_who_do_not_wait():
    shelf = Slow()
    shelf.held["a"], shelf.held["b"] = kv_of(1, 3), kv_of(2)
    store = TieredStore([HostTier(64), StoreTier(shelf, name="remote")])
    (first,) = store.prefetch(["a"])
    assert shelf.begun.wait(10)
    assert store.find("a", wait=False) is None and store.recent[-1].reason == "still loading"
    got = []
    other = Thread(target=lambda: got.append(store.get("a")))
    other.start()
    store.put("c", kv_of(1))
    assert store.get("c") is not None, "a hit in memory waits for no read"
    shelf.go.set()
    other.join(10)
    assert first.result(10).tier == "remote" and len(got[0]) == 1 and shelf.reads == 1
    assert store.where("a") == "host"
    store.close()


def test_a_read_that_fails_fails_those_who_asked_and_nobody_later():
    class Failing(Shelf):
        def get(self, key):
            raise TimeoutError("the remote is silent")

    store = TieredStore([HostTier(64), StoreTier(Failing(), name="remote")])
    with pytest.raises(TimeoutError):
        store.get("a")
    store.put("a", kv_of(1))
    assert store.get("a") is not None


def test_a_folder_is_a_tier_whose_files_come_and_go(tmp_path):
    model, blocks = model_of(), [block_of(4, seed) for seed in range(3)]
    kvs = [encode(model, block).lock() for block in blocks]
    keys = [key_of("m", torch.float32, block) for block in blocks]
    size = kvs[0].nbytes

    def opened():
        return StoreTier(FolderStore(tmp_path / "blocks", {"model": "m"}, new=True), 2 * size)

    store = TieredStore([HostTier(size), opened()])
    for key, kv in zip(keys, kvs, strict=True):
        store.put(key, kv)
    assert [store.where(key) for key in keys] == ["disk", "disk", "host"] and store.flush() == 0, "it is full"
    assert store.get(keys[1]) is not None, "it comes up, and the one above goes down, where the coldest makes room"
    assert [store.where(key) for key in keys] == [None, "host", "disk"]
    assert store.why(keys[0]).reason == "evicted"
    assert len(list((tmp_path / "blocks").glob("*.safetensors"))) == 2
    again = TieredStore([HostTier(size), opened()])
    found = again.find(keys[2])
    assert found.tier == "disk" and torch.equal(found.kv.keys[1], kvs[2].keys[1])
    other = key_of("m", torch.bfloat16, blocks[2])
    assert again.get(other) is None and again.recent[-1].reason == "other dtype"


def test_a_remote_is_the_last_tier(tmp_path):
    model, blocks = model_of(), [block_of(4, seed) for seed in range(4)]
    kvs = [encode(model, block).lock() for block in blocks]
    keys = [key_of("m", torch.float32, block) for block in blocks]
    url, kind = f"file://{tmp_path}/remote", {"model": "m"}

    def opened():
        folder = FolderStore(tmp_path / "disk", kind, new=True)
        remote = RemoteStore(url, kind, new=True)
        size = kvs[0].nbytes
        return TieredStore([HostTier(size), StoreTier(folder, size), StoreTier(remote, 1 << 20, "remote")])

    store = opened()
    for key, kv in zip(keys, kvs, strict=True):
        store.put(key, kv)
    assert [store.where(key) for key in keys] == ["remote", "remote", "disk", "host"]
    assert store.find(keys[0]).tier == "remote" and store.where(keys[0]) == "host"
    later = opened()
    found = later.find(keys[1])
    assert found.tier == "remote" and torch.equal(found.kv.values[2], kvs[1].values[2])
    assert later.find(keys[1]).tier == "host"


def test_a_file_of_several_blocks_is_written_without_the_one_that_is_removed(tmp_path):
    folder = FolderStore(tmp_path / "blocks", {"model": "m"}, new=True)
    folder.write("many", {"a": kv_of(2, 1), "b": kv_of(3, 2)})
    assert folder.size_of("b") == 48 and folder.size_of("x") == 0
    folder.remove("a")
    folder.remove("a")
    assert folder.get("a") is None and folder.why("a").reason == "evicted" and len(folder.get("b")) == 3
    folder.remove("b")
    assert not list((tmp_path / "blocks").glob("*.safetensors")) and len(folder) == 0


def test_a_block_of_a_store_that_removes_none_is_not_dropped():
    class Kept:
        """A store without `remove`."""

        def __init__(self):
            self.held = {}

        def get(self, key):
            return self.held.get(key)

        def put(self, key, kv):
            self.held[key] = kv

    tier = StoreTier(Kept(), name="kept")
    kv = kv_of(4)
    tier.keep("a", kv)
    with pytest.raises(BadInput, match="Kept removes no blocks: a stays"):
        tier.drop("a")
    assert tier.get("a") is kv

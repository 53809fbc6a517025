"""Blocks that are pages of their file."""

from tests.store_blocks import kv_of, same
from workbench.store import FolderStore, MemoryStore
from workbench.store.files.mapped import POPULATES, MappedKV, owned
from workbench.store.tiering.tier import HostTier


def test_mapped_blocks_are_verified_as_copied_ones_and_writing_to_them_stays_in_this_process(tmp_path):
    FolderStore(tmp_path / "a", new=True).write(
        "shard", {name: kv_of(seed, 900) for seed, name in ((1, "a"), (2, "b"))}
    )
    path, store = tmp_path / "a" / "shard.safetensors", FolderStore(tmp_path / "a", mapped=True)
    whole = path.read_bytes()
    kv = store.get("a")
    assert same(kv, kv_of(1, 900))
    kv.keys[0][0, 0, 0] += 1
    assert path.read_bytes() == whole and same(store.get("a"), kv_of(1, 900))
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert store.get("b") is None and "values of layer 1" in store.why("b").detail
    path.write_bytes(whole[: len(whole) // 2])
    assert store.get("a") is None and "and the file at" in store.why("a").detail


def test_pages_of_a_file_are_handed_out_and_who_keeps_a_block_copies_it(tmp_path):
    store = FolderStore(tmp_path / "a", new=True)
    store.put("key", kv_of(1))
    assert isinstance(store.get("key"), MappedKV) == store.mapped == POPULATES
    assert not isinstance(FolderStore(tmp_path / "a", mapped=False).get("key"), MappedKV)
    memory, tier = MemoryStore(behind=FolderStore(tmp_path / "a", mapped=True)), HostTier()
    mapped = FolderStore(tmp_path / "a", mapped=True).get("key")
    tier.keep("key", tier.made(mapped))
    for kept in (memory.get("key"), memory.get("key"), tier.get("key"), owned(mapped)):
        assert not isinstance(kept, MappedKV) and kept.read_only and same(kept, kv_of(1))
    assert owned(kept) is kept


def test_pages_that_were_handed_out_outlast_a_file_that_is_replaced(tmp_path):
    store = FolderStore(tmp_path / "a", new=True)
    store.write("shard", {"key": kv_of(1, 900)})
    held = FolderStore(tmp_path / "a", mapped=True).get("key")
    store.write("shard", {"key": kv_of(2, 900)})
    assert same(held, kv_of(1, 900)) and same(store.get("key"), kv_of(2, 900))
    store.remove("key")
    assert same(held, kv_of(1, 900))

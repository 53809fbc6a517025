"""Blocks of a folder read straight into the order in which a GPU takes them."""

import pytest
import torch

from tests.random_models import block_of
from tests.store_blocks import same
from workbench.core.kv import KV
from workbench.store import FolderStore, HostTier, StoreTier, TieredStore, key_of
from workbench.store.files.packed import PackedKV, layers_of, pack


def kv_of(seed, tokens=3, widths=(2, 2), dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    keys, values = ([torch.randn(1, tokens, w, generator=generator).to(dtype) for w in widths] for _ in range(2))
    return KV(keys, values, seed)


def folder(path, **options):
    return FolderStore(path / "blocks", new=True, pinned=True, **options)


@pytest.mark.parametrize("widths", [(2, 2), (2, 6, 4), (130,)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_block_is_read_as_it_would_be_packed(tmp_path, widths, dtype):
    store, kv = folder(tmp_path), kv_of(1, widths=widths, dtype=dtype)
    store.write("several", {"a": kv, "b": kv_of(2, widths=widths, dtype=dtype)})
    read, packed = store.get("a"), pack(kv)
    assert isinstance(read, PackedKV) and read.read_only and same(read, kv)
    assert read.layers == packed.layers == layers_of(kv) and read.flat.shape == packed.flat.shape
    for begin, end in read.layers:
        assert torch.equal(read.flat[begin:end], packed.flat[begin:end])


@pytest.mark.parametrize("at", [1, 20, 40])
def test_a_flipped_bit_is_a_miss_that_names_the_tensor(tmp_path, at):
    store, key = folder(tmp_path), key_of("model", torch.float32, block_of(3), [])
    store.put(key, kv_of(0))
    path = store.file_of(key)
    content = bytearray(path.read_bytes())
    content[-at] ^= 4
    path.write_bytes(content)
    assert store.get(key) is None and "values of layer" in store.miss_reason(key).detail
    store.put(key, kv_of(0))
    assert same(store.get(key), kv_of(0))


def test_blocks_of_several_dtypes_are_read_as_ever(tmp_path):
    store, kv = folder(tmp_path), kv_of(1)
    kv.keys[0], kv.values[0] = kv.keys[0].double(), kv.values[0].double()
    store.put("a", kv)
    assert same(store.get("a"), kv)


def test_a_tier_of_page_locked_memory_keeps_what_was_read_without_a_copy(tmp_path):
    store = folder(tmp_path)
    for n in range(4):
        store.put(f"{n}", kv_of(n))
    host = HostTier(1 << 20, pinned=True)
    tiers = TieredStore([host, StoreTier(store)], loaders=3)
    found = list(tiers.find_all([f"{n}" for n in range(5)]))
    assert [each and each.tier for each in found] == ["disk"] * 4 + [None]
    assert all(same(each.kv, kv_of(n)) for n, each in enumerate(found[:4]))
    assert all(host.get(f"{n}") is found[n].kv for n in range(4))
    assert [each.tier for each in tiers.find_all(["1", "0"])] == ["host"] * 2
    assert tiers.stats.hits == 6 and tiers.stats.misses == 1
    tiers.close()


def test_what_is_given_up_is_not_read(tmp_path):
    tiers = TieredStore([HostTier(1 << 20), StoreTier(folder(tmp_path))], loaders=1)
    for key in "abc":
        tiers.tiers[1].store.put(key, kv_of(1))
    found = tiers.find_all("abc")
    next(found)
    found.close()
    tiers.close()
    assert tiers.stats.hits <= 3

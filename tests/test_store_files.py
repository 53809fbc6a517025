"""Files of cached blocks: what is written, what others read, and files of other versions and of something else."""

import json
import re

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.refusals import refused
from tests.store_blocks import folder_with, key_for, kv_of, one_block, rewritten, same
from workbench.core.kv import KV
from workbench.store import FolderStore, MemoryStore
from workbench.store.files import file_header, quarantine, scrub
from workbench.store.files.block_file import POPULATES, MappedKV, unmapped_copy
from workbench.store.tiering.tier import HostTier


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float8_e5m2])
def test_values_that_are_no_numbers_are_never_kept(tmp_path, value, dtype):
    kv = KV([x.to(dtype) for x in kv_of(1).keys], [x.to(dtype) for x in kv_of(1).values], 1)
    store = FolderStore(tmp_path / "a", new=True)
    store.put("key", kv)
    kv.values[1][0, 2, 1] = value
    refused("the values of layer 1 of block key hold NaN or infinity: such a block is not", store.put, "key", kv)
    assert store.get("key") is not None and len(list((tmp_path / "a").iterdir())) == 2


@pytest.mark.parametrize("mapped", [False, True])
def test_blocks_of_layers_of_several_widths_and_dtypes_are_read_as_they_were_written(tmp_path, mapped):
    def drawn(layer: int, seed: int) -> torch.Tensor:
        dtype = (torch.float32, torch.bfloat16, torch.float8_e4m3fn)[layer]
        return torch.randn(1, 3, 2 + layer, generator=torch.Generator().manual_seed(seed)).to(dtype)

    blocks = {f"b{i}": KV([drawn(n, i) for n in range(3)], [drawn(n, -i) for n in range(3)], i) for i in (1, 2)}
    FolderStore(tmp_path / "a", new=True).write("shard", blocks)
    store = FolderStore(tmp_path / "a", mapped=mapped)
    for key, kv in blocks.items():
        found = store.get(key)
        pairs = zip(found.tensors(), kv.tensors(), strict=True)
        assert all(a.dtype == b.dtype and torch.equal(a.float(), b.float()) for a, b in pairs)
        assert found.start == kv.start and found.read_only


def test_a_file_without_checksums_is_a_miss_that_says_so(tmp_path):
    path = folder_with(tmp_path / "a", {key_for(1): kv_of(1)}) / "shard.safetensors"
    save_file(load_file(path), path, {"starts": json.dumps({key_for(1): 1}), "layers": "2"})
    store = FolderStore(tmp_path / "a")
    assert store.get(key_for(1)) is None and "checksum of its header is wrong" in str(store.miss_reason(key_for(1)))


def uneven() -> KV:
    """KV whose layers have not the same tokens, which no `KV` is made of."""
    kv = kv_of(1)
    kv.keys[1] = kv_of(1, 2).keys[1]
    return kv


@pytest.mark.parametrize(
    "wrong, says",
    [
        (KV(kv_of(1).keys, kv_of(1).values, 7), "its start is 7, and its key says 1"),
        (KV([x.half() for x in kv_of(1).keys], [x.half() for x in kv_of(1).values], 1), "its dtype is torch.float16"),
        (kv_of(1, tokens=2), "its tokens is 2, and its key says 3"),
        (uneven(), r"its layers have \[2, 3\] tokens"),
    ],
)
def test_what_contradicts_its_key_is_not_served_whatever_its_checksum(tmp_path, wrong, says):
    store = FolderStore(folder_with(tmp_path / "a", {key_for(1): wrong}))
    assert store.get(key_for(1)) is None
    assert store.miss_reason(key_for(1)).detail.startswith("shard.safetensors: ")
    assert re.search(says, store.miss_reason(key_for(1)).detail)


def test_a_checksum_of_a_block_and_those_of_its_tensors_must_agree(tmp_path):
    store = FolderStore(tmp_path / "a", new=True)
    store.put("key", kv_of(1))
    rewritten(tmp_path / "a" / "key.safetensors", lambda entries: entries.update(wholes='{"key": 7}'))
    store = FolderStore(tmp_path / "a")
    assert store.get("key") is None and "checksum of the block is wrong" in str(store.miss_reason("key"))


@pytest.mark.parametrize(
    "entries, says",
    [
        ({"starts": "{}"}, "not those of its blocks"),
        ({"starts": '{"x": 0}'}, "not those of its blocks"),
        ({"starts": '{"x": []}', "layers": "many"}, "header is broken"),
    ],
)
def test_a_header_that_says_something_else_than_its_tensors_is_damaged(tmp_path, entries, says):
    FolderStore(tmp_path / "a", new=True).put("key", kv_of(1))
    rewritten(tmp_path / "a" / "key.safetensors", lambda written: written.update(entries))
    (problem,) = FolderStore(tmp_path / "a").set_aside.values()
    assert problem.kind == "damaged" and says in problem.detail


@pytest.mark.parametrize(
    "tensors, metadata, kind, says",
    [
        ({"x": torch.zeros(2)}, None, "foreign", "holds no cached blocks"),
        ({"x": torch.zeros(1, 2, 2)}, {"starts": '{"x": 0}', "layers": "1"}, "damaged", "checksum of its header"),
    ],
)
def test_files_of_something_else_are_set_aside(tmp_path, tensors, metadata, kind, says):
    one_block(tmp_path / "a")
    save_file(tensors, tmp_path / "a" / "other.safetensors", metadata)
    store = FolderStore(tmp_path / "a")
    (problem,) = store.set_aside.values()
    assert problem.kind == kind and same(store.get(key_for(1)), kv_of(1)) and len(store) == 1
    assert re.search(says, problem.detail)


def test_a_file_of_a_later_version_is_named_never_deleted_and_set_aside_where_it_is_replaced(tmp_path, monkeypatch):
    monkeypatch.setattr(file_header, "FORMAT", 2)
    _, path = one_block(tmp_path / "a")
    monkeypatch.undo()
    later = path.read_bytes()
    store = FolderStore(tmp_path / "a")
    assert store.get(key_for(1)) is None and store.miss_reason(key_for(1)).reason == "other format version"
    found = scrub.verify(tmp_path / "a", repair=True)
    assert found.intact and [finding.kind for finding in found.findings] == ["later"] and not found.removed
    assert list((tmp_path / "a").glob("*.safetensors")) == [path] and path.read_bytes() == later
    FolderStore(tmp_path / "a").put(key_for(1), kv_of(1))
    assert same(FolderStore(tmp_path / "a").get(key_for(1)), kv_of(1))
    assert (tmp_path / "a" / "set_aside" / path.name).read_bytes() == later
    assert quarantine.reasons(tmp_path / "a")[path.name].startswith("its format is 2, and this version reads 1")


def test_a_block_whose_keys_and_values_do_not_agree_is_a_miss(tmp_path):
    kv = kv_of(1)
    kv.values[1] = kv.values[1].repeat(2, 1, 1)
    store = FolderStore(folder_with(tmp_path / "a", {"key": kv}))
    assert store.get("key") is None and "must agree" in store.miss_reason("key").detail


# --- Blocks that are pages of their file
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
    assert store.get("b") is None and "values of layer 1" in store.miss_reason("b").detail
    path.write_bytes(whole[: len(whole) // 2])
    assert store.get("a") is None and "and the file at" in store.miss_reason("a").detail


def test_pages_of_a_file_are_handed_out_and_who_keeps_a_block_copies_it(tmp_path):
    store = FolderStore(tmp_path / "a", new=True)
    store.put("key", kv_of(1))
    assert isinstance(store.get("key"), MappedKV) == store.mapped == POPULATES
    assert not isinstance(FolderStore(tmp_path / "a", mapped=False).get("key"), MappedKV)
    memory, tier = MemoryStore(behind=FolderStore(tmp_path / "a", mapped=True)), HostTier()
    mapped = FolderStore(tmp_path / "a", mapped=True).get("key")
    tier.keep("key", tier.to_stored(mapped))
    for kept in (memory.get("key"), memory.get("key"), tier.get("key"), unmapped_copy(mapped)):
        assert not isinstance(kept, MappedKV) and kept.read_only and same(kept, kv_of(1))
    assert unmapped_copy(kept) is kept


def test_pages_that_were_handed_out_outlast_a_file_that_is_replaced(tmp_path):
    store = FolderStore(tmp_path / "a", new=True)
    store.write("shard", {"key": kv_of(1, 900)})
    held = FolderStore(tmp_path / "a", mapped=True).get("key")
    store.write("shard", {"key": kv_of(2, 900)})
    assert same(held, kv_of(1, 900)) and same(store.get("key"), kv_of(2, 900))
    store.remove("key")
    assert same(held, kv_of(1, 900))

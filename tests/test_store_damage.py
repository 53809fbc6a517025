"""A flipped bit anywhere in a folder of cached blocks is a miss that says so; never a wrong answer, never an error."""

import json
import os
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from tests.random_models import block_of, model_of
from workbench.core.errors import BadInput
from workbench.core.kv import KV
from workbench.store import FolderStore, MemoryStore, aside, block_file, fetch, file_header, fingerprint, key_of, scrub
from workbench.store.mapped import POPULATES, MappedKV, owned
from workbench.store.tiers import HostTier

CLASSES = ("length", "tensor table", "metadata", "keys", "values")


def kv_of(seed: int, tokens: int = 3, layers: int = 2) -> KV:
    generator = torch.Generator().manual_seed(seed)
    run = [torch.randn(1, tokens, 2, generator=generator) for _ in range(2 * layers)]
    return KV(run[:layers], run[layers:], seed)


def same(one: KV | None, other: KV) -> bool:
    pairs = zip(one.tensors(), other.tensors(), strict=True) if one else ()
    return one is not None and one.start == other.start and all(torch.equal(a, b) for a, b in pairs)


def key_for(seed: int, tokens: int = 3) -> str:
    """A key of a block that begins at `seed`, as `kv_of(seed)` does."""
    return key_of("model", torch.float32, block_of(tokens, seed), [block_of(seed, 99)] if seed else [])


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A folder with one file of two blocks, and the bytes of that file."""
    store = FolderStore(tmp_path_factory.mktemp("damage") / "folder", {"model": "m"}, new=True)
    store.write("shard", {key_for(seed): kv_of(seed) for seed in (1, 2)})
    path = store.folder / "shard.safetensors"
    return path, path.read_bytes()


def spans(whole: bytes) -> dict[str, range]:
    """Which bytes of a file are of which class; of keys and values, those of the first block in the file."""
    length = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + length])
    begin = whole.index(b'"__metadata__"')
    end = whole.index(b'},"', begin)
    places = {part: [] for part in "kv"}
    for name, tensor in header.items():
        if name != "__metadata__":
            places[name.split(".")[1]].append([8 + length + offset for offset in tensor["data_offsets"]])
    tensors = {name: range(*min(places[part])) for name, part in (("keys", "k"), ("values", "v"))}
    return {
        "length": range(8),
        "metadata": range(begin, end),
        "tensor table": range(end, 8 + length),
        **tensors,
    }


def served_or_missed(path: Path, changed: bytes) -> list[bool]:
    """Write `changed` in place of a file, and hold every look-up to the rule; return what was found."""
    path.write_bytes(changed)
    store, found = FolderStore(path.parent), []
    for seed in (1, 2):
        kv = store.get(key_for(seed))
        assert kv is None or same(kv, kv_of(seed))
        if kv is None:
            assert store.why(key_for(seed)).reason == "damaged" and store.why(key_for(seed)).detail
        found.append(kv is not None)
    assert store.stats.reasons.get("damaged", 0) == store.stats.misses == found.count(False)
    return found


@pytest.mark.parametrize("kind", CLASSES)
def test_a_flipped_bit_of_any_class_of_bytes_is_a_miss(kept, kind, caplog):
    path, whole = kept
    places = spans(whole)[kind]
    stride = max(1, len(places) // 120)  # a prime number of bits further each time
    for i in range(0, len(places), stride):
        changed = bytearray(whole)
        changed[places[i]] ^= 1 << (i * 3 % 8)
        found = served_or_missed(path, bytes(changed))
        assert found.count(False) == (1 if kind in ("keys", "values") else 2), (kind, i)
    path.write_bytes(whole)
    assert served_or_missed(path, whole) == [True, True]


@given(data=st.data())
@settings(max_examples=150)
def test_any_damage_is_a_miss_and_nothing_else(kept, data):
    path, whole = kept
    change = data.draw(st.sampled_from(("bits", "cut", "longer", "zeros", "moved")))
    at = data.draw(st.integers(0, len(whole) - 1))
    count = data.draw(st.integers(1, 64))
    changed = bytearray(whole)
    if change == "bits":
        for place in data.draw(st.lists(st.integers(0, len(whole) - 1), min_size=1, max_size=4, unique=True)):
            changed[place] ^= 1 << data.draw(st.integers(0, 7))
    elif change == "cut":
        del changed[at:]
    elif change == "longer":
        changed += bytes(count)
    elif change == "zeros":
        changed[at : at + count] = bytes(len(changed[at : at + count]))
    else:
        changed[at : at + count] = changed[:count]
    found = served_or_missed(path, bytes(changed))
    assert bytes(changed) == whole or not all(found)


def test_a_damaged_block_is_encoded_again_and_its_file_replaced_with_its_neighbours_in_it(tmp_path, caplog):
    model = model_of()
    blocks = [block_of(5, seed) for seed in range(3)]
    keys = [key_of(fingerprint(model), model.dtype, block) for block in blocks]
    store = FolderStore(tmp_path / "a", new=True)
    store.write("shard", dict(zip(keys, fetch(model, blocks, MemoryStore()), strict=True)))
    path = tmp_path / "a" / "shard.safetensors"
    whole = path.read_bytes()
    place = block_file.contents(path.open("rb")).tensors[f"{keys[1]}.v.1"].begin
    path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
    memory = MemoryStore(behind=FolderStore(tmp_path / "a"))
    found = fetch(model, blocks, memory)
    assert memory.stats.reasons == {"damaged": 1} and (memory.stats.hits, memory.stats.repaired) == (2, 1)
    assert str(memory.recent[-1]) == "damaged: shard.safetensors: the checksum of the values of layer 1 is wrong"
    assert "the block is encoded again" in caplog.text
    again = FolderStore(tmp_path / "a")
    assert all(same(again.get(key), kv) for key, kv in zip(keys, found, strict=True)) and again.stats.misses == 0
    assert {p.name for p in (tmp_path / "a").glob("*.*")} == {"manifest.json", "shard.safetensors"}
    assert aside.reasons(tmp_path / "a") == {"shard.safetensors": "the checksum of the values of layer 1 is wrong"}
    kept = tmp_path / "a" / "set_aside" / "shard.safetensors"
    assert kept.read_bytes()[place] == whole[place] ^ 1, "the damaged file is still there to be looked at"


def test_what_is_set_aside_under_one_name_stays_side_by_side_until_it_is_cleared(tmp_path):
    store, path = FolderStore(tmp_path / "a", new=True), tmp_path / "a" / f"{key_for(1)}.safetensors"
    for seed in (1, 2, 3):
        path.write_bytes(bytes(seed))
        assert FolderStore(tmp_path / "a").get(key_for(1)) is None
        store = FolderStore(tmp_path / "a")
        store.put(key_for(1), kv_of(1))
        assert same(store.get(key_for(1)), kv_of(1))
    assert sorted(aside.reasons(tmp_path / "a")) == [path.name, f"{path.name}.1", f"{path.name}.2"]
    assert aside.clear(tmp_path / "a") > 6 and not aside.reasons(tmp_path / "a")
    assert same(FolderStore(tmp_path / "a").get(key_for(1)), kv_of(1))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float8_e5m2])
def test_values_that_are_no_numbers_are_never_kept(tmp_path, value, dtype):
    kv = KV([x.to(dtype) for x in kv_of(1).keys], [x.to(dtype) for x in kv_of(1).values], 1)
    store = FolderStore(tmp_path / "a", new=True)
    store.put("key", kv)
    kv.values[1][0, 2, 1] = value
    with pytest.raises(BadInput, match="the values of layer 1 of block key hold NaN or infinity: such a block is not"):
        store.put("key", kv)
    assert store.get("key") is not None and len(list((tmp_path / "a").iterdir())) == 2


def test_values_that_are_no_numbers_in_a_file_without_checksums_are_a_miss(tmp_path):
    kv = kv_of(1)
    kv.keys[0][0, 0, 0] = float("nan")
    store = FolderStore(earlier_folder(tmp_path / "old", {key_for(1): kv, key_for(2): kv_of(2)}))
    assert store.get(key_for(1)) is None and same(store.get(key_for(2)), kv_of(2))
    assert store.why(key_for(1)).detail == "shard.safetensors: the keys of layer 0 hold NaN or infinity"


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


def test_a_damaged_file_of_one_block_is_replaced_when_the_block_is_put(tmp_path):
    store = FolderStore(tmp_path / "a", new=True)
    key, path = key_for(1), tmp_path / "a" / f"{key_for(1)}.safetensors"
    store.put(key, kv_of(1))
    path.write_bytes(b"nothing")
    store = FolderStore(tmp_path / "a")
    assert key not in store and store.get(key) is None and store.why(key).reason == "damaged"
    store.put(key, kv_of(1))
    assert same(store.get(key), kv_of(1)) and same(FolderStore(tmp_path / "a").get(key), kv_of(1))


def test_where_nothing_can_be_written_a_damaged_block_is_still_no_error(tmp_path, monkeypatch, caplog):
    store = FolderStore(tmp_path / "a", new=True)
    store.put(key_for(1), kv_of(1))
    path = tmp_path / "a" / f"{key_for(1)}.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    memory = MemoryStore(behind=FolderStore(tmp_path / "a"))
    assert memory.get(key_for(1)) is None

    def refuse(*given):
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(block_file, "save", refuse)
    memory.put(key_for(1), kv_of(1))
    assert same(memory.get(key_for(1)), kv_of(1)) and memory.stats.repaired == 0
    assert "is not replaced" in caplog.text and "Read-only file system" in caplog.text


def earlier_file(path: Path, blocks: dict[str, KV]) -> None:
    """Write a file as earlier versions did."""
    tensors = {}
    for key, kv in blocks.items():
        for part, run in (("k", kv.keys), ("v", kv.values)):
            tensors |= {f"{key}.{part}.{i}": x for i, x in enumerate(run)}
    starts = {key: kv.start for key, kv in blocks.items()}
    save_file(tensors, path, {"starts": json.dumps(starts), "layers": str(len(kv.keys))})


def earlier_folder(folder: Path, blocks: dict[str, KV]) -> Path:
    folder.mkdir()
    (folder / "manifest.json").write_text(json.dumps({"format": 2, "model": "m"}, indent=1))
    earlier_file(folder / "shard.safetensors", blocks)
    return folder


def test_folders_of_earlier_versions_are_read_and_counted_as_unchecked(tmp_path):
    folder = earlier_folder(tmp_path / "old", {key_for(seed): kv_of(seed) for seed in (1, 2)})
    store = FolderStore(folder, {"model": "m"})
    assert all(same(store.get(key_for(seed)), kv_of(seed)) for seed in (1, 2))
    memory = MemoryStore(behind=store)
    assert memory.get(key_for(1)) is not None
    assert (store.stats.hits, store.stats.unchecked, memory.stats.unchecked) == (3, 3, 3)
    found = scrub.verify(folder)
    assert found.whole and (found.blocks, found.unchecked) == (2, 2)


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
def test_what_contradicts_its_key_is_not_served_even_without_a_checksum(tmp_path, wrong, says):
    store = FolderStore(earlier_folder(tmp_path / "old", {key_for(1): wrong}))
    assert store.get(key_for(1)) is None
    assert store.why(key_for(1)).detail.startswith("shard.safetensors: ")
    with pytest.raises(AssertionError, match=says):
        raise AssertionError(store.why(key_for(1)).detail)


def rewritten(path: Path, change) -> None:
    """Write a file with other metadata, whose own checksum is right."""
    whole = path.read_bytes()
    length = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + length])
    entries = {name: text for name, text in header["__metadata__"].items() if name != "header"}
    change(entries)
    header["__metadata__"] = entries | {"header": str(file_header.of_entries(entries))}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % 64)
    path.write_bytes(len(text).to_bytes(8, "little") + text + whole[8 + length :])


def test_files_with_checksums_of_tensors_only_are_read_and_verified(tmp_path):
    """So the first version with checksums wrote them."""
    store = FolderStore(tmp_path / "a", new=True)
    store.write("shard", {key_for(seed): kv_of(seed) for seed in (1, 2)})
    path = tmp_path / "a" / "shard.safetensors"
    rewritten(path, lambda entries: [entries.pop(name) for name in ("wholes", "table")])
    store = FolderStore(tmp_path / "a")
    assert all(same(store.get(key_for(seed)), kv_of(seed)) for seed in (1, 2)) and not store.stats.unchecked
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    assert store.get(key_for(2)) is None and "checksum of the values of layer 1 is wrong" in str(store.why(key_for(2)))


def test_a_checksum_of_a_block_and_those_of_its_tensors_must_agree(tmp_path):
    store = FolderStore(tmp_path / "a", new=True)
    store.put("key", kv_of(1))
    rewritten(tmp_path / "a" / "key.safetensors", lambda entries: entries.update(wholes='{"key": 7}'))
    store = FolderStore(tmp_path / "a")
    assert store.get("key") is None and "checksum of the block is wrong" in str(store.why("key"))


def test_new_files_are_safetensors_that_others_read(kept):
    path, whole = kept
    path.write_bytes(whole)
    assert torch.equal(load_file(path)[f"{key_for(2)}.v.1"], kv_of(2).values[1])


@pytest.mark.parametrize(
    "tensors, metadata, kind, says",
    [
        ({"x": torch.zeros(2)}, None, "foreign", "holds no cached blocks"),
        ({"x": torch.zeros(1, 2, 2)}, {"starts": "{}", "layers": "1"}, "damaged", "not those of its blocks"),
        ({"x": torch.zeros(1, 2, 2)}, {"starts": '{"x": []}', "layers": "many"}, "damaged", "header is broken"),
        ({"x": torch.zeros(1, 2, 2)}, {"starts": '{"x": 0}', "layers": "1"}, "damaged", "not those of its blocks"),
    ],
)
def test_files_of_something_else_are_set_aside(tmp_path, tensors, metadata, kind, says):
    store = FolderStore(tmp_path / "a", new=True)
    store.put(key_for(1), kv_of(1))
    save_file(tensors, tmp_path / "a" / "other.safetensors", metadata)
    store = FolderStore(tmp_path / "a")
    (problem,) = store.set_aside.values()
    assert problem.kind == kind and same(store.get(key_for(1)), kv_of(1)) and len(store) == 1
    with pytest.raises(AssertionError, match=says):
        raise AssertionError(problem.detail)


def test_files_of_a_later_version_are_named_and_never_deleted(tmp_path, monkeypatch):
    store = FolderStore(tmp_path / "a", new=True)
    monkeypatch.setattr(file_header, "FORMAT", 2)
    store.put(key_for(1), kv_of(1))
    monkeypatch.undo()
    store = FolderStore(tmp_path / "a")
    assert store.get(key_for(1)) is None and store.why(key_for(1)).reason == "other format version"
    found = scrub.verify(tmp_path / "a", repair=True)
    assert found.whole and [finding.kind for finding in found.findings] == ["later"] and not found.removed
    assert len(list((tmp_path / "a").glob("*.safetensors"))) == 1


def test_a_file_of_a_later_version_that_is_replaced_is_set_aside(tmp_path, monkeypatch):
    store = FolderStore(tmp_path / "a", new=True)
    monkeypatch.setattr(file_header, "FORMAT", 2)
    store.put(key_for(1), kv_of(1))
    monkeypatch.undo()
    path = next((tmp_path / "a").glob("*.safetensors"))
    later = path.read_bytes()
    FolderStore(tmp_path / "a").put(key_for(1), kv_of(1))
    assert same(FolderStore(tmp_path / "a").get(key_for(1)), kv_of(1))
    assert (tmp_path / "a" / "set_aside" / path.name).read_bytes() == later
    assert aside.reasons(tmp_path / "a")[path.name].startswith("its format is 2, and this version reads 1")


@pytest.mark.parametrize("text", ["[1, 2]", "7", "{", "", "\0\0", "null"])
def test_a_damaged_manifest_is_one_sentence_and_written_anew_by_who_knows_the_model(tmp_path, text):
    kind = {"model": "m", "dtype": "torch.float32"}
    store = FolderStore(tmp_path / "a", kind, new=True)
    store.put(key_for(1), kv_of(1))
    before = (tmp_path / "a" / "manifest.json").read_text()
    (tmp_path / "a" / "manifest.json").write_text(text)
    with pytest.raises(BadInput, match=r"manifest\.json is corrupt: .*; what names the model writes it anew"):
        FolderStore(tmp_path / "a")
    assert not scrub.verify(tmp_path / "a").whole
    assert same(FolderStore(tmp_path / "a", kind).get(key_for(1)), kv_of(1))
    assert (tmp_path / "a" / "manifest.json").read_text() == before and scrub.verify(tmp_path / "a").whole


def test_a_flipped_bit_of_a_manifest_serves_nothing_wrong(tmp_path):
    kind = {"model": "m"}
    store = FolderStore(tmp_path / "a", kind, new=True)
    store.put(key_for(1), kv_of(1))
    path = tmp_path / "a" / "manifest.json"
    whole = path.read_bytes()
    for i in range(len(whole)):
        path.write_bytes(whole[:i] + bytes([whole[i] ^ 1 << i % 8]) + whole[i + 1 :])
        for given_kind in (kind, None):
            try:
                assert same(FolderStore(tmp_path / "a", given_kind).get(key_for(1)), kv_of(1))
            except BadInput as problem:
                assert str(problem).count("\n") == 0


def test_blocks_can_be_verified_once_a_process(tmp_path, monkeypatch):
    counted, crc32 = [], block_file.crc32
    FolderStore(tmp_path / "a", new=True).put(key_for(1), kv_of(1))
    for verify, expected in (("always", 3), ("once", 1)):
        store = FolderStore(tmp_path / "a", verify=verify)
        monkeypatch.setattr(block_file, "crc32", lambda *given: counted.append(1) or crc32(*given))
        counted.clear()
        assert all(same(store.get(key_for(1)), kv_of(1)) for _ in range(3))
        assert len(counted) == expected
        monkeypatch.undo()
    path = tmp_path / "a" / f"{key_for(1)}.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"!")  # another file is verified again
    os.utime(path, (1, 1))
    assert store.get(key_for(1)) is None and store.why(key_for(1)).reason == "damaged"
    with pytest.raises(BadInput, match="verify is 'never': allowed are always, once"):
        FolderStore(tmp_path / "a", verify="never")


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


def test_a_block_of_an_earlier_version_whose_keys_and_values_do_not_agree_is_a_miss(tmp_path):
    kv = kv_of(1)
    kv.values[1] = kv.values[1].repeat(2, 1, 1)
    store = FolderStore(earlier_folder(tmp_path / "old", {"key": kv}))
    assert store.get("key") is None and "must agree" in store.why("key").detail

"""A flipped bit anywhere in a folder of cached blocks is a miss that says so; never a wrong answer, never an error."""

import os
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from tests.random_models import block_of, model_of
from tests.refusals import refused
from tests.store_blocks import key_for, kv_of, same
from workbench.core.errors import BadInput
from workbench.store import FolderStore, MemoryStore, fetch, fingerprint, key_of
from workbench.store.files import block_file, manifest, quarantine, scrub


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A folder with one file of two blocks, and the bytes of that file."""
    store = FolderStore(tmp_path_factory.mktemp("damage") / "folder", {"model": "m"}, new=True)
    store.write("shard", {key_for(seed): kv_of(seed) for seed in (1, 2)})
    path = store.folder / "shard.safetensors"
    return path, path.read_bytes()


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
    assert quarantine.reasons(tmp_path / "a") == {"shard.safetensors": "the checksum of the values of layer 1 is wrong"}
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
    assert sorted(quarantine.reasons(tmp_path / "a")) == [path.name, f"{path.name}.1", f"{path.name}.2"]
    assert quarantine.clear(tmp_path / "a") > 6 and not quarantine.reasons(tmp_path / "a")
    assert same(FolderStore(tmp_path / "a").get(key_for(1)), kv_of(1))


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


def damage(path, text):
    """Write a text in the place of a file; None: remove it."""
    path.unlink() if text is None else path.write_text(text)


@pytest.mark.parametrize("text", ["[1, 2]", "7", "{", "", "\0\0", "null", "{}", None])
def test_a_damaged_manifest_is_one_sentence_and_written_anew_by_who_knows_the_model(tmp_path, text):
    kind = {"model": "model", "dtype": "torch.float32"}
    store = FolderStore(tmp_path / "a", kind, new=True)
    store.put(key_for(1), kv_of(1))
    before = (tmp_path / "a" / "manifest.json").read_text()
    damage(tmp_path / "a" / "manifest.json", text)
    if text is not None:
        refused(r"manifest\.json is corrupt: .*; what names the model writes it anew", FolderStore, tmp_path / "a")
        assert not scrub.verify(tmp_path / "a").whole
    assert same(FolderStore(tmp_path / "a", kind, new=text is None).get(key_for(1)), kv_of(1))
    assert (tmp_path / "a" / "manifest.json").read_text() == before and scrub.verify(tmp_path / "a").whole


@pytest.mark.parametrize("text", ["{", "{}", None])
@pytest.mark.parametrize("other", [{"model": "other"}, {"dtype": "torch.bfloat16"}])
def test_a_damaged_manifest_is_never_written_anew_against_what_the_blocks_say(tmp_path, other, text):
    kind = {"model": "model", "dtype": "torch.float32"}
    FolderStore(tmp_path / "a", kind, new=True).put(key_for(1), kv_of(1))
    damage(tmp_path / "a" / "manifest.json", text)
    refused("blocks are of another", FolderStore, tmp_path / "a", kind | other, new=True)
    assert same(FolderStore(tmp_path / "a", kind, new=True).get(key_for(1)), kv_of(1)), "its owner goes on"


@pytest.mark.parametrize("beside", ["notes.txt", "model.safetensors"])
def test_a_manifest_of_something_else_is_left_alone(tmp_path, beside):
    (tmp_path / beside).write_bytes(b"mine")
    for text in (None, '{"name": "an app"}'):
        if text:
            damage(tmp_path / "manifest.json", text)
        refused("holds something else", FolderStore, tmp_path, {"model": "m"}, new=True)
    assert (tmp_path / "manifest.json").read_text() == text and (tmp_path / beside).read_bytes() == b"mine"


def test_of_two_first_writers_neither_is_refused(tmp_path, monkeypatch):
    checked = manifest._is_leftover

    def meanwhile(path):
        monkeypatch.setattr(manifest, "_is_leftover", checked)
        FolderStore(tmp_path / "a", {"model": "model"}, new=True).put(key_for(2), kv_of(2))
        return checked(path)

    (tmp_path / "a").mkdir()
    (tmp_path / "a" / ".manifest.json.00000000-1-00000000").write_text("{")  # of a writer that was killed
    monkeypatch.setattr(manifest, "_is_leftover", meanwhile)
    FolderStore(tmp_path / "a", {"model": "model"}, new=True).put(key_for(1), kv_of(1))
    assert len(FolderStore(tmp_path / "a")) == 2
    refused("another model", FolderStore, tmp_path / "a", {"model": "other"}, new=True)


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
    refused("verify is 'never': allowed are always, once", FolderStore, tmp_path / "a", verify="never")


def test_new_files_are_safetensors_that_others_read(kept):
    path, whole = kept
    path.write_bytes(whole)
    assert torch.equal(load_file(path)[f"{key_for(2)}.v.1"], kv_of(2).values[1])

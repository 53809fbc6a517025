"""A flipped bit anywhere in a folder of cached blocks is a miss that says so; never a wrong answer, never an error."""

import os
import resource
import time
from pathlib import Path

import pytest
import torch
from forked import ended, forked
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test
from safetensors.torch import load_file

from tests.random_models import block_of, model_of
from tests.refusals import refused
from tests.store_blocks import key_for, kv_of, one_block, same
from tests.stress import run_store_faults, store_faults
from tests.stress.folder_machine import FolderMachine
from tests.stress.power_loss import losses
from tests.stress.store_faults import Count, block, byte_classes, flips, kills, name, soak
from workbench import results
from workbench.core.errors import BadInput
from workbench.core.utils import files
from workbench.core.utils.files import remove_leftovers, write_text
from workbench.store import FolderStore, MemoryStore, fetch, fingerprint, key_of
from workbench.store.files import block_file, manifest, quarantine, scrub
from workbench.store.files.eviction import collect_garbage


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
            assert store.miss_reason(key_for(seed)).reason == "damaged" and store.miss_reason(key_for(seed)).detail
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
        assert key_for(1) not in store and store.miss_reason(key_for(1)).reason == "damaged"
        store.put(key_for(1), kv_of(1))
        assert same(store.get(key_for(1)), kv_of(1))
    assert sorted(quarantine.reasons(tmp_path / "a")) == [path.name, f"{path.name}.1", f"{path.name}.2"]
    assert quarantine.clear(tmp_path / "a") > 6 and not quarantine.reasons(tmp_path / "a")
    assert same(FolderStore(tmp_path / "a").get(key_for(1)), kv_of(1))


def test_where_nothing_can_be_written_a_damaged_block_is_still_no_error(tmp_path, monkeypatch, caplog):
    _, path = one_block(tmp_path / "a")
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
    one_block(tmp_path / "a", kind)
    before = (tmp_path / "a" / "manifest.json").read_text()
    damage(tmp_path / "a" / "manifest.json", text)
    if text is not None:
        refused(r"manifest\.json is corrupt: .*; what names the model writes it anew", FolderStore, tmp_path / "a")
        assert not scrub.verify(tmp_path / "a").intact
    assert same(FolderStore(tmp_path / "a", kind, new=text is None).get(key_for(1)), kv_of(1))
    assert (tmp_path / "a" / "manifest.json").read_text() == before and scrub.verify(tmp_path / "a").intact


@pytest.mark.parametrize("text", ["{", "{}", None])
@pytest.mark.parametrize("other", [{"model": "other"}, {"dtype": "torch.bfloat16"}])
def test_a_damaged_manifest_is_never_written_anew_against_what_the_blocks_say(tmp_path, other, text):
    kind = {"model": "model", "dtype": "torch.float32"}
    one_block(tmp_path / "a", kind)
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
    one_block(tmp_path / "a", kind)
    path = tmp_path / "a" / "manifest.json"
    whole = path.read_bytes()
    for i in range(len(whole)):
        path.write_bytes(whole[:i] + bytes([whole[i] ^ 1 << i % 8]) + whole[i + 1 :])
        for given_kind in (kind, None):
            try:
                assert same(FolderStore(tmp_path / "a", given_kind).get(key_for(1)), kv_of(1))
            except BadInput as problem:
                assert str(problem).count("\n") == 0


def test_new_files_are_safetensors_that_others_read(kept):
    path, whole = kept
    path.write_bytes(whole)
    assert torch.equal(load_file(path)[f"{key_for(2)}.v.1"], kv_of(2).values[1])


# --- What a folder of cached blocks has acknowledged is there after a crash; many may write to it at one time
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
    assert scrub.verify(tmp_path / "a").intact


def test_processes_that_begin_one_folder_at_one_time_share_it(tmp_path):
    def begin():
        FolderStore(tmp_path / "a", {"model": "m"}, new=True).put(f"key-{os.getpid()}", kv_of(1))

    assert [ended(pid) for pid in [forked(begin) for _ in range(4)]] == [0] * 4
    assert len(FolderStore(tmp_path / "a", {"model": "m"})) == 4


def test_a_store_finds_what_another_process_puts_later_and_replaces(tmp_path):
    store, other = FolderStore(tmp_path / "a", new=True), FolderStore(tmp_path / "a")
    assert store.get("key") is None and store.miss_reason("key").reason == "never seen"
    other.put("key", kv_of(1))
    assert same(store.get("key"), kv_of(1))
    other.put("key", kv_of(2, tokens=9))
    assert same(store.get("key"), kv_of(2, tokens=9))
    (tmp_path / "a" / "key.safetensors").unlink()
    assert store.get("key") is None
    assert str(store.miss_reason("key")) == "evicted: key.safetensors was deleted"
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
    for leftover in names:
        (store.folder / leftover).write_text("half")
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
    store, path = one_block(tmp_path / "a")
    memory = MemoryStore(behind=store)
    path.unlink()
    assert memory.get(key_for(1)) is None and memory.stats.reasons == {"evicted": 1}


# --- After every fault, nothing that was acknowledged is lost, and nothing wrong is served; `tests.stress`
LONG = [pytest.mark.weekly, pytest.mark.timeout(3600)]


def none_lost_or_wrong(count: Count) -> Count:
    assert (count.lost, count.wrong) == (0, 0) and count.found
    return count


@pytest.mark.parametrize("times", [25, pytest.param(1000, marks=LONG)])
def test_kills_of_a_writer_lose_nothing(tmp_path, caplog, times):
    count = none_lost_or_wrong(kills(tmp_path / "a", times))
    assert count.tried == times and count.about["whole after"]
    assert not list((tmp_path / "a").glob(".*"))


@pytest.mark.parametrize("times", [300, pytest.param(10_000, marks=LONG)])
def test_flipped_bits_of_every_class_of_bytes_serve_nothing_wrong(tmp_path, caplog, times):
    count = none_lost_or_wrong(flips(tmp_path / "a", times))
    assert set(count.about) == set(store_faults.BYTES) and min(count.about.values()) == times // 6
    assert count.missed > times


def test_classes_of_bytes_cover_a_file(tmp_path):
    store = FolderStore(tmp_path / "a", new=True)
    store.write("shard", {name(number): block(number) for number in (1, 2)})
    whole = (tmp_path / "a" / "shard.safetensors").read_bytes()
    places = byte_classes(whole)
    assert all(places.values()) and whole[places["table"][0] :].startswith(b'"block-')
    assert whole[places["metadata"][0] :].startswith(b'{"__metadata__"')
    assert block(1).keys[0].numpy().tobytes() == bytes(whole[i] for i in places["keys"])[:24]


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="open files are read from /proc")
def test_losses_of_power_lose_nothing_that_was_acknowledged(tmp_path, caplog):
    none_lost_or_wrong(losses(tmp_path, 80))


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="open files are read from /proc")
def test_a_store_that_is_not_durable_does_lose_blocks_then_and_serves_nothing_wrong(tmp_path, caplog):
    """So the simulated disk does forget."""
    count = losses(tmp_path, 30, durable=False)
    assert count.lost and not count.wrong


def test_memory_stays_flat(tmp_path, caplog):
    count = none_lost_or_wrong(soak(tmp_path / "a", 2000))
    assert count.about["MB at the end"] < count.about["MB at half"] + 30


def test_any_sequence_of_operations_agrees_with_a_dictionary(caplog):
    small = settings(
        max_examples=15, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck), database=None
    )
    run_state_machine_as_test(FolderMachine, settings=small)


def test_sequences_of_several_tasks_are_counted_together(caplog, monkeypatch):
    monkeypatch.setattr(run_store_faults, "EACH", 4)
    monkeypatch.setattr(run_store_faults.logging, "disable", lambda: None)
    count = none_lost_or_wrong(run_store_faults.stateful(5, workers=1))
    assert count.tried > count.found + count.missed > 0 and count.about == {"runs": 5, "steps": 200}


def test_as_many_faults_are_shipped_as_are_asked_for_and_none_lost_or_served_anything_wrong():
    counts = results.read().counts("faults")
    found = counts.pivot(index="method", columns="measure", values="value")
    assert (found[["lost", "wrong"]] == 0).all(axis=None) and (found.found > 0).all()
    least = {"kills": 1_000, "flips": 1_000, "losses": 1_000, "soak": 100_000, "stateful": 100_000}
    assert all(found.tried[name] >= count for name, count in least.items())
    sizes = found.loc["soak"]
    assert sizes["MB at the end"] < 1.02 * sizes["MB at half"], "memory stays flat"


def test_counts_of_a_fault_are_rows(tmp_path):
    count = none_lost_or_wrong(soak(tmp_path / "a", 20))
    rows = {row["measure"]: row["value"] for row in run_store_faults.counts(count, 1.5)}
    assert rows["tried"] == count.tried and rows["seconds"] == 1.5 and "MB at half" in rows


def test_a_clock_that_goes_back_costs_nothing(tmp_path, monkeypatch):
    store = FolderStore(tmp_path / "a", new=True)
    store.put("early", kv_of(1))
    monkeypatch.setattr(time, "time", lambda: 0.0)
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    store.put("late", kv_of(2))
    for path in (tmp_path / "a").iterdir():
        os.utime(path, (1, 1))
    assert same(store.get("early"), kv_of(1)) and same(store.get("late"), kv_of(2))
    other = FolderStore(tmp_path / "a")
    other.put("early", kv_of(1))
    assert same(store.get("early"), kv_of(1)) and len(other) == 2
    monkeypatch.undo()
    assert collect_garbage(tmp_path / "a", 1 << 30).blocks == 0
    assert same(FolderStore(tmp_path / "a").get("late"), kv_of(2))


def test_a_budget_smaller_than_a_block_keeps_nothing_and_says_so(tmp_path):
    memory = MemoryStore(10, behind=FolderStore(tmp_path / "a", new=True))
    memory.put("key", kv_of(1))
    assert memory.get("key") is None and memory.miss_reason("key").reason == "too large"
    FolderStore(tmp_path / "a").put("key", kv_of(1))
    assert same(memory.get("key"), kv_of(1)), "it is served from the disk"
    assert collect_garbage(tmp_path / "a", 10).after == 0
    assert memory.get("key") is None


def test_a_folder_that_must_not_be_written_is_read_and_its_refusals_are_one_sentence(tmp_path, monkeypatch):
    store = FolderStore(tmp_path / "a", new=True)
    store.put("key", kv_of(1))

    def refuse(*given, **options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "replace", refuse)
    monkeypatch.setattr(os, "utime", refuse)
    monkeypatch.setattr(os, "link", refuse)
    again = FolderStore(tmp_path / "a")
    assert same(again.get("key"), kv_of(1))
    refused("cannot be written: Permission denied; nothing is left of it", lambda: again.put("other", kv_of(2)))
    monkeypatch.undo()
    assert {path.name for path in (tmp_path / "a").iterdir()} == {"manifest.json", "key.safetensors"}


@pytest.mark.skipif(not hasattr(os, "seteuid"), reason="rights of a POSIX system")
@pytest.mark.parametrize("rights", [0o000, 0o400, 0o500])
def test_a_folder_without_rights_is_one_sentence(tmp_path, rights):
    FolderStore(tmp_path / "a", new=True).put("key", kv_of(1))
    (tmp_path / "a").chmod(rights)
    before = os.geteuid()
    try:
        if before == 0:  # who is allowed everything
            os.seteuid(65534)
        with pytest.raises(BadInput, match=r"must not be read: Permission denied|cannot be written: Permission denied"):
            FolderStore(tmp_path / "a", new=True).put("other", kv_of(2))
    finally:
        os.seteuid(before)
        (tmp_path / "a").chmod(0o700)
    assert same(FolderStore(tmp_path / "a").get("key"), kv_of(1))

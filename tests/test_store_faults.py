"""After every fault, nothing that was acknowledged is lost, and nothing wrong is served; `tests.stress`."""

import os
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.refusals import refused
from tests.store_blocks import kv_of, same
from tests.stress import run_store_faults, store_faults
from tests.stress.folder_machine import FolderMachine
from tests.stress.power_loss import losses
from tests.stress.store_faults import Count, block, byte_classes, flips, kills, name, soak
from workbench import results
from workbench.core.errors import BadInput
from workbench.store import FolderStore, MemoryStore
from workbench.store.files.eviction import collect_garbage

pytestmark = pytest.mark.usefixtures("one_thread")
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
    assert memory.get("key") is None and memory.why("key").reason == "too large"
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

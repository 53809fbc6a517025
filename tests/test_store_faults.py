"""After every fault, nothing that was acknowledged is lost, and nothing wrong is served; `experiments.store_faults`."""

import logging
import os
import tempfile
import time
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from tests.test_store_damage import kv_of, same
from workbench.core.errors import BadInput
from workbench.experiments import store_faults
from workbench.experiments.power_loss import losses
from workbench.experiments.store_faults import (
    Count,
    block,
    byte_classes,
    flips,
    is_block,
    kills,
    name,
    operations,
    soak,
)
from workbench.store import FolderStore, MemoryStore
from workbench.store.collection import collect_garbage


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def none_lost_or_wrong(count: Count) -> Count:
    assert (count.lost, count.wrong) == (0, 0) and count.found
    return count


def test_kills_of_a_writer_lose_nothing(tmp_path, caplog):
    count = none_lost_or_wrong(kills(tmp_path / "a", 25))
    assert count.tried == 25 and count.about["whole after"]
    assert not list((tmp_path / "a").glob(".*"))


def test_flipped_bits_of_every_class_of_bytes_serve_nothing_wrong(tmp_path, caplog):
    count = none_lost_or_wrong(flips(tmp_path / "a", 300))
    assert set(count.about) == set(store_faults.BYTES) and min(count.about.values()) == 50
    assert count.missed > 300


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


def test_random_operations_agree_with_a_model_in_memory(tmp_path, caplog):
    for seed in range(3):
        none_lost_or_wrong(operations(tmp_path / str(seed), 300, seed))


def test_memory_stays_flat(tmp_path, caplog):
    count = none_lost_or_wrong(soak(tmp_path / "a", 2000))
    assert count.about["MB at the end"] < count.about["MB at half"] + 30


class FolderMachine(RuleBasedStateMachine):
    """A folder beside a dictionary: a block that nothing happened to is found; any that is found is right."""

    numbers = st.integers(0, 5)

    def __init__(self):
        super().__init__()
        self.place = tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
        self.folder = Path(self.place.name, "a")
        FolderStore(self.folder, new=True, durable=False)
        self.stores = [FolderStore(self.folder, durable=False, mapped=bool(i)) for i in range(2)]
        self.held: dict[int, bool] = {}

    def path(self, number):
        return self.folder / f"{name(number)}.safetensors"

    @rule(number=numbers, which=st.integers(0, 1))
    def put(self, number, which):
        self.stores[which].put(name(number), block(number))
        self.held[number] = True

    @rule(number=numbers, which=st.integers(0, 1))
    def get(self, number, which):
        kv = self.stores[which].get(name(number))
        assert kv is not None or not self.held.get(number)
        assert kv is None or is_block(kv, number)
        if kv is None:
            assert self.stores[which].why(name(number)).reason in ("never seen", "damaged", "evicted")

    @precondition(lambda self: self.held)
    @rule(number=numbers, at=st.floats(0, 0.999), bit=st.integers(0, 7), cut=st.booleans())
    def damage(self, number, at, bit, cut):
        if not self.path(number).exists():
            return
        data = bytearray(self.path(number).read_bytes())
        at = int(len(data) * at)
        if data:
            data[at] ^= 1 << bit
        self.path(number).write_bytes(data[:at] if cut else data)
        self.held[number] = False

    @rule(number=numbers)
    def delete(self, number):
        self.path(number).unlink(missing_ok=True)
        self.held[number] = False

    @rule(number=numbers, which=st.integers(0, 1))
    def remove(self, number, which):
        self.stores[which].remove(name(number))
        self.held[number] = self.held.get(number, False) and self.path(number).exists()

    @rule(which=st.integers(0, 1))
    def reopen(self, which):
        self.stores[which] = FolderStore(self.folder, durable=False, mapped=bool(which))

    @rule(budget=st.sampled_from((1, 6000, 1 << 40)))
    def collect(self, budget):
        collect_garbage(self.folder, budget)
        self.held = {number: whole and self.path(number).exists() for number, whole in self.held.items()}

    @invariant()
    def nothing_half_written_lies_about(self):
        assert not list(self.folder.glob(".*"))

    def teardown(self):
        self.place.cleanup()


def test_any_sequence_of_operations_agrees_with_a_dictionary(caplog):
    small = settings(
        max_examples=15, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck), database=None
    )
    run_state_machine_as_test(FolderMachine, settings=small)


@pytest.mark.weekly
@pytest.mark.timeout(3600)
def test_very_many_sequences_of_operations_agree_with_a_dictionary(caplog):
    caplog.set_level(logging.CRITICAL)
    checks = list(HealthCheck)
    many = settings(max_examples=10_000, stateful_step_count=200, deadline=None, suppress_health_check=checks)
    run_state_machine_as_test(FolderMachine, settings=many)


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
    with pytest.raises(BadInput, match="cannot be written: Permission denied; nothing is left of it"):
        again.put("other", kv_of(2))
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

"""A folder of cached blocks beside a dictionary, under any sequence of operations (hypothesis, stateful)."""

import tempfile
from pathlib import Path

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from tests.stress.store_faults import Count, block, is_block, name
from workbench.store import FolderStore
from workbench.store.files.eviction import collect_garbage

STEPS = 200  # operations of a sequence
MEMORY = Path("/dev/shm")  # files in memory: what is tried is no disk


class FolderMachine(RuleBasedStateMachine):
    """A folder beside a dictionary: a block that nothing happened to is found; any that is found is right."""

    numbers = st.integers(0, 5)
    count = Count("stateful operations")

    def __init__(self) -> None:
        super().__init__()
        self.place = tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None)
        self.folder = Path(self.place.name, "a")
        FolderStore(self.folder, new=True, durable=False)
        self.stores = [FolderStore(self.folder, durable=False, mapped=bool(i)) for i in range(2)]
        self.held: dict[int, bool] = {}

    def path(self, number: int) -> Path:
        return self.folder / f"{name(number)}.safetensors"

    @rule(number=numbers, which=st.integers(0, 1))
    def put(self, number: int, which: int) -> None:
        self.stores[which].put(name(number), block(number))
        self.held[number] = True

    @rule(number=numbers, which=st.integers(0, 1))
    def get(self, number: int, which: int) -> None:
        kv = self.stores[which].get(name(number))
        self.count.answer(kv, number, must=self.held.get(number, False))
        assert kv is not None or not self.held.get(number)
        assert kv is None or is_block(kv, number)
        if kv is None:
            assert self.stores[which].miss_reason(name(number)).reason in ("never seen", "damaged", "evicted")

    @precondition(lambda self: self.held)
    @rule(number=numbers, at=st.floats(0, 0.999), bit=st.integers(0, 7), cut=st.booleans())
    def damage(self, number: int, at: float, bit: int, cut: bool) -> None:
        if not self.path(number).exists():
            return
        data = bytearray(self.path(number).read_bytes())
        place = int(len(data) * at)
        if data:
            data[place] ^= 1 << bit
        self.path(number).write_bytes(data[:place] if cut else data)
        self.held[number] = False

    @rule(number=numbers)
    def delete(self, number: int) -> None:
        self.path(number).unlink(missing_ok=True)
        self.held[number] = False

    @rule(number=numbers, which=st.integers(0, 1))
    def remove(self, number: int, which: int) -> None:
        self.stores[which].remove(name(number))
        self.held[number] = self.held.get(number, False) and self.path(number).exists()

    @rule(which=st.integers(0, 1))
    def reopen(self, which: int) -> None:
        self.stores[which] = FolderStore(self.folder, durable=False, mapped=bool(which))

    @rule(budget=st.sampled_from((1, 6000, 1 << 40)))
    def collect(self, budget: int) -> None:
        collect_garbage(self.folder, budget)
        self.held = {number: whole and self.path(number).exists() for number, whole in self.held.items()}

    @invariant()
    def nothing_half_written_lies_about(self) -> None:
        self.count.tried += 1
        assert not list(self.folder.glob(".*"))

    def teardown(self) -> None:
        """Look for every block once more: hypothesis leaves some rules out of a sequence, perhaps `get` itself."""
        try:
            for number in range(6):
                self.get(number, number % 2)
        finally:
            self.place.cleanup()


def stateful_part(first: int, runs: int) -> Count:
    """Carry out `runs` sequences of at most `STEPS` operations, drawn by hypothesis from seed `first`."""

    @seed(first)
    class Machine(FolderMachine):
        count = Count(FolderMachine.count.fault)

    drawn = settings(
        max_examples=runs,
        stateful_step_count=STEPS,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        database=None,
        phases=(Phase.generate,),
    )
    run_state_machine_as_test(Machine, settings=drawn)
    return Machine.count

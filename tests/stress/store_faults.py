"""Faults of a folder of cached blocks, each with the count of lost and of wrong answers, which must be zero.

An oracle knows what every key must give: the key's number is the seed of its block (as in RocksDB's stress test). Lost
is a block that was acknowledged and is not found; wrong, one that is not what was put.
`tests.stress.run_store_faults` writes counts of experiment "faults", `tests/test_store_damage.py` runs some of each.
"""

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from workbench.core.kv import KV
from workbench.store import FolderStore
from workbench.store.files import block_file, scrub

BYTES = ("length", "metadata", "table", "padding", "keys", "values")  # classes of bytes of a file


@dataclass
class Count:
    """What a fault did: how often it was tried, and the answers after it."""

    fault: str
    tried: int = 0
    found: int = 0
    missed: int = 0  # blocks that are encoded again, as they must be
    lost: int = 0
    wrong: int = 0
    about: dict[str, Any] = field(default_factory=dict)

    def answer(self, kv: KV | None, number: int, must: bool) -> None:
        """Count one answer; `must`: the block was acknowledged, and nothing happened to it."""
        if kv is None:
            self.lost += must
            self.missed += not must
        else:
            right = is_block(kv, number)
            self.found += right
            self.wrong += not right

    def add(self, other: "Count") -> None:
        """Add what another counted."""
        for each in ("tried", "found", "missed", "lost", "wrong"):
            setattr(self, each, getattr(self, each) + getattr(other, each))


@lru_cache(1 << 10)
def block(number: int, tokens: int = 3) -> KV:
    """Make the block that belongs to a number; it is read-only."""
    draw = torch.Generator().manual_seed(number)
    parts = [torch.randn(1, tokens, 2, generator=draw) for _ in range(4)]
    return KV(parts[:2], parts[2:], number % 1000, read_only=True)


def is_block(kv: KV, number: int) -> bool:
    """Return whether `kv` is the block that belongs to a number."""
    other = block(number, len(kv))
    pairs = zip(kv.tensors(), other.tensors(), strict=True)
    return kv.start == other.start and all(torch.equal(a, b) for a, b in pairs)


def name(number: int) -> str:
    """Return the key of a number."""
    return f"block-{number:08d}"


def kills(folder: Path, times: int, seed: int = 0, tokens: int = 200) -> Count:
    """Kill a writer (SIGKILL) at random moments; look for all that it had acknowledged."""
    draw, count, said = random.Random(seed), Count("kill -9 while writing", times), set[int]()
    FolderStore(folder, new=True)
    half_written = 0
    for turn in range(times):
        reader, writer = os.pipe()
        if not (pid := os.fork()):
            _write_until_killed(folder, turn * 10_000, writer, tokens)
        os.close(writer)
        told = os.read(reader, 4)  # it has begun
        time.sleep(draw.random() * 0.004)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        while more := os.read(reader, 1 << 16):
            told += more
        os.close(reader)
        fresh = {int.from_bytes(told[i : i + 4], "little") for i in range(0, len(told) - 3, 4)}
        half_written += any(folder.glob(".*"))
        _all_found(FolderStore(folder), fresh, count)
        said |= fresh
        _thin_out(folder, said, 60, draw)
    _all_found(FolderStore(folder), said, count)
    count.about = {"half-written files met": half_written, "whole after": scrub.verify(folder).intact}
    return count


def _write_until_killed(folder: Path, first: int, told: int, tokens: int) -> None:
    try:
        store = FolderStore(folder, durable=False)
        for number in range(first, first + 10_000):
            store.put(name(number), block(number, tokens))
            os.write(told, number.to_bytes(4, "little"))
    finally:
        os._exit(1)


def _all_found(store: FolderStore, numbers: Iterable[int], count: Count) -> None:
    for number in numbers:
        count.answer(store.get(name(number)), number, must=True)


def _thin_out(folder: Path, said: set[int], most: int, draw: random.Random) -> None:
    """Delete some blocks, so that folders stay small."""
    if len(said) > most:
        for number in draw.sample(sorted(said), len(said) - most // 2):
            (folder / f"{name(number)}{block_file.SUFFIX}").unlink()
            said.remove(number)


def flips(folder: Path, times: int, seed: int = 0) -> Count:
    """Flip single bits of every class of bytes of a file of two blocks, in turn."""
    draw, count = random.Random(seed), Count("bit flips", times)
    store = FolderStore(folder, new=True)
    store.write("shard", {name(number): block(number) for number in (1, 2)})
    path = folder / "shard.safetensors"
    whole, by_class = path.read_bytes(), Counter[str]()
    places = byte_classes(whole)
    for turn in range(times):
        kind = BYTES[turn % len(BYTES)]
        at = draw.choice(places[kind])
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << draw.randrange(8)]) + whole[at + 1 :])
        found = FolderStore(folder)
        for number in (1, 2):
            count.answer(found.get(name(number)), number, must=False)
        by_class[kind] += 1
    path.write_bytes(whole)
    _all_found(FolderStore(folder), (1, 2), count)
    count.about = dict(by_class)
    return count


def byte_classes(whole: bytes) -> dict[str, range]:
    """Return which bytes of a file are of which class; keys and values are those of the first block."""
    length = int.from_bytes(whole[:8], "little")
    text = whole[8 : 8 + length]
    used = 8 + len(text.rstrip(b" "))
    table = 8 + text.index(b'},"') + 2
    quarter = (len(whole) - 8 - length) // 4
    data = 8 + length
    places = [range(8), range(8, table), range(table, used), range(used, data) or range(8)]
    return dict(
        zip(BYTES, [*places, range(data, data + quarter), range(data + quarter, data + 2 * quarter)], strict=True)
    )


def soak(folder: Path, steps: int, seed: int = 0) -> Count:
    """Carry out many operations on ever new keys in one process, and watch its memory."""
    draw, count = random.Random(seed), Count("soak", steps)
    store, sizes, live = FolderStore(folder, new=True, durable=False), list[float](), list[int]()
    for step in range(steps):
        if step % 3 == 0:
            store.put(name(step), block(step))
            live.append(step)
        elif live:
            number = draw.choice(live)
            count.answer(store.get(name(number)), number, must=True)
        if len(live) > 200:
            store.remove(name(live.pop(draw.randrange(len(live)))))
        if step % max(1, steps // 50) == 0:
            sizes.append(resident_mb())
    later = sizes[len(sizes) // 2 :]
    count.about = {"MB at half": later[0], "MB at the end": later[-1], "most MB": max(sizes)}
    return count


def resident_mb() -> float:
    """Return the memory that this process holds (Linux), in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6

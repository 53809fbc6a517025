"""Random operations on a folder of cached blocks beside a model in memory; many of them, by several processes.

What is carried out lies in parts on the disk, so that a run that was stopped goes on where it stopped.
"""

import random
import shutil
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import asdict
from multiprocessing import get_all_start_methods, get_context
from pathlib import Path

import torch

from workbench.experiments.results import read_json, write_json
from workbench.experiments.store_faults import Count, block, name
from workbench.store import FolderStore, block_file
from workbench.store.collection import collect_garbage

STEPS = 200  # operations of a sequence
EACH = 100  # sequences of a part
MEMORY = Path("/dev/shm")  # files in memory: what is tried is no disk
Part = Callable[[int, int], Count]  # (first sequence, how many)


def operations(folder: Path, steps: int, seed: int = 0, keys: int = 12) -> Count:
    """Carry out random operations on a folder by two stores and beside a model in memory.

    Put, get, damage, delete, open anew, collect garbage.
    """
    draw, count = random.Random(seed), Count("random operations", steps)
    FolderStore(folder, new=True)
    stores = [FolderStore(folder, durable=False, mapped=bool(i)) for i in range(2)]
    held: dict[int, bool] = {}  # number: nothing has happened to it

    def put(number: int, store: FolderStore) -> None:
        store.put(name(number), block(number))
        held[number] = True

    def get(number: int, store: FolderStore) -> None:
        count.answer(store.get(name(number)), number, must=held.get(number, False))

    def damage(number: int, store: FolderStore) -> None:
        path = folder / f"{name(number)}{block_file.SUFFIX}"
        with suppress(FileNotFoundError):
            data = bytearray(path.read_bytes() or b"empty")
            data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
            path.write_bytes(data if draw.random() < 0.7 else data[: draw.randrange(len(data))])
            held[number] = False

    def delete(number: int, store: FolderStore) -> None:
        (folder / f"{name(number)}{block_file.SUFFIX}").unlink(missing_ok=True)
        held.pop(number, None)

    def remove(number: int, store: FolderStore) -> None:
        store.remove(name(number))
        held.pop(number, None)

    def reopen(number: int, store: FolderStore) -> None:
        stores[stores.index(store)] = FolderStore(folder, durable=False, mapped=store.mapped)

    def collect(number: int, store: FolderStore) -> None:
        collect_garbage(folder, draw.choice((1 << 40, 20_000)))
        for each in list(held):
            held[each] = held[each] and (folder / f"{name(each)}{block_file.SUFFIX}").exists()

    chosen: list[Callable[[int, FolderStore], None]] = [put, get, damage, delete, remove, reopen, collect]
    for operation in draw.choices(chosen, weights=(30, 50, 8, 4, 4, 3, 1), k=steps):
        operation(draw.randrange(keys), draw.choice(stores))
    return count


def operations_part(first: int, runs: int) -> Count:
    """Carry out sequences number `first` and following of random operations, each on a folder of its own."""
    whole = Count("random operations")
    with tempfile.TemporaryDirectory(dir=in_memory()) as place:
        for seed in range(first, first + runs):
            folder = Path(place, f"{seed}")
            add(whole, operations(folder, STEPS, seed))
            shutil.rmtree(folder)
    return whole


def in_parts(work: Part, runs: int, parts: Path, workers: int = 1, each: int = EACH) -> Count:
    """Carry out `runs` sequences by `workers` processes, `each` at a time; return what all of them counted.

    A part that ended is a file in `parts`, and is not carried out again; the folder is removed when all have ended.
    """
    starts = {first: min(each, runs - first) for first in range(0, runs, each)}
    paths = {first: parts / f"{first:06d}-{size}.json" for first, size in starts.items()}
    parts.mkdir(parents=True, exist_ok=True)
    how = get_context("fork" if "fork" in get_all_start_methods() else None)
    with ProcessPoolExecutor(workers, how, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        left = {pool.submit(work, first, size): first for first, size in starts.items() if not paths[first].exists()}
        for done in as_completed(left):
            write_json(paths[left[done]], asdict(done.result()))
    counts = [Count(**read_json(path)) for path in paths.values()]
    whole = Count(counts[0].fault, about={"runs": runs, "steps": STEPS})
    for count in counts:
        add(whole, count)
    shutil.rmtree(parts)
    return whole


def add(whole: Count, count: Count) -> None:
    """Add what was counted to `whole`."""
    for each in ("tried", "found", "missed", "lost", "wrong"):
        setattr(whole, each, getattr(whole, each) + getattr(count, each))


def in_memory() -> Path | None:
    """Return a folder whose files lie in memory, or None where the system has none."""
    return MEMORY if MEMORY.is_dir() else None

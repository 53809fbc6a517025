"""How fast verified blocks come from disk and memory, beside a raw read of the same bytes; needs no GPU.

    python data/benchmarks/store_disk.py                     about a minute, 1.1 GB of files in a temporary folder
    python data/benchmarks/store_disk.py --folder /mnt/nvme  on the disk that is asked about

Writes counts of experiment "disk": for blocks of three models, one to a file and sixteen to a file, reads with the
files in the page cache and dropped from it, writes with and without fsync, and look-ups in memory. Every round times
the raw read and the hits in turn; shares are within a round. Run it on a machine that does nothing else.
"""

import os
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from script import options, writer

from workbench.core.kv import KV
from workbench.experiments.serving.serve_bench import forget
from workbench.experiments.trials.record import version_of, versions
from workbench.store import FolderStore, MemoryStore
from workbench.store.files import block_file
from workbench.store.files.checksums import crc32
from workbench.store.files.file_header import quietly

LAYOUTS = {"one": 1, "many": 16}  # blocks a file
PART = "disk@folder"
READERS = ("copied", "mapped")


@dataclass(frozen=True)
class BlockShape:
    """The shape of a model's cached blocks."""

    model: str
    layers: int
    heads: int
    width: int
    dtype: torch.dtype
    tokens: int
    count: int

    @property
    def nbytes(self) -> int:
        """Bytes of one block."""
        return 2 * self.layers * self.heads * self.width * self.tokens * self.dtype.itemsize

    def block(self, seed: int) -> KV:
        """Make one block of random values."""
        draw = torch.Generator().manual_seed(seed)
        size = (2 * self.layers, self.heads, self.tokens, self.width)
        parts = [x.contiguous() for x in torch.randn(size, generator=draw).to(self.dtype)]
        return KV(parts[: self.layers], parts[self.layers :], 0, read_only=True)


SHAPES = (
    BlockShape("lab-full", 8, 4, 64, torch.float32, 64, 256),
    BlockShape("SmolLM2-135M", 30, 3, 64, torch.bfloat16, 256, 48),
    BlockShape("Llama-3.1-8B", 32, 8, 128, torch.bfloat16, 256, 16),
)


def filled(folder: Path, shape: BlockShape, a_file: int, durable: bool) -> float:
    """Write all blocks of a shape into a new folder; return the seconds a block."""
    store, spent = FolderStore(folder, new=True, durable=durable), 0.0
    for first in range(0, shape.count, a_file):
        blocks = {f"block-{i:04d}": shape.block(i) for i in range(first, min(first + a_file, shape.count))}
        begin = time.perf_counter()
        store.write(f"file-{first:04d}", blocks)
        spent += time.perf_counter() - begin
    return spent / shape.count


def reads(folder: Path, shape: BlockShape, a_file: int, cold: bool, rounds: int) -> dict[str, Any]:
    """Time a raw read of every block's bytes into new memory, and verified hits, in turn, in an order drawn anew.

    Returns gigabytes a second, and shares of the raw read in the same round, medians; "cold": not in the page cache.
    """
    stores = {name: FolderStore(folder, mapped=name == "mapped") for name in READERS}
    found: dict[str, list[float]] = {name: [] for name in ("raw", *READERS)}
    raw = _raw(stores["copied"])
    for number in range(rounds):
        keys = random.Random(number).sample(list(stores["copied"]), shape.count)
        turns: list[tuple[str, Callable[[str], Any]]] = [("raw", raw)]
        turns += [(name, partial(_hit, stores[name])) for name in READERS]
        for name, read in random.Random(-number).sample(turns, len(turns)):
            _into_cache(folder, cold)
            begin = time.perf_counter()
            for key in keys:
                read(key)
            found[name].append(shape.count * shape.nbytes / (time.perf_counter() - begin) / 1e9)
    row = {f"{name}_gbs": median(each) for name, each in found.items()}
    shares = {name: median(a / b for a, b in zip(found[name], found["raw"], strict=True)) for name in READERS}
    cache = {"cache": "cold" if cold else "warm", "rounds": rounds}
    return {**cache, **row, **{f"{name}_share": share for name, share in shares.items()}}


def memory_hit(shape: BlockShape, looked_up: int = 20_000) -> dict[str, float]:
    """Time look-ups in memory, each by itself: microseconds, the median and the 99th percentile."""
    store, kv = MemoryStore(1 << 40), shape.block(0)
    keys = [f"block-{i:06d}" for i in range(2000)]
    for key in keys:
        store.put(key, kv)
    draw, spent = random.Random(0), []
    for key in draw.choices(keys, k=looked_up):
        begin = time.perf_counter_ns()
        store.get(key)
        spent.append((time.perf_counter_ns() - begin) / 1e3)
    return {"p50_us": float(np.median(spent)), "p99_us": float(np.quantile(spent, 0.99)), "look_ups": looked_up}


def measured(folder: Path, shapes: Sequence[BlockShape] = SHAPES, rounds: int = 5) -> Iterator[dict[str, Any]]:
    """Yield a row a measurement, as `counts` takes them; `folder` is filled, and emptied file by file."""
    for shape in shapes:
        for layout, a_file in LAYOUTS.items():
            place = folder / f"{shape.model}-{layout}"
            plain = filled(folder / "plain", shape, a_file, durable=False)
            shutil.rmtree(folder / "plain")
            synced = filled(place, shape, a_file, durable=True)
            about = {"model": shape.model, "block_mb": shape.nbytes / 1e6, "blocks_a_file": a_file}
            yield {"what": "write"} | about | {"ms_a_block": plain * 1e3, "ms_a_block_fsynced": synced * 1e3}
            for cold in (False, True):
                yield {"what": "read"} | about | reads(place, shape, a_file, cold, rounds)
            shutil.rmtree(place)
        yield {"what": "memory hit", "model": shape.model} | memory_hit(shape)


def counts(row: dict[str, Any], facts: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a row of `results.Count` a number of a measurement."""
    setting = {name: row[name] for name in ("blocks_a_file", "cache", "block_mb") if name in row} | facts
    about = {
        "model": row["model"],
        "method": row["what"],
        "setting": setting,
        "n": row.get("rounds", row.get("look_ups")),
    }
    for name, value in row.items():
        if name.endswith(("_gbs", "_share", "_us")) or name.startswith("ms_"):
            yield {**about, "measure": name, "value": float(value)}


def _raw(store: FolderStore) -> Callable[[str], np.ndarray]:
    """Return a function that reads the bytes of a block, and does nothing with them."""
    places: dict[str, tuple[Path, int, int]] = {}
    for path in {store.file_of(key) for key in store}:
        with quietly(path) as opened:
            known = block_file.contents(opened)
        for key in known.starts:
            extent = known.extent(key)
            places[key] = path, extent.runs[0].begin, extent.size

    def read(key: str) -> np.ndarray:
        path, begin, size = places[key]
        memory = np.empty(size, dtype=np.uint8)
        with path.open("rb", buffering=0) as opened:
            opened.seek(begin)
            if opened.readinto(memory.data) != size:
                raise OSError(f"{path} was read in part")
        return memory

    return read


def _hit(store: FolderStore, key: str) -> None:
    if store.get(key) is None:
        raise OSError(f"{key} was not found: {store.why(key)}")


def _into_cache(folder: Path, cold: bool) -> None:
    """Bring files into the page cache, or drop them from it."""
    if cold:
        return forget(folder)
    for path in folder.glob("*.safetensors"):
        path.read_bytes()


def main() -> None:
    args = options(__doc__, folder=Path(tempfile.gettempdir()), rounds=5, models=[shape.model for shape in SHAPES])
    shapes = [shape for shape in SHAPES if shape.model in args.models]
    facts: dict[str, Any] = {"checksum": f"CRC-32 of {crc32.__module__}", "cores": os.cpu_count()}
    facts |= {"load": os.getloadavg()[0]}  # of other work beside this one
    about = versions() | {"isal": version_of("isal")}
    with tempfile.TemporaryDirectory(dir=args.folder) as folder, writer(args, PART, versions=about) as out:
        for row in measured(Path(folder), shapes, args.rounds):
            out.counts(counts(row, facts))
            print(", ".join(f"{n} {v:.3g}" if isinstance(v, float) else f"{v}" for n, v in row.items()), flush=True)


if __name__ == "__main__":
    main()

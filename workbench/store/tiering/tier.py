"""Tiers of cached blocks, each with a budget in bytes: host memory, a folder, a remote store.

A `Tier` accounts for the bytes and uses of its blocks and moves single blocks in and out, as do the pages of a GPU
(`workbench.store.tiering.pages`). `workbench.store.tiering.tiered_store` decides what goes where.

Eviction policy: LFU with dynamic aging, LFU-DA (Arlitt et al., "Evaluating Content Management Techniques for Web Proxy
Caches", 2000). The heat of an entry is its use count plus the heat of the last evicted entry at the time of the entry's
last use, so entries that were once popular cool down. Ties are broken by last use, oldest first. Packages (cachetools,
theine, cacheout) have no policy that accounts for bytes and skips pinned entries.
"""

import heapq
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from threading import Lock, RLock
from typing import Any

from workbench.core.errors import BadInput
from workbench.core.kv import KV
from workbench.store.fetching import Store
from workbench.store.files.block_file import unmapped_copy
from workbench.store.files.packed import PackedKV, layers_of, pack
from workbench.store.tiering.quantized import QuantizedKV, Storage, check_storage, quantize, size_in_bytes


class Heat:
    """The heat of keys: the coldest are evicted first.

    `use` may be called from any thread; the other methods from one thread at a time.
    """

    def __init__(self) -> None:
        self.age = 0.0  # heat of the last evicted entry
        self._uses: dict[str, int] = {}
        self._heat: dict[str, tuple[float, int]] = {}  # (heat, serial number of its last use)
        self._heap: list[tuple[tuple[float, int], str]] = []  # lazy: entries may be outdated
        self._clock, self._lock = count(), Lock()

    def add(self, key: str, uses: int = 1) -> None:
        """Add a key that was used `uses` times elsewhere."""
        with self._lock:
            self._uses[key] = max(1, uses)
            self._heat[key] = self.age + self._uses[key], next(self._clock)
        heapq.heappush(self._heap, (self._heat[key], key))
        if len(self._heap) > 64 + 2 * len(self._heat):  # mostly outdated
            self._heap = [(heat, key) for key, heat in self._heat.items()]
            heapq.heapify(self._heap)

    def use(self, key: str) -> None:
        """Count a use of a key; unknown keys are ignored."""
        self.use_all((key,))

    def use_all(self, keys: Iterable[str]) -> None:
        """Count a use of each key; unknown keys are ignored."""
        with self._lock:
            for key in keys:
                if (uses := self._uses.get(key)) is not None:
                    self._uses[key] = uses + 1
                    self._heat[key] = self.age + uses + 1, next(self._clock)

    def remove(self, key: str, evicted: bool = False) -> int:
        """Remove a key and return its use count; with `evicted`, age the others."""
        with self._lock:
            heat, _ = self._heat.pop(key, (self.age, 0))
            if evicted:
                self.age = max(self.age, heat)
            return self._uses.pop(key, 1)

    def coldest(self, allowed: Callable[[str], bool] = lambda key: True) -> Iterator[str]:
        """Yield the allowed keys, the coldest first; keys must not be removed during the iteration."""
        taken: list[tuple[tuple[float, int], str]] = []
        seen: set[str] = set()
        try:
            while self._heap:
                heat, key = heapq.heappop(self._heap)
                now = self._heat.get(key)
                if now is None or key in seen:
                    continue
                if now != heat:  # used since
                    heapq.heappush(self._heap, (now, key))
                    continue
                taken.append((heat, key))
                seen.add(key)
                if allowed(key):
                    yield key
        finally:
            for entry in taken:
                heapq.heappush(self._heap, entry)

    def of(self, key: str) -> float:
        """Return the heat of a key; 0 for an unknown key."""
        return self._heat.get(key, (0.0, 0))[0]

    def __len__(self) -> int:
        return len(self._heat)


Stored = KV | QuantizedKV  # stored form of a block


class TierAccounting:
    """Accounting of a tier: bytes and heat of its entries."""

    def __init__(self, name: str, budget_bytes: int | None):
        if budget_bytes is not None and budget_bytes <= 0:
            raise BadInput(f"the budget of {name} is {budget_bytes} bytes: a positive number of bytes is needed")
        self.name, self.budget_bytes = name, budget_bytes
        self.lock, self.heat = RLock(), Heat()
        self._sizes: dict[str, int] = {}
        self._bytes = 0

    @property
    def bytes(self) -> int:
        """Total size of its entries in bytes."""
        return self._bytes

    def use(self, key: str) -> None:
        """Count a use of a block."""
        self.heat.use(key)

    def missing(self, size: int) -> int:
        """Return how many bytes must be evicted to add `size` bytes; none if it is 0 or less."""
        return 0 if self.budget_bytes is None else self._bytes + size - self.budget_bytes

    def victims(self, size: int) -> list[str] | None:
        """Return the coldest keys, whose eviction makes room for `size` bytes; None if all together do not."""
        needed, chosen = self.missing(size), list[str]()
        if needed > 0:
            for key in self.heat.coldest():
                chosen.append(key)
                needed -= self._sizes[key]
                if needed <= 0:
                    break
        return chosen if needed <= 0 else None

    def __contains__(self, key: str) -> bool:
        return key in self._sizes

    def __len__(self) -> int:
        return len(self._sizes)

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._sizes))

    def _add_entry(self, key: str, size: int, uses: int) -> None:
        self._remove_entry(key)
        self._sizes[key] = size
        self._bytes += size
        self.heat.add(key, uses)

    def _remove_entry(self, key: str, evicted: bool = False) -> int:
        self._bytes -= self._sizes.pop(key, 0)
        return self.heat.remove(key, evicted)


class Tier(TierAccounting, ABC):
    """A tier of blocks. Hold `lock` to change it; reading needs no lock."""

    @abstractmethod
    def bytes_needed(self, kv: KV) -> int:
        """Return the size of `kv` in this tier, in bytes."""

    @abstractmethod
    def to_stored(self, kv: KV) -> Any:
        """Convert `kv` to the form in which this tier stores it, read-only."""

    @abstractmethod
    def keep(self, key: str, stored: Any, uses: int = 1) -> None:
        """Store the result of `to_stored`; the caller has made room for it."""

    @abstractmethod
    def get(self, key: str) -> Any:
        """Return the block under `key`, or None."""

    @abstractmethod
    def drop(self, key: str, evicted: bool = False) -> int:
        """Remove a block; return its use count."""


class HostTier(Tier):
    """Blocks in host memory.

    storage   "as cached", or "int8" (`quantized`): half the bytes of bfloat16, lossy; data/benchmarks/store_int8.py
              measures the effect on answers
    pinned    store blocks in page-locked memory, from which a GPU copies directly (without a GPU: ordinary memory)
    """

    def __init__(
        self,
        budget_bytes: int = 1 << 30,
        storage: Storage = "as cached",
        pinned: bool = False,
        name: str = "host",
    ):
        check_storage(storage)
        if pinned and storage == "int8":
            raise BadInput("storage 'int8' is not page-locked: blocks are restored on the host before they are copied")
        super().__init__(name, budget_bytes)
        self.storage, self.pinned = storage, pinned
        self._blocks: dict[str, Stored] = {}

    def to_stored(self, kv: KV) -> Stored:
        """Return the stored form of `kv`: quantized or page-locked; else `kv` itself if it is read-only, or a copy."""
        if self.storage == "int8":
            return quantize(kv)
        if self.pinned:
            return kv if isinstance(kv, PackedKV) else pack(kv, pinned=True).lock()
        return unmapped_copy(kv)

    def bytes_needed(self, kv: KV) -> int:
        """Return the size of `kv` in this tier, in bytes."""
        if self.storage == "int8":
            return size_in_bytes(kv)
        return layers_of(kv)[-1][1] if self.pinned else kv.nbytes

    def keep(self, key: str, stored: Stored, uses: int = 1) -> None:
        """Store the result of `to_stored`; the caller has made room for it."""
        self._add_entry(key, stored.nbytes if isinstance(stored, QuantizedKV) else self.bytes_needed(stored), uses)
        self._blocks[key] = stored

    def get(self, key: str) -> KV | None:
        """Return the block under `key`, dequantized if necessary, or None."""
        stored = self._blocks.get(key)
        return stored.restore() if isinstance(stored, QuantizedKV) else stored

    def drop(self, key: str, evicted: bool = False) -> int:
        """Remove a block; return its use count."""
        self._blocks.pop(key, None)
        return self._remove_entry(key, evicted)


class StoreTier(Tier):
    """Blocks in a store with `get`, `put` and `remove`: a `FolderStore` or a `RemoteStore`.

    Existing blocks count at once if the store has `size_of` or there is a budget, else when they are first read. Bytes
    are those of keys and values, without file headers. Raises BadInput if existing blocks exceed the budget; they are
    not removed.
    """

    def __init__(self, store: Store, budget_bytes: int | None = None, name: str = "disk"):
        super().__init__(name, budget_bytes)
        if budget_bytes is not None and not hasattr(store, "remove"):
            raise BadInput(f"{type(store).__name__} removes no blocks, so {name} can have no budget")
        self.store = store
        listed = store.block_sizes() if hasattr(store, "block_sizes") else {}  # one request to a remote store
        for key in listed or (store if isinstance(store, Iterable) else ()):
            self._add_entry(key, listed[key] if key in listed else self._stored(key), 1)
        if budget_bytes is not None and self._bytes > budget_bytes:
            raise BadInput(f"{name} holds {self._bytes} bytes of blocks already, and its budget is {budget_bytes}")

    def to_stored(self, kv: KV) -> KV:
        """Return `kv` itself."""
        return kv

    def bytes_needed(self, kv: KV) -> int:
        """Return the size of `kv` in bytes."""
        return kv.nbytes

    def keep(self, key: str, stored: KV, uses: int = 1) -> None:
        """Write a block; the caller has made room for it."""
        self.store.put(key, stored)
        self._add_entry(key, stored.nbytes, uses)

    def get(self, key: str) -> KV | None:
        """Return a block or None; a block that is damaged, or removed by another process, no longer counts."""
        kv = self.store.get(key)
        if (None if kv is None else kv.nbytes) != self._sizes.get(key):  # changed or removed by another process
            with self.lock:
                if kv is None:
                    self._remove_entry(key)
                elif self.missing(kv.nbytes) <= 0:
                    self._add_entry(key, kv.nbytes, 1)
        return kv

    def drop(self, key: str, evicted: bool = False) -> int:
        """Remove a block; return its use count. Raises BadInput if the store cannot remove blocks."""
        if key in self._sizes:
            if (remove := getattr(self.store, "remove", None)) is None:
                raise BadInput(f"{type(self.store).__name__} removes no blocks: {key} stays")
            remove(key)
        return self._remove_entry(key, evicted)

    def _stored(self, key: str) -> int:
        """Return the size of a stored block in bytes; 0 if it is unknown and there is no budget."""
        if hasattr(self.store, "size_of"):
            return int(self.store.size_of(key))
        kv = None if self.budget_bytes is None else self.store.get(key)
        return 0 if kv is None else kv.nbytes

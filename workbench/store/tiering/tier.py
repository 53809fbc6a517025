"""The places where cached blocks lie, each with a budget of bytes: host memory, a folder, a remote.

Each is a `Tier`, as are the pages of a GPU (`workbench.store.tiering.pages`). A tier keeps its books (bytes, heat) and
carries single blocks in and out; `workbench.store.tiering.tiered_store` decides what goes where.

Which cached block is the coldest: by frequency and recency.

LFU with dynamic aging, LFU-DA (Arlitt et al., "Evaluating Content Management Techniques for Web Proxy Caches", 2000).
The heat of an entry is the number of its uses plus the heat, at its last use, of what was evicted last. So an entry
that was used often cools down as others come and go. Between equals, the one that was used longest ago is colder.
Packages (cachetools, theine, cacheout) have no policy that weighs by bytes and passes over pinned entries.
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
from workbench.store.files.block_file import owned
from workbench.store.files.packed import PackedKV, layers_of, pack
from workbench.store.tiering.quantized import QuantizedKV, Storage, check_storage, quantize, size_in_bytes


class Heat:
    """The heat of keys.

    `use` may be called from any thread, and costs two dictionary entries; all else from one thread at a time.
    """

    def __init__(self) -> None:
        self.age = 0.0  # heat of the last entry that was evicted
        self._uses: dict[str, int] = {}
        self._heat: dict[str, tuple[float, int]] = {}  # heat, number of its last use
        self._heap: list[tuple[tuple[float, int], str]] = []  # may name keys that were used or removed since
        self._clock, self._lock = count(), Lock()

    def add(self, key: str, uses: int = 1) -> None:
        """Begin to count a key, which was used `uses` times elsewhere."""
        with self._lock:
            self._uses[key] = max(1, uses)
            self._heat[key] = self.age + self._uses[key], next(self._clock)
        heapq.heappush(self._heap, (self._heat[key], key))
        if len(self._heap) > 64 + 2 * len(self._heat):  # mostly of removed keys
            self._heap = [(heat, key) for key, heat in self._heat.items()]
            heapq.heapify(self._heap)

    def use(self, key: str) -> None:
        """Count a use of a key that is there."""
        self.use_all((key,))

    def use_all(self, keys: Iterable[str]) -> None:
        """Count a use of each of the keys that are there."""
        with self._lock:
            for key in keys:
                if (uses := self._uses.get(key)) is not None:
                    self._uses[key] = uses + 1
                    self._heat[key] = self.age + uses + 1, next(self._clock)

    def remove(self, key: str, evicted: bool = False) -> int:
        """Forget a key; return how often it was used. What is `evicted` ages the others."""
        with self._lock:
            heat, _ = self._heat.pop(key, (self.age, 0))
            if evicted:
                self.age = max(self.age, heat)
            return self._uses.pop(key, 1)

    def coldest(self, allowed: Callable[[str], bool] = lambda key: True) -> Iterator[str]:
        """Yield the allowed keys, the coldest first. Keys may be removed when the iteration has ended."""
        taken: list[tuple[tuple[float, int], str]] = []
        seen: set[str] = set()
        try:
            while self._heap:
                heat, key = heapq.heappop(self._heap)
                now = self._heat.get(key)
                if now is None or key in seen:
                    continue
                if now != heat:  # it was used since
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
        """Return the heat of a key, 0 where it is not there."""
        return self._heat.get(key, (0.0, 0))[0]

    def __len__(self) -> int:
        return len(self._heat)


Held = KV | QuantizedKV  # what a tier keeps


class Books:
    """What every tier counts: the bytes of its entries, and their heat."""

    def __init__(self, name: str, budget_bytes: int | None):
        if budget_bytes is not None and budget_bytes <= 0:
            raise BadInput(f"the budget of {name} is {budget_bytes} bytes: a positive number of bytes is needed")
        self.name, self.budget_bytes = name, budget_bytes
        self.lock, self.heat = RLock(), Heat()
        self._sizes: dict[str, int] = {}
        self._bytes = 0

    @property
    def bytes(self) -> int:
        """Bytes of what it holds."""
        return self._bytes

    def use(self, key: str) -> None:
        """Count a use of a block."""
        self.heat.use(key)

    def missing(self, size: int) -> int:
        """Return how many bytes must go for `size` more; 0 or less: none."""
        return 0 if self.budget_bytes is None else self._bytes + size - self.budget_bytes

    def victims(self, size: int) -> list[str] | None:
        """List the coldest keys that must go for `size` more bytes; None where that is not enough."""
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

    def _entered(self, key: str, size: int, uses: int) -> None:
        self._left(key)
        self._sizes[key] = size
        self._bytes += size
        self.heat.add(key, uses)

    def _left(self, key: str, evicted: bool = False) -> int:
        self._bytes -= self._sizes.pop(key, 0)
        return self.heat.remove(key, evicted)


class Tier(Books, ABC):
    """A place that blocks are moved to and from. `lock` is held by whoever changes it; reading needs none."""

    @abstractmethod
    def needs(self, kv: KV) -> int:
        """Return the bytes that `kv` takes here."""

    @abstractmethod
    def made(self, kv: KV) -> Any:
        """Return `kv` as it is kept here, and read-only."""

    @abstractmethod
    def keep(self, key: str, held: Any, uses: int = 1) -> None:
        """Keep what `made` returned; there is room for it."""

    @abstractmethod
    def get(self, key: str) -> Any:
        """Return the block under `key`, or None."""

    @abstractmethod
    def drop(self, key: str, evicted: bool = False) -> int:
        """Forget a block; return how often it was used."""


class HostTier(Tier):
    """Blocks in this machine's memory.

    storage   "as cached", or "int8": a scale for every channel of keys and every token of values; half the bytes of
              bfloat16, and other numbers: its effect is measured in data/benchmarks/store_int8.py
    pinned    in page-locked memory, from which a GPU copies without the processor (without a GPU: ordinary memory)
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
        self._held: dict[str, Held] = {}

    def made(self, kv: KV) -> Held:
        """Return `kv` as it is kept: itself where that is read-only memory, else a copy; rounded, or page-locked."""
        if self.storage == "int8":
            return quantize(kv)
        if self.pinned:
            return kv if isinstance(kv, PackedKV) else pack(kv, pinned=True).lock()
        return owned(kv)

    def needs(self, kv: KV) -> int:
        """Return the bytes that `kv` takes here."""
        if self.storage == "int8":
            return size_in_bytes(kv)
        return layers_of(kv)[-1][1] if self.pinned else kv.nbytes

    def keep(self, key: str, held: Held, uses: int = 1) -> None:
        """Keep what `made` returned; there is room for it."""
        self._entered(key, held.nbytes if isinstance(held, QuantizedKV) else self.needs(held), uses)
        self._held[key] = held

    def get(self, key: str) -> KV | None:
        """Return the block under `key`, restored where it was rounded, or None."""
        held = self._held.get(key)
        return held.restore() if isinstance(held, QuantizedKV) else held

    def drop(self, key: str, evicted: bool = False) -> int:
        """Forget a block; return how often it was used."""
        self._held.pop(key, None)
        return self._left(key, evicted)


class StoreTier(Tier):
    """Blocks in a store with `get`, `put` and `remove`: a `FolderStore`, or one of a remote.

    What the store holds already counts: at once where it knows the size of its blocks (`size_of`) or there is a budget,
    else from when a block is read. Bytes are those of keys and values, without headers of files.
    Raises BadInput where the store holds more than the budget: nothing is removed that was there before.
    """

    def __init__(self, store: Store, budget_bytes: int | None = None, name: str = "disk"):
        super().__init__(name, budget_bytes)
        if budget_bytes is not None and not hasattr(store, "remove"):
            raise BadInput(f"{type(store).__name__} removes no blocks, so {name} can have no budget")
        self.store = store
        listed = store.listed() if hasattr(store, "listed") else {}  # of a remote, in one request
        for key in listed or (store if isinstance(store, Iterable) else ()):
            self._entered(key, listed[key] if key in listed else self._stored(key), 1)
        if budget_bytes is not None and self._bytes > budget_bytes:
            raise BadInput(f"{name} holds {self._bytes} bytes of blocks already, and its budget is {budget_bytes}")

    def made(self, kv: KV) -> KV:
        """Return `kv` itself."""
        return kv

    def needs(self, kv: KV) -> int:
        """Return the bytes of a block."""
        return kv.nbytes

    def keep(self, key: str, held: KV, uses: int = 1) -> None:
        """Write a block; there is room for it."""
        self.store.put(key, held)
        self._entered(key, held.nbytes, uses)

    def get(self, key: str) -> KV | None:
        """Read a block, or return None; one that is damaged or was removed by another process counts no longer."""
        kv = self.store.get(key)
        if (None if kv is None else kv.nbytes) != self._sizes.get(key):  # other processes write and remove, too
            with self.lock:
                if kv is None:
                    self._left(key)
                elif self.missing(kv.nbytes) <= 0:
                    self._entered(key, kv.nbytes, 1)
        return kv

    def drop(self, key: str, evicted: bool = False) -> int:
        """Remove a block; return how often it was used. Raises BadInput where the store removes none."""
        if key in self._sizes:
            if (remove := getattr(self.store, "remove", None)) is None:
                raise BadInput(f"{type(self.store).__name__} removes no blocks: {key} stays")
            remove(key)
        return self._left(key, evicted)

    def _stored(self, key: str) -> int:
        """Return the bytes of a block that the store holds, as far as they must be known."""
        if hasattr(self.store, "size_of"):
            return int(self.store.size_of(key))
        kv = None if self.budget_bytes is None else self.store.get(key)
        return 0 if kv is None else kv.nbytes

"""Cached blocks in memory, within a budget of bytes; the least recently used ones go first."""

from collections import OrderedDict
from dataclasses import dataclass, replace
from threading import RLock

from workbench.core.errors import BadInput
from workbench.core.kv import KV
from workbench.store.fetching import Store


@dataclass(frozen=True)
class Stats:
    """Counters since the store was made; `bytes` and `entries` are what it holds now."""

    hits: int = 0
    misses: int = 0
    evictions: int = 0
    rejected: int = 0  # entries larger than the whole budget: handed back to the caller, never kept
    bytes: int = 0
    entries: int = 0

    @property
    def hit_rate(self) -> float:
        """Share of look-ups that found their block; 0 before the first."""
        return self.hits / (self.hits + self.misses) if self.hits + self.misses else 0.0

    def since(self, before: "Stats") -> "Stats":
        """What was counted after `before`; bytes and entries as they are now."""
        counts = ("hits", "misses", "evictions", "rejected")
        return replace(self, **{name: getattr(self, name) - getattr(before, name) for name in counts})


class MemoryStore:
    """Least-recently-used store of read-only KV; safe to use from several threads.

    `behind`: a slower store that is asked for what this one lacks; what it has is a hit, and is kept here too.
    """

    def __init__(self, budget_bytes: int = 1 << 30, behind: Store | None = None):
        if budget_bytes <= 0:
            raise BadInput(f"budget of {budget_bytes} bytes: a store needs a positive budget")
        self.budget_bytes, self.behind = budget_bytes, behind
        self._entries: OrderedDict[str, KV] = OrderedDict()
        self._lock = RLock()
        self._hits = self._misses = self._evictions = self._rejected = self._bytes = 0

    def get(self, key: str) -> KV | None:
        """The KV under `key` (read-only: `assemble` copies it), or None."""
        with self._lock:
            kv = self._entries.get(key)
            if kv is not None:
                self._entries.move_to_end(key)
            elif self.behind is not None and (kv := self.behind.get(key)) is not None:
                self.put(key, kv)
            self._hits += kv is not None
            self._misses += kv is None
            return kv

    def put(self, key: str, kv: KV) -> None:
        """Keep `kv` under `key`: itself where it is read-only, else a copy. One larger than the budget is not kept."""
        if kv.nbytes > self.budget_bytes:
            with self._lock:
                self._rejected += 1
                self._forget(key)
            return
        kept = kv if kv.read_only else kv.clone().lock()
        with self._lock:
            self._forget(key)
            self._entries[key] = kept
            self._bytes += kept.nbytes
            while self._bytes > self.budget_bytes:
                self._forget(next(iter(self._entries)))
                self._evictions += 1

    def _forget(self, key: str) -> None:
        if (kv := self._entries.pop(key, None)) is not None:
            self._bytes -= kv.nbytes

    def clear(self) -> None:
        """Drop all entries; the counters stay."""
        with self._lock:
            self._entries.clear()
            self._bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: str) -> bool:
        return key in self._entries

    @property
    def bytes(self) -> int:
        return self._bytes

    @property
    def stats(self) -> Stats:
        with self._lock:
            return Stats(self._hits, self._misses, self._evictions, self._rejected, self._bytes, len(self._entries))

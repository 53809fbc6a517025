"""Wrappers of stores that hide, record or stage blocks."""

import logging
from collections.abc import Container
from typing import Any

from workbench.core.errors import BadInput
from workbench.core.kv import KV
from workbench.store.fetching import Store
from workbench.store.misses import Miss, miss_reason, most_informative
from workbench.store.stats import Stats

log = logging.getLogger(__name__)


class _StoreWrapper:
    """Base of wrappers: forwards every call to `store`."""

    def __init__(self, store: Any):
        self.store = store

    def get(self, key: str) -> KV | None:
        """Return the KV under `key`, or None."""
        kv: KV | None = self.store.get(key)
        return kv

    def put(self, key: str, kv: KV) -> None:
        """Store `kv` under `key`."""
        self.store.put(key, kv)

    def miss_reason(self, key: str) -> Miss:
        """Return why `get(key)` misses."""
        return miss_reason(self.store, key)


class ReadOnlyStore(_StoreWrapper):
    """Read-only view of `store`: every request has the same hits and misses.

    Only blocks under `keys` are visible; None: all blocks.
    """

    def __init__(self, store: Store, keys: Container[str] | None = None):
        super().__init__(store)
        self.keys = keys

    def get(self, key: str) -> KV | None:
        return super().get(key) if self.keys is None or key in self.keys else None

    def put(self, key: str, kv: KV) -> None:
        """Do nothing."""

    def miss_reason(self, key: str) -> Miss:
        """Return why `get(key)` misses; `never seen` for a hidden key."""
        return super().miss_reason(key) if self.keys is None or key in self.keys else Miss(key, "never seen")


class RecordingStore(_StoreWrapper):
    """Forwards all calls to `store`, and records the keys of new blocks in `stored`."""

    def __init__(self, store: Store):
        super().__init__(store)
        self.stored: set[str] = set()

    def put(self, key: str, kv: KV) -> None:
        self.stored.add(key)
        super().put(key, kv)


class CountingStore(_StoreWrapper):
    """Forwards all calls to `store`, and records which of the requested blocks it had, each once."""

    def __init__(self, store: Any):
        super().__init__(store)
        self.reused: set[str] = set()
        self.missed: set[str] = set()

    def get(self, key: str) -> KV | None:
        kv = super().get(key)
        if kv is None:
            self.missed.add(str(key))
        elif key not in self.missed:  # else it was encoded and stored meanwhile
            self.reused.add(str(key))
        return kv

    def repair(self, key: str, kv: KV) -> None:
        """Let `store` replace the block if it does that."""
        if repair := getattr(self.store, "repair", None):
            repair(key, kv)

    @property
    def stats(self) -> Stats:
        stats: Stats = getattr(self.store, "stats", Stats())
        return stats


class KeepingStore(_StoreWrapper):
    """Write-through wrapper of `store`, for use as `behind` of a `MemoryStore`: new blocks are stored here as well.

    A failed write is a warning, not an error: the next request computes the block again.
    """

    def repair(self, key: str, kv: KV) -> None:
        """Store `kv` if the block is missing or damaged."""
        self.store.repair(key, kv)
        if key in self.store:
            return
        try:
            self.store.put(key, kv)
        except BadInput as problem:
            log.warning("a block is not kept: %s", problem)

    @property
    def stats(self) -> Stats:
        stats: Stats = self.store.stats
        return stats


class StagingStore:
    """Reads from several stores in order, and collects new blocks in `staged`, to be written later.

    there   requested keys that were found in the first store
    """

    def __init__(self, *stores: Store):
        self.stores = stores
        self.staged: dict[str, KV] = {}
        self.there: set[str] = set()

    def get(self, key: str) -> KV | None:
        if key in self.staged:
            return self.staged[key]
        for store in self.stores:
            if (kv := store.get(key)) is not None:
                if store is self.stores[0]:
                    self.there.add(str(key))
                return kv
        return None

    def put(self, key: str, kv: KV) -> None:
        self.staged[key] = kv

    def miss_reason(self, key: str) -> Miss:
        """Return why `get(key)` misses in all stores."""
        return most_informative(Miss(key, "never seen"), *(miss_reason(store, key) for store in self.stores))

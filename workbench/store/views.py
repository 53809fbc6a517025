"""Stores in front of other stores: they hide, record or hold back blocks."""

import logging
from collections.abc import Container
from typing import Any

from workbench.core.errors import BadInput
from workbench.core.kv import KV
from workbench.store.fetching import Store
from workbench.store.misses import Miss, likeliest, why
from workbench.store.stats import Stats

log = logging.getLogger(__name__)


class _Front:
    """Forwards every call to `store`."""

    def __init__(self, store: Any):
        self.store = store

    def get(self, key: str) -> KV | None:
        """Return the store's block, or None."""
        kv: KV | None = self.store.get(key)
        return kv

    def put(self, key: str, kv: KV) -> None:
        """Keep `kv` in the store."""
        self.store.put(key, kv)

    def why(self, key: str) -> Miss:
        """Return why `get(key)` finds nothing."""
        return why(self.store, key)


class ReadOnlyStore(_Front):
    """Reads from `store` and writes nothing to it, so that every request finds and misses the same blocks.

    Only `keys` can be found; None: all of them.
    """

    def __init__(self, store: Store, keys: Container[str] | None = None):
        super().__init__(store)
        self.keys = keys

    def get(self, key: str) -> KV | None:
        return super().get(key) if self.keys is None or key in self.keys else None

    def put(self, key: str, kv: KV) -> None:
        """Do nothing."""

    def why(self, key: str) -> Miss:
        """Return why `get(key)` finds nothing; `never seen` for a hidden key."""
        return super().why(key) if self.keys is None or key in self.keys else Miss(key, "never seen")


class RecordingStore(_Front):
    """Passes all calls on to `store`, and records in `stored` the keys that are put."""

    def __init__(self, store: Store):
        super().__init__(store)
        self.stored: set[str] = set()

    def put(self, key: str, kv: KV) -> None:
        self.stored.add(key)
        super().put(key, kv)


class KeepingStore(_Front):
    """Passes all calls on to `store`, for use as `behind` of a `MemoryStore` whose new blocks it shall keep.

    A block that cannot be written gives a warning, not an error: the next request computes it again.
    """

    def repair(self, key: str, kv: KV) -> None:
        """Keep `kv` if the store lacks it, or holds it damaged."""
        self.store.repair(key, kv)
        if key in self.store:
            return
        try:
            self.store.put(key, kv)
        except BadInput as problem:
            log.warning("a block is not kept: %s", problem)

    @property
    def stats(self) -> Stats:
        """Counters of the store."""
        stats: Stats = self.store.stats
        return stats


class StagingStore:
    """Reads from several stores in order, and collects what is put in `staged`, to be written later.

    there   keys that were asked for and are in the first store
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

    def why(self, key: str) -> Miss:
        """Return why `get(key)` finds nothing in any of the stores."""
        return likeliest(Miss(key, "never seen"), *(why(store, key) for store in self.stores))

"""Cached blocks in the pages of a pool, found again by the very KV that they were copied from.

A block that many prompts reuse is copied once. It stays until its KV is gone or its pages are needed, the least
recently used first; what a prompt in work reads is pinned.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from weakref import ref

from workbench.core.kv import KV
from workbench.engine.page_owners import NoPages
from workbench.engine.paged_pool import Cached, Pool


class BlockPages:
    """The blocks of `pool`; `place` pins what it returns, `unpin` lets it go."""

    def __init__(self, pool: Pool):
        self.pool = pool
        self._entries: OrderedDict[int, tuple[ref[KV], Cached]] = OrderedDict()  # by the id of the KV
        self._pins = Counter[int]()  # by the id of the `Cached`

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def room(self) -> int:
        """Pages that are free, or would be after dropping every block that nobody reads."""
        idle = (cached for _, cached in self._entries.values() if not self._pins[id(cached)])
        return self.pool.free + sum(len(cached.pages) for cached in idle)

    def make_room(self, pages: int, what: str = "the request") -> None:
        """Drop blocks that nobody reads until so many pages are free. Raises NoPages, dropping nothing, if they are
        not enough."""
        self._drop([key for key, (kv, cached) in self._entries.items() if kv() is None and not self._pins[id(cached)]])
        if pages > self.room:
            raise NoPages(pages, self.room, what)
        idle = (key for key, (_, cached) in list(self._entries.items()) if not self._pins[id(cached)])
        while self.pool.free < pages:
            self._drop([next(idle)])

    def place(self, kvs: Sequence[KV]) -> list[Cached]:
        """Return where these blocks lie, pinned; those that do not yet are copied, each once."""
        known: dict[int, Cached] = {}
        fresh: dict[int, KV] = {}
        for kv in kvs:
            entry = self._entries.get(id(kv))
            if entry is not None and entry[0]() is kv:
                known[id(kv)] = entry[1]
                self._entries.move_to_end(id(kv))
            else:
                fresh[id(kv)] = kv
        for cached in known.values():
            self._pins[id(cached)] += 1
        try:
            size = self.pool.size
            self.make_room(sum(-(-len(kv) // size) for kv in fresh.values()), "the context")
            copied = self.pool.put_many(list(fresh.values()))
        finally:
            self.unpin(known.values())
        for key in fresh:
            if (gone := self._entries.pop(key, None)) is not None:  # of a KV that is gone, whose id is used once more
                self._entries[-id(gone[1])] = gone
        for (key, kv), cached in zip(fresh.items(), copied, strict=True):
            self._entries[key] = ref(kv), cached
            known[key] = cached
        placed = [known[id(kv)] for kv in kvs]
        for cached in placed:
            self._pins[id(cached)] += 1
        return placed

    def unpin(self, context: Iterable[Cached]) -> None:
        """Let blocks go that `place` has returned."""
        for cached in context:
            self._pins[id(cached)] -= 1
            if self._pins[id(cached)] <= 0:
                del self._pins[id(cached)]

    def _drop(self, keys: Sequence[int]) -> None:
        for key in keys:
            self.pool.give(self._entries.pop(key)[1])

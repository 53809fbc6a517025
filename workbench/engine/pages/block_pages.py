"""An LRU cache of blocks in the pages of a pool, looked up by the KV object that they were copied from.

A block that many prompts reuse is copied once. It is evicted when its KV is deleted or its pages are needed, least
recently used first. Blocks that a running prompt reads are pinned. Blocks derived from another block can be kept too.
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from types import NoneType
from weakref import ref

from workbench.core.kv import KV
from workbench.engine.pages.page_allocator import NoPages
from workbench.engine.pages.paged_pool import Pool
from workbench.engine.pages.paged_prompt import Cached


class BlockPages:
    """The cached blocks of `pool`. `place` pins the blocks that it returns; `unpin` releases them."""

    def __init__(self, pool: Pool):
        self.pool = pool
        self._entries: OrderedDict[int, tuple[Callable[[], object], Cached]] = OrderedDict()  # by the id of the KV
        self._pins = Counter[int]()  # by the id of the `Cached`
        self._idle = 0  # pages of unpinned blocks
        self._gone = deque[int]()  # keys of entries whose KV was garbage-collected

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Cached]:
        """Yield the blocks in pages."""
        return (cached for _, cached in self._entries.values())

    @property
    def pinned(self) -> int:
        """Number of blocks that running prompts read."""
        return len(self._pins)

    @property
    def available_pages(self) -> int:
        """Number of pages that are free or can be freed: those of unpinned blocks."""
        return self.pool.free + self._idle

    def make_room(self, pages: int, what: str = "the request") -> None:
        """Evict unpinned blocks, first those whose KV was deleted, until `pages` pages are free.

        Raises NoPages, evicting nothing, if that is not enough.
        """
        if pages > self.available_pages:
            raise NoPages(pages, self.available_pages, what)
        if self.pool.free >= pages:
            return
        for _ in range(len(self._gone)):
            key = self._gone.popleft()
            if key in self._entries and self._entries[key][0]() is None:
                if id(self._entries[key][1]) in self._pins:
                    self._gone.append(key)
                else:
                    self._drop(key)
        free, idle = self.pool.free, list[int]()
        for key, (_, cached) in self._entries.items():  # stops early: there may be thousands
            if free >= pages:
                break
            if id(cached) not in self._pins:
                idle.append(key)
                free += len(cached.numbers)
        for key in idle:
            self._drop(key)

    def place(self, kvs: Sequence[KV]) -> list[Cached]:
        """Return these blocks in pages, pinned; blocks without pages are copied, each once."""
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
            self._pin(cached)
        try:
            size = self.pool.size
            self.make_room(sum(-(-len(kv) // size) for kv in fresh.values()), "the context")
            copied = self.pool.put_many(list(fresh.values()))
        finally:
            self.unpin(known.values())
        for key in fresh:
            if (gone := self._entries.pop(key, None)) is not None:  # the id of a collected KV was reused
                self._entries[-id(gone[1])] = gone
                self._gone.append(-id(gone[1]))
        for (key, kv), cached in zip(fresh.items(), copied, strict=True):
            self._entries[key] = ref(kv, partial(_append, self._gone, key)), cached
            self._idle += len(cached.numbers)
            known[key] = cached
        placed = [known[id(kv)] for kv in kvs]
        for cached in placed:
            self._pin(cached)
        return placed

    def blank(self, length: int, start: int) -> Cached:
        """Return an unwritten block for one request, pinned; `unpin` frees its pages."""
        self.make_room(-(-length // self.pool.size))
        cached = self.pool.cached(length, start)
        self._entries[-id(cached)] = NoneType, cached  # a key that no KV has
        self._idle += len(cached.numbers)
        self._pin(cached)
        return cached

    def keep(self, cached: Cached, of: Cached) -> None:
        """Keep a block from `blank` for later requests, as long as the block `of` that it is derived from."""
        key = -id(cached)
        self._entries[key] = ref(of, partial(_append, self._gone, key)), cached

    def pin_again(self, cached: Cached) -> bool:
        """Pin a kept block again; return False if it was evicted."""
        key = -id(cached)
        if key not in self._entries or self._entries[key][1] is not cached:
            return False
        self._entries.move_to_end(key)
        self._pin(cached)
        return True

    def unpin(self, context: Iterable[Cached]) -> None:
        """Release blocks that `place` or `blank` returned, or `pin_again` pinned."""
        for cached in context:
            self._pins[id(cached)] -= 1
            if self._pins[id(cached)] <= 0:
                del self._pins[id(cached)]
                self._idle += len(cached.numbers)
                entry = self._entries.get(-id(cached))
                if entry is not None and entry[0]() is None:  # its KV was collected: it cannot be found again
                    self._drop(-id(cached))

    def _pin(self, cached: Cached) -> None:
        if id(cached) not in self._pins:
            self._idle -= len(cached.numbers)
        self._pins[id(cached)] += 1

    def _drop(self, key: int) -> None:
        _, cached = self._entries.pop(key)
        self._idle -= len(cached.numbers)
        self.pool.free_pages(cached)


def _append(gone: deque[int], key: int, _: object) -> None:
    """Record that the KV of a block was garbage-collected."""
    gone.append(key)

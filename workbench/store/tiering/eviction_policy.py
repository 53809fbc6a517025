"""Which cached block is the coldest: by frequency and recency.

LFU with dynamic aging, LFU-DA (Arlitt et al., "Evaluating Content Management Techniques for Web Proxy Caches", 2000).
The heat of an entry is the number of its uses plus the heat, at its last use, of what was evicted last. So an entry
that was used often cools down as others come and go. Between equals, the one that was used longest ago is colder.
Packages (cachetools, theine, cacheout) have no policy that weighs by bytes and passes over pinned entries.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from threading import Lock


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

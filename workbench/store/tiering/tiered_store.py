"""One store over several tiers: hot blocks in fast tiers, cold blocks in slow tiers.

A hit promotes its block. The coldest blocks are demoted to make room, and evicted from the last tier. Promotion leaves
the copy in the lower tier, so a later demotion costs nothing.
"""

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from threading import RLock
from typing import Any, Literal, get_args

from workbench.core.errors import BadInput
from workbench.core.kv import KV
from workbench.store.events import Events
from workbench.store.misses import Miss, identity_of
from workbench.store.stats import Stats
from workbench.store.tiering.promotion import Chain
from workbench.store.tiering.tier import Tier

RECENT = 256  # number of latest misses kept with their details
Write = Literal["back", "through"]


@dataclass(frozen=True)
class FoundBlock:
    """A block, and the name of the tier that it was found in."""

    kv: KV
    tier: str


class TieredStore:
    """A store over `tiers`, the fastest first; thread-safe.

    write     "back": a new block is stored in the first tier, and demoted when it is cold; "through": it is also
              written to the lower tiers at once
    loaders   number of threads that read in `find_all`
    events    recorder of hits, misses, reads, writes and evictions
    clock     returns the timestamp of evictions, in seconds since 1970
    """

    def __init__(
        self,
        tiers: Sequence[Tier],
        write: Write = "back",
        loaders: int = 2,
        events: Events | None = None,
        clock: Callable[[], float] = time.time,
    ):
        if write not in get_args(Write):
            raise BadInput(f"write is {write!r}: allowed are {', '.join(get_args(Write))}")
        if loaders < 1:
            raise BadInput(f"loaders is {loaders}: at least 1 is needed")
        self.write, self.loaders, self.events = write, loaders, events
        self.recent: deque[Miss] = deque(maxlen=RECENT)
        self.chain = Chain(tiers, events, clock)
        self.tiers = self.chain.tiers
        self._hits, self._read, self._reasons = Counter[str](), Counter[str](), Counter[str]()
        self._lock, self._loading = RLock(), dict[str, Future[FoundBlock | None]]()
        self._threads: ThreadPoolExecutor | None = None

    def get(self, key: str) -> KV | None:
        """Return the KV under `key` (read-only), or None."""
        found = self.find(key)
        return None if found is None else found.kv

    def find(self, key: str, request: str = "") -> FoundBlock | None:
        """Return the block under `key` with its tier, or None; waits if the block is being promoted."""
        found = self._fetch(key)
        if found is None:
            self._missed(self.miss_reason(key), request)
            return None
        with self._lock:
            self._hits[found.tier] += 1
            self._read[found.tier] += found.kv.nbytes
        if self.events is not None:
            self.events.add("hit", request=request, key=str(key), tier=found.tier, bytes=found.kv.nbytes)
        return found

    def find_all(self, keys: Sequence[str], request: str = "") -> Iterator[FoundBlock | None]:
        """Yield what `find` returns for each key, in order; lower tiers are read in parallel."""
        below = [key for key in keys if key not in self.tiers[0]]
        threads = self._loaders() if len(below) > 1 else None
        later = {key: threads.submit(self.find, key, request) for key in below} if threads else {}
        try:
            for key in keys:
                yield later.pop(key).result() if key in later else self.find(key, request)
        finally:  # if the caller stops early, pending reads are cancelled
            for future in later.values():
                future.cancel()

    def put(self, key: str, kv: KV) -> None:
        """Store `kv` under `key`. Raises BadInput if it exceeds the budget of every tier."""
        self.chain.check(kv)
        if identity_of(key) is None:  # not a content key: copies in lower tiers may be outdated
            self.chain.remove(key)
        kept = self.chain.enter(key, kv)
        for tier in self.tiers[1:]:
            if repair := getattr(getattr(tier, "store", None), "repair", None):
                repair(key, kept)
        for level in range(1, len(self.tiers)) if self.write == "through" else ():
            self.chain.write_to_tier(level, key, kept, only=True)

    def tier_of(self, key: str) -> str | None:
        """Return the name of the first tier that contains a block, without reading it; None if there is none."""
        return self.chain.tier_of(key)

    def miss_reason(self, key: str) -> Miss:
        """Return why `find(key)` misses."""
        return self.chain.miss_reason(key)

    def close(self) -> None:
        """Shut down the reading threads."""
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)
            self._threads = None

    @property
    def bytes(self) -> int:
        """Bytes over all tiers; a block in two tiers counts twice."""
        return sum(tier.bytes for tier in self.tiers)

    @property
    def stats(self) -> Stats:
        """Counters over all tiers; a block in two tiers is one entry."""
        behind = [getattr(getattr(tier, "store", None), "stats", Stats()) for tier in self.tiers]
        entries = len({key for tier in self.tiers for key in tier})
        with self._lock:
            return Stats(
                hits=sum(self._hits.values()),
                misses=sum(self._reasons.values()),
                evictions=sum(self.chain.evictions.values()),
                bytes=self.bytes,
                entries=entries,
                repaired=sum(stats.repaired for stats in behind),
                reasons=dict(self._reasons),
            )

    def by_tier(self) -> list[dict[str, Any]]:
        """Return one row per tier: {tier, budget, bytes, blocks, hits, read, evictions}; `read` is in bytes of hits."""
        with self._lock:
            return [
                {
                    "tier": tier.name,
                    "budget": tier.budget_bytes,
                    "bytes": tier.bytes,
                    "blocks": len(tier),
                    "hits": self._hits[tier.name],
                    "read": self._read[tier.name],
                    "evictions": self.chain.evictions[tier.name],
                }
                for tier in self.tiers
            ]

    def __contains__(self, key: str) -> bool:
        return self.tier_of(key) is not None

    def __len__(self) -> int:
        return self.stats.entries

    def _loaders(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(self.loaders, "prefetch")
            return self._threads

    def _fetch(self, key: str) -> FoundBlock | None:
        """Find and promote a block, without counting; concurrent requests for a block share one read."""
        if (kv := self.chain.get_from_first(key)) is not None:
            return FoundBlock(kv, self.tiers[0].name)
        with self._lock:
            if (future := self._loading.get(key)) is None:
                mine = self._loading[key] = Future[FoundBlock | None]()
        if future is not None:
            return future.result()
        try:
            below = self.chain.promote_from_lower(key)
            above = self.chain.get_from_first(key) if below is None else None  # another thread may have promoted it
            found = (
                FoundBlock(*below) if below else FoundBlock(above, self.tiers[0].name) if above is not None else None
            )
            mine.set_result(found)
            return found
        except BaseException as problem:
            mine.set_exception(problem)
            raise
        finally:
            with self._lock:
                del self._loading[key]

    def _missed(self, miss: Miss, request: str) -> None:
        with self._lock:
            self._reasons[miss.reason] += 1
            self.recent.append(miss)
        if self.events is not None:
            self.events.add("miss", request=request, key=str(miss.key), detail=str(miss))

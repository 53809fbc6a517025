"""LRU store of cached blocks in memory, with a budget in bytes."""

from collections import Counter, OrderedDict, deque
from operator import attrgetter
from threading import RLock

from workbench.core.errors import BadInput
from workbench.core.kv import KV
from workbench.core.utils import annotations, html_views
from workbench.store.fetching import Store
from workbench.store.files.block_file import unmapped_copy
from workbench.store.misses import Index, Miss, Reason, miss_reason, most_informative
from workbench.store.stats import Stats

__all__ = ["UNLIMITED", "MemoryStore", "Stats"]
UNLIMITED = 1 << 62  # bytes
REMEMBERED = 1 << 16  # maximum number of dropped keys kept to explain later misses
RECENT = 256  # number of latest misses kept with their details
_VERSION = attrgetter("_version")


def _versions(kv: KV) -> tuple[int, ...]:
    """Return the version counters of a KV's tensors, which in-place writes increment."""
    tensors = kv.stacked() or (*kv.keys, *kv.values)
    try:
        return tuple(map(_VERSION, tensors))  # no Python loop: a request has thousands of tensors
    except RuntimeError:  # inference tensors have no counter
        return tuple(0 if x.is_inference() else x._version for x in tensors)


class MemoryStore:
    """LRU store of read-only KV; thread-safe.

    `behind` is a slower store that is read on a miss. Its blocks count as hits and are copied here; its damaged blocks
    are replaced when they are put again. A block that was modified in place after `put` counts as damaged.
    `recent` contains the latest misses with their reasons.
    """

    def __init__(self, budget_bytes: int = 1 << 30, behind: Store | None = None):
        annotations.check("budget_bytes", budget_bytes, float)
        if budget_bytes <= 0:
            raise BadInput(f"budget of {budget_bytes} bytes: a store needs a positive budget")
        self.budget_bytes, self.behind = budget_bytes, behind
        self._entries: OrderedDict[str, KV] = OrderedDict()
        self._versions: dict[str, tuple[int, ...]] = {}
        self._lock = RLock()
        self._index, self._reasons, self._dropped = Index(), Counter[str](), OrderedDict[str, Reason]()
        self.recent: deque[Miss] = deque(maxlen=RECENT)
        self._hits = self._misses = self._evictions = self._rejected = self._bytes = 0

    def __repr__(self) -> str:
        used = f"{len(self._entries):,} blocks, {html_views.size(self._bytes)}"
        return f"MemoryStore({used} of {html_views.size(self.budget_bytes)})"

    @annotations.checked
    def get(self, key: str) -> KV | None:
        """Return the KV under `key` (read-only: `assemble` copies it), or None."""
        with self._lock:
            kv = self._entries.get(key)
            if kv is not None and _versions(kv) != self._versions[key]:
                self._forget(key, "damaged")  # a caller modified it in place
                kv = None
            if kv is not None:
                self._entries.move_to_end(key)
            elif self.behind is not None and (kv := self.behind.get(key)) is not None:
                self.put(key, kv)
                kv = self._entries.get(key, kv)  # the copy made by `put`, if it fits the budget
            self._hits += kv is not None
            if kv is None:
                self._miss(key)
            return kv

    @annotations.checked
    def put(self, key: str, kv: KV) -> None:
        """Store `kv` under `key`, without a copy if it is read-only memory; skip it if it exceeds the budget."""
        if kv.nbytes > self.budget_bytes:
            with self._lock:
                self._rejected += 1
                self._forget(key, "too large")
                self._repair(key, kv)
            return
        kept = unmapped_copy(kv)
        with self._lock:
            self._forget(key)
            self._entries[key], self._versions[key] = kept, _versions(kept)
            self._index.add(key)
            self._dropped.pop(key, None)
            self._bytes += kept.nbytes
            while self._bytes > self.budget_bytes:
                self._forget(next(iter(self._entries)), "evicted")
                self._evictions += 1
            self._repair(key, kept)

    def miss_reason(self, key: str) -> Miss:
        """Return why `get(key)` misses, here and in the store behind."""
        with self._lock:
            misses = [self._index.miss(key)]
            if reason := self._dropped.get(key):
                misses.append(Miss(key, reason, f"the budget is {self.budget_bytes / 1e6:,.1f} MB"))
            if self.behind is not None:
                misses.append(miss_reason(self.behind, key))
        return most_informative(*misses)

    def _miss(self, key: str) -> None:
        miss = self.miss_reason(key)
        self._misses += 1
        self._reasons[miss.reason] += 1
        self.recent.append(miss)

    def _forget(self, key: str, reason: Reason | None = None) -> None:
        if (kv := self._entries.pop(key, None)) is not None:
            del self._versions[key]
            self._bytes -= kv.nbytes
            self._index.remove(key)
        if reason:
            self._dropped[str(key)] = reason  # as plain text: the identity of a `Key` takes more memory
            if len(self._dropped) > REMEMBERED:
                self._dropped.popitem(last=False)

    def _repair(self, key: str, kv: KV) -> None:
        """Replace a damaged block of the store behind."""
        if repair := getattr(self.behind, "repair", None):
            repair(key, kv)

    def clear(self) -> None:
        """Remove all entries, but keep the counters."""
        with self._lock:
            for key in list(self._entries):
                self._forget(key, "evicted")

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: str) -> bool:
        return key in self._entries

    @property
    def bytes(self) -> int:
        return self._bytes

    @property
    def stats(self) -> Stats:
        """Counters since the store was created; `repaired` is that of the store behind."""
        behind = getattr(self.behind, "stats", Stats())
        with self._lock:
            return Stats(
                hits=self._hits,
                misses=self._misses,
                evictions=self._evictions,
                rejected=self._rejected,
                bytes=self._bytes,
                entries=len(self._entries),
                repaired=behind.repaired,
                reasons=dict(self._reasons),
            )

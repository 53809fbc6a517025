"""Promotion and demotion in a chain of tiers: blocks move up on use and down on eviction.

The first tier is modified under its lock, which is never held while a tier below is read or written. Until a demoted
block is written, it is found in `_moving`. Lower tiers are written one block at a time, and read by many threads.
"""

import logging
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from threading import RLock
from typing import Any, Literal

from workbench.core.errors import BadInput
from workbench.core.kv import KV
from workbench.core.utils import annotations
from workbench.store.events import Events
from workbench.store.misses import Index, Miss, Reason, miss_reason, most_informative
from workbench.store.tiering.tier import Tier

log = logging.getLogger(__name__)
REMEMBERED = 1 << 16  # maximum number of dropped keys kept to explain later misses


class Chain:
    """A chain of tiers, the fastest first.

    evictions   number of evicted blocks by tier
    clock       returns the timestamp of evictions, in seconds since 1970
    """

    def __init__(self, tiers: Sequence[Tier], events: Events | None, clock: Callable[[], float] = time.time):
        annotations.check("tiers", tiers, Sequence[Any])
        if not tiers or len({tier.name for tier in tiers}) < len(tiers):
            raise BadInput(f"tiers {[tier.name for tier in tiers]}: at least one is needed, each with its own name")
        self.tiers, self.events, self.clock = list(tiers), events, clock
        self.evictions = Counter[str]()
        self.lock, self._index = RLock(), Index()
        self._moving: dict[str, Any] = {}
        self._dropped: OrderedDict[str, Miss] = OrderedDict()

    def get_from_first(self, key: str) -> KV | None:
        """Return a block from the first tier, or one that is being demoted from it."""
        first = self.tiers[0]
        kv: KV | None = first.get(key)
        if kv is not None:
            first.use(key)
            return kv
        return _restored(stored) if (stored := self._moving.get(key)) is not None else None

    def promote_from_lower(self, key: str) -> tuple[KV, str] | None:
        """Promote a block from a lower tier to the first; return it with the name of its tier."""
        for tier in self.tiers[1:]:
            with self._timed("read", key, tier) as about:
                if (kv := tier.get(key)) is None:
                    about.clear()
                    continue
                about["bytes"] = kv.nbytes
            tier.use(key)
            with self.lock:
                self._index.add(key)
            return self.enter(key, kv), tier.name
        return None

    def enter(self, key: str, kv: KV, uses: int = 1) -> KV:
        """Store a block in the first tier, demote others to make room, and return the stored form.

        A block that does not fit goes to the next tier.
        """
        first = self.tiers[0]
        stored = first.to_stored(kv)
        with self.lock, first.lock:
            self._index.add(key)
            self._dropped.pop(key, None)
            if key in first:
                uses += first.drop(key)
            victims = first.victims(first.bytes_needed(kv))
            kept = {victim: first.get(victim) for victim in victims or ()}
            self._moving |= kept  # before they are removed: look-ups must find them
            uses_of = {victim: first.drop(victim, evicted=True) for victim in kept}
            if victims is not None:
                first.keep(key, stored, uses)
            else:
                self._moving[key] = stored
        for victim, moved in kept.items():
            self._evicted(first, victim, moved)
            self.write_to_tier(1, victim, moved, uses_of[victim])
        if victims is None:
            self.write_to_tier(1, key, kv, uses)
        with self.lock:
            for left in (*kept, *([key] if victims is None else ())):
                self._moving.pop(left, None)
        return _restored(stored)

    def write_to_tier(self, level: int, key: str, kv: KV, uses: int = 1, only: bool = False) -> bool:
        """Write a block to tier `level`, or the next one with room; with `only`, to this tier or none."""
        if level == len(self.tiers):
            self._gone(key)
            return False
        tier = self.tiers[level]
        with tier.lock:
            if key in tier:
                return True
            victims = tier.victims(tier.bytes_needed(kv))
            if victims is not None and self._demote(level, victims) and self._write(tier, key, kv, uses):
                return True
        return False if only else self.write_to_tier(level + 1, key, kv, uses)

    def remove(self, key: str) -> None:
        """Remove a block from the lower tiers, because it is about to be rewritten."""
        for tier in self.tiers[1:]:
            with tier.lock:
                if key in tier:
                    tier.drop(key)

    def check(self, kv: KV) -> None:
        """Raise BadInput for a block that exceeds the budget of every tier."""
        if not any(tier.budget_bytes is None or tier.bytes_needed(kv) <= tier.budget_bytes for tier in self.tiers):
            budgets = ", ".join(f"{tier.name} {tier.budget_bytes:,}" for tier in self.tiers)
            raise BadInput(f"a block of {kv.nbytes:,} bytes is larger than every budget ({budgets} bytes)")

    def miss_reason(self, key: str) -> Miss:
        """Return why no tier contains a block."""
        with self.lock:
            misses = [self._index.miss(key), *([self._dropped[key]] if key in self._dropped else [])]
        stores = (getattr(tier, "store", None) for tier in self.tiers)
        return most_informative(*misses, *(miss_reason(store, key) for store in stores if store is not None))

    def tier_of(self, key: str) -> str | None:
        """Return the name of the first tier that contains a block, without reading it; None if there is none."""
        if key in self._moving:
            return self.tiers[0].name
        return next((tier.name for tier in self.tiers if key in tier), None)

    def _demote(self, level: int, keys: Sequence[str]) -> bool:
        """Move blocks from a tier to the next one; return whether that succeeded."""
        tier = self.tiers[level]
        for key in keys:
            kv = tier.get(key) if level + 1 < len(self.tiers) else None
            if kv is not None:
                self.write_to_tier(level + 1, key, kv)  # before it is dropped: look-ups must find it
            try:
                tier.drop(key, evicted=True)
            except (OSError, BadInput) as problem:  # a read-only folder
                log.warning("no room is made in %s: %s", tier.name, problem)
                return False
            self._evicted(tier, key, kv)
            self._gone(key, tier if kv is None else None)
        return True

    def _write(self, tier: Tier, key: str, kv: KV, uses: int) -> bool:
        with self._timed("write", key, tier) as about:
            try:
                tier.keep(key, tier.to_stored(kv), uses)
            except (OSError, BadInput) as problem:  # e.g. a full disk: the block is encoded again later
                about.clear()
                log.warning("a block is not kept in %s: %s", tier.name, problem)
                self._note(key, "evicted", f"{tier.name} could not keep it: {problem}")
                return False
            about["bytes"] = tier.bytes_needed(kv)
        return True

    @contextmanager
    def _timed(self, what: Literal["read", "write"], key: str, tier: Tier) -> Iterator[dict[str, Any]]:
        """Record a span with the yielded dictionary as its fields; clear the dictionary to record nothing."""
        at, about = self.events.now() if self.events is not None else 0.0, dict[str, Any](key=str(key), tier=tier.name)
        yield about
        if self.events is not None and about:
            self.events.add(what, at, seconds=self.events.now() - at, **about)

    def _evicted(self, tier: Tier, key: str, kv: KV | None) -> None:
        with self.lock:
            self.evictions[tier.name] += 1
        if self.events is not None:
            self.events.add("evict", key=str(key), tier=tier.name, bytes=0 if kv is None else kv.nbytes)

    def _gone(self, key: str, tier: Tier | None = None) -> None:
        """Record time and reason of a block's eviction from the last tier."""
        with self.lock:
            if any(key in other for other in self.tiers):
                return
            self._index.remove(key)
            if key in self._dropped and tier is None:
                return  # recorded when a tier could not keep it
            of, at = tier or self.tiers[-1], datetime.fromtimestamp(self.clock(), UTC)
            self._note(
                key, "evicted", f"{at:%Y-%m-%d %H:%M:%S} UTC, to make room in {of.name} ({of.budget_bytes} bytes)"
            )

    def _note(self, key: str, reason: Reason, detail: str) -> None:
        with self.lock:
            self._dropped[str(key)] = Miss(key, reason, detail)
            if len(self._dropped) > REMEMBERED:
                self._dropped.popitem(last=False)


def _restored(stored: Any) -> KV:
    kv: KV = stored.restore() if hasattr(stored, "restore") else stored
    return kv

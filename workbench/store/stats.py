"""Counters of a store."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class Stats:
    """Counters since the store was created; `bytes` and `entries` are its current size."""

    hits: int = 0
    misses: int = 0
    evictions: int = 0
    rejected: int = 0  #: entries that were not stored because they exceed the whole budget
    bytes: int = 0
    entries: int = 0
    repaired: int = 0  #: damaged blocks that were replaced
    reasons: Mapping[str, int] = field(default_factory=dict)  #: misses by `misses.Reason`; they add up to `misses`

    @property
    def hit_rate(self) -> float:
        """Fraction of look-ups that hit; 0 before the first look-up."""
        return self.hits / (self.hits + self.misses) if self.hits + self.misses else 0.0

    def since(self, before: "Stats") -> "Stats":
        """Return the counts since `before`, with the current bytes and entries."""
        counts = ("hits", "misses", "evictions", "rejected", "repaired")
        more = {reason: count - before.reasons.get(reason, 0) for reason, count in self.reasons.items()}
        reasons = {reason: count for reason, count in more.items() if count}
        return replace(self, **{name: getattr(self, name) - getattr(before, name) for name in counts}, reasons=reasons)

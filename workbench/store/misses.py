"""Explain misses by comparison with the stored blocks of the same tokens."""

from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal, get_args

from workbench.store.keys import Identity, Key

Reason = Literal[
    "damaged",
    "unreachable",
    "evicted",
    "too large",
    "other dtype",
    "other model",
    "other format version",
    "other context before it",
    "other neighbours",
    "never seen",
]
REASONS: tuple[Reason, ...] = get_args(Reason)
MOST = 64  # maximum number of stored blocks with the same tokens that are compared
_PARTS: dict[str, Reason] = {
    "dtype": "other dtype",
    "model": "other model",
    "version": "other format version",
    "after": "other context before it",
    "over": "other neighbours",
}


@dataclass(frozen=True)
class Miss:
    """A failed look-up, and its reason.

    damaged                   the stored block cannot be read, or its checksum is wrong
    unreachable               the store timed out or failed
    evicted                   the block was stored, and later evicted or deleted
    too large                 the block exceeds the whole budget
    other dtype, model, …     the same tokens are stored, but in another dtype, for other weights or configuration, for
                              an earlier format or engine, after other blocks, or over other neighbours
    never seen                none of these
    """

    key: str
    reason: Reason
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.reason}: {self.detail}" if self.detail else self.reason


class Index:
    """The keys of a store, grouped by the tokens of their blocks."""

    def __init__(self) -> None:
        self._keys: dict[str, dict[Key, None]] = {}

    def add(self, key: str) -> None:
        """Add a key; a key without an identity is ignored."""
        if (identity := identity_of(key)) is not None:
            assert isinstance(key, Key)
            self._keys.setdefault(identity.block, {})[key] = None

    def remove(self, key: str) -> None:
        """Remove a key."""
        if (identity := identity_of(key)) is None:
            return
        assert isinstance(key, Key)
        keys = self._keys.get(identity.block, {})
        keys.pop(key, None)
        if not keys:
            self._keys.pop(identity.block, None)

    def miss(self, key: str) -> Miss:
        """Return the miss of `key`, explained by the most similar stored key with the same tokens."""
        requested = identity_of(key)
        if requested is None:
            return Miss(key, "never seen")
        stored = [identity_of(other) for other in islice(self._keys.get(requested.block, ()), MOST)]
        others = [(_differing(requested, other), other) for other in stored if other is not None]
        if not others:
            return Miss(key, "never seen")
        names, nearest = min(others, key=lambda other: len(other[0]))
        if not names:
            return Miss(key, "never seen", "a block of the same description is kept under another key")
        return Miss(key, _PARTS[names[0]], "; ".join(_difference(name, requested, nearest) for name in names))


def identity_of(key: str) -> Identity | None:
    """Return the identity of a key, or None for a plain string."""
    return key.identity if isinstance(key, Key) else None


def miss_reason(store: Any, key: str) -> Miss:
    """Return why `store` misses `key`; `never seen` for a store without a method `why`."""
    return store.miss_reason(key) if hasattr(store, "miss_reason") else Miss(key, "never seen")


def most_informative(*misses: Miss) -> Miss:
    """Return the most informative of several misses, by the order of `REASONS`; `never seen` is last."""
    return min(misses, key=lambda miss: REASONS.index(miss.reason))


def _differing(requested: Identity, stored: Identity) -> list[str]:
    """Return the names of differing fields; omit "model" if dtypes differ, since fingerprints cover the dtype."""
    names = [name for name in _PARTS if getattr(requested, name) != getattr(stored, name)]
    return [name for name in names if not (name == "model" and "dtype" in names)]


def _difference(name: str, requested: Identity, stored: Identity) -> str:
    label = {"after": "blocks before it", "over": "neighbours"}.get(name, name)
    return f"{label}: kept {_short(name, getattr(stored, name))}, asked {_short(name, getattr(requested, name))}"


def _short(name: str, value: str) -> str:
    if name in ("after", "over"):
        count, _, chain = value.partition(" ")
        return f"{count} ({chain[:8]})" if chain else "none"
    return f"{value[:12]}…" if name == "model" and len(value) > 16 else value.removeprefix("torch.")

"""Reasons of misses, from a comparison with the stored blocks of the same tokens."""

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
MOST = 64  # maximum number of blocks of equal tokens that are compared
_PARTS: dict[str, Reason] = {
    "dtype": "other dtype",
    "model": "other model",
    "version": "other format version",
    "after": "other context before it",
    "over": "other neighbours",
}


@dataclass(frozen=True)
class Miss:
    """A look-up that found nothing.

    damaged                   the stored block cannot be read, or its checksum is wrong
    unreachable               the store did not answer in time, or failed
    evicted                   it was stored, and was evicted or deleted
    too large                 it is larger than the whole budget
    other dtype, model, …     the same tokens are kept, but in another dtype, of other weights or another configuration,
                              by an earlier format or engine, behind other blocks, or over other neighbours
    never seen                none of these
    """

    key: str
    reason: Reason
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.reason}: {self.detail}" if self.detail else self.reason


class Index:
    """The keys of a store by the tokens of their blocks."""

    def __init__(self) -> None:
        self._keys: dict[str, dict[Key, None]] = {}

    def add(self, key: str) -> None:
        """Add a key; one without an identity is ignored."""
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
        """Return the miss of `key`, compared with the most similar key of the same tokens."""
        asked = identity_of(key)
        if asked is None:
            return Miss(key, "never seen")
        kept = [identity_of(other) for other in islice(self._keys.get(asked.block, ()), MOST)]
        others = [(_different(asked, one), one) for one in kept if one is not None]
        if not others:
            return Miss(key, "never seen")
        names, one = min(others, key=lambda other: len(other[0]))
        if not names:
            return Miss(key, "never seen", "a block of the same description is kept under another key")
        told = "; ".join(_told(name, asked, one) for name in names)
        return Miss(key, _PARTS[names[0]], told)


def identity_of(key: str) -> Identity | None:
    """Return the identity of a key; None for one without."""
    return key.identity if isinstance(key, Key) else None


def why(store: Any, key: str) -> Miss:
    """Return why `store` does not find `key`; `never seen` for a store without `why`."""
    return store.why(key) if hasattr(store, "why") else Miss(key, "never seen")


def likeliest(*misses: Miss) -> Miss:
    """Return the most informative of several misses: any other reason before `never seen`."""
    return min(misses, key=lambda miss: REASONS.index(miss.reason))


def _different(asked: Identity, kept: Identity) -> list[str]:
    """Name the parts of the keys that differ. The fingerprint of a model depends on its dtype."""
    names = [name for name in _PARTS if getattr(asked, name) != getattr(kept, name)]
    return [name for name in names if not (name == "model" and "dtype" in names)]


def _told(name: str, asked: Identity, kept: Identity) -> str:
    has, needed = (_short(name, getattr(one, name)) for one in (kept, asked))
    what = {"after": "blocks before it", "over": "neighbours"}.get(name, name)
    return f"{what}: kept {has}, asked {needed}"


def _short(name: str, value: str) -> str:
    if name in ("after", "over"):
        count, _, chain = value.partition(" ")
        return f"{count} ({chain[:8]})" if chain else "none"
    return f"{value[:12]}…" if name == "model" and len(value) > 16 else value

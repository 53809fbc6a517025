"""What is computed from the keys of a layer and kept beside them: mean keys of blocks, from chunk to chunk.

Each thing kept knows of how many tokens it is. Writing keys makes it stale from there on; the next to ask completes it
from there, and nothing before is read again.
"""

from collections.abc import Callable, Hashable
from typing import Any


class Derived:
    """What was computed from the keys of one layer of a `KV`, by name."""

    def __init__(self) -> None:
        self._kept: dict[Hashable, tuple[Any, int]] = {}  # and of how many tokens it holds

    def changed(self, first: int) -> None:
        """Keys of the tokens from `first` on are others now."""
        self._kept = {name: (value, min(until, first)) for name, (value, until) in self._kept.items()}

    def completed(self, name: Hashable, length: int, complete: Callable[[Any, int], Any]) -> Any:
        """Return what is kept as `name`, of the first `length` tokens.

        `complete(value, first)` returns it renewed from token `first` on; `value` is None where nothing is kept yet.
        """
        value, until = self._kept.pop(name, (None, 0))  # gone, should completing fail half-way
        value = complete(value, min(until, length))
        self._kept[name] = value, length
        return value

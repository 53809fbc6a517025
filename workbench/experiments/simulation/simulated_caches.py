"""Simulate hits of prefix caches and block caches over simulated requests; nothing is computed.

    served = replay(PrefixCache(), requests)
    counted(served, kept=len(cache))

A cache serves one request after another. Its budget is a number of passages; the least recently used are evicted first.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from functools import cache as memo
from typing import Any, Protocol

from workbench.core.blocks import Block
from workbench.store.tiering.alternative_path import AlternativePath, Encoding

Found = list[tuple[int, bool]]  # passages in prompt order, and whether each was found


class Cache(Protocol):
    """Looks up the passages of a request, and stores those that it misses."""

    def serve(self, passages: Sequence[int]) -> Found:
        """Return the passages in the order of the prompt, and whether each was found."""

    def __len__(self) -> int:
        """Return the number of stored passages, copies included."""


class PrefixCache:
    """Finds a passage behind exactly those that it was computed behind, as vLLM's automatic prefix caching does.

    `budget` None: nothing is evicted.
    """

    def __init__(self, budget: int | None = None):
        self.budget, self._kept, self._next = budget, OrderedDict[tuple[int, int], int](), 1

    def serve(self, passages: Sequence[int]) -> Found:
        node, path, found = 0, [], []
        for passage in passages:
            step = node, passage
            found.append((passage, step in self._kept))
            if step not in self._kept:
                self._kept[step] = self._next
                self._next += 1
                self._on_insert(step)
            path.append(step)
            node = self._kept[step]
        for step in reversed(path):  # makes later steps of a path older, so that they are evicted first
            self._kept.move_to_end(step)
        while self.budget is not None and len(self._kept) > self.budget:
            self._on_evict(self._kept.popitem(last=False)[0])
        return found

    def _on_insert(self, step: tuple[int, int]) -> None:
        """Hook for a new step (node, passage) of the tree."""

    def _on_evict(self, step: tuple[int, int]) -> None:
        """Hook for an evicted step."""

    def __len__(self) -> int:
        return len(self._kept)


class ReorderedPrefixCache(PrefixCache):
    """A prefix cache that reorders the passages of a request for the longest hit.

    It walks down the tree of cached steps, at each step to the request's most frequently requested passage. The other
    passages follow by request frequency, so that requests come to share prefixes. The order of the request is lost.

    *Follows descriptions: CacheWeaver's (arXiv:2606.19667) and ContextPilot's (arXiv:2511.03475).*
    """

    def __init__(self, budget: int | None = None):
        super().__init__(budget)
        self._asked, self._after = Counter[int](), dict[int, set[int]]()

    def serve(self, passages: Sequence[int]) -> Found:
        self._asked.update(passages)
        return super().serve(self.prompt_order(passages))

    def prompt_order(self, passages: Sequence[int]) -> list[int]:
        """Return the passages in the order of the prompt."""
        left = sorted(passages, key=lambda passage: (-self._asked[passage], passage))
        node, walked = 0, list[int]()
        while known := [passage for passage in left if passage in self._after.get(node, ())]:
            walked.append(known[0])
            left.remove(known[0])
            node = self._kept[node, known[0]]
        return walked + left

    def _on_insert(self, step: tuple[int, int]) -> None:
        self._after.setdefault(step[0], set()).add(step[1])

    def _on_evict(self, step: tuple[int, int]) -> None:
        self._after[step[0]].discard(step[1])
        if not self._after[step[0]]:
            del self._after[step[0]]


class BlockCache:
    """Finds a passage at any position: one copy, encoded after the system prompt.

    Equals Alternative Path with the encoding `after_system`, without looking up paths.
    """

    def __init__(self, budget: int | None = None):
        self.budget, self._kept = budget, OrderedDict[int, None]()

    def serve(self, passages: Sequence[int]) -> Found:
        found = [(passage, passage in self._kept) for passage in passages]
        for passage in reversed(passages):
            self._kept[passage] = None
            self._kept.move_to_end(passage)
        while self.budget is not None and len(self._kept) > self.budget:
            self._kept.popitem(last=False)
        return found

    def __len__(self) -> int:
        return len(self._kept)


class PathCache:
    """Finds a passage by Alternative Path; nothing is evicted."""

    def __init__(self, encoding: Encoding = "after_system"):
        self.index = AlternativePath(_chain, encoding)

    def serve(self, passages: Sequence[int]) -> Found:
        matches = self.index.serve([_block(passage) for passage in passages])
        return [(passage, not match.computed) for passage, match in zip(passages, matches, strict=True)]

    def __len__(self) -> int:
        return len(self.index)


@memo
def _block(passage: int) -> Block:
    return Block((passage,))


def _chain(chunk: Block, path: Sequence[Block]) -> str:
    """Return a key without hashing, which works because a passage is a single token here."""
    return " ".join(str(block.tokens[0]) for block in (*path, chunk))


def replay(cache: Cache, requests: Iterable[Sequence[int]], prepared: Iterable[int] = ()) -> list[Found]:
    """Send requests through a cache in which `prepared` passages are already encoded, each after the system prompt."""
    for passage in prepared:
        cache.serve([passage])
    return [cache.serve(passages) for passages in requests]


def count_lookups(served: Iterable[Found], kept: int, prepared: Iterable[int] = ()) -> dict[str, Any]:
    """Count cache lookups: {lookups, hits, hit_rate, computed, recomputed, kept}, in passages.

    `recomputed` are passages that were computed, or `prepared`, before; `kept` is passed through.
    """
    seen, lookups, hits, again = set(prepared), 0, 0, 0
    for passage, found in (each for request in served for each in request):
        lookups, hits = lookups + 1, hits + found
        again += not found and passage in seen
        seen.add(passage)
    share = hits / lookups if lookups else 0.0
    return {
        "lookups": lookups,
        "hits": hits,
        "hit_rate": share,
        "computed": lookups - hits,
        "recomputed": again,
        "kept": kept,
    }


def beside_prefix(row: dict[str, Any], prefix: dict[str, Any]) -> dict[str, Any]:
    """Return the shares that a cache saves compared with a prefix cache.

    {storage_saved, redundant_removed, computation_saved}: of stored, of recomputed and of all computed passages.
    """
    names = {"storage_saved": "kept", "redundant_removed": "recomputed", "computation_saved": "computed"}
    return {name: 1 - row[of] / prefix[of] if prefix[of] else 0.0 for name, of in names.items()}

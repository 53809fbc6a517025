"""What caches of prefixes and of blocks find of simulated requests; nothing is computed.

    served = replay(PrefixCache(), requests)
    counted(served, kept=len(cache))

A cache is asked request by request. Its budget is a number of passages, the least recently used of which go first.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from functools import cache as memo
from typing import Any, Protocol

from workbench.core.blocks import Block
from workbench.store.tiering.alternative_path import AlternativePath, Encoding

Found = list[tuple[int, bool]]  # passages in prompt order, and whether each was found


class Cache(Protocol):
    """Finds passages of a request, and keeps what it did not find."""

    def serve(self, passages: Sequence[int]) -> Found:
        """Return the passages in the order in which they stand in the prompt, and whether each was found."""

    def __len__(self) -> int:
        """Return the number of kept passages, copies included."""


class PrefixCache:
    """Finds a passage behind exactly those that it was computed behind, as vLLM's automatic prefix caching does.

    `budget` None: nothing is ever dropped.
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
                self._grown(step)
            path.append(step)
            node = self._kept[step]
        for step in reversed(path):  # so later steps of a path count as older, and are evicted first
            self._kept.move_to_end(step)
        while self.budget is not None and len(self._kept) > self.budget:
            self._dropped(self._kept.popitem(last=False)[0])
        return found

    def _grown(self, step: tuple[int, int]) -> None:
        """Note a new step (node, passage) of the tree."""

    def _dropped(self, step: tuple[int, int]) -> None:
        """Note a dropped step."""

    def __len__(self) -> int:
        return len(self._kept)


class ReorderedPrefixCache(PrefixCache):
    """A prefix cache that puts the passages of a request in the order that finds the most.

    It walks down the tree of what is kept, at every step to that passage of the request that was asked for most often;
    the rest follows by how often each was asked for, so that requests come to share their beginnings. The order of
    the request is lost.

    *Follows descriptions: CacheWeaver's (arXiv:2606.19667) and ContextPilot's (arXiv:2511.03475).*
    """

    def __init__(self, budget: int | None = None):
        super().__init__(budget)
        self._asked, self._after = Counter[int](), dict[int, set[int]]()

    def serve(self, passages: Sequence[int]) -> Found:
        self._asked.update(passages)
        return super().serve(self.ordered(passages))

    def ordered(self, passages: Sequence[int]) -> list[int]:
        """Return the passages in the order in which they are put into the prompt."""
        left = sorted(passages, key=lambda passage: (-self._asked[passage], passage))
        node, walked = 0, list[int]()
        while known := [passage for passage in left if passage in self._after.get(node, ())]:
            walked.append(known[0])
            left.remove(known[0])
            node = self._kept[node, known[0]]
        return walked + left

    def _grown(self, step: tuple[int, int]) -> None:
        self._after.setdefault(step[0], set()).add(step[1])

    def _dropped(self, step: tuple[int, int]) -> None:
        self._after[step[0]].discard(step[1])
        if not self._after[step[0]]:
            del self._after[step[0]]


class BlockCache:
    """Finds a passage wherever it stands: one copy, encoded behind the system prompt.

    What Alternative Path finds with the encoding `after_system`, without asking for paths.
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
    """Finds a passage by Alternative Path; nothing is ever dropped."""

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
    """Return a key without hashing, as a passage is a single token here."""
    return " ".join(str(block.tokens[0]) for block in (*path, chunk))


def replay(cache: Cache, requests: Iterable[Sequence[int]], prepared: Iterable[int] = ()) -> list[Found]:
    """Send requests through a cache in which the passages `prepared` are encoded, each behind the system prompt."""
    for passage in prepared:
        cache.serve([passage])
    return [cache.serve(passages) for passages in requests]


def counted(served: Iterable[Found], kept: int, prepared: Iterable[int] = ()) -> dict[str, Any]:
    """Count what a cache did: {lookups, hits, hit_rate, computed, recomputed, kept}, in passages.

    `recomputed` are passages that were computed, or `prepared`, before; `kept` is passed on.
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
    """Return the shares that a cache saves of a prefix cache's.

    {storage_saved, redundant_removed, computation_saved}: of what is kept, of what is computed again, and of all that
    is computed.
    """
    names = {"storage_saved": "kept", "redundant_removed": "recomputed", "computation_saved": "computed"}
    return {name: 1 - row[of] / prefix[of] if prefix[of] else 0.0 for name, of in names.items()}

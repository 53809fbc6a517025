"""Alternative Path: find chunks by prefix hashes although other chunks are before them (FusionRAG, section 4.1).

A plain prefix cache maps the hash of (system prompt, chunk 1, …, chunk i) to the KV of chunk i, so a chunk behind other
chunks is a miss. Here the same table is asked several times ("progressive backtracking"):

1. the longest path comes first: system prompt, all chunks before, chunk;
2. on a miss the earliest chunk is dropped and the shorter path is hashed and asked, down to (system prompt, chunk);
3. the first path that is known is served: the KV of the same tokens, computed behind the chunks of that path.

Where chunks were dropped, the match is `moved`: its keys are rerotated, and it did not attend to the dropped chunks.
So a copy is never served to a prompt that lacks, directly before it, something that the copy has attended to.

A chunk without a path is computed. The paper leaves open behind what; both rules keep one copy of a chunk:

after_system  behind the system prompt alone, as the offline stage does (section 3): later prompts find it
in_place      behind all chunks before it, as a plain prefix cache does, as long as each of them is served where it was
              computed. Met again behind other chunks, it is computed behind the system prompt, and that copy replaces
              the first one
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch

from workbench.core.blocks import Block
from workbench.core.errors import BadInput
from workbench.store.keys import key_of

Encoding = Literal["after_system", "in_place"]
KeyOf = Callable[[Block, Sequence[Block]], str]  # key of a chunk, given the chunks before it


@dataclass(frozen=True)
class Match:
    """How one chunk of a prompt is served.

    key       store key of the copy
    before    number of chunks before it in the prompt
    seen      behind how many of these, directly before it, the copy was computed
    computed  whether it has to be computed for this prompt, as no path was known
    tried     number of paths that were looked up
    """

    key: str
    before: int
    seen: int
    computed: bool
    tried: int

    @property
    def moved(self) -> bool:
        """Whether the copy was computed without some of the chunks before it."""
        return self.seen < self.before


class AlternativePath:
    """An index of the chunks behind one system prompt, one copy of each.

    key_of    `chain_keys(…)`, the keys that the stores of this package use, or any function of (chunk, path before it)
    encoding  what a chunk without a path is computed behind

    Raises BadInput for an unknown encoding.
    """

    def __init__(self, key_of: KeyOf, encoding: Encoding = "after_system"):
        if encoding not in get_args(Encoding):
            raise BadInput(f"encoding is {encoding!r}: allowed are {', '.join(get_args(Encoding))}")
        self.key_of, self.encoding = key_of, encoding
        self._copies: dict[str, str] = {}  # content of a chunk → key of its copy
        self._paths: dict[str, str] = {}  # key → content, as in a prefix cache

    def find(self, chunks: Sequence[Block]) -> list[Match | None]:
        """Look up every chunk of a prompt in reading order (without the system prompt); None for unknown chunks.

        The index is not changed.
        """
        return [self._walk(chunks, at) for at in range(len(chunks))]

    def serve(self, chunks: Sequence[Block]) -> list[Match]:
        """Look up every chunk of a prompt, and add the paths of those that have to be computed."""
        matches: list[Match] = []
        in_place = self.encoding == "in_place"
        for at, chunk in enumerate(chunks):
            match = self._walk(chunks, at)
            if match is None:
                first = chunk.content not in self._copies
                seen = at if in_place and first and not any(each.moved for each in matches) else 0
                match = Match(self.key_of(chunk, chunks[at - seen : at]), at, seen, True, at + 1)
                self.add(chunk, match.key)
            matches.append(match)
        return matches

    def add(self, chunk: Block, key: str) -> None:
        """Add the path of a copy, replacing an earlier one of the chunk."""
        self.remove(chunk)
        self._copies[chunk.content], self._paths[key] = key, chunk.content

    def remove(self, chunk: Block) -> None:
        """Remove a chunk, for example when its copy was evicted."""
        if (key := self._copies.pop(chunk.content, None)) is not None:
            del self._paths[key]

    def __len__(self) -> int:
        return len(self._copies)

    def __contains__(self, key: str) -> bool:
        return key in self._paths

    def __iter__(self) -> Iterator[str]:
        return iter(self._copies.values())

    def _walk(self, chunks: Sequence[Block], at: int) -> Match | None:
        for dropped in range(at + 1):
            key = self.key_of(chunks[at], chunks[dropped:at])
            if key in self._paths:
                return Match(key, at, at - dropped, False, dropped + 1)
        return None


def chain_keys(fingerprint: str, dtype: torch.dtype, system: Sequence[Block] = ()) -> KeyOf:
    """Return a function (chunk, path) -> store key (`store.keys`) for chunks behind a system prompt."""
    return lambda chunk, path: key_of(fingerprint, dtype, chunk, [*system, *path])

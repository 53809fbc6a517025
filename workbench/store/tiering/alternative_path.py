"""Alternative Path: find chunks by prefix hashes after other chunks than before (FusionRAG, section 4.1).

A plain prefix cache maps the hash of (system prompt, chunk 1, …, chunk i) to the KV of chunk i: the chunk is a miss if
the chunks before it differ. Here the same table is queried several times ("progressive backtracking"):

1. look up the longest path: system prompt, all preceding chunks, chunk;
2. on a miss, drop the earliest chunk and look up the shorter path, down to (system prompt, chunk);
3. serve the first hit: the KV of the same tokens, computed after the chunks of that path.

If chunks were dropped, the match is `moved`: its keys are rerotated, and it did not attend to the dropped chunks. So a
copy is never served to a prompt that lacks, directly before it, a chunk that the copy attended to.

A chunk without a known path is computed. The paper does not say after which chunks. Both rules keep one copy per chunk:

after_system  after the system prompt alone, as in the offline stage (section 3): later prompts find it
in_place      after all preceding chunks, as in a plain prefix cache, while each of these is served where it was
              computed. When it occurs after other chunks, it is computed after the system prompt alone, and that copy
              replaces the first one
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch

from workbench.core.blocks import Block
from workbench.core.errors import BadInput
from workbench.store.keys import key_of

Encoding = Literal["after_system", "in_place"]
KeyOf = Callable[[Block, Sequence[Block]], str]  # (chunk, chunks before it) → key


@dataclass(frozen=True)
class Match:
    """How one chunk of a prompt is served.

    key       store key of the copy
    before    number of chunks before it in the prompt
    seen      number of these, directly before it, that the copy attended to
    computed  whether it must be computed for this prompt, since no path is known
    tried     number of paths that were looked up
    """

    key: str
    before: int
    seen: int
    computed: bool
    tried: int

    @property
    def moved(self) -> bool:
        """Whether the copy did not attend to some of the chunks before it."""
        return self.seen < self.before


class AlternativePath:
    """Index of the chunks that follow one system prompt, one copy of each.

    key_of    `chain_keys(…)` for the stores of this package, or any function of (chunk, path before it)
    encoding  which chunks precede a chunk that is computed

    Raises BadInput for an unknown encoding.
    """

    def __init__(self, key_of: KeyOf, encoding: Encoding = "after_system"):
        if encoding not in get_args(Encoding):
            raise BadInput(f"encoding is {encoding!r}: allowed are {', '.join(get_args(Encoding))}")
        self.key_of, self.encoding = key_of, encoding
        self._copies: dict[str, str] = {}  # content of a chunk → key of its copy
        self._paths: dict[str, str] = {}  # key → content, as in a prefix cache

    def find(self, chunks: Sequence[Block]) -> list[Match | None]:
        """Look up every chunk of a prompt (without the system prompt), read-only; None for unknown chunks."""
        return [self._walk(chunks, at) for at in range(len(chunks))]

    def serve(self, chunks: Sequence[Block]) -> list[Match]:
        """Look up every chunk of a prompt, and add the paths of those that must be computed."""
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
        """Add the path of a copy; it replaces an earlier copy of the chunk."""
        self.remove(chunk)
        self._copies[chunk.content], self._paths[key] = key, chunk.content

    def remove(self, chunk: Block) -> None:
        """Remove a chunk, for example when its copy is evicted."""
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
    """Return a function (chunk, path) -> store key (`store.keys`) for chunks that follow a system prompt."""
    return lambda chunk, path: key_of(fingerprint, dtype, chunk, [*system, *path])

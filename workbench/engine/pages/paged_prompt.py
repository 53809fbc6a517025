"""A cached block in pages, and the page table of one prompt over such blocks."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from threading import RLock
from typing import Any

import numpy as np
from torch import Tensor

from workbench.core.page_table import Paged, SeparateSoftmax
from workbench.engine.pages.page_allocator import AllocatedPages
from workbench.engine.pages.page_tables import Ints, PageTable, pages_of

_SERIAL = count()


@dataclass(frozen=True, eq=False)
class Cached:
    """A block in the pages of a pool.

    pages        [P] int64 page numbers in order, on the CPU
    length       number of its tokens
    start        position that its keys are rotated for
    generations  [P] generations of its pages at allocation; None: not known
    derived      values derived from its keys and values
    """

    pages: Tensor
    length: int
    start: int = 0
    pool: object = field(default=None, repr=False)
    generations: Ints | None = field(default=None, repr=False)
    derived: dict[Any, Any] = field(default_factory=dict, init=False, repr=False)
    serial: int = field(default_factory=_SERIAL.__next__, init=False, repr=False)  #: unique

    def __repr__(self) -> str:
        return f"Cached({self.length:,} tokens from position {self.start:,}, in pages {self.pages.tolist()})"

    def __len__(self) -> int:
        return self.length

    @cached_property
    def numbers(self) -> Ints:
        """[P] `pages` as an int32 array, for page tables."""
        return self.pages.numpy().astype(np.int32)

    def slots(self, size: int) -> Ints:
        """Return the slots [T] (int64) of its tokens in a pool with pages of `size` tokens."""
        if size not in self._slots:
            at = self.numbers.astype(np.int64)[:, None] * size + np.arange(size)
            self._slots[size] = at.ravel()[: self.length]
        return self._slots[size]

    @cached_property
    def _slots(self) -> dict[int, Ints]:
        return {}

    @cached_property
    def pages_as_bytes(self) -> bytes | None:
        """[P, 5] `pages_of` the block and generations, as bytes (fast to join); None if generations are not known."""
        size: int | None = getattr(self.pool, "size", None)
        if self.generations is None or size is None:
            return None
        return np.concatenate((pages_of(self, size), self.generations[None])).T.astype(np.int32).tobytes()


@dataclass(eq=False)
class PagedPrompt:
    """The page table of one prompt, on the CPU.

    length    tokens of its context
    table     its pages in the order of their first position
    own       [R + reserve] slots in the pool for computed tokens: recomputed context tokens, then question and answer
    places    [R + reserve] positions of `own`
    owned     pages of `own`
    context   blocks that it reads
    written   how many of `own` are computed
    chosen    how many of `own` are recomputed context tokens
    complete  whether its context is the whole prompt, computed elsewhere: it may decode without `prefill`
    apart     positions that its query tokens, which follow them, attend to in a separate softmax
    lease     lock that is held during a step over its pages, so that it cannot be closed
    """

    length: int
    table: PageTable
    own: Ints
    places: Ints
    owned: AllocatedPages
    pool: object = field(repr=False)
    context: Sequence[Cached] = ()
    written: int = 0
    closed: bool = False
    chosen: int = 0
    complete: bool = False
    apart: SeparateSoftmax | None = None
    lease: Any = field(default_factory=RLock, repr=False)
    checked: int = -1  #: the pool's count of returned pages when these pages were last checked

    def __repr__(self) -> str:
        context = f"{self.length:,} tokens in {len(self.context)} blocks"
        own = f"{self.written:,} of {len(self.own):,} own tokens computed"
        return f"PagedPrompt({context}, {own}{', closed' if self.closed else ''})"

    @property
    def pages(self) -> Paged:
        """Its table as kernel arguments: a `Paged` of one request, [1, P]."""
        return self.table.paged()

    @cached_property
    def lists(self) -> tuple[PageTable, PageTable]:
        """Its table split in two: positions `apart`, and all others."""
        assert self.apart is not None
        return self.table.split_at(self.apart.first, self.apart.end)

    @cached_property
    def pages_used(self) -> tuple[Ints, Ints]:
        """[N] pages that it reads or writes, and [N] their generations when it was opened."""
        known = [block for block in self.context if block.generations is not None]
        pages = [np.array(self.owned, np.int32), *[block.numbers for block in known]]
        generations = [self.owned.generations, *[x for block in known if (x := block.generations) is not None]]
        return np.concatenate(pages), np.concatenate(generations)

    @property
    def reserve(self) -> int:
        """Number of own slots that are not computed yet."""
        return len(self.own) - self.written

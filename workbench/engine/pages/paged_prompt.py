"""A cached block in pages, and the page table of one prompt over such blocks."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from threading import RLock
from typing import Any

import numpy as np
from torch import Tensor

from workbench.core.page_table import Apart, Paged
from workbench.engine.pages.page_allocator import Taken
from workbench.engine.pages.page_tables import Ints, PageTable, pages_of

_SERIAL = count()


@dataclass(frozen=True, eq=False)
class Cached:
    """A block in a `pool`: its `pages` in order, its tokens, and the position that its keys are rotated for.

    `generations` [P] are those of its pages when they were taken; None where that is not known. `derived`: what was
    computed from its keys and values, kept as long as it lies there.
    """

    pages: Tensor  #: [P] int64, on the CPU
    length: int
    start: int = 0
    pool: object = field(default=None, repr=False)
    generations: Ints | None = field(default=None, repr=False)
    derived: dict[Any, Any] = field(default_factory=dict, init=False, repr=False)
    serial: int = field(default_factory=_SERIAL.__next__, init=False, repr=False)  #: no other block's

    def __repr__(self) -> str:
        return f"Cached({self.length:,} tokens from position {self.start:,}, in pages {self.pages.tolist()})"

    def __len__(self) -> int:
        return self.length

    @cached_property
    def numbers(self) -> Ints:
        """[P] int32 `pages`, as page tables are joined from them."""
        return self.pages.numpy().astype(np.int32)

    def slots(self, size: int) -> Ints:
        """[T] int64: where in a pool, of pages of `size` tokens, its tokens are."""
        if size not in self._slots:
            at = self.numbers.astype(np.int64)[:, None] * size + np.arange(size)
            self._slots[size] = at.ravel()[: self.length]
        return self._slots[size]

    @cached_property
    def _slots(self) -> dict[int, Ints]:
        return {}

    @cached_property
    def known(self) -> bytes | None:
        """[P, 5] `pages_of` it and their generations; None where those, or the pool, are not known.

        As bytes: those of many blocks are joined five times as fast as arrays.
        """
        size: int | None = getattr(self.pool, "size", None)
        if self.generations is None or size is None:
            return None
        return np.concatenate((pages_of(self, size), self.generations[None])).T.astype(np.int32).tobytes()


@dataclass(eq=False)
class PagedPrompt:
    """The page table of one prompt, on the CPU.

    length   tokens of its context
    table    its pages in the order of their first position
    own      [R + reserve] slots in the pool of what is computed for it, at `places`: recomputed tokens of the context,
             then the question and the answer
    written  how many of `own` are computed
    owned    pages of `own`; `context` the blocks it reads, both of `pool`
    chosen   how many of `own` are recomputed tokens of the context: the question comes behind them
    complete whether its context is the whole prompt, computed elsewhere: it may decode before any `prefill`
    apart    what its rows attend to apart, at a temperature; none of them is before its end
    lease    held while a step reads and writes its pages: until then it cannot be closed
    """

    length: int
    table: PageTable
    own: Ints
    places: Ints
    owned: Taken
    pool: object = field(repr=False)
    context: Sequence[Cached] = ()
    written: int = 0
    closed: bool = False
    chosen: int = 0
    complete: bool = False
    apart: Apart | None = None
    lease: Any = field(default_factory=RLock, repr=False)
    checked: int = -1  #: how often pages of the pool had been given back when all of these were in order

    def __repr__(self) -> str:
        context = f"{self.length:,} tokens in {len(self.context)} blocks"
        own = f"{self.written:,} of {len(self.own):,} own tokens computed"
        return f"PagedPrompt({context}, {own}{', closed' if self.closed else ''})"

    @property
    def pages(self) -> Paged:
        """Its table as kernels take it: `Paged` of one request, [1, P]."""
        return self.table.paged()

    @cached_property
    def lists(self) -> tuple[PageTable, PageTable]:
        """Its table as two: of what it attends to apart, and of the rest."""
        assert self.apart is not None
        return self.table.apart(self.apart.first, self.apart.end)

    @cached_property
    def held(self) -> tuple[Ints, Ints]:
        """[N] all pages that it reads or writes, and their generations when it was made."""
        known = [block for block in self.context if block.generations is not None]
        pages = [np.array(self.owned, np.int32), *[block.numbers for block in known]]
        generations = [self.owned.generations, *[x for block in known if (x := block.generations) is not None]]
        return np.concatenate(pages), np.concatenate(generations)

    @property
    def reserve(self) -> int:
        """Slots that are not written yet."""
        return len(self.own) - self.written

"""The page table of one prompt, as small numpy arrays on the host.

A table is made for every request, while a device may wait for it. So it holds a few integers a page, joined from arrays
that every block keeps, without tensor operations. The positions of slots follow from their page and are computed on the
device (`StaticBatch`), except where single tokens are masked.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from workbench.core.page_table import INVALID_POS, Paged
from workbench.core.utils.wide_copies import sent
from workbench.engine.assembly import Positions

Ints = np.ndarray[Any, np.dtype[np.int32]]
EMPTY = 0  # page number of an empty entry
WASTE = 8  # context pages per empty page that may be inserted between blocks


class CachedBlock(Protocol):
    """What a table needs of a block in a pool."""

    @property
    def length(self) -> int:
        """Number of its tokens."""

    @property
    def start(self) -> int:
        """The position that its keys are rotated for."""

    @property
    def numbers(self) -> Ints:
        """[P] its pages in order."""


@dataclass(frozen=True, eq=False)
class PageTable:
    """The P pages that one prompt reads, in the order of their first position, or in the order of blocks asked for.

    size           tokens of a page
    numbers        [P] page numbers
    first          [P] smallest position of a page
    slots          [P] number of visible slots at its front; they have positions from `first` on
    shifts         [P] number of positions by which its keys are rerotated; None where none are
    positions      [P, size] position of every slot, if single tokens are masked; else None
    partial_pages  whether many pages have masked slots
    run            pages come in groups of this many with equal shifts, counted from the first page
    """

    size: int
    numbers: Ints
    first: Ints
    slots: Ints
    shifts: Ints | None = None
    positions: Ints | None = None
    partial_pages: bool = False
    run: int = 1

    def __len__(self) -> int:
        return len(self.numbers)

    @cached_property
    def page_max(self) -> Ints:
        """[P] largest position of a page; INVALID_POS where a slot is masked."""
        if self.positions is not None:
            return self.positions.max(1)
        return _largest(self.first, self.slots, self.size, self.partial_pages)[0]

    @cached_property
    def last(self) -> Ints:
        """[P] largest position of a page and of all before it, as in `Paged`."""
        if self.positions is None:
            return _largest(self.first, self.slots, self.size, self.partial_pages)[1]
        seen = np.where(self.positions == INVALID_POS, -1, self.positions).max(1)
        return np.maximum.accumulate(np.where(self.first == INVALID_POS, INVALID_POS, seen))

    def every_position(self) -> Ints:
        """Return the position [P, size] of every slot; INVALID_POS where it is masked."""
        if self.positions is not None:
            return self.positions
        offset = np.arange(self.size, dtype=np.int32)
        return np.where(offset < self.slots[:, None], self.first[:, None] + offset, INVALID_POS).astype(np.int32)

    def apart(self, begin: int, end: int) -> tuple["PageTable", "PageTable"]:
        """Return two tables: of positions [begin, end), and of all others; a page with both is in both."""
        behind = self.first + self.slots
        mixed = ((self.first < begin) & (behind > begin)) | ((self.first < end) & (behind > end))
        if self.positions is None and not mixed.any():
            inside = (self.first >= begin) & (self.first < end)
            return self._some(inside), self._some(~inside)
        inside = (self.every_position() >= begin) & (self.every_position() < end)
        return self._hiding(~inside), self._hiding(inside)

    def _some(self, which: Any) -> "PageTable":
        positions, shifts = (None if x is None else x[which] for x in (self.positions, self.shifts))
        parts = self.numbers[which], self.first[which], self.slots[which], shifts, positions
        return PageTable(self.size, *parts, self.partial_pages, self.run)

    def _hiding(self, hidden: Any) -> "PageTable":
        """Return the pages that remain after hiding slots [P, size], in the order of their first position."""
        positions = np.where(hidden, INVALID_POS, self.every_position()).astype(np.int32)
        first = positions.min(1)
        order = np.argsort(first, kind="stable")[: int((first != INVALID_POS).sum())]
        parts = PageTable(self.size, self.numbers, first, self.slots, self.shifts, positions, True)
        return parts._some(order)

    def paged(self) -> Paged:
        """Return the table as tensors of one request, on the CPU."""
        parts = (self.numbers, self.every_position(), self.first, self.last)
        shifts = None if self.shifts is None else torch.from_numpy(self.shifts)[None]
        table, positions, first, last = (torch.from_numpy(x)[None] for x in parts)
        most = torch.from_numpy(self.page_max)[None]
        return Paged(table, positions, first, last, shifts, self.partial_pages, page_max=most, run=self.run)


def batch_of(tables: Sequence[PageTable], device: torch.device) -> Paged:
    """Return the tables of B prompts as kernels take them, shorter ones padded with masked pages."""

    def padded(parts: Sequence[Ints], fill: int = INVALID_POS) -> torch.Tensor:
        return sent(pad_sequence([torch.from_numpy(x) for x in parts], batch_first=True, padding_value=fill), device)

    numbers, positions = padded([t.numbers for t in tables], EMPTY), padded([t.every_position() for t in tables])
    first, last, most = (padded([getattr(t, part) for t in tables]) for part in ("first", "last", "page_max"))
    runs = [table.run for table in tables if table.shifts is not None]
    moved = [np.zeros(len(t), np.int32) if t.shifts is None else t.shifts for t in tables]
    return Paged(
        numbers,
        positions,
        first,
        last,
        padded(moved, 0) if runs else None,
        any(table.partial_pages for table in tables),
        numbers.shape[1] * tables[0].size,
        most,
        min(runs, default=1),
    )


def pages_of(block: CachedBlock, size: int) -> Ints:
    """Return [4, P] of a block's pages: numbers, filled slots, first positions as cached, and offsets in the block."""
    place = np.arange(len(block.numbers), dtype=np.int32)
    slots = np.minimum(block.length - place * size, size).astype(np.int32)
    return np.stack((block.numbers, slots, block.start + place * np.int32(size), place))


@dataclass(frozen=True, eq=False)
class ContextTable:
    """The part of a page table for a context of blocks, the same for every prompt over these blocks.

    `length` is the number of its tokens; the other fields are those of `PageTable`.
    """

    length: int
    numbers: Ints
    first: Ints
    slots: Ints
    shifts: Ints | None
    page_max: Ints
    last: Ints
    partial_pages: bool
    run: int


def context_of(
    joined: Ints, size: int, positions: Positions = "re-encoded", run: int = 1, order: Sequence[int] = ()
) -> ContextTable:
    """Make the table of a context from its blocks' `pages_of`, `joined` to [4, P].

    positions  as in `engine.assembly.assemble`
    run        group size of pages with equal shifts that is wanted; a few empty pages are inserted for it
    order      blocks in the order in which they are read; by default that of the prompt
    """
    numbers, slots, cached, place = joined
    ends = slots.cumsum(dtype=np.int32)
    first = ends - slots  # a page begins at the end of the preceding one
    length, pages = int(ends[-1]) if len(ends) else 0, len(numbers)
    shift = first - cached
    if positions == "shared" and pages:
        shift = np.full_like(shift, length - (cached + slots).max())
    shifted = positions != "naive" and bool(shift.any())
    if len(order):
        which = _pages_in(order, place)
        numbers, slots, first, shift, place = (x[which] for x in (numbers, slots, first, shift, place))
    partial = bool((slots[:-1] != size).any())
    runs = 1
    if run > 1 and shifted:
        begins = np.flatnonzero(place == 0)
        counts = np.diff(begins, append=pages)
        width = -counts % run
        added = int(width.sum())
        runs = run if added * WASTE <= pages else 1
        if added and runs > 1:
            at = np.arange(pages) + np.repeat(np.cumsum(width) - width, counts)
            stands = np.maximum.accumulate(_spread(np.arange(pages, dtype=np.int32), at, pages + added))
            numbers, slots = (_spread(x, at, pages + added) for x in (numbers, slots))
            first = first[stands]  # an empty page has the first position of the preceding page
            shift = shift[begins].repeat(counts + width)
    page_max, last = _largest(first, slots, size, partial)
    return ContextTable(length, numbers, first, slots, shift if shifted else None, page_max, last, partial, runs)


def _pages_in(order: Sequence[int], place: Ints) -> Any:
    """Return page indices for blocks read in this order; `place` is the index of each page within its block."""
    begins = np.flatnonzero(place == 0)
    ordered = np.asarray(order)
    counts = np.diff(begins, append=len(place))[ordered]
    return np.repeat(begins[ordered] + counts - counts.cumsum(), counts) + np.arange(len(place))


def joined_pages(context: Sequence[CachedBlock], size: int) -> Ints:
    """Return `pages_of` all blocks, joined to [4, P]."""
    return np.concatenate([np.empty((4, 0), np.int32), *[pages_of(block, size) for block in context]], 1)


def table_of(context: ContextTable, own: Ints, places: Ints, size: int) -> PageTable:
    """Make the table of a prompt: the pages of its context, then pages `own` for positions `places` [R].

    Positions within the context are recomputed tokens, whose cached entries are masked; the context must then have been
    made with `run` 1.
    """
    part, pages = context, len(context.numbers)
    begins, held = places[::size], np.full(len(own), size, np.int32)
    held[-1:] = len(places) - (len(own) - 1) * size
    numbers = np.concatenate((part.numbers, own))
    shifts = None if part.shifts is None else np.concatenate((part.shifts, np.zeros(len(own), np.int32)))
    recomputed = int(places.searchsorted(part.length)) if len(places) and places[0] < part.length else 0
    if recomputed:
        hidden = PageTable(size, numbers[:pages], part.first, part.slots).every_position()
        return _hidden(hidden, numbers, places, recomputed, part.length, shifts)
    first, slots = np.concatenate((part.first, begins)), np.concatenate((part.slots, held))
    table = PageTable(size, numbers, first, slots, shifts, None, part.partial_pages, part.run)
    page_max = begins + np.int32(size - 1)
    page_max[held != size] = INVALID_POS
    last = begins + held - 1 if part.partial_pages else page_max  # ascending
    if pages:
        last = np.maximum(last, part.last[-1])
    vars(table).update(page_max=np.concatenate((part.page_max, page_max)), last=np.concatenate((part.last, last)))
    return table


def _largest(first: Ints, slots: Ints, size: int, partial: bool) -> tuple[Ints, Ints]:
    """Return `PageTable.page_max` and `last` of pages whose visible slots are at the front."""
    page_max = np.where(slots == size, first + (size - 1), np.int32(INVALID_POS))
    return page_max, np.maximum.accumulate(first + slots - 1 if partial else page_max)


def common_pages(tables: Sequence[PageTable]) -> int:
    """Return the number of leading pages that all tables have in common."""
    one, least = tables[0], min(map(len, tables))
    same = np.ones(least, bool)
    for other in tables[1:]:
        if (one.shifts is None) != (other.shifts is None):
            return 0
        for name in ("numbers", "first", "slots", "shifts"):
            if getattr(one, name) is not None:
                same &= getattr(one, name)[:least] == getattr(other, name)[:least]
        if one.positions is not None or other.positions is not None:
            same &= (one.every_position()[:least] == other.every_position()[:least]).all(1)
    return int(np.argmin(same)) if not same.all() else least


def _spread(x: Ints, at: Any, count: int) -> Ints:
    spread = np.full(count, EMPTY, np.int32)
    spread[at] = x
    return spread


def _hidden(cached: Ints, numbers: Ints, places: Ints, recomputed: int, length: int, shifts: Ints | None) -> PageTable:
    """Return the table of a prompt with recomputed tokens, sorted by first position, as they may be anywhere."""
    size = cached.shape[1]
    stale = np.zeros(length + 1, bool)
    stale[places[:recomputed]] = True
    cached[stale[np.minimum(cached, length)]] = INVALID_POS
    mine = np.full((len(numbers) - len(cached)) * size, INVALID_POS, np.int32)
    mine[: len(places)] = places
    positions = np.concatenate((cached, mine.reshape(-1, size)))
    first = positions.min(1)
    order = np.argsort(first, kind="stable")
    slots = np.full(len(order), size, np.int32)
    shifts = None if shifts is None else shifts[order]
    return PageTable(size, numbers[order], first[order], slots, shifts, positions[order], True)

"""The page table of one prompt, as small numpy arrays on the host.

A table is built per request, while the device may be waiting. So it has a few integers per page, concatenated from
arrays that each block keeps, without tensor operations. Positions of slots are derived from their page on the device
(`StaticBatch`), unless single tokens are masked.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from workbench.core.page_table import INVALID_POS, Paged
from workbench.core.utils.wide_copies import copy_to_device
from workbench.engine.assembly import Positions

Ints = np.ndarray[Any, np.dtype[np.int32]]
EMPTY = 0  # page number of an empty entry
WASTE = 8  # minimum context pages per empty page inserted between blocks


class CachedBlock(Protocol):
    """What a page table needs of a cached block."""

    @property
    def length(self) -> int:
        """Number of its tokens."""

    @property
    def start(self) -> int:
        """Position that its keys are rotated for."""

    @property
    def numbers(self) -> Ints:
        """[P] its pages in order."""


@dataclass(frozen=True, eq=False)
class PageTable:
    """The P pages that one prompt reads, ordered by first position or by a requested order of blocks.

    size           tokens of a page
    numbers        [P] page numbers
    first          [P] smallest position of a page
    slots          [P] number of visible slots at its front; they have positions from `first` on
    shifts         [P] positions by which its keys are rerotated; None: none are
    positions      [P, size] position of each slot if single tokens are masked, else None
    partial_pages  whether many pages have masked slots
    run            group size of pages with equal shifts, counted from the first page
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
        """[P] largest position of a page; INVALID_POS if a slot is masked."""
        if self.positions is not None:
            return self.positions.max(1)
        return _largest(self.first, self.slots, self.size, self.partial_pages)[0]

    @cached_property
    def last(self) -> Ints:
        """[P] largest position up to and including a page, as in `Paged`."""
        if self.positions is None:
            return _largest(self.first, self.slots, self.size, self.partial_pages)[1]
        seen = np.where(self.positions == INVALID_POS, -1, self.positions).max(1)
        return np.maximum.accumulate(np.where(self.first == INVALID_POS, INVALID_POS, seen))

    def every_position(self) -> Ints:
        """Return the position [P, size] of each slot; INVALID_POS if it is masked."""
        if self.positions is not None:
            return self.positions
        offset = np.arange(self.size, dtype=np.int32)
        return np.where(offset < self.slots[:, None], self.first[:, None] + offset, INVALID_POS).astype(np.int32)

    def split_at(self, begin: int, end: int) -> tuple["PageTable", "PageTable"]:
        """Split into two tables: positions [begin, end), and all others; a page with both is in both."""
        behind = self.first + self.slots
        mixed = ((self.first < begin) & (behind > begin)) | ((self.first < end) & (behind > end))
        if self.positions is None and not mixed.any():
            inside = (self.first >= begin) & (self.first < end)
            return self._select(inside), self._select(~inside)
        inside = (self.every_position() >= begin) & (self.every_position() < end)
        return self._mask(~inside), self._mask(inside)

    def _select(self, which: Any) -> "PageTable":
        positions, shifts = (None if x is None else x[which] for x in (self.positions, self.shifts))
        parts = self.numbers[which], self.first[which], self.slots[which], shifts, positions
        return PageTable(self.size, *parts, self.partial_pages, self.run)

    def _mask(self, hidden: Any) -> "PageTable":
        """Mask slots [P, size] and return the pages that remain, ordered by first position."""
        positions = np.where(hidden, INVALID_POS, self.every_position()).astype(np.int32)
        first = positions.min(1)
        order = np.argsort(first, kind="stable")[: int((first != INVALID_POS).sum())]
        parts = PageTable(self.size, self.numbers, first, self.slots, self.shifts, positions, True)
        return parts._select(order)

    def paged(self) -> Paged:
        """Return the table as CPU tensors for one request."""
        parts = (self.numbers, self.every_position(), self.first, self.last)
        shifts = None if self.shifts is None else torch.from_numpy(self.shifts)[None]
        table, positions, first, last = (torch.from_numpy(x)[None] for x in parts)
        most = torch.from_numpy(self.page_max)[None]
        return Paged(table, positions, first, last, shifts, self.partial_pages, page_max=most, run=self.run)


def batch_of(tables: Sequence[PageTable], device: torch.device) -> Paged:
    """Return the tables of B prompts as kernel arguments; shorter ones are padded with masked pages."""

    def padded(parts: Sequence[Ints], fill: int = INVALID_POS) -> torch.Tensor:
        return copy_to_device(
            pad_sequence([torch.from_numpy(x) for x in parts], batch_first=True, padding_value=fill), device
        )

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
    """Return [4, P] for a block's pages: numbers, filled slots, first positions as cached, and indices in the block."""
    place = np.arange(len(block.numbers), dtype=np.int32)
    slots = np.minimum(block.length - place * size, size).astype(np.int32)
    return np.stack((block.numbers, slots, block.start + place * np.int32(size), place))


@dataclass(frozen=True, eq=False)
class ContextTable:
    """The part of a page table for a context of blocks, shared by prompts over these blocks.

    `length` is its number of tokens; the other fields are those of `PageTable`.
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
    """Build the table of a context from its blocks' `pages_of`, `joined` to [4, P].

    positions  as in `engine.assembly.assemble`
    run        requested group size of pages with equal shifts; a few empty pages are inserted for it
    order      order in which blocks are read; by default that of the prompt
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
        which = _ordered_pages(order, place)
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
            source = np.maximum.accumulate(_scatter(np.arange(pages, dtype=np.int32), at, pages + added))
            numbers, slots = (_scatter(x, at, pages + added) for x in (numbers, slots))
            first = first[source]  # an empty page has the first position of the preceding page
            shift = shift[begins].repeat(counts + width)
    page_max, last = _largest(first, slots, size, partial)
    return ContextTable(length, numbers, first, slots, shift if shifted else None, page_max, last, partial, runs)


def _ordered_pages(order: Sequence[int], place: Ints) -> Any:
    """Return page indices for this order of blocks; `place` is the index of each page in its block."""
    begins = np.flatnonzero(place == 0)
    ordered = np.asarray(order)
    counts = np.diff(begins, append=len(place))[ordered]
    return np.repeat(begins[ordered] + counts - counts.cumsum(), counts) + np.arange(len(place))


def joined_pages(context: Sequence[CachedBlock], size: int) -> Ints:
    """Return `pages_of` all blocks, joined to [4, P]."""
    return np.concatenate([np.empty((4, 0), np.int32), *[pages_of(block, size) for block in context]], 1)


def table_of(context: ContextTable, own: Ints, places: Ints, size: int) -> PageTable:
    """Build the table of a prompt: the pages of its context, then pages `own` for positions `places` [R].

    Positions within the context are recomputed tokens, whose cached entries are masked; the context must then have
    `run` 1.
    """
    part, pages = context, len(context.numbers)
    begins, filled = places[::size], np.full(len(own), size, np.int32)
    filled[-1:] = len(places) - (len(own) - 1) * size
    numbers = np.concatenate((part.numbers, own))
    shifts = None if part.shifts is None else np.concatenate((part.shifts, np.zeros(len(own), np.int32)))
    count = int(places.searchsorted(part.length)) if len(places) and places[0] < part.length else 0
    if count:
        cached = PageTable(size, numbers[:pages], part.first, part.slots).every_position()
        return _recomputed(cached, numbers, places, count, part.length, shifts)
    first, slots = np.concatenate((part.first, begins)), np.concatenate((part.slots, filled))
    table = PageTable(size, numbers, first, slots, shifts, None, part.partial_pages, part.run)
    page_max = begins + np.int32(size - 1)
    page_max[filled != size] = INVALID_POS
    last = begins + filled - 1 if part.partial_pages else page_max  # ascending
    if pages:
        last = np.maximum(last, part.last[-1])
    vars(table).update(page_max=np.concatenate((part.page_max, page_max)), last=np.concatenate((part.last, last)))
    return table


def _largest(first: Ints, slots: Ints, size: int, partial: bool) -> tuple[Ints, Ints]:
    """Return `page_max` and `last` of a `PageTable` whose visible slots are at the front of their pages."""
    page_max = np.where(slots == size, first + (size - 1), np.int32(INVALID_POS))
    return page_max, np.maximum.accumulate(first + slots - 1 if partial else page_max)


def common_pages(tables: Sequence[PageTable]) -> int:
    """Return the number of leading pages that all tables share."""
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


def _scatter(x: Ints, at: Any, count: int) -> Ints:
    out = np.full(count, EMPTY, np.int32)
    out[at] = x
    return out


def _recomputed(cached: Ints, numbers: Ints, places: Ints, count: int, length: int, shifts: Ints | None) -> PageTable:
    """Build the table of a prompt with recomputed tokens, sorted by first position, as these may be anywhere."""
    size = cached.shape[1]
    stale = np.zeros(length + 1, bool)
    stale[places[:count]] = True
    cached[stale[np.minimum(cached, length)]] = INVALID_POS
    mine = np.full((len(numbers) - len(cached)) * size, INVALID_POS, np.int32)
    mine[: len(places)] = places
    positions = np.concatenate((cached, mine.reshape(-1, size)))
    first = positions.min(1)
    order = np.argsort(first, kind="stable")
    slots = np.full(len(order), size, np.int32)
    shifts = None if shifts is None else shifts[order]
    return PageTable(size, numbers[order], first[order], slots, shifts, positions[order], True)

"""Shapes of batches: requests are padded to a `Bucket`, by which captured steps are kept.

Inputs of a batch on the host: named views of one int32 array, page-locked where a GPU fetches it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from workbench.engine.pages.page_tables import common_pages
from workbench.engine.pages.paged_prompt import PagedPrompt

LARGE = 1024  # rows of a request, above which a batch is neither padded nor captured
SHARED = 8  # pages at the front that several requests must have in common to be read together
UNIT = 8  # a number of rows is padded to a multiple of it
PLAIN = (1.0, 0.0)  # temperature and gain of rows that attend to nothing apart


@dataclass(frozen=True)
class Bucket:
    """Shape of a batch, by which captured graphs are kept.

    batch, rows, pages  requests, and rows and pages of each
    shared              pages at the front that all requests have in common
    shifted             some keys are rerotated as they are read
    partial_pages       many pages have slots that no row sees
    reserve             slots for an answer, 0 for a prefill
    queries             layers whose queries are kept, for what is chosen by them
    hidden              tokens are hidden one by one, so the position of every slot is sent
    run                 so many pages side by side are rerotated alike
    every               logits behind every row are wanted, not only behind the last
    apart               pages of each that its rows attend to apart, beside `pages`
    bend                temperature and gain of these
    """

    batch: int
    rows: int
    pages: int
    shared: int
    shifted: bool
    partial_pages: bool
    reserve: int = 0
    queries: tuple[int, ...] = ()
    hidden: bool = False
    run: int = 1
    every: bool = False
    apart: int = 0
    bend: tuple[float, float] = PLAIN

    @classmethod
    def of(cls, prompts: Sequence[PagedPrompt], rows: int, reserve: int = 0, queries: tuple[int, ...] = ()) -> "Bucket":
        (bend,), shared = {bend_of(prompt) for prompt in prompts}, common(prompts, rows)
        lists = [(prompt.table,) if prompt.apart is None else prompt.lists for prompt in prompts]
        tables = list(chain.from_iterable(lists))
        shifted = [table.run for table in tables if table.shifts is not None]
        return cls(
            _power(len(prompts)),
            1 if reserve else rows if rows > LARGE else max(16, _octave(rows, UNIT)),
            _octave(max(len(each[-1]) for each in lists) - shared),
            shared and _octave(shared),
            bool(shifted),
            any(table.partial_pages for table in tables),
            reserve and max(64, _power(reserve)),
            queries,
            any(table.positions is not None for table in tables),
            min(shifted, default=1),
            apart=0 if bend == PLAIN else _octave(max(len(each[0]) for each in lists)),
            bend=bend,
        )

    @property
    def large(self) -> bool:
        return self.rows > LARGE

    @property
    def coarse(self) -> "Bucket":
        """The bucket of powers of two that holds this one: fewer captures for requests of many lengths."""
        rows = self.rows if self.large else _power(self.rows)
        pages, shared, apart = (count and _power(count) for count in (self.pages, self.shared, self.apart))
        return replace(self, rows=rows, pages=pages, shared=shared, apart=apart, run=1)


def bend_of(prompt: PagedPrompt) -> tuple[float, float]:
    """Return temperature and gain of what a prompt attends to apart: prompts of one step have the same."""
    return PLAIN if prompt.apart is None else (prompt.apart.temperature, prompt.apart.gain)


def common(prompts: Sequence[PagedPrompt], rows: int) -> int:
    """How many pages at the front all requests have in common, where it pays to read them together: else 0."""
    if len(prompts) < 2 or rows > 1 or any(prompt.apart for prompt in prompts):
        return 0
    count = common_pages([prompt.table for prompt in prompts])
    return count if count >= SHARED else 0


def _power(count: int) -> int:
    return 1 << (max(count, 1) - 1).bit_length()


def _octave(count: int, least: int = 1) -> int:
    """The next of 8 … 15 times a power of two, 8 at least, in steps of `least` or more."""
    unit = max(least, 1 << max(0, count.bit_length() - 4))
    return max(8, -(-count // unit) * unit)


Ints = np.ndarray[Any, np.dtype[np.int32]]
Shapes = Mapping[str, tuple[int, ...]]


class HostBuffer:
    """One array of inputs, its `views` by name, and when it was last sent."""

    def __init__(self, shapes: Shapes, device: torch.device, pinned: bool):
        cuda = device.type == "cuda"
        count = sum(map(aligned, shapes.values()))
        self.tensor = torch.zeros(count, dtype=torch.int32, pin_memory=cuda and pinned)
        self.array: Ints = self.tensor.numpy()
        self.views: dict[str, Ints] = {name: part.numpy() for name, part in views(self.tensor, shapes).items()}
        self._sent = torch.cuda.Event() if cuda else None

    def free(self) -> None:
        """Wait until it is sent, where it still is on its way."""
        if self._sent is not None and not self._sent.query():
            self._sent.synchronize()

    def send(self, target: Tensor) -> None:
        """Begin to copy it to the device."""
        target.copy_(self.tensor, non_blocking=True)
        if self._sent is not None:
            self._sent.record()


def views(whole: Tensor, shapes: Shapes) -> dict[str, Tensor]:
    """Return the parts of a tensor by name; each begins at a multiple of 128 bytes."""
    parts = whole.split([aligned(shape) for shape in shapes.values()])
    return {
        name: part[: torch.Size(shape).numel()].view(shape)
        for (name, shape), part in zip(shapes.items(), parts, strict=True)
    }


def aligned(shape: tuple[int, ...]) -> int:
    """Elements that an input takes, so that the next begins at a multiple of 128 bytes."""
    return -(-torch.Size(shape).numel() // 32) * 32

"""Shape buckets: requests are padded to one of few batch shapes, which are the keys of captured steps.

Also the host inputs of a batch: named views of one int32 array, in pinned memory.
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

LARGE = 1024  # above this many rows per request, a batch is neither padded nor captured
SHARED = 8  # minimum number of shared leading pages for which they are read once per batch
UNIT = 8  # row counts are padded to multiples of it
PLAIN = (1.0, 0.0)  # temperature and gain without APE


@dataclass(frozen=True)
class Bucket:
    """Shape of a batch, the key of captured graphs.

    batch, rows, pages  number of requests, and of rows (query tokens) and pages per request
    shared              leading pages that all requests share
    shifted             whether some keys are rerotated as they are read
    partial_pages       whether many pages have masked slots
    reserve             slots for an answer, 0 for a prefill
    queries             layers whose queries are returned, for selectors
    hidden              whether single tokens are masked; then the position of each slot is sent
    run                 group size of pages with equal shifts
    every               whether all rows get logits, not only the last of each request
    apart               additional pages per request that are attended to in a separate softmax (`SeparateSoftmax`)
    bend                temperature and gain of that softmax
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
        (bend,), shared = {bend_of(prompt) for prompt in prompts}, common_page_count(prompts, rows)
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
    def is_large(self) -> bool:
        return self.rows > LARGE

    @property
    def coarse(self) -> "Bucket":
        """The bucket with rows and pages rounded up to powers of two: fewer captures if lengths vary."""
        rows = self.rows if self.is_large else _power(self.rows)
        pages, shared, apart = (count and _power(count) for count in (self.pages, self.shared, self.apart))
        return replace(self, rows=rows, pages=pages, shared=shared, apart=apart, run=1)


def bend_of(prompt: PagedPrompt) -> tuple[float, float]:
    """Return the temperature and gain of a prompt's `SeparateSoftmax`; all prompts of a step must share them."""
    return PLAIN if prompt.apart is None else (prompt.apart.temperature, prompt.apart.gain)


def common_page_count(prompts: Sequence[PagedPrompt], rows: int) -> int:
    """Return the number of leading pages that all requests share; 0 if reading them once would not be faster."""
    if len(prompts) < 2 or rows > 1 or any(prompt.apart for prompt in prompts):
        return 0
    count = common_pages([prompt.table for prompt in prompts])
    return count if count >= SHARED else 0


def _power(count: int) -> int:
    return 1 << (max(count, 1) - 1).bit_length()


def _octave(count: int, least: int = 1) -> int:
    """Round up to 8 … 15 times a power of two, at least 8, in steps of at least `least`."""
    unit = max(least, 1 << max(0, count.bit_length() - 4))
    return max(8, -(-count // unit) * unit)


Ints = np.ndarray[Any, np.dtype[np.int32]]
Shapes = Mapping[str, tuple[int, ...]]


class HostBuffer:
    """One array of inputs on the host, with named `views`; sent to the device in one copy."""

    def __init__(self, shapes: Shapes, device: torch.device, pinned: bool):
        cuda = device.type == "cuda"
        count = sum(map(aligned, shapes.values()))
        self.tensor = torch.zeros(count, dtype=torch.int32, pin_memory=cuda and pinned)
        self.array: Ints = self.tensor.numpy()
        self.views: dict[str, Ints] = {name: part.numpy() for name, part in views(self.tensor, shapes).items()}
        self._sent = torch.cuda.Event() if cuda else None

    def free(self) -> None:
        """Wait for the last copy to the device."""
        if self._sent is not None and not self._sent.query():
            self._sent.synchronize()

    def send(self, target: Tensor) -> None:
        """Start to copy the array to `target` on the device."""
        target.copy_(self.tensor, non_blocking=True)
        if self._sent is not None:
            self._sent.record()


def views(whole: Tensor, shapes: Shapes) -> dict[str, Tensor]:
    """Return named views of a tensor, each aligned to 128 bytes."""
    parts = whole.split([aligned(shape) for shape in shapes.values()])
    return {
        name: part[: torch.Size(shape).numel()].view(shape)
        for (name, shape), part in zip(shapes.items(), parts, strict=True)
    }


def aligned(shape: tuple[int, ...]) -> int:
    """Return the size of an input in elements, rounded up to 128 bytes."""
    return -(-torch.Size(shape).numel() // 32) * 32

"""Page allocator: pages of a pool are taken and given back, each time with a new generation.

A page's generation is counted up when it is taken and when it is given back, so it is odd while the page is held. The
holder remembers the generation; a stale reference has another one.
"""

from collections.abc import Sequence
from threading import Condition

import numpy as np
import torch
from torch import Tensor

from workbench.core.errors import BadInput, shown
from workbench.core.utils import annotations
from workbench.engine.pages.page_tables import Ints

SCRATCH = 0  # the page that padding rows write to


def whole_numbers(name: str, numbers: Sequence[int] | Tensor) -> Ints:
    """Return integers as int32 [N]. Raises BadInput, by this name, for anything but a list of integers."""
    annotations.check(name, numbers, Tensor | Sequence[int])
    found = torch.as_tensor(numbers)
    odd = found.ndim != 1 or found.is_floating_point() or found.is_complex() or found.dtype is torch.bool
    if found.is_meta or (found.numel() and odd):
        raise BadInput(f"{name} is {shown(numbers)}: whole numbers in one row are needed")
    return found.reshape(-1).cpu().numpy().astype(np.int32)


class NoPages(BadInput):
    """A pool has fewer free pages than are needed."""

    def __init__(self, needed: int, there: int, what: str = "the request"):
        super().__init__(f"{what} needs {needed} pages, {there} of the pool are free: {needed - there} are missing")
        self.missing = needed - there


class Taken(list[int]):
    """A list of held pages, with `numbers` (the same as an array) and the `generations` they were taken with."""

    def __init__(self, pages: Sequence[int], generations: Ints, numbers: Ints | None = None):
        super().__init__(pages)
        self.numbers: Ints = np.array(self, np.int32) if numbers is None else numbers
        self.generations = generations


class PageOwners:
    """Allocates the pages 1 … `pages` - 1 of a pool; thread-safe."""

    def __init__(self, pages: int):
        self.pages = pages
        self.generation: Ints = np.zeros(pages, np.int32)
        self.given = 0  # counts returns of pages that others may read; checks made at the same count stay valid
        self._free = list(range(pages - 1, SCRATCH, -1))
        self._changed = Condition()

    @property
    def free(self) -> int:
        """Number of pages that are not held."""
        return len(self._free)

    def take(self, count: int, what: str = "the request", wait: float = 0.0) -> Taken:
        """Take `count` pages, waiting up to `wait` seconds for others to give some back.

        Raises NoPages, taking none.
        """
        with self._changed:
            if count > len(self._free) and (
                count > self.pages - 1 or not self._changed.wait_for(lambda: count <= len(self._free), wait)
            ):
                raise NoPages(count, len(self._free), what)
            rest = len(self._free) - count
            taken = self._free[rest:][::-1]
            del self._free[rest:]
            numbers = np.array(taken, np.int32)
            generations: Ints = self.generation[numbers] + 1
            self.generation[numbers] = generations
            return Taken(taken, generations, numbers)

    def give(self, pages: Sequence[int] | Tensor, generations: Ints | None = None, counted: bool = True) -> None:
        """Give pages back. Raises BadInput, giving none, where one is not held or was taken by others since.

        `counted` is False for pages that nobody else can refer to: the own pages of a prompt that ends.
        """
        known = generations if generations is not None else getattr(pages, "generations", None)
        with self._changed:
            numbers = self._own(pages, known)
            self.generation[numbers] += 1
            self.given += counted  # after the update: a reader that saw the old count checks again
            self._free.extend(numbers.tolist())
            self._changed.notify_all()

    def _own(self, pages: Sequence[int] | Tensor, generations: Ints | None) -> Ints:
        """Return page numbers, checked to be held; a `Taken` that is unchanged is checked faster."""
        taken = isinstance(pages, Taken) and generations is pages.generations and pages == pages.numbers.tolist()
        if isinstance(pages, Taken) and taken and self.holds(pages.numbers, pages.generations):
            return pages.numbers
        return self.check(pages, generations)

    def holds(self, numbers: Ints, generations: Ints) -> bool:
        """Return whether pages are still held in these generations."""
        return bool((self.generation[numbers] == generations).all())

    def check(self, pages: Sequence[int] | Tensor, generations: Ints | None = None) -> Ints:
        """Return page numbers as int32. Raises BadInput where one is not held in its generation."""
        numbers = whole_numbers("pages", pages).astype(np.int64)
        if ((numbers <= SCRATCH) | (numbers >= self.pages)).any():
            odd = next(int(n) for n in numbers if not SCRATCH < n < self.pages)
            what = "page 0 is scratch, which nobody holds" if odd == SCRATCH else f"page {odd} is not of this pool"
            raise BadInput(f"{what}: its pages are 1 to {self.pages - 1}")
        now = self.generation[numbers]
        if not (now & 1).all():
            raise BadInput(f"page {int(numbers[np.argmin(now & 1)])} is not taken: it was given back before")
        if generations is not None and (now != generations).any():
            page = int(numbers[np.argmax(now != generations)])
            raise BadInput(f"page {page} was given back before, and others have taken it since")
        if len(np.unique(numbers)) < len(numbers):
            raise BadInput(f"a page is named twice among {numbers.tolist()}")
        return numbers.astype(np.int32)

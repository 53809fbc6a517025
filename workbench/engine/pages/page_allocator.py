"""Page allocator: the pages of a pool, with a generation per page.

A page's generation is incremented when it is allocated and when it is freed, so it is odd while the page is held. The
holder stores the generation, so a stale reference is detected by its older one.
"""

from collections.abc import Sequence
from threading import Condition

import numpy as np
import torch
from torch import Tensor

from workbench.core.errors import BadInput, format_value
from workbench.core.utils import annotations
from workbench.engine.pages.page_tables import Ints

SCRATCH = 0  # the page that padding rows write to


def whole_numbers(name: str, numbers: Sequence[int] | Tensor) -> Ints:
    """Return integers as int32 [N]. Raises BadInput, with this `name`, for anything but a list of integers."""
    annotations.check(name, numbers, Tensor | Sequence[int])
    found = torch.as_tensor(numbers)
    odd = found.ndim != 1 or found.is_floating_point() or found.is_complex() or found.dtype is torch.bool
    if found.is_meta or (found.numel() and odd):
        raise BadInput(f"{name} is {format_value(numbers)}: a list of integers is needed")
    return found.reshape(-1).cpu().numpy().astype(np.int32)


class NoPages(BadInput):
    """A pool has too few free pages."""

    def __init__(self, needed: int, free: int, what: str = "the request"):
        super().__init__(f"{what} needs {needed} pages, {free} of the pool are free: {needed - free} are missing")
        self.missing = needed - free


class AllocatedPages(list[int]):
    """A list of allocated pages, with `numbers` (the same as an array) and their `generations` at allocation."""

    def __init__(self, pages: Sequence[int], generations: Ints, numbers: Ints | None = None):
        super().__init__(pages)
        self.numbers: Ints = np.array(self, np.int32) if numbers is None else numbers
        self.generations = generations


class PageOwners:
    """Allocator of pages 1 … `pages` - 1 of a pool; thread-safe."""

    def __init__(self, pages: int):
        self.pages = pages
        self.generation: Ints = np.zeros(pages, np.int32)
        self.given = 0  # number of times that shared pages were freed; checks at the same count stay valid
        self._free = list(range(pages - 1, SCRATCH, -1))
        self._changed = Condition()

    @property
    def free(self) -> int:
        """Number of free pages."""
        return len(self._free)

    def take(self, count: int, what: str = "the request", wait: float = 0.0) -> AllocatedPages:
        """Allocate `count` pages, waiting up to `wait` seconds for pages to be freed.

        Raises NoPages, allocating none.
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
            return AllocatedPages(taken, generations, numbers)

    def free_pages(self, pages: Sequence[int] | Tensor, generations: Ints | None = None, counted: bool = True) -> None:
        """Free pages. Raises BadInput, freeing none, if one is free already or was reallocated.

        `counted` is False for pages without other references: the own pages of a prompt that ends.
        """
        known = generations if generations is not None else getattr(pages, "generations", None)
        with self._changed:
            numbers = self._checked(pages, known)
            self.generation[numbers] += 1
            self.given += counted  # after the update: a reader of the old count checks again
            self._free.extend(numbers.tolist())
            self._changed.notify_all()

    def _checked(self, pages: Sequence[int] | Tensor, generations: Ints | None) -> Ints:
        """Return the numbers of pages, checked as in `check`; an unchanged `AllocatedPages` is checked faster."""
        taken = (
            isinstance(pages, AllocatedPages) and generations is pages.generations and pages == pages.numbers.tolist()
        )
        if isinstance(pages, AllocatedPages) and taken and self.still_owned(pages.numbers, pages.generations):
            return pages.numbers
        return self.check(pages, generations)

    def still_owned(self, numbers: Ints, generations: Ints) -> bool:
        """Return whether pages still have these generations."""
        return bool((self.generation[numbers] == generations).all())

    def check(self, pages: Sequence[int] | Tensor, generations: Ints | None = None) -> Ints:
        """Return page numbers as int32. Raises BadInput if one is free, or its generation has changed."""
        numbers = whole_numbers("pages", pages).astype(np.int64)
        if ((numbers <= SCRATCH) | (numbers >= self.pages)).any():
            odd = next(int(n) for n in numbers if not SCRATCH < n < self.pages)
            what = "page 0 is scratch" if odd == SCRATCH else f"page {odd} is not of this pool"
            raise BadInput(f"{what}: its pages are 1 to {self.pages - 1}")
        now = self.generation[numbers]
        if not (now & 1).all():
            raise BadInput(f"page {int(numbers[np.argmin(now & 1)])} is not taken: it was given back before")
        if generations is not None and (now != generations).any():
            page = int(numbers[np.argmax(now != generations)])
            raise BadInput(f"page {page} was given back before, and others have taken it since")
        if len(np.unique(numbers)) < len(numbers):
            raise BadInput(f"a page is listed twice in {numbers.tolist()}")
        return numbers.astype(np.int32)

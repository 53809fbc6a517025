"""A pool of pages: cached blocks that concurrent prompts read in place, and never write.

A page holds `size` tokens of all layers; a block takes whole pages. A prompt is a page table: the pages of its blocks,
which other prompts may share, each with the shift by which its keys are rerotated as they are read; and its own pages
for recomputed tokens, the question and the answer. Opening a prompt copies no block.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from operator import attrgetter
from weakref import ref

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from workbench.core.blocks import Block
from workbench.core.errors import BadInput, format_value
from workbench.core.kv import KV
from workbench.core.utils import annotations
from workbench.core.utils.annotations import Count
from workbench.engine.assembly import Positions, check_positions
from workbench.engine.pages.page_allocator import AllocatedPages, NoPages, PageOwners, whole_numbers
from workbench.engine.pages.page_storage import PageStorage
from workbench.engine.pages.page_tables import ContextTable, Ints, context_of, joined_pages, table_of
from workbench.engine.pages.paged_prompt import Cached, PagedPrompt
from workbench.models.spec import attach

CONTEXTS = 16  # number of recent contexts whose tables are kept
_SERIAL_OF = attrgetter("serial")


class Pool(PageStorage):
    """Pages of keys and values, and their allocation. Its parameters are those of `PageStorage`."""

    def __init__(self, model: PreTrainedModel, pages: int, size: int = 64, kernels: bool | None = None):
        super().__init__(model, pages, size, kernels)
        self.owners = PageOwners(pages)
        self._model = ref(model)
        self._contexts: dict[tuple[object, ...] | None, tuple[int, ContextTable]] = {}

    def __repr__(self) -> str:
        return f"Pool({self.pages:,} pages of {self.size} tokens, {self.free:,} free)"

    @property
    def free(self) -> int:
        """Number of free pages."""
        return self.owners.free

    @annotations.checked
    def take(self, tokens: Count, wait: float = 0.0) -> AllocatedPages:
        """Take pages for `tokens` tokens, waiting up to `wait` seconds. Raises NoPages if too few are free."""
        return self.owners.take(-(-tokens // self.size), f"{tokens} tokens: it", wait)

    @annotations.checked
    def free_pages(self, pages: Sequence[int] | Tensor | Cached) -> None:
        """Free pages that `take` returned, or those of a block. Raises BadInput, freeing none, for stale pages."""
        if isinstance(pages, Cached):
            self.check_block(pages)
            self.owners.free_pages(pages.pages, pages.generations)
        else:
            self.owners.free_pages(pages)

    def close(self, prompt: PagedPrompt) -> None:
        """Free a prompt's own pages, which ends it. Raises BadInput for a closed prompt.

        Waits for a step of another thread over the prompt.
        """
        annotations.check("prompt", prompt, PagedPrompt)
        with prompt.lease:
            if prompt.closed or prompt.pool is not self:
                raise BadInput("a prompt is closed twice" if prompt.closed else "this prompt is of another pool")
            self.owners.free_pages(prompt.owned, counted=False)
            prompt.closed = True

    def check(self, prompt: PagedPrompt) -> None:
        """Raise BadInput for a prompt that is closed, of another pool, or whose pages were reallocated."""
        if not isinstance(prompt, PagedPrompt):
            raise BadInput(f"{format_value(prompt)} is no prompt of this pool: use `Pool.open` or `Pool.blank`")
        if prompt.pool is not self or prompt.closed:
            raise BadInput("this prompt is closed" if prompt.closed else "this prompt is of another pool")
        returns = self.owners.given
        if prompt.checked != returns and not self.owners.still_owned(*prompt.pages_used):
            self.owners.check(prompt.owned, prompt.owned.generations)
            for block in prompt.context:
                self.check_block(block)
        prompt.checked = returns

    def check_blocks(self, context: Sequence[Cached]) -> Ints | None:
        """Check several blocks as `check_block` does, in one step if they are valid.

        Returns `pages_of` all blocks, joined; None if a block's generations are not known.
        """
        if odd := [block for block in context if not isinstance(block, Cached)]:
            raise BadInput(f"{format_value(odd[0])} is no block of this pool: use `Pool.encode`")
        known = [x for block in context if block.pool is self and (x := block.pages_as_bytes) is not None]
        if len(known) == len(context):
            joined: Ints = np.frombuffer(b"".join(known), np.int32).reshape(-1, 5).T
            if self.owners.still_owned(joined[0], joined[-1]):
                return joined[:-1]
        for block in context:
            self.check_block(block)
        return None

    def check_block(self, block: Cached) -> None:
        """Raise BadInput for a block of another pool, and for one whose pages were freed."""
        if block.pool is not None and block.pool is not self:
            raise BadInput("this block is of another pool")
        if block.generations is None or not self.owners.still_owned(block.numbers, block.generations):
            self.owners.check(block.pages, block.generations)

    def check_model(self, model: PreTrainedModel) -> None:
        """Raise BadInput unless the pool was created for this model."""
        if self._model() is not model:
            raise BadInput(f"this pool is of another model: make one for {attach(model).name}")

    def cached(self, length: int, start: int = 0, pages: AllocatedPages | None = None) -> Cached:
        """Return an unwritten block of `length` tokens in `pages`; None: allocate them."""
        pages = self.owners.take(-(-length // self.size), f"{length} tokens: it") if pages is None else pages
        return Cached(torch.from_numpy(pages.numbers.astype(np.int64)), length, start, self, pages.generations)

    @annotations.checked
    def encode(
        self, model: PreTrainedModel, blocks: Sequence[Block], cached: Sequence[Cached] | None = None
    ) -> list[Cached]:
        """Encode blocks independently into pages: packed into few forward passes, without padding or copies.

        `cached` are blocks with allocated pages; None: pages are allocated, and freed if encoding fails.
        """
        self.check_model(model)
        for block in blocks:
            self.spec.check_block(len(block))
            self.spec.check_tokens(torch.tensor(block.tokens))
        lengths = [len(block) for block in blocks]
        if cached is not None:
            self.fill(model, blocks, cached)
            return list(cached)
        self._check_room(lengths)
        taken = [self.cached(n) for n in lengths]
        with self._freed_on_error(taken):
            self.fill(model, blocks, taken)
        return taken

    @contextmanager
    def _freed_on_error(self, cached: Sequence[Cached]) -> Iterator[None]:
        """Free the pages of blocks if filling them fails, e.g. for lack of memory."""
        try:
            yield
        except BaseException:
            for block in cached:
                self.free_pages(block)
            raise

    def write_kv(self, kv: KV) -> Cached:
        """Copy a KV into pages."""
        return self.put_many([kv])[0]

    @annotations.checked
    def put_many(self, kvs: Sequence[KV]) -> list[Cached]:
        """Copy KVs into pages, with one copy per layer for all of them."""
        for kv in kvs:
            self.spec.check_shapes(kv)
        self._check_room([len(kv) for kv in kvs])
        cached = [self.cached(len(kv), kv.start) for kv in kvs]
        with self._freed_on_error(cached):
            self.copy_in(kvs, cached)
        return cached

    def open(
        self,
        context: Sequence[Cached],
        reserve: int,
        recompute: Tensor | Sequence[int] | None = None,
        positions: Positions = "re-encoded",
        wait: float = 0.0,
        order: Sequence[int] = (),
    ) -> PagedPrompt:
        """Build the page table of a prompt whose context is these blocks, with pages for `reserve` more tokens.

        recompute  [R] rising positions of context tokens to recompute; their cached entries are masked
        positions  of keys, as in `engine.assembly.assemble`
        wait       seconds to wait for pages to be freed
        order      order in which kernels read the blocks (results differ by rounding): requests of one step that read
                   a shared block at about the same time find it in the GPU's cache

        Raises BadInput for a block of another pool or a freed one, and NoPages for too few pages.
        """
        annotations.check("context", context, Sequence[object])
        annotations.check("reserve", reserve, int)
        chosen = np.zeros(0, np.int32) if recompute is None else whole_numbers("recompute", recompute)
        if reserve < 1 or not context:
            raise BadInput(f"{len(context)} blocks and room for {reserve}: at least one block and one token are needed")
        check_positions(positions)
        if len(order) and sorted(order) != list(range(len(context))):
            raise BadInput(f"order is {format_value(order)}: a permutation of 0 to {len(context) - 1} is needed")
        returns = self.owners.given
        table = self._context(context, positions, 1 if len(chosen) else self.run, returns, () if len(chosen) else order)
        length = table.length
        places = np.arange(length, length + reserve, dtype=np.int32)
        if len(chosen):
            if chosen[0] < 0 or chosen[-1] >= length or (chosen[1:] <= chosen[:-1]).any():
                raise BadInput(
                    f"recompute is {format_value(recompute)}: rising positions from 0 to {length - 1} are needed"
                )
            places = np.concatenate((chosen, places))
        prompt = self._prompt(context, places, table, wait, returns)
        prompt.chosen = len(chosen)
        return prompt

    def blank(self, reserve: int) -> PagedPrompt:
        """Build the page table of a prompt that reuses nothing, with pages for `reserve` tokens."""
        annotations.check("reserve", reserve, int)
        if reserve < 1:
            raise BadInput(f"room for {reserve} tokens: a prompt has at least one")
        return self._prompt((), np.arange(reserve, dtype=np.int32), context_of(joined_pages((), self.size), self.size))

    def _context(
        self, context: Sequence[Cached], positions: Positions, run: int, returns: int, order: Sequence[int] = ()
    ) -> ContextTable:
        """Return the table of a context whose blocks are valid; recent tables are kept.

        `returns`: the pool's count of returned pages; a table that was checked at the same count is still valid.
        """
        key = (positions, run, *order, *map(_SERIAL_OF, context)) if {*map(type, context)} == {Cached} else None
        known = self._contexts.get(key)
        if known is not None and known[0] == returns:
            return known[1]
        joined = self.check_blocks(context)
        if joined is None or key is None:
            return context_of(joined_pages(context, self.size), self.size, positions, run, order)
        table = known[1] if known is not None else context_of(joined, self.size, positions, run, order)
        self._contexts[key] = returns, table
        for old in list(self._contexts)[:-CONTEXTS]:
            self._contexts.pop(old, None)
        return table

    def _prompt(
        self, context: Sequence[Cached], places: Ints, table: ContextTable, wait: float = 0.0, returns: int = -1
    ) -> PagedPrompt:
        owned = self.take(len(places), wait)
        try:
            mine = owned.numbers
            pages = table_of(table, mine, places, self.size)
        except BaseException:
            self.free_pages(owned)
            raise
        offsets = np.arange(self.size, dtype=np.int32)
        own: Ints = (mine[:, None] * np.int32(self.size) + offsets).ravel()[: len(places)]
        return PagedPrompt(table.length, pages, own, places, owned, self, tuple(context), checked=returns)

    def gathering(
        self, context: Sequence[Cached], reserve: int, positions: Positions
    ) -> tuple[KV, Callable[[int], None]]:
        """Return the KV and fill function of `PageStorage.gathering`. Raises BadInput for freed blocks."""
        for block in context:
            self.check_block(block)
        return super().gathering(context, reserve, positions)

    def _check_room(self, lengths: Sequence[int]) -> None:
        needed = sum(-(-n // self.size) for n in lengths)
        if needed > self.free:
            raise NoPages(needed, self.free, f"the context of {len(lengths)} blocks")

"""The pages of a pool as the fastest tier: requests read blocks in place.

A request reserves pages for all its blocks and its own tokens at once, or none, so that two requests never wait for
each other. Reserved blocks are pinned until they are released. Loaders fill pages on a separate stream while the engine
computes; pages of blocks that no tier contains stay empty, and the engine computes them.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from typing import Any

import torch
from transformers import PreTrainedModel

from workbench.core.blocks import Block
from workbench.core.errors import BadInput
from workbench.core.kv import KV
from workbench.engine.pages.paged_pool import Pool
from workbench.engine.pages.paged_prompt import Cached
from workbench.store.tiering.page_copies import PageCopies, PagedBlock
from workbench.store.tiering.tier import TierAccounting
from workbench.store.tiering.tiered_store import TieredStore


class NoRoom(Exception):
    """Raised if a request must wait for others to finish and free their pages."""


class PageTier(TierAccounting):
    """Blocks in the pages of `pool`; evicted blocks are demoted to `behind`, unless it has them already.

    On a GPU, a block is copied once from page-locked memory, then scattered to its pages on the device. One thread
    computes over the pages, on one stream. Loaders wait for its events, so no other thread may free pages of this pool.
    """

    def __init__(self, pool: Pool, behind: TieredStore, name: str = "gpu"):
        self.pool, self.behind, self.pages = pool, behind, pool.free
        self.page_bytes = sum(2 * x.shape[0] * x.shape[2] * x.element_size() for x in pool.keys) * pool.size
        super().__init__(name, self.pages * self.page_bytes)
        self.evictions, self._pins, self._promised = 0, Counter[str](), 0
        self.copies = PageCopies(pool)
        self._blocks: dict[str, PagedBlock] = {}
        self._stream = self.copies.stream

    def reserve(self, blocks: Mapping[str, int], own: int) -> list[str]:
        """Reserve pages for blocks {key: tokens}, and promise `own` further pages.

        Returns the keys that the caller must `fill` or report with `mark_missed`. Raises NoRoom if the request must
        wait for others, and BadInput if it cannot fit at all; nothing is reserved then.
        """
        size = self.pool.size
        if (needed := own + sum(-(-n // size) for n in blocks.values())) > self.pages:
            raise BadInput(f"{needed} pages are needed, the pool has {self.pages}: make it larger")
        with self.lock:
            absent = [key for key in blocks if key not in self._blocks]
            self._pins.update(list(blocks))
            try:
                self._make_room(own + sum(-(-blocks[key] // size) for key in absent))
            except NoRoom:
                self._unpin(blocks)
                raise
            self._promised += own
            for key in absent:
                cached = self.pool.cached(blocks[key])
                self._blocks[key] = PagedBlock(cached)
                self._add_entry(key, len(cached.pages) * self.page_bytes, 1)
            self.heat.use_all(blocks)
        return absent

    def admit(self, keys: Sequence[str], own: int) -> bool:
        """Reserve as `reserve` does if all blocks are in pages already; else return False."""
        with self.lock:
            blocks = self._blocks
            if not all((block := blocks.get(key)) is not None and block.state == "there" for key in keys):
                return False
            self.reserve({key: len(blocks[key].cached) for key in keys}, own)
        return True

    def release(self, keys: Iterable[str], own: int, used: Any = None) -> None:
        """Unpin blocks, free pages that were not filled, and take back a promise of `own` pages.

        `used` is a CUDA event recorded after all work that may still read them; None: after all work queued so far.
        """
        keys = list(keys)
        with self.lock:
            self._promised -= own
            self._unpin(keys)
            for key in keys:
                if key not in self._pins and key in self._blocks and self._blocks[key].state != "there":
                    self.drop(key)
            if self._stream is not None:  # later copies may overwrite these pages
                self._stream.wait_event(used if used is not None else torch.cuda.current_stream().record_event())

    def mark_allocated(self, own: int) -> None:
        """Reduce the promise by `own` pages that have been allocated."""
        self._promised -= own

    def fill(self, kvs: Mapping[str, KV], arrived: Callable[[int], None] | None = None) -> None:
        """Copy blocks into their reserved pages; with `arrived`, call it after each layer."""
        self.copies.fill(kvs, self._blocks, arrived)
        for key in kvs:
            self._blocks[key].set_state("there")

    def mark_missed(self, keys: Iterable[str]) -> None:
        """Report that these blocks will not be filled and must be computed."""
        for key in keys:
            self._blocks[key].set_state("empty")

    def wait(self, keys: Iterable[str]) -> None:
        """Wait for blocks that other loaders are filling."""
        for key in keys:
            if not (settled := self._blocks[key].settled).is_set():
                settled.wait()

    def empty(self, keys: Iterable[str]) -> list[str]:
        """List the blocks that must be computed."""
        return [key for key in keys if self._blocks[key].state == "empty"]

    def encode(self, model: PreTrainedModel, blocks: Mapping[str, Block]) -> None:
        """Encode blocks independently into their reserved pages."""
        with self.lock:
            self.pool.encode(model, list(blocks.values()), [self._blocks[key].cached for key in blocks])
            for key in blocks:
                if self._stream is not None:
                    self._blocks[key].event = torch.cuda.Event()
                    self._blocks[key].event.record()
                self._blocks[key].set_state("there")

    def cached(self, key: str) -> Cached:
        """Return the pages of a block."""
        return self._blocks[key].cached

    def get(self, key: str) -> KV | None:
        """Copy a block from its pages to the host; None if it is not in pages."""
        block = self._blocks.get(key)
        if block is None or block.state != "there":
            return None
        if block.event is not None and self._stream is not None:
            self._stream.wait_event(block.event)
        with torch.cuda.stream(self._stream) if self._stream is not None else nullcontext():
            return self.copies.copy_out(block.cached)

    def drop(self, key: str, evicted: bool = False) -> int:
        """Remove a block and free its pages; return its use count."""
        if (block := self._blocks.pop(key, None)) is not None:
            self.pool.free_pages(block.cached)
        return self._remove_entry(key, evicted)

    def _make_room(self, pages: int) -> None:
        missing = pages + self._promised - self.pool.free
        if missing <= 0:
            return
        chosen: list[str] = []
        for key in self.heat.coldest(lambda key: key not in self._pins and self._blocks[key].state == "there"):
            chosen.append(key)
            missing -= len(self._blocks[key].cached.pages)
            if missing <= 0:
                break
        if missing > 0:
            raise NoRoom(f"{missing} pages more than {self.pages} are in use")
        for key in chosen:
            if key not in self.behind and (kv := self.get(key)) is not None:
                with suppress(BadInput):  # exceeds every budget: recomputed next time
                    self.behind.put(key, kv)
            self.drop(key, evicted=True)
            self.evictions += 1
            if self.behind.events is not None:
                self.behind.events.add("evict", key=str(key), tier=self.name)

    def _unpin(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._pins[key] -= 1
            if self._pins[key] <= 0:
                del self._pins[key]

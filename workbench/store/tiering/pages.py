"""The pages of a pool as the fastest tier: blocks that requests read in place.

A request reserves pages for all its blocks and its own tokens at once, or none, so that two requests never wait for
each other. Reserved blocks are not evicted until they are released. Loaders fill pages on a stream of their own while
the engine computes; blocks that no tier holds are left empty, for the engine to compute.
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
from workbench.store.tiering.tier import Books
from workbench.store.tiering.tiered_store import TieredStore


class NoRoom(Exception):
    """Raised where a request must wait until others have ended and given back pages."""


class PageTier(Books):
    """Blocks in the pages of `pool`; evicted ones go to `behind`, unless it has them already.

    On a GPU, blocks come from page-locked memory in one copy each, and are written to their pages there. One thread
    computes over them, on one stream; loaders wait for its events, so no other thread may give pages of this pool back.
    """

    def __init__(self, pool: Pool, behind: TieredStore, name: str = "gpu"):
        self.pool, self.behind, self.pages = pool, behind, pool.free
        self.page_bytes = sum(2 * x.shape[0] * x.shape[2] * x.element_size() for x in pool.keys) * pool.size
        super().__init__(name, self.pages * self.page_bytes)
        self.evictions, self._pins, self._promised = 0, Counter[str](), 0
        self.copies = PageCopies(pool)
        self._held: dict[str, PagedBlock] = {}
        self._stream = self.copies.stream

    def reserve(self, blocks: Mapping[str, int], own: int) -> list[str]:
        """Reserve pages for blocks {key: tokens}, and promise `own` further pages.

        Returns the keys that the caller must `fill`, or report by `missed`. Raises NoRoom where it must wait for other
        requests, and BadInput where it cannot fit; nothing is reserved then.
        """
        size = self.pool.size
        if (needed := own + sum(-(-n // size) for n in blocks.values())) > self.pages:
            raise BadInput(f"{needed} pages are needed, the pool has {self.pages}: make it larger")
        with self.lock:
            absent = [key for key in blocks if key not in self._held]
            self._pins.update(list(blocks))
            try:
                self._make_room(own + sum(-(-blocks[key] // size) for key in absent))
            except NoRoom:
                self._unpin(blocks)
                raise
            self._promised += own
            for key in absent:
                cached = self.pool.cached(blocks[key])
                self._held[key] = PagedBlock(cached)
                self._entered(key, len(cached.pages) * self.page_bytes, 1)
            self.heat.use_all(blocks)
        return absent

    def admit(self, keys: Sequence[str], own: int) -> bool:
        """Do what `reserve` does if all blocks are in pages already; else return False."""
        with self.lock:
            held = self._held
            if not all((block := held.get(key)) is not None and block.state == "there" for key in keys):
                return False
            self.reserve({key: len(held[key].cached) for key in keys}, own)
        return True

    def release(self, keys: Iterable[str], own: int, used: Any = None) -> None:
        """Release blocks and a promise of `own` pages; pages that were not filled are given back.

        `used` is a CUDA event behind all work that may still read them; None: all work queued so far may.
        """
        keys = list(keys)
        with self.lock:
            self._promised -= own
            self._unpin(keys)
            for key in keys:
                if key not in self._pins and key in self._held and self._held[key].state != "there":
                    self.drop(key)
            if self._stream is not None:  # later copies may reuse their memory
                self._stream.wait_event(used if used is not None else torch.cuda.current_stream().record_event())

    def kept(self, own: int) -> None:
        """Reduce the promise by `own` pages that were taken."""
        self._promised -= own

    def fill(self, kvs: Mapping[str, KV], arrived: Callable[[int], None] | None = None) -> None:
        """Copy blocks into their reserved pages; with `arrived`, call it after each layer."""
        self.copies.fill(kvs, self._held, arrived)
        for key in kvs:
            self._held[key].settle("there")

    def missed(self, keys: Iterable[str]) -> None:
        """Report that these blocks will not be filled and must be computed."""
        for key in keys:
            self._held[key].settle("empty")

    def wait(self, keys: Iterable[str]) -> None:
        """Wait for blocks that other loaders fill."""
        for key in keys:
            if not (settled := self._held[key].settled).is_set():
                settled.wait()

    def empty(self, keys: Iterable[str]) -> list[str]:
        """List the blocks that must be computed."""
        return [key for key in keys if self._held[key].state == "empty"]

    def encode(self, model: PreTrainedModel, blocks: Mapping[str, Block]) -> None:
        """Encode blocks, each alone, into their reserved pages."""
        with self.lock:
            self.pool.encode(model, list(blocks.values()), [self._held[key].cached for key in blocks])
            for key in blocks:
                if self._stream is not None:
                    self._held[key].event = torch.cuda.Event()
                    self._held[key].event.record()
                self._held[key].settle("there")

    def cached(self, key: str) -> Cached:
        """Return a block in its pages."""
        return self._held[key].cached

    def get(self, key: str) -> KV | None:
        """Copy a block from its pages to the host; None if it is not here."""
        held = self._held.get(key)
        if held is None or held.state != "there":
            return None
        if held.event is not None and self._stream is not None:
            self._stream.wait_event(held.event)
        with torch.cuda.stream(self._stream) if self._stream is not None else nullcontext():
            return self.copies.out(held.cached)

    def drop(self, key: str, evicted: bool = False) -> int:
        """Remove a block and give its pages back; return how often it was used."""
        if (held := self._held.pop(key, None)) is not None:
            self.pool.give(held.cached)
        return self._left(key, evicted)

    def _make_room(self, pages: int) -> None:
        missing = pages + self._promised - self.pool.free
        if missing <= 0:
            return
        chosen: list[str] = []
        for key in self.heat.coldest(lambda key: key not in self._pins and self._held[key].state == "there"):
            chosen.append(key)
            missing -= len(self._held[key].cached.pages)
            if missing <= 0:
                break
        if missing > 0:
            raise NoRoom(f"{missing} pages more than {self.pages} are in use")
        for key in chosen:
            if key not in self.behind and (kv := self.get(key)) is not None:
                with suppress(BadInput):  # larger than every budget: recomputed next time
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

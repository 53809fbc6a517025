"""The pages of a pool as the tier above all others: blocks that requests read where they lie.

A request reserves room for all its blocks and its own tokens at once, or not at all, so that two requests never wait
for each other. What it reserves is not evicted until it is released. Loaders fill pages on a stream of their own, next
to the engine; blocks that no tier holds are left empty, for the engine to compute.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from itertools import groupby
from threading import Event, Lock
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import PreTrainedModel

from workbench.core.blocks import Block
from workbench.core.errors import BadInput
from workbench.core.kv import KV
from workbench.engine.paged_pool import Cached, Pool
from workbench.store.packed import ALIGNED, PackedKV, pack
from workbench.store.tiered import TieredStore
from workbench.store.tiers import Books

GROUP = 1 << 28  # bytes that are copied before they are put into pages
STAGED = 3  # groups that are copied, or put into pages, at once


class NoRoom(Exception):
    """What is asked for finds no room before others have ended."""


@dataclass(eq=False)
class PagedBlock:
    """Where a block lies, or will lie.

    state     "filling" by whoever reserved it; then "there", or "empty" where it must be computed
    settled   it is not being filled any more
    event     of the GPU, when it was computed
    """

    cached: Cached
    state: Literal["filling", "there", "empty"] = "filling"
    settled: Event = field(default_factory=Event)
    event: Any = None

    def settle(self, state: Literal["there", "empty"]) -> None:
        """Note that it was filled, or was not."""
        self.state = state
        self.settled.set()


class PageTier(Books):
    """Blocks in the pages of `pool`; what has to make room goes to `behind`, unless it is there already.

    On a GPU, blocks come from page-locked memory in one copy each, and are put into their pages there.
    """

    def __init__(self, pool: Pool, behind: TieredStore, name: str = "gpu"):
        self.pool, self.behind, self.pages = pool, behind, pool.free
        self.page_bytes = sum(2 * x.shape[0] * x.shape[2] * x.element_size() for x in pool.keys) * pool.size
        super().__init__(name, self.pages * self.page_bytes)
        self.evictions, self._pins, self._promised = 0, Counter[str](), 0
        self.copying = Lock()  # held while blocks are copied: no CUDA graph is captured meanwhile
        self._held: dict[str, PagedBlock] = {}
        cuda = pool.device.type == "cuda"
        self._stream = torch.cuda.Stream(pool.device) if cuda else None  # copies from the host
        self._placing = torch.cuda.Stream(pool.device) if cuda else None  # puts what came into its pages, meanwhile
        self._placed: deque[Any] = deque(maxlen=STAGED)  # events of the last groups that were put into pages
        self._released: Any = None  # after all work that may still use pages that were given back

    def reserve(self, blocks: Mapping[str, int], own: int) -> list[str]:
        """Take room for blocks {key: tokens}, and promise `own` pages; return the keys that the caller must `fill`, or
        settle by `missed`.

        Raises NoRoom where that must wait for other requests, BadInput where it never fits; nothing is taken then.
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
            for key in blocks:
                self.use(key)
        return absent

    def release(self, keys: Iterable[str], own: int) -> None:
        """Let blocks go, and a promise of pages; room that was never filled is given back."""
        keys = list(keys)
        with self.lock:
            self._promised -= own
            self._unpin(keys)
            for key in keys:
                if key not in self._pins and key in self._held and self._held[key].state != "there":
                    self.drop(key)
            if self._stream is not None:
                self._released = torch.cuda.Event()
                self._released.record()

    def kept(self, own: int) -> None:
        """Count off a promise of pages that were taken."""
        self._promised -= own

    def fill(self, kvs: Mapping[str, KV], arrived: Callable[[int], None] | None = None) -> None:
        """Put blocks into the room that was reserved for them; `arrived(layer)` where layers come one by one."""
        if self._stream is not None and self._released is not None:
            self._stream.wait_event(self._released)
        layers = range(len(self.pool.keys))
        with torch.cuda.stream(self._stream) if self._stream is not None else nullcontext():
            if arrived is None:
                for group in _groups(kvs):
                    with self.copying:
                        self._copy({key: kvs[key] for key in group}, layers)
            else:
                self._copy_by_layer(kvs, arrived)
            if self._placing is not None:
                self._placing.synchronize()
        for key in kvs:
            self._held[key].settle("there")

    def _copy_by_layer(self, kvs: Mapping[str, KV], arrived: Callable[[int], None]) -> None:
        """Copy layer by layer; one layer is on its way while the one before it is waited for."""
        copied: list[Any] = []
        for layer in range(len(self.pool.keys)):
            with self.copying:
                self._copy(kvs, [layer])
            if self._placing is None:
                arrived(layer)
                continue
            copied.append(self._placing.record_event())
            if layer:
                copied[layer - 1].synchronize()
                arrived(layer - 1)
        if self._placing is not None:
            self._placing.synchronize()
            arrived(len(self.pool.keys) - 1)

    def missed(self, keys: Iterable[str]) -> None:
        """Note that nobody fills these blocks: they must be computed."""
        for key in keys:
            self._held[key].settle("empty")

    def wait(self, keys: Iterable[str]) -> None:
        """Wait for blocks that other loaders fill."""
        for key in keys:
            self._held[key].settled.wait()

    def empty(self, keys: Iterable[str]) -> list[str]:
        """List the blocks that must be computed."""
        return [key for key in keys if self._held[key].state == "empty"]

    def encode(self, model: PreTrainedModel, blocks: Mapping[str, Block]) -> None:
        """Compute blocks, each alone, into the room that was reserved for them."""
        with self.lock:
            self.pool.encode(model, list(blocks.values()), [self._held[key].cached for key in blocks])
            for key in blocks:
                if self._stream is not None:
                    self._held[key].event = torch.cuda.Event()
                    self._held[key].event.record()
                self._held[key].settle("there")

    def cached(self, key: str) -> Cached:
        """Return where a block lies."""
        return self._held[key].cached

    def get(self, key: str) -> KV | None:
        """Copy a block out of its pages, onto the host."""
        held = self._held.get(key)
        if held is None or held.state != "there":
            return None
        if held.event is not None and self._stream is not None:
            self._stream.wait_event(held.event)
        with torch.cuda.stream(self._stream) if self._stream is not None else nullcontext():
            slots = self.pool.slots(held.cached).to(self.pool.device)
            keys, values = ([x[:, slots].cpu() for x in part] for part in (self.pool.keys, self.pool.values))
        return KV(keys, values, held.cached.start).lock()

    def drop(self, key: str, evicted: bool = False) -> int:
        """Forget a block and give its pages back."""
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
                self._keep_behind(key, kv)
            self.drop(key, evicted=True)
            self.evictions += 1
            if self.behind.events is not None:
                self.behind.events.add("evict", key=str(key), tier=self.name)

    def _keep_behind(self, key: str, kv: KV) -> None:
        with suppress(BadInput):  # larger than every budget: it is computed again
            self.behind.put(key, kv)

    def _unpin(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._pins[key] -= 1
            if self._pins[key] <= 0:
                del self._pins[key]

    def _copy(self, kvs: Mapping[str, KV], layers: Sequence[int]) -> None:
        """Copy neighbouring layers of blocks; those of one length are put into their pages together."""
        for _, same in groupby(sorted(kvs, key=lambda key: len(kvs[key])), key=lambda key: len(kvs[key])):
            keys = list(same)
            packed = [
                kv if isinstance(kv := kvs[key], PackedKV) else pack(kv, self._stream is not None) for key in keys
            ]
            for key, kv in zip(keys, packed, strict=True):
                self._held[key].cached = replace(self._held[key].cached, length=len(kv), start=kv.start)
            slots = torch.cat([self.pool.slots(self._held[key].cached) for key in keys])
            self._put(packed, slots.to(self.pool.device, non_blocking=True), layers)

    def _put(self, packed: Sequence[PackedKV], slots: Tensor, layers: Sequence[int]) -> None:
        begin, end = packed[0].layers[layers[0]][0], packed[0].layers[layers[-1]][1]
        width = -(-(end - begin) // ALIGNED) * ALIGNED
        if len(self._placed) == STAGED:
            self._placed.popleft().synchronize()  # its staged bytes are free again
        staged = torch.empty(len(packed), width, dtype=torch.uint8, device=self.pool.device)
        for row, kv in zip(staged, packed, strict=True):
            row[: end - begin].copy_(kv.flat[begin:end], non_blocking=True)
        with self._beside_copies(staged, slots):
            self._place(packed, staged, slots, layers)

    @contextmanager
    def _beside_copies(self, *used: Tensor) -> Iterator[None]:
        """Run on a stream behind the copies so far, while later ones go on."""
        if self._placing is None or self._stream is None:
            yield
            return
        self._placing.wait_stream(self._stream)
        with torch.cuda.stream(self._placing):
            yield
            self._placed.append(self._placing.record_event())
        for tensor in used:
            tensor.record_stream(self._placing)

    def _place(self, packed: Sequence[PackedKV], staged: Tensor, slots: Tensor, layers: Sequence[int]) -> None:
        like, begin = packed[0], packed[0].layers[layers[0]][0]
        for layer in layers:
            at = like.layers[layer][0] - begin
            for pool, x in ((self.pool.keys[layer], like.keys[layer]), (self.pool.values[layer], like.values[layer])):
                fresh = staged[:, at : at + x.nbytes].view(x.dtype).unflatten(1, x.shape)
                pool.index_copy_(1, slots, fresh.transpose(0, 1).flatten(1, 2).to(pool.dtype))
                at += x.nbytes


def _groups(kvs: Mapping[str, KV]) -> list[list[str]]:
    """Group blocks to about GROUP bytes, those of one length beside each other."""
    groups: list[list[str]] = [[]]
    size = 0
    for key in sorted(kvs, key=lambda key: len(kvs[key])):
        if size > GROUP:
            groups.append([])
            size = 0
        groups[-1].append(key)
        size += kvs[key].nbytes
    return groups

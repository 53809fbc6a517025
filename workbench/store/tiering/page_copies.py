"""Copy blocks from the host into the pages of a pool, and back, while the engine computes.

On a GPU, one stream copies bytes to the device and another scatters them to pages, so both overlap.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import groupby
from threading import Event, Lock
from typing import Any, Literal

import torch
from torch import Tensor

from workbench.core.kv import KV, layered
from workbench.engine.pages.paged_pool import Pool
from workbench.engine.pages.paged_prompt import Cached
from workbench.store.files.packed import ALIGNED, PackedKV, layers_of, pack, views_in

GROUP = 1 << 28  # bytes copied to the GPU before they are scattered to pages
STEPS = 8  # copies per block in a layerwise load; one per layer has too much overhead
STAGED = 3  # groups in flight


@dataclass(eq=False)
class PagedBlock:
    """A block and the pages reserved for it.

    state     "filling" until its pages are written, then "there", or "empty" if it must be computed
    settled   set when it is no longer "filling"
    event     CUDA event recorded after its computation
    """

    cached: Cached
    state: Literal["filling", "there", "empty"] = "filling"
    settled: Event = field(default_factory=Event)
    event: Any = None

    def set_state(self, state: Literal["there", "empty"]) -> None:
        """Set the final state."""
        self.state = state
        self.settled.set()


class PageCopies:
    """Copies into the pages of `pool`; `lock` is held while copies are launched, to exclude CUDA graph capture."""

    def __init__(self, pool: Pool):
        self.pool, self.lock, self._turn = pool, Lock(), Lock()
        self._joined = layered(pool.keys), layered(pool.values)  # [L, H, S, D] if layers have one shape, else None
        cuda = pool.device.type == "cuda"
        self.stream = torch.cuda.Stream(pool.device) if cuda else None  # host to device
        self._placing = torch.cuda.Stream(pool.device) if cuda else None  # staging memory to pages
        self._placed: deque[Any] = deque(maxlen=STAGED)  # events of the latest groups on `_placing`

    def fill(
        self, kvs: Mapping[str, KV], blocks: Mapping[str, PagedBlock], arrived: Callable[[int], None] | None = None
    ) -> None:
        """Copy blocks into their pages and wait for completion; with `arrived`, call it after each layer.

        Concurrent callers take turns, so that the first one finishes early.
        """
        layers = range(len(self.pool.keys))
        with torch.cuda.stream(self.stream) if self.stream is not None else nullcontext():
            with self._turn:
                if arrived is not None:
                    self._copy_by_layer(kvs, blocks, arrived)
                    return
                for group in _groups(kvs):
                    with self.lock:
                        self._copy({key: kvs[key] for key in group}, blocks, layers)
                done = None if self._placing is None else self._placing.record_event()
            if done is not None:
                done.synchronize()

    def copy_out(self, cached: Cached) -> KV:
        """Copy a block from its pages to the host, into one buffer if all layers have one shape."""
        slots, (keys, values) = self.pool.slots(cached).to(self.pool.device), self._joined
        if keys is None or values is None or keys.shape != values.shape:
            parts = [[x[:, slots].cpu() for x in part] for part in (self.pool.keys, self.pool.values)]
            return KV(parts[0], parts[1], cached.start).lock()
        both = torch.stack((keys[:, :, slots], values[:, :, slots]), 1)  # [L, 2, H, T, D]
        like = KV(list(both[:, 0].unbind()), list(both[:, 1].unbind()), cached.start)
        if both[0].nbytes % ALIGNED:
            return pack(like, self.stream is not None).lock()
        flat = torch.empty(both.nbytes, dtype=torch.uint8, pin_memory=self.stream is not None)
        flat.copy_(both.view(-1).view(torch.uint8))
        return views_in(flat, layers_of(like), like).lock()

    def _copy_by_layer(
        self, kvs: Mapping[str, KV], blocks: Mapping[str, PagedBlock], arrived: Callable[[int], None]
    ) -> None:
        """Copy a few adjacent layers at a time; each copy overlaps the wait for the previous one."""
        count = len(self.pool.keys)
        step = -(-count // STEPS)
        copied: list[tuple[Any, range]] = []
        for first in range(0, count, step):
            layers = range(first, min(first + step, count))
            with self.lock:
                self._copy(kvs, blocks, layers)
            copied.append((None if self._placing is None else self._placing.record_event(), layers))
            if first:
                _report(*copied[-2], arrived)
        _report(*copied[-1], arrived)

    def _copy(self, kvs: Mapping[str, KV], blocks: Mapping[str, PagedBlock], layers: Sequence[int]) -> None:
        """Copy adjacent layers of blocks; blocks of equal length are scattered together."""
        for _, same in groupby(sorted(kvs, key=lambda key: len(kvs[key])), key=lambda key: len(kvs[key])):
            keys = list(same)
            packed = [kv if isinstance(kv := kvs[key], PackedKV) else pack(kv, self.stream is not None) for key in keys]
            for key, kv in zip(keys, packed, strict=True):
                if (cached := blocks[key].cached).start != kv.start or len(cached) != len(kv):
                    blocks[key].cached = replace(cached, length=len(kv), start=kv.start)
            slots = self.pool.slots(*[blocks[key].cached for key in keys])
            self._put(packed, slots.to(self.pool.device, non_blocking=True), layers)

    def _put(self, packed: Sequence[PackedKV], slots: Tensor, layers: Sequence[int]) -> None:
        begin, end = packed[0].layers[layers[0]][0], packed[0].layers[layers[-1]][1]
        width = -(-(end - begin) // ALIGNED) * ALIGNED
        if len(self._placed) == STAGED:
            self._placed.popleft().synchronize()  # frees its staging memory
        staged = torch.empty(len(packed), width, dtype=torch.uint8, device=self.pool.device)
        for row, kv in zip(staged, packed, strict=True):
            row[: end - begin].copy_(kv.flat[begin:end], non_blocking=True)
        with self._after_copies(staged, slots):
            self._place(packed, staged, slots, layers)

    @contextmanager
    def _after_copies(self, *used: Tensor) -> Iterator[None]:
        """Run on the stream `_placing`: after the copies so far, concurrent with later ones."""
        if self._placing is None or self.stream is None:
            yield
            return
        self._placing.wait_stream(self.stream)
        with torch.cuda.stream(self._placing):
            yield
            self._placed.append(self._placing.record_event())
        for tensor in used:
            tensor.record_stream(self._placing)

    def _place(self, packed: Sequence[PackedKV], staged: Tensor, slots: Tensor, layers: Sequence[int]) -> None:
        like, begin = packed[0], packed[0].layers[layers[0]][0]
        if (views := self._uniform_views(like, staged, layers)) is not None:
            by_block = slots.view(len(packed), -1)
            for joined, fresh in zip(self._joined, views, strict=True):
                assert joined is not None
                _words(joined[layers[0] : layers[-1] + 1])[:, :, by_block] = fresh
            return
        for layer in layers:
            at = like.layers[layer][0] - begin
            for pool, x in ((self.pool.keys[layer], like.keys[layer]), (self.pool.values[layer], like.values[layer])):
                fresh = staged[:, at : at + x.nbytes].view(x.dtype).unflatten(1, x.shape)
                pool.index_copy_(1, slots, fresh.transpose(0, 1).flatten(1, 2).to(pool.dtype))
                at += x.nbytes

    def _uniform_views(self, like: PackedKV, staged: Tensor, layers: Sequence[int]) -> list[Tensor] | None:
        """View staged blocks as keys and values [L, H, N, T, D']; None if layers or dtypes differ."""
        if self._joined[0] is None or self._joined[1] is None or like.keys[0].dtype != self._joined[0].dtype:
            return None
        if len({x.shape for x in like.tensors()}) > 1:
            return None
        size, shape = like.keys[0].nbytes, like.keys[0].shape
        by_layer = staged.unflatten(1, (len(layers), -1))[:, :, : 2 * size]
        halves = by_layer.unflatten(2, (2, size)).unbind(2)
        return [_words(half.view(like.keys[0].dtype).unflatten(2, shape)).permute(1, 2, 0, 3, 4) for half in halves]


def _report(copied: Any, layers: range, arrived: Callable[[int], None]) -> None:
    """Wait for the event `copied`, then report its layers as arrived."""
    if copied is not None:
        copied.synchronize()
    for layer in layers:
        arrived(layer)


def _words(x: Tensor) -> Tensor:
    """View x with 8-byte elements if possible: fewer elements are copied faster."""
    return x.view(torch.int64) if x.shape[-1] * x.element_size() % 8 == 0 else x


def _groups(kvs: Mapping[str, KV]) -> list[list[str]]:
    """Split blocks into groups of about GROUP bytes, with blocks of equal length adjacent."""
    groups: list[list[str]] = [[]]
    size = 0
    for key in sorted(kvs, key=lambda key: len(kvs[key])):
        if size > GROUP:
            groups.append([])
            size = 0
        groups[-1].append(key)
        size += kvs[key].nbytes
    return groups

"""Keys and values in pages, and copies into and out of them; `paged_pool.Pool` adds their allocation."""

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from workbench.core.blocks import Block
from workbench.core.errors import BadInput
from workbench.core.kv import KV, side_by_side
from workbench.core.utils.annotations import Count, check, checked
from workbench.core.utils.wide_copies import copy, copy_to_device, gather_tokens, index_copy
from workbench.engine.assembly import Positions, check_positions, shifts_of
from workbench.engine.attention_backends.attention_problem import AttentionProblem
from workbench.engine.attention_backends.choice import backend_named, rerotate
from workbench.engine.encoding import packed_pass, packs
from workbench.engine.pages.paged_prompt import Cached, PagedPrompt
from workbench.engine.pages.stream_order import StreamOrder, current_stream
from workbench.models.spec import attach
from workbench.models.transformers_attention import LayerInput

STEP = 128  # tokens per step of the Hopper kernels; a step has one rotation
RUNS = 8  # maximum number of runs of adjacent slots that are copied one by one
LEAST = 16  # minimum page size for kernels on a GPU: the smallest tile of a tensor core


class PageStorage:
    """`keys[layer]` and `values[layer]` [H, pages · size, D] on the model's device; page 0 is scratch.

    size     tokens of a page
    kernels  attend with Triton kernels, else with their torch references; None: on a GPU, for pages of at least `LEAST`
             tokens

    Threads may read and write pages on their own CUDA streams: methods queue their work within `with in_order():`,
    which runs after all earlier such blocks of any stream. Code that accesses `keys` and `values` directly must do so
    too.
    """

    def __init__(self, model: PreTrainedModel, pages: int, size: int = 64, kernels: bool | None = None):
        spec = self.spec = attach(model)
        gpu = spec.device.type == "cuda"
        self.kernels = gpu and size >= LEAST if kernels is None else kernels
        if self.kernels and gpu and size < LEAST:
            raise BadInput(f"a pool has pages of {size} tokens: kernels on a GPU need at least {LEAST}")
        check("pages", pages, int)
        check("size", size, int)
        if pages < 2 or size < 1 or size & (size - 1):
            raise BadInput(f"a pool has {pages} pages of {size} tokens: at least 2 pages of a power of two are needed")
        if spec.window:
            raise BadInput(f"a pool supports no sliding window ({spec.window} tokens): assemble the blocks")
        for heads, width in set(spec.shapes) if self.kernels else ():
            reason = backend_named("question_attention").refuses(
                AttentionProblem(1, pages * size, (heads, heads), width, spec.dtype, spec.device)
            )
            if reason:
                raise BadInput(f"question_attention cannot read this pool: {reason}")
        self.pages, self.size, self.pairing = pages, size, spec.pairing
        hopper = gpu and torch.cuda.get_device_capability(spec.device)[0] == 9
        self.run = max(1, STEP // size) if self.kernels and hopper else 1  # pages per group of equal shifts
        self.in_order = StreamOrder(current_stream(spec.device))
        self.inv_freq = [table.to(spec.device, torch.float32).contiguous() for table in spec.inv_freq]
        try:
            self.keys, self.values = (
                side_by_side(torch.zeros, spec.shapes, pages * size, dtype=spec.dtype, device=spec.device, joined=True)
                for _ in range(2)
            )  # zeros: masked slots must be finite
        except torch.OutOfMemoryError:  # memory may be freed: the caller may retry
            raise
        except RuntimeError as problem:
            room = 2 * sum(heads * width for heads, width in spec.shapes) * pages * size * spec.dtype.itemsize
            needed = f"a pool of {pages:,} pages takes {room / 1e9:,.1f} GB"
            raise BadInput(f"{needed}: not available on {spec.device}") from problem

    @property
    def device(self) -> torch.device:
        return self.keys[0].device

    def slots(self, *blocks: Cached) -> Tensor:
        """Return the slots [T] (int64, CPU) of the tokens of blocks, block after block."""
        return torch.from_numpy(np.concatenate([block.slots(self.size) for block in blocks]))

    def fill(self, model: PreTrainedModel, blocks: Sequence[Block], cached: Sequence[Cached]) -> None:
        """Encode blocks independently into the pages of `cached`, packed into few forward passes without padding."""
        passes = []
        for group in packs([len(block) for block in blocks]):
            slots = copy_to_device(self.slots(*[cached[i] for i in group]), self.device)

            def write(x: LayerInput, at: Tensor = slots) -> None:
                index_copy(self.keys[x.layer], at, x.k)
                index_copy(self.values[x.layer], at, x.v)

            texts = [torch.tensor(blocks[i].tokens) for i in group]
            passes.append(packed_pass(model, texts, self.spec.layers, write, self.kernels))
        with self.in_order():
            for run in passes:
                run()

    def copy_in(self, kvs: Sequence[KV], cached: Sequence[Cached]) -> None:
        """Copy KVs into the pages of `cached`, with one copy per layer for all of them."""
        if not kvs:
            return
        slots = self.slots(*cached)
        runs = _runs(slots)
        where = copy_to_device(slots, self.device) if len(runs) > RUNS else None
        with self.in_order():
            for mine, *theirs in zip((*self.keys, *self.values), *(kv.tensors() for kv in kvs), strict=True):
                whole = theirs[0] if len(theirs) == 1 else torch.cat([x.to(mine.device) for x in theirs], 1)
                if where is not None:
                    index_copy(mine, where, whole.to(mine.device))
                for source, target in runs if where is None else ():
                    copy(mine[:, target], whole[:, source])

    @checked
    def gather(self, context: Sequence[Cached], reserve: Count, positions: Positions = "re-encoded") -> KV:
        """Copy a prompt's context into one contiguous KV, with keys rerotated to their blocks' new positions.

        `reserve` unwritten tokens follow. For thousands of recomputed tokens a copy beats rerotating per tile.
        """
        kv, fill = self.gathering(context, reserve, positions)
        for layer in range(len(self.keys)):
            fill(layer)
        return kv

    def gathering(
        self, context: Sequence[Cached], reserve: int, positions: Positions
    ) -> tuple[KV, Callable[[int], None]]:
        """Return the unwritten KV of `gather` and a function that fills one layer, so a prefill can start early."""
        check_positions(positions)
        if not context:
            raise BadInput("a prompt has at least one block")
        slots = self.slots(*context)
        runs, where = _runs(slots), copy_to_device(slots, self.device)
        runs = runs if len(runs) <= RUNS else []
        lengths = torch.tensor([len(block) for block in context])
        shifts = shifts_of([(block.start, len(block)) for block in context], positions)
        distance = copy_to_device(shifts.repeat_interleave(lengths), self.device)
        length = len(slots)
        kv = self._unwritten(length, reserve)

        def fill(layer: int) -> None:
            keys, values, table = self.keys[layer], self.values[layer], self.inv_freq[layer]
            out = kv.keys[layer][:, :length]
            with self.in_order():
                for to, at in runs:
                    rerotate(keys[:, at], distance[to], table, self.pairing, out[:, to], self.kernels)
                    copy(kv.values[layer][:, to], values[:, at])
                if not runs:
                    rerotate(gather_tokens(keys, where), distance, table, self.pairing, out, self.kernels)
                    copy(kv.values[layer][:, :length], gather_tokens(values, where))

        return kv, fill

    def _unwritten(self, length: int, reserve: int) -> KV:
        """Return a KV of which the last `reserve` tokens are zeros, as masked tokens must be finite."""
        shapes, capacity, dtype = self.spec.shapes, length + reserve, self.spec.dtype
        keys, values = (side_by_side(torch.empty, shapes, capacity, dtype=dtype, device=self.device) for _ in range(2))
        for x in (*keys, *values) if reserve else ():
            x[:, length:].zero_()
        return KV(keys, values)

    def read_kv(
        self,
        context: Sequence[Cached],
        prompt: PagedPrompt,
        rows: int,
        positions: Positions = "re-encoded",
        reserve: int = 0,
    ) -> KV:
        """Copy a prompt from its pages into a contiguous KV: its `context`, then its first `rows` own tokens over it.

        The KV has capacity for `reserve` more tokens.
        """
        length = max(prompt.length, int(prompt.places[rows - 1]) + 1)
        if context:
            kv = self.gather(context, length - prompt.length, positions)
            kv.reserve(reserve)
        else:
            kv = self.spec.empty(length, reserve)
        slots, places = (
            copy_to_device(torch.from_numpy(x[:rows]).long(), self.device) for x in (prompt.own, prompt.places)
        )
        with self.in_order():
            for mine, theirs in zip((*self.keys, *self.values), kv.tensors(), strict=True):
                index_copy(theirs, places, gather_tokens(mine, slots))
        return kv

    def write(self, prompt: PagedPrompt, kv: KV, rows: int) -> None:
        """Copy the first `rows` own tokens of a prompt from a contiguous KV into its pages; they count as computed."""
        slots, places = (
            copy_to_device(torch.from_numpy(x[:rows]).long(), self.device) for x in (prompt.own, prompt.places)
        )
        with self.in_order():
            for mine, theirs in zip((*self.keys, *self.values), kv.tensors(), strict=True):
                index_copy(mine, slots, gather_tokens(theirs, places))
        prompt.written = rows


def _runs(slots: Tensor) -> list[tuple[slice, slice]]:
    """Return the runs of adjacent slots [T], each as a slice of T and a slice of the pool's slots."""
    ends = [0, *((slots.diff() != 1).nonzero()[:, 0] + 1).tolist(), len(slots)]
    return [(slice(a, b), slice(at := int(slots[a]), at + b - a)) for a, b in pairwise(ends)]

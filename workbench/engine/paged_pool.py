"""A pool of pages: cached blocks that concurrent prompts read where they lie, and never write.

A page holds `size` tokens of every layer. A block takes whole pages. A prompt is a page table: the pages of its blocks,
which others may share, each with how far its keys must turn (they turn as they are read), and pages of its own for all
that is computed for it: tokens of blocks computed again, the question, the answer. Nothing is copied.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from workbench.core.blocks import Block, Prompt
from workbench.core.errors import BadInput
from workbench.core.kv import KV
from workbench.engine import packed_encoding
from workbench.engine.backends import AttentionProblem, kernel, named, turned
from workbench.engine.forward import Positions, check_fit, check_tokens, packs
from workbench.engine.support import attach

SCRATCH = 0  # the page that rows of a padded batch write to


@dataclass(frozen=True, eq=False)
class Cached:
    """A block in a pool: its `pages` in order, its tokens, and the position that its keys are rotated for."""

    pages: Tensor  # [P] int64, on the CPU
    length: int
    start: int = 0

    def __len__(self) -> int:
        return self.length


@dataclass(eq=False)
class PagedPrompt:
    """The page table of one prompt, on the CPU.

    length   tokens of its context
    pages    `Paged` of one request, [1, P]: pages in the order of their first position
    own      [R + room] slots in the pool of what is computed for it, at `places`: tokens of the context that are
             computed again, then the question and the answer
    written  how many of `own` are computed
    """

    length: int
    pages: Any
    own: Tensor
    places: Tensor
    owned: list[int]
    written: int = 0

    @property
    def reserve(self) -> int:
        return len(self.own) - self.written


class Pool:
    """`keys[layer]` and `values[layer]` [H, pages · size, D] on the model's device; page 0 is scratch.

    kernels  Triton's kernels carry out the attention; None: on a GPU. Without them it is their torch reference.
    """

    def __init__(self, model: PreTrainedModel, pages: int, size: int = 64, kernels: bool | None = None):
        spec = attach(model)
        self.kernels = spec.device.type == "cuda" if kernels is None else kernels
        if pages < 2 or size < 1 or size & (size - 1):
            raise BadInput(f"a pool of {pages} pages of {size} tokens: at least 2 pages, of a power of two tokens")
        if spec.window:
            raise BadInput(f"a pool takes no model with a sliding window ({spec.window} tokens): assemble its blocks")
        for heads, width in set(spec.shapes) if self.kernels else ():
            reason = named("question_attention").refuses(
                AttentionProblem(1, pages * size, (heads, heads), width, spec.dtype, spec.device)
            )
            if reason:
                raise BadInput(f"question_attention cannot read this pool: {reason}")
        self.size, self.pairing, self.layers = size, spec.pairing, spec.layers
        self.inv_freq = [table.to(spec.device, torch.float32).contiguous() for table in spec.inv_freq]
        self.keys, self.values = (
            [torch.zeros(h, pages * size, d, dtype=spec.dtype, device=spec.device) for h, d in spec.shapes]
            for _ in range(2)
        )  # zeros: what a masked slot holds must be a number
        self._free = list(range(pages - 1, SCRATCH, -1))

    @property
    def free(self) -> int:
        """Pages that are not taken."""
        return len(self._free)

    @property
    def device(self) -> torch.device:
        return self.keys[0].device

    def take(self, tokens: int) -> list[int]:
        """Pages for so many tokens. BadInput where the pool is full."""
        count = -(-tokens // self.size)
        if count > len(self._free):
            raise BadInput(f"{tokens} tokens need {count} pages, {len(self._free)} of the pool are free")
        return [self._free.pop() for _ in range(count)]

    def give(self, pages: Sequence[int] | Tensor) -> None:
        """Pages that nobody reads any more."""
        self._free.extend(pages.tolist() if isinstance(pages, Tensor) else pages)

    def close(self, prompt: PagedPrompt) -> None:
        """Give back a prompt's own pages."""
        self.give(prompt.owned)
        prompt.owned = []

    def encode(self, model: PreTrainedModel, blocks: Sequence[Block]) -> list[Cached]:
        """Encode blocks, each alone, into pages: packed into few forward passes, without padding or copies."""
        spec = attach(model)
        for block in blocks:
            check_fit(model, spec, len(block))
            check_tokens(spec, torch.tensor(block.tokens))
        lengths = [len(block) for block in blocks]
        self._check_room(lengths)
        found = [Cached(torch.tensor(self.take(n)), n) for n in lengths]
        for group in packs(lengths):
            slots = torch.cat([self.slots(found[i]) for i in group]).to(self.device)

            def write(layer: int, k: Tensor, v: Tensor, at: Tensor = slots) -> None:
                self.keys[layer].index_copy_(1, at, k)
                self.values[layer].index_copy_(1, at, v)

            packed_encoding.encode(
                model, [torch.tensor(blocks[i].tokens) for i in group], self.layers, write, self.kernels
            )
        return found

    def put(self, kv: KV) -> Cached:
        """A copy of a run of tokens, wherever it was encoded and whatever it saw."""
        cached = Cached(torch.tensor(self.take(len(kv))), len(kv), kv.start)
        slots = self.slots(cached).to(self.device)
        for mine, theirs in zip((*self.keys, *self.values), kv.tensors(), strict=True):
            mine.index_copy_(1, slots, theirs.to(mine.device, mine.dtype))
        return cached

    def slots(self, cached: Cached) -> Tensor:
        """[T] int64, CPU: where in the pool the tokens of a block are."""
        at = cached.pages[:, None] * self.size + torch.arange(self.size)
        return at.flatten()[: len(cached)]

    def open(
        self,
        context: Sequence[Cached],
        reserve: int,
        recompute: Tensor | None = None,
        positions: Positions = "re-encoded",
    ) -> PagedPrompt:
        """The page table of a prompt whose context is these blocks, with pages of its own for `room` more tokens.

        again      [R] rising positions of context tokens that are computed anew: their cached entries are not seen
        positions  "re-encoded" where the blocks stand now, or "naive", as cached
        """
        if reserve < 1 or not context:
            raise BadInput(
                f"{len(context)} blocks and room for {reserve}: a prompt has a block and a question at least"
            )
        if positions not in ("re-encoded", "naive"):
            raise BadInput(f"positions {positions!r}: it is 're-encoded' or 'naive'")
        far, size = kernel("_pages_triton").INVALID_POS, self.size
        lengths = torch.tensor([len(block) for block in context], dtype=torch.int32)
        length, counts = int(lengths.sum()), (lengths + size - 1) // size
        starts = lengths.cumsum(0, dtype=torch.int32) - lengths
        recomputed = torch.zeros(0, dtype=torch.long) if recompute is None else recompute.cpu().long()
        _check_recompute(recomputed, length)
        places = torch.cat((recomputed, torch.arange(length, length + reserve)))
        owned = self.take(len(places))
        number = torch.arange(int(counts.sum())) - (counts.cumsum(0) - counts).repeat_interleave(counts)
        begin = (starts.repeat_interleave(counts) + number * size).int()
        end = (starts + lengths).repeat_interleave(counts)
        at = begin[:, None] + torch.arange(size, dtype=torch.int32)
        at.masked_fill_(at >= end[:, None], far)
        if len(recomputed):
            stale = torch.zeros(length + 1, dtype=torch.bool).index_fill_(0, recomputed, True)
            at.masked_fill_(stale[at.clamp(max=length)], far)
        mine = torch.full((len(owned) * size,), far, dtype=torch.int32)
        mine[: len(places)] = places
        moved = starts - torch.tensor([block.start for block in context])
        shifted = positions == "re-encoded" and bool(moved.any())
        shifts = torch.cat((moved.repeat_interleave(counts), torch.zeros(len(owned), dtype=torch.long)))
        pages = _paged(
            torch.cat((*(block.pages for block in context), torch.tensor(owned))),
            torch.cat((at, mine.view(-1, size))),
            shifts if shifted else None,
            partial_pages=bool(len(recomputed)) or bool((lengths[:-1] % size).any()),
            ordered=not len(recomputed),
        )
        own = (torch.tensor(owned)[:, None] * size + torch.arange(size)).flatten()[: len(places)]
        return PagedPrompt(length, pages, own, places, owned)

    def gather(self, context: Sequence[Cached], reserve: int) -> KV:
        """A prompt's context as one contiguous KV, its keys turned to where its blocks stand: for thousands of rows
        that are computed again, one copy costs less than turning keys in every tile. `room` tokens are unwritten."""
        if not context:
            raise BadInput("a prompt has at least one block")
        slots = torch.cat([self.slots(block) for block in context]).to(self.device)
        lengths = torch.tensor([len(block) for block in context])
        shifts = lengths.cumsum(0) - lengths - torch.tensor([block.start for block in context])
        distance = shifts.repeat_interleave(lengths).to(self.device)
        keys, values = [], []
        for layer, table in enumerate(self.inv_freq):
            both = []
            for pool in (self.keys[layer], self.values[layer]):
                wide = torch.empty(
                    pool.shape[0], len(slots) + reserve, pool.shape[2], dtype=pool.dtype, device=pool.device
                )
                wide[:, len(slots) :] = 0
                both.append(wide)
            turned(self.keys[layer][:, slots], distance, table, self.pairing, both[0][:, : len(slots)], self.kernels)
            both[1][:, : len(slots)] = self.values[layer][:, slots]
            keys.append(both[0])
            values.append(both[1])
        return KV.within(keys, values, len(slots) + reserve)

    def _check_room(self, lengths: Sequence[int]) -> None:
        needed = sum(-(-n // self.size) for n in lengths)
        if needed > self.free:
            raise BadInput(f"{len(lengths)} blocks need {needed} pages, {self.free} of the pool are free")


def of(model: PreTrainedModel, prompt: Prompt, reserve: int, size: int = 64, kernels: bool | None = None) -> Pool:
    """A pool just large enough for the blocks of one prompt and `room` tokens of its own."""
    count = sum(-(-len(block) // size) for block in prompt.context)
    return Pool(model, 1 + count + -(-reserve // size), size, kernels)


def _paged(table: Tensor, positions: Tensor, shifts: Tensor | None, partial_pages: bool, ordered: bool) -> Any:
    """`Paged` of one request: table [P], positions [P, S], moves [P]. Pages that are `ordered` need no sorting."""
    paged = kernel("_pages_triton")
    moved = None if shifts is None else shifts[None]
    if not ordered:
        return paged.Paged.of(table[None], positions[None], moved, partial_pages)
    last = positions.masked_fill(positions == paged.INVALID_POS, -1).amax(-1) if partial_pages else positions.amax(-1)
    first, last = positions[:, 0], last.cummax(0).values
    whole = (x.int()[None].contiguous() for x in (table, positions, first, last))
    return paged.Paged(*whole, None if moved is None else moved.int(), partial_pages)


def _check_recompute(recompute: Tensor, length: int) -> None:
    if len(recompute) and (
        int(recompute[0]) < 0 or int(recompute[-1]) >= length or bool((recompute[1:] <= recompute[:-1]).any())
    ):
        raise BadInput(f"positions to compute again are rising, from 0 to {length - 1}")

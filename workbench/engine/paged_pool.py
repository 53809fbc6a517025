"""A pool of pages: cached blocks that concurrent prompts read where they lie, and never write.

A page holds `size` tokens of every layer. A block takes whole pages. A prompt is a page table: the pages of its blocks,
which others may share, each with the shift by which its keys are rerotated as they are read, and pages of its own for
all that is computed for it: recomputed tokens of blocks, the question, the answer. Nothing is copied.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from threading import Lock

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from workbench.core import renamed
from workbench.core.blocks import Block, Prompt
from workbench.core.errors import BadInput
from workbench.core.kv import KV
from workbench.core.page_table import Paged
from workbench.engine.assembly import Positions, check_positions
from workbench.engine.backends import AttentionProblem, named, rerotate
from workbench.engine.encoding import encode_packed, packs
from workbench.engine.page_tables import Ints, PageTable, table_of
from workbench.models.spec import attach

SCRATCH = 0  # the page that rows of a padded batch write to
STEP = 128  # tokens that a step of the kernels for Hopper takes, where they are rerotated alike
LEAST = 16  # tokens of a page that kernels on a GPU read: tensor cores multiply no fewer


@dataclass(frozen=True, eq=False)
class Cached:
    """A block in a pool: its `pages` in order, its tokens, and the position that its keys are rotated for."""

    pages: Tensor  # [P] int64, on the CPU
    length: int
    start: int = 0

    def __len__(self) -> int:
        return self.length

    @cached_property
    def numbers(self) -> Ints:
        """[P] int32 `pages`, as page tables are joined from them."""
        return self.pages.numpy().astype(np.int32)


@dataclass(eq=False)
class PagedPrompt:
    """The page table of one prompt, on the CPU.

    length   tokens of its context
    table    its pages in the order of their first position
    own      [R + reserve] slots in the pool of what is computed for it, at `places`: recomputed tokens of the context,
             then the question and the answer
    written  how many of `own` are computed
    """

    length: int
    table: PageTable
    own: Ints
    places: Ints
    owned: list[int]
    written: int = 0

    @property
    def pages(self) -> Paged:
        """Its table as kernels take it: `Paged` of one request, [1, P]."""
        return self.table.paged()

    @property
    def reserve(self) -> int:
        """Slots that are not written yet."""
        return len(self.own) - self.written


class Pool:
    """`keys[layer]` and `values[layer]` [H, pages · size, D] on the model's device; page 0 is scratch.

    kernels  Triton's kernels carry out the attention; None: on a GPU, over pages of `LEAST` tokens or more. Without
             them it is their torch reference.
    """

    def __init__(self, model: PreTrainedModel, pages: int, size: int = 64, kernels: bool | None = None):
        spec = self.spec = attach(model)
        gpu = spec.device.type == "cuda"
        self.kernels = gpu and size >= LEAST if kernels is None else kernels
        if self.kernels and gpu and size < LEAST:
            raise BadInput(f"a pool of pages of {size} tokens: kernels on a GPU need {LEAST} at least")
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
        self.pages, self.size, self.pairing = pages, size, spec.pairing
        hopper = gpu and torch.cuda.get_device_capability(spec.device)[0] == 9
        self.run = max(1, STEP // size) if self.kernels and hopper else 1  # pages that are best rerotated alike
        self.inv_freq = [table.to(spec.device, torch.float32).contiguous() for table in spec.inv_freq]
        self.keys, self.values = (
            [torch.zeros(h, pages * size, d, dtype=spec.dtype, device=spec.device) for h, d in spec.shapes]
            for _ in range(2)
        )  # zeros: what a masked slot holds must be a number
        self._free = list(range(pages - 1, SCRATCH, -1))
        self._lock = Lock()  # of `_free`: loaders take pages while the engine gives some back

    @property
    def free(self) -> int:
        """Pages that are not taken."""
        return len(self._free)

    @property
    def device(self) -> torch.device:
        return self.keys[0].device

    def take(self, tokens: int) -> list[int]:
        """Take pages for so many tokens. BadInput where the pool is full."""
        count = -(-tokens // self.size)
        with self._lock:
            if count > len(self._free):
                raise BadInput(f"{tokens} tokens need {count} pages, {len(self._free)} of the pool are free")
            return [self._free.pop() for _ in range(count)]

    def give(self, pages: Sequence[int] | Tensor) -> None:
        """Give pages back that are no longer read."""
        with self._lock:
            self._free.extend(pages.tolist() if isinstance(pages, Tensor) else pages)

    def close(self, prompt: PagedPrompt) -> None:
        """Give back a prompt's own pages."""
        self.give(prompt.owned)
        prompt.owned = []

    def encode(self, model: PreTrainedModel, blocks: Sequence[Block]) -> list[Cached]:
        """Encode blocks, each alone, into pages: packed into few forward passes, without padding or copies."""
        for block in blocks:
            self.spec.check_block(len(block))
            self.spec.check_tokens(torch.tensor(block.tokens))
        lengths = [len(block) for block in blocks]
        self._check_room(lengths)
        cached = [Cached(torch.tensor(self.take(n)), n) for n in lengths]
        for group in packs(lengths):
            slots = torch.cat([self.slots(cached[i]) for i in group]).to(self.device)

            def write(layer: int, k: Tensor, v: Tensor, at: Tensor = slots) -> None:
                self.keys[layer].index_copy_(1, at, k)
                self.values[layer].index_copy_(1, at, v)

            texts = [torch.tensor(blocks[i].tokens) for i in group]
            encode_packed(model, texts, self.spec.layers, write, self.kernels)
        return cached

    def put(self, kv: KV) -> Cached:
        """Copy a run of tokens into pages, wherever it was encoded and whatever it saw."""
        return self.put_many([kv])[0]

    def put_many(self, kvs: Sequence[KV]) -> list[Cached]:
        """Copy runs of tokens into pages, one copy a layer for all of them."""
        for kv in kvs:
            self.spec.check_shapes(kv)
        self._check_room([len(kv) for kv in kvs])
        cached = [Cached(torch.tensor(self.take(len(kv))), len(kv), kv.start) for kv in kvs]
        if kvs:
            slots = torch.cat([self.slots(one) for one in cached]).to(self.device)
            for mine, *theirs in zip((*self.keys, *self.values), *(kv.tensors() for kv in kvs), strict=True):
                whole = theirs[0] if len(theirs) == 1 else torch.cat([x.to(mine.device) for x in theirs], 1)
                mine.index_copy_(1, slots, whole.to(mine.device, mine.dtype))
        return cached

    def slots(self, cached: Cached) -> Tensor:
        """[T] int64, CPU: where in the pool the tokens of a block are."""
        at = cached.pages[:, None] * self.size + torch.arange(self.size)
        return at.flatten()[: len(cached)]

    @renamed.arguments(room="reserve", again="recompute")
    def open(
        self,
        context: Sequence[Cached],
        reserve: int,
        recompute: Tensor | None = None,
        positions: Positions = "re-encoded",
    ) -> PagedPrompt:
        """Make the page table of a prompt whose context is these blocks, with pages for `reserve` more tokens.

        recompute  [R] rising positions of context tokens that are recomputed: their cached entries are not seen
        positions  "re-encoded" where the blocks stand now, or "naive", as cached
        """
        if reserve < 1 or not context:
            raise BadInput(
                f"{len(context)} blocks and room for {reserve}: a prompt has a block and a question at least"
            )
        check_positions(positions)
        length = sum(block.length for block in context)
        places = np.arange(length, length + reserve, dtype=np.int32)
        if recompute is not None and len(recompute):
            recomputed = recompute.cpu().numpy().astype(np.int32)
            _check_recompute(recomputed, length)
            places = np.concatenate((recomputed, places))
        return self._prompt(context, places, positions)

    def blank(self, reserve: int) -> PagedPrompt:
        """Make the page table of a prompt that reuses nothing, with pages for `reserve` tokens."""
        if reserve < 1:
            raise BadInput(f"room for {reserve} tokens: a prompt has one at least")
        return self._prompt((), np.arange(reserve, dtype=np.int32))

    def _prompt(self, context: Sequence[Cached], places: Ints, positions: Positions = "re-encoded") -> PagedPrompt:
        owned = self.take(len(places))
        mine = np.array(owned, np.int32)
        table = table_of(context, mine, places, self.size, positions == "naive", self.run)
        own = (mine[:, None] * self.size + np.arange(self.size, dtype=np.int32)).ravel()[: len(places)]
        return PagedPrompt(sum(block.length for block in context), table, own, places, owned)

    @renamed.arguments(room="reserve")
    def gather(self, context: Sequence[Cached], reserve: int, positions: Positions = "re-encoded") -> KV:
        """Copy a prompt's context into one contiguous KV, its keys rerotated to where its blocks stand.

        For thousands of recomputed rows one copy costs less than rerotation in every tile. `reserve` tokens behind the
        context are unwritten.
        """
        check_positions(positions)
        if not context:
            raise BadInput("a prompt has at least one block")
        slots = torch.cat([self.slots(block) for block in context]).to(self.device)
        lengths = torch.tensor([len(block) for block in context])
        shifts = lengths.cumsum(0) - lengths - torch.tensor([block.start for block in context])
        if positions == "naive":
            shifts = torch.zeros_like(shifts)
        distance = shifts.repeat_interleave(lengths).to(self.device)
        length = len(slots)
        kv = self.spec.empty(length + reserve)
        for layer, table in enumerate(self.inv_freq):
            rerotate(
                self.keys[layer][:, slots], distance, table, self.pairing, kv.keys[layer][:, :length], self.kernels
            )
            kv.values[layer][:, :length] = self.values[layer][:, slots]
        return kv

    def read(
        self,
        context: Sequence[Cached],
        prompt: PagedPrompt,
        rows: int,
        positions: Positions = "re-encoded",
        reserve: int = 0,
    ) -> KV:
        """Copy a prompt as its pages hold it into one contiguous KV: `context`, and over it its first `rows` own rows.

        Capacity for `reserve` more tokens.
        """
        length = max(prompt.length, int(prompt.places[rows - 1]) + 1)
        if context:
            kv = self.gather(context, length - prompt.length, positions)
            kv.reserve(reserve)
        else:
            kv = self.spec.empty(length, reserve)
        slots, places = (torch.from_numpy(x[:rows]).long().to(self.device) for x in (prompt.own, prompt.places))
        for mine, theirs in zip((*self.keys, *self.values), kv.tensors(), strict=True):
            theirs.index_copy_(1, places, mine[:, slots])
        return kv

    def write(self, prompt: PagedPrompt, kv: KV, rows: int) -> None:
        """Copy the first `rows` own rows of a prompt into its pages from a contiguous KV of it; they are computed."""
        slots, places = (torch.from_numpy(x[:rows]).long().to(self.device) for x in (prompt.own, prompt.places))
        for mine, theirs in zip((*self.keys, *self.values), kv.tensors(), strict=True):
            mine.index_copy_(1, slots, theirs[:, places])
        prompt.written = rows

    def _check_room(self, lengths: Sequence[int]) -> None:
        needed = sum(-(-n // self.size) for n in lengths)
        if needed > self.free:
            raise BadInput(f"{len(lengths)} blocks need {needed} pages, {self.free} of the pool are free")


@renamed.arguments(room="reserve")
def of(model: PreTrainedModel, prompt: Prompt, reserve: int, size: int = 64, kernels: bool | None = None) -> Pool:
    """Make a pool just large enough for the blocks of one prompt and `reserve` tokens of its own."""
    count = sum(-(-len(block) // size) for block in prompt.context)
    return Pool(model, 1 + count + -(-reserve // size), size, kernels)


def _check_recompute(rows: Ints, length: int) -> None:
    if rows[0] < 0 or rows[-1] >= length or (rows[1:] <= rows[:-1]).any():
        raise BadInput(f"positions to compute again are rising, from 0 to {length - 1}")

"""A pool of pages: cached blocks that concurrent prompts read where they lie, and never write.

A page holds `size` tokens of every layer. A block takes whole pages. A prompt is a page table: the pages of its blocks,
which others may share, each with the shift by which its keys are rerotated as they are read, and pages of its own for
all that is computed for it: recomputed tokens of blocks, the question, the answer. Nothing is copied.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from weakref import ref

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
from workbench.engine.encoding import index_copy, packed_pass, packs
from workbench.engine.page_owners import NoPages, PageOwners, Taken
from workbench.engine.page_tables import Ints, PageTable, table_of
from workbench.models.spec import attach

STEP = 128  # tokens that a step of the kernels for Hopper takes, where they are rerotated alike
LEAST = 16  # tokens of a page that kernels on a GPU read: tensor cores multiply no fewer


@dataclass(frozen=True, eq=False)
class Cached:
    """A block in a pool: its `pages` in order, its tokens, and the position that its keys are rotated for.

    `generations` [P] are those of its pages when they were taken; None where that is not known.
    """

    pages: Tensor  # [P] int64, on the CPU
    length: int
    start: int = 0
    pool: "Pool | None" = field(default=None, repr=False)
    generations: Ints | None = field(default=None, repr=False)

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
    owned    pages of `own`; `context` the blocks it reads, both of `pool`
    """

    length: int
    table: PageTable
    own: Ints
    places: Ints
    owned: Taken
    pool: "Pool" = field(repr=False)
    context: Sequence[Cached] = ()
    written: int = 0
    closed: bool = False

    @property
    def pages(self) -> Paged:
        """Its table as kernels take it: `Paged` of one request, [1, P]."""
        return self.table.paged()

    @cached_property
    def held(self) -> tuple[Ints, Ints]:
        """[N] all pages that it reads or writes, and their generations when it was made."""
        known = [block for block in self.context if block.generations is not None]
        pages = [np.array(self.owned, np.int32), *[block.numbers for block in known]]
        generations = [self.owned.generations, *[x for block in known if (x := block.generations) is not None]]
        return np.concatenate(pages), np.concatenate(generations)

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
        self.owners = PageOwners(pages)
        self._model = ref(model)

    @property
    def free(self) -> int:
        """Pages that are not taken."""
        return self.owners.free

    @property
    def device(self) -> torch.device:
        return self.keys[0].device

    def take(self, tokens: int, wait: float = 0.0) -> Taken:
        """Take pages for so many tokens, and wait so many seconds for them. Raises NoPages where they do not come."""
        return self.owners.take(-(-tokens // self.size), f"{tokens} tokens: it", wait)

    def give(self, pages: Sequence[int] | Tensor | Cached) -> None:
        """Give pages back that are no longer read: what `take` returned, or those of a block.

        BadInput, giving none back, where they are not held, or not any more.
        """
        if isinstance(pages, Cached):
            self.check_block(pages)
            self.owners.give(pages.pages, pages.generations)
        else:
            self.owners.give(pages)

    def close(self, prompt: PagedPrompt) -> None:
        """Give back a prompt's own pages; it cannot be computed any more. BadInput for one that is closed."""
        if prompt.closed or prompt.pool is not self:
            raise BadInput("a prompt is closed twice" if prompt.closed else "this prompt is of another pool")
        self.give(prompt.owned)
        prompt.closed = True

    def check(self, prompt: PagedPrompt) -> None:
        """Refuse a prompt that is closed or of another pool, and one whose pages somebody else has by now."""
        if prompt.pool is not self or prompt.closed:
            raise BadInput("this prompt is closed" if prompt.closed else "this prompt is of another pool")
        if not self.owners.holds(*prompt.held):
            self.owners.check(prompt.owned, prompt.owned.generations)
            for block in prompt.context:
                self.check_block(block)

    def check_blocks(self, context: Sequence[Cached]) -> tuple[Ints, Ints] | None:
        """Refuse what `check_block` refuses; blocks that are in order are looked at all at once.

        Returns the pages of all blocks and their generations; None where a block's are not known.
        """
        known = [x for block in context if (x := block.generations) is not None]
        if len(known) == len(context) == [block.pool for block in context].count(self):
            pages, generations = np.concatenate([block.numbers for block in context]), np.concatenate(known)
            if self.owners.holds(pages, generations):
                return pages, generations
        for block in context:
            self.check_block(block)
        return None

    def check_block(self, block: Cached) -> None:
        """Refuse a block of another pool, and one whose pages were given back."""
        if block.pool is not None and block.pool is not self:
            raise BadInput("this block is of another pool")
        if block.generations is None or not self.owners.holds(block.numbers, block.generations):
            self.owners.check(block.pages, block.generations)

    def check_model(self, model: PreTrainedModel) -> None:
        """Refuse another model than the pool was made for."""
        if self._model() is not model:
            raise BadInput(f"this pool is of another model: make one for {attach(model).name}")

    def cached(self, length: int, start: int = 0, pages: Taken | None = None) -> Cached:
        """Return a block in pages that were taken for it, or that are taken now."""
        pages = self.take(length) if pages is None else pages
        return Cached(torch.tensor(pages), length, start, self, pages.generations)

    def encode(
        self, model: PreTrainedModel, blocks: Sequence[Block], cached: Sequence[Cached] | None = None
    ) -> list[Cached]:
        """Encode blocks, each alone, into pages: packed into few forward passes, without padding or copies.

        `cached` are pages that were taken for them; where that is None, pages are taken, and given back if it fails.
        """
        self.check_model(model)
        for block in blocks:
            self.spec.check_block(len(block))
            self.spec.check_tokens(torch.tensor(block.tokens))
        lengths = [len(block) for block in blocks]
        if cached is not None:
            return self._encode(model, blocks, list(cached))
        self._check_room(lengths)
        taken = [self.cached(n) for n in lengths]
        with self._or_back(taken):
            return self._encode(model, blocks, taken)

    def _encode(self, model: PreTrainedModel, blocks: Sequence[Block], cached: list[Cached]) -> list[Cached]:
        passes = []
        for group in packs([len(block) for block in blocks]):
            slots = torch.cat([self.slots(cached[i]) for i in group]).to(self.device)

            def write(layer: int, k: Tensor, v: Tensor, at: Tensor = slots) -> None:
                index_copy(self.keys[layer], at, k)
                index_copy(self.values[layer], at, v)

            texts = [torch.tensor(blocks[i].tokens) for i in group]
            passes.append(packed_pass(model, texts, self.spec.layers, write, self.kernels))
        for run in passes:
            run()
        return cached

    @contextmanager
    def _or_back(self, cached: Sequence[Cached]) -> Iterator[None]:
        """Give the pages of blocks back where what fills them fails: out of memory, say."""
        try:
            yield
        except BaseException:
            for block in cached:
                self.give(block)
            raise

    def put(self, kv: KV) -> Cached:
        """Copy a run of tokens into pages, wherever it was encoded and whatever it saw."""
        return self.put_many([kv])[0]

    def put_many(self, kvs: Sequence[KV]) -> list[Cached]:
        """Copy runs of tokens into pages, one copy a layer for all of them."""
        for kv in kvs:
            self.spec.check_shapes(kv)
        self._check_room([len(kv) for kv in kvs])
        cached = [self.cached(len(kv), kv.start) for kv in kvs]
        with self._or_back(cached):
            self._put(kvs, cached)
        return cached

    def _put(self, kvs: Sequence[KV], cached: Sequence[Cached]) -> None:
        if kvs:
            slots = torch.cat([self.slots(one) for one in cached]).to(self.device)
            for mine, *theirs in zip((*self.keys, *self.values), *(kv.tensors() for kv in kvs), strict=True):
                whole = theirs[0] if len(theirs) == 1 else torch.cat([x.to(mine.device) for x in theirs], 1)
                mine.index_copy_(1, slots, whole.to(mine.device, mine.dtype))

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
        wait: float = 0.0,
    ) -> PagedPrompt:
        """Make the page table of a prompt whose context is these blocks, with pages for `reserve` more tokens.

        recompute  [R] rising positions of context tokens that are recomputed: their cached entries are not seen
        positions  "re-encoded" where the blocks stand now, or "naive", as cached
        wait       seconds to wait for pages that others hold, until they give them back

        BadInput for a block of another pool or one whose pages were given back; NoPages where they are too few.
        """
        if reserve < 1 or not context:
            raise BadInput(
                f"{len(context)} blocks and room for {reserve}: a prompt has a block and a question at least"
            )
        check_positions(positions)
        held = self.check_blocks(context)
        length = sum([block.length for block in context])
        places = np.arange(length, length + reserve, dtype=np.int32)
        if recompute is not None and len(recompute):
            recomputed = recompute.cpu().numpy().astype(np.int32)
            _check_recompute(recomputed, length)
            places = np.concatenate((recomputed, places))
        return self._prompt(context, places, positions, wait, held)

    def blank(self, reserve: int) -> PagedPrompt:
        """Make the page table of a prompt that reuses nothing, with pages for `reserve` tokens."""
        if reserve < 1:
            raise BadInput(f"room for {reserve} tokens: a prompt has one at least")
        return self._prompt((), np.arange(reserve, dtype=np.int32))

    def _prompt(
        self,
        context: Sequence[Cached],
        places: Ints,
        positions: Positions = "re-encoded",
        wait: float = 0.0,
        held: tuple[Ints, Ints] | None = None,
    ) -> PagedPrompt:
        owned = self.take(len(places), wait)
        try:
            mine = np.array(owned, np.int32)
            pages = None if held is None else held[0]
            table = table_of(context, mine, places, self.size, positions == "naive", self.run, pages)
        except BaseException:
            self.give(owned)
            raise
        offsets = np.arange(self.size, dtype=np.int32)
        own: Ints = (mine[:, None] * np.int32(self.size) + offsets).ravel()[: len(places)]
        length = sum([block.length for block in context])
        prompt = PagedPrompt(length, table, own, places, owned, self, tuple(context))
        if held is not None:
            prompt.held = np.concatenate((mine, held[0])), np.concatenate((owned.generations, held[1]))
        return prompt

    @renamed.arguments(room="reserve")
    def gather(self, context: Sequence[Cached], reserve: int, positions: Positions = "re-encoded") -> KV:
        """Copy a prompt's context into one contiguous KV, its keys rerotated to where its blocks stand.

        For thousands of recomputed rows one copy costs less than rerotation in every tile. `reserve` tokens behind the
        context are unwritten.
        """
        check_positions(positions)
        if not context:
            raise BadInput("a prompt has at least one block")
        for block in context:
            self.check_block(block)
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
            raise NoPages(needed, self.free, f"the context of {len(lengths)} blocks")


@renamed.arguments(room="reserve")
def of(model: PreTrainedModel, prompt: Prompt, reserve: int, size: int = 64, kernels: bool | None = None) -> Pool:
    """Make a pool just large enough for the blocks of one prompt and `reserve` tokens of its own."""
    count = sum(-(-len(block) // size) for block in prompt.context)
    return Pool(model, 1 + count + -(-reserve // size), size, kernels)


def _check_recompute(rows: Ints, length: int) -> None:
    if rows[0] < 0 or rows[-1] >= length or (rows[1:] <= rows[:-1]).any():
        raise BadInput(f"positions to compute again are rising, from 0 to {length - 1}")

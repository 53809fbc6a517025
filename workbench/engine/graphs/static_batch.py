"""Batches of fixed shape over a pool of pages: static inputs, and the forward pass over them.

Requests are padded to a `Bucket`: the batch size to a power of two, rows and pages to 8 … 15 times a power of two (at
least 16 rows, in steps of at least 8). More than 1,024 rows are not padded: such a batch is used once. A padding row
has position -1, attends to nothing and writes to the pool's scratch page.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from transformers import PreTrainedModel

from workbench.core.page_table import INVALID_POS, Paged
from workbench.engine.attention_backends.choice import kernel, kernel_over_pages
from workbench.engine.graphs.batch_buckets import Bucket, HostBuffer, Ints, views
from workbench.engine.layers.fused_layers import FusedLayers
from workbench.engine.pages.page_allocator import SCRATCH
from workbench.engine.pages.page_tables import PageTable
from workbench.engine.pages.paged_pool import Pool
from workbench.engine.pages.paged_prompt import PagedPrompt
from workbench.models.transformers_attention import LayerInput

BUFFERS = 2  # input buffers on the host: one is filled while the other is copied
PARTS = ("numbers", "first", "last", "page_max", "slots", "shifts")  # of a `PageTable`, [P] each
BEHIND = ("first", "last", "page_max")  # filled with INVALID_POS after the last page


class StaticBatch:
    """The static inputs of a bucket, and the forward pass over them, as one `PackedRequest`.

    Inputs are views of one int32 tensor, so a batch is one copy from pinned memory; the host fills one buffer while the
    other is being copied. Positions of slots are computed on the device. `queries` has [B, Hq, R, D] of the last pass
    for each layer in the bucket's `queries`.
    """

    num_layers = None

    def __init__(self, model: PreTrainedModel, pool: Pool, bucket: Bucket, layers: FusedLayers | None = None):
        self.model, self.pool, self.bucket, self.layers = model, pool, bucket, layers
        self.skip = 0  # leading pages that the current requests share
        self.wait: Callable[[int], None] | None = None  # called with a layer's number before its cached pages are read
        self.queries: dict[int, Tensor] = {}
        batch, rows, reserve = bucket.batch, bucket.rows, bucket.reserve
        self.shapes: dict[str, tuple[int, ...]] = {
            "ids": (batch, rows),
            "at": (batch, rows),
            "slots": (batch, rows),
            "last": (batch,),
            "live": (batch, 1),
            "answer": (batch, reserve),
        }
        for whose, (count, pages) in self._tables().items():
            for part in PARTS:
                self.shapes[f"{whose} {part}"] = (count, pages)
            if bucket.hidden:
                self.shapes[f"{whose} positions"] = (count, pages, pool.size)
        self._buffers = [HostBuffer(self.shapes, pool.device, not bucket.is_large) for _ in range(BUFFERS)]
        self._next = 0
        self._padding = self._all_padding(self._buffers[0])
        self.inputs = self._buffers[0].tensor.to(pool.device, copy=True)
        self.on_device = views(self.inputs, self.shapes)
        self.rows = self.on_device["at"].view(-1)  # of the `PackedRequest`
        self.offsets = torch.arange(pool.size, dtype=torch.int32, device=pool.device)
        self.positions = {
            whose: self.on_device[f"{whose} positions"]
            if bucket.hidden
            else torch.empty(*shape, pool.size, dtype=torch.int32, device=pool.device)
            for whose, shape in self._tables().items()
        }
        self.pages = [self._paged(whose) for whose in self._tables()]
        self.clear()

    @property
    def on_host(self) -> dict[str, Ints]:
        """The inputs that are sent next, by name."""
        return self._buffers[self._next].views

    def _tables(self) -> dict[str, tuple[int, int]]:
        """Return the number of requests and of pages of every page table."""
        own = {"own": (self.bucket.batch, self.bucket.pages)}
        if self.bucket.apart:
            return {"apart": (self.bucket.batch, self.bucket.apart)} | own
        return {"shared": (1, self.bucket.shared)} | own if self.bucket.shared else own

    def _paged(self, whose: str) -> Paged:
        numbers, first, last, page_max, _, shifts = (self.on_device[f"{whose} {part}"] for part in PARTS)
        alone = not (self.bucket.shared or self.bucket.apart)
        length = self.bucket.pages * self.pool.size if alone else None
        shifted = shifts if self.bucket.shifted else None
        partial = self.bucket.partial_pages
        run = (
            self.bucket.run if whose == "shared" or not self.bucket.shared else 1
        )  # tables behind shared pages are not aligned to runs
        return Paged(numbers, self.positions[whose], first, last, shifted, partial, length, page_max, run)

    def clear(self, skip: int = 0) -> None:
        """Reset all rows and pages to padding; the next requests share `skip` leading pages."""
        self.skip = skip
        buffer = self._buffers[self._next]
        buffer.free()
        buffer.array[:] = self._padding

    def _all_padding(self, buffer: HostBuffer) -> Ints:
        """Return the inputs of a batch of padding only."""
        host = buffer.views
        buffer.array.fill(0)
        for whose in self._tables():
            for part in BEHIND + ("positions",) * self.bucket.hidden:
                host[f"{whose} {part}"].fill(INVALID_POS)
        host["at"].fill(-1)
        for name in ("slots", "answer"):
            host[name].fill(SCRATCH * self.pool.size)
        return buffer.array.copy()

    def set_request(self, i: int, prompt: PagedPrompt, count: int) -> None:
        """Set request i: its page table and its next `count` rows."""
        host, begin = self.on_host, prompt.written
        if self.bucket.shared and not i:
            self._fill("shared", 0, prompt.table, slice(0, self.skip))
        if self.bucket.apart:
            for whose, table in zip(("apart", "own"), prompt.lists, strict=True):
                self._fill(whose, i, table, slice(None))
        else:
            self._fill("own", i, prompt.table, slice(self.skip, None))
        host["at"][i, :count] = prompt.places[begin : begin + count]
        host["slots"][i, :count] = prompt.own[begin : begin + count]
        host["last"][i] = i * self.bucket.rows + count - 1
        host["live"][i] = 1
        if self.bucket.reserve:
            answer = prompt.own[begin : begin + self.bucket.reserve]
            host["answer"][i, : len(answer)] = answer

    def _fill(self, whose: str, i: int, table: PageTable, which: slice) -> None:
        host = self.on_host
        for part in PARTS:
            source = getattr(table, part)
            if source is not None:
                source = source[which]
                host[f"{whose} {part}"][i, : len(source)] = source
        if self.bucket.hidden:
            source = table.every_position()[which]
            host[f"{whose} positions"][i, : len(source)] = source

    def send(self) -> None:
        """Start to copy the inputs to the device, and switch to the other buffer."""
        self._buffers[self._next].send(self.inputs)
        self._next = (self._next + 1) % BUFFERS

    def expand(self) -> None:
        """Compute the position of each slot on the device."""
        if not self.bucket.hidden:
            for whose, positions in self.positions.items():
                first, slots = self.on_device[f"{whose} first"], self.on_device[f"{whose} slots"]
                torch.add(first[..., None], self.offsets, out=positions)
                positions.masked_fill_(self.offsets >= slots[..., None], INVALID_POS)

    @property
    def backend(self) -> str:
        """Name of the attention kernel of this batch."""
        if self.bucket.shared or self.bucket.apart:
            return "shared_attention" if self.bucket.shared else "_pages.apart"
        heads = self.model.config.get_text_config(decoder=True).num_attention_heads, len(self.pool.keys[0])
        return kernel_over_pages((self.bucket.batch, self.bucket.rows), heads, self.pool.device)

    def attend(self, x: LayerInput) -> Tensor | None:
        """Write new keys and values to the requests' own slots, then attend with q [Hq, B · R, D] over the pages."""
        if self.wait is not None:
            self.wait(x.layer)
        keys, values = self.pool.keys[x.layer], self.pool.values[x.layer]
        keys.index_copy_(1, self.slots, x.k)
        values.index_copy_(1, self.slots, x.v)
        queries = x.q.unflatten(1, (self.bucket.batch, self.bucket.rows)).transpose(0, 1)
        if x.layer in self.bucket.queries:
            self.queries[x.layer] = queries.clone()
        return self._over_pages(x.layer, queries, self.on_device["at"], x.scale).transpose(0, 1).flatten(1, 2)

    def attend_written(self, layer: int, q: Tensor, scale: float, last: bool) -> Tensor:
        """Attend with queries [B · R, Hq, D] over keys and values that are already written -> [B · R, Hq · D].

        With `last`, only for the last row of each request: [B, Hq · D].
        """
        if self.wait is not None:
            self.wait(layer)
        rows, at = self.bucket.rows, self.on_device["at"]
        if layer in self.bucket.queries:
            self.queries[layer] = q.unflatten(0, (-1, rows)).transpose(1, 2).clone()
        if last:
            q, rows, at = q[self.on_device["last"]], 1, self.last_at
        queries = q.unflatten(0, (-1, rows)).transpose(1, 2)
        return self._over_pages(layer, queries, at, scale).transpose(1, 2).flatten(2).flatten(0, 1)

    def _over_pages(self, layer: int, queries: Tensor, at: Tensor, scale: float | None) -> Tensor:
        """Attention [B, Hq, R, D] of queries at positions `at` [B, R]; a single row needs no `q_sparse_attention`."""
        name, bend = self.backend, self.bucket.bend if self.bucket.apart else ()
        if at.shape[1] == 1 and not (self.bucket.shared or bend):
            name = "question_attention"
        module = kernel(name)
        call = module.launch if self.pool.kernels else module.reference
        if self.layers is not None and self.pool.kernels and name in ("question_attention", "shared_attention"):
            call = partial(call, early=True)  # PDL is safe: the cache write runs in between
        inv_freq = self.pool.inv_freq[layer] if self.bucket.shifted else None
        keys, values = self.pool.keys[layer], self.pool.values[layer]
        out: Tensor = call(queries, keys, values, at, *self.pages, inv_freq, self.pool.pairing, scale, *bend)
        return out

    def forward(self) -> Tensor:
        """Compute the logits [B, V] after each request's last row, or [B · R, V] of all rows (`Bucket.every`)."""
        self.expand()
        return self.step()

    def step(self) -> Tensor:
        """Run `forward` without computing the positions of slots (`expand`)."""
        inputs = self.on_device
        last = inputs["last"] if self.bucket.rows > 1 and not self.bucket.every else None
        if self.layers is not None:
            ids, positions, slots = inputs["ids"].view(-1), self.rows.clamp(min=0), inputs["slots"].view(-1)
            pools = list(zip(self.pool.keys, self.pool.values, strict=True))
            # here, not before the last layer: attention may read positions while the preceding kernel runs
            self.last_at = inputs["at"].view(-1, 1)[inputs["last"]]
            return self.layers.forward(ids, positions, slots, pools, self.attend_written, last)
        self.slots = inputs["slots"].view(-1).long()
        out = self.model(
            input_ids=inputs["ids"].view(1, -1),
            position_ids=self.rows.clamp(min=0)[None],
            use_cache=False,
            logits_to_keep=0 if last is None else last.long(),
            requests=[self],
        )
        logits: Tensor = out.logits[0]
        return logits


class DecodeBatch(StaticBatch):
    """A greedy decoding step, one row per request.

    The argmax and the next step's inputs are computed on the device, so a step needs no input from the host.
    `tokens` [reserve, B] are the tokens of all steps so far.
    """

    def __init__(self, model: PreTrainedModel, pool: Pool, bucket: Bucket, layers: FusedLayers | None = None):
        super().__init__(model, pool, bucket, layers)
        self.tokens = torch.zeros(bucket.reserve, bucket.batch, dtype=torch.int32, device=pool.device)
        self.number = torch.zeros(1, dtype=torch.long, device=pool.device)
        self.taken = torch.zeros(bucket.batch, 1, dtype=torch.int32, device=pool.device)
        self.reader: Callable[[], object | None] = lambda: None  # of answers in progress; None: ended

    def start_answers(self, ids: Tensor) -> None:
        """Start answers with their first tokens `ids` [B] on the device."""
        self.number.zero_()
        self.taken.zero_()
        self.on_device["ids"][: len(ids), 0] = ids

    def send(self) -> None:
        """Copy the inputs to the device, and compute positions once for all steps."""
        super().send()
        self.expand()

    def forward(self) -> Tensor:
        inputs = self.on_device
        logits = self.step()
        ids = logits.argmax(-1)[:, None].int()
        self.tokens.index_copy_(0, self.number, ids.T)
        inputs["ids"].copy_(ids)
        inputs["at"].add_(inputs["live"])
        self.taken.add_(inputs["live"])
        inputs["slots"].copy_(inputs["answer"].gather(1, self.taken.clamp(max=self.bucket.reserve - 1).long()))
        self.number.add_(1).clamp_(max=self.bucket.reserve - 1)
        return logits

"""Prefill and decoding over a pool of pages, with steps captured once as CUDA graphs and replayed.

A forward pass of an 8B model over 50 tokens is some 1,400 short kernels, which take longer to launch one by one than to
run. A CUDA graph launches them together if only the contents of its inputs change, which a `StaticBatch` ensures.
`Runner.captured` has the captured steps by bucket, with their capture times. Without CUDA, and for large batches,
whose kernels run longer than their launches take, the same batches run without a graph.
"""

import logging
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from threading import RLock
from typing import Any
from weakref import ref

import torch
from torch import Tensor
from transformers import PreTrainedModel

from workbench.core.errors import BadInput, format_value
from workbench.core.utils import annotations
from workbench.engine.graphs.batch_buckets import Bucket, common_page_count
from workbench.engine.graphs.graph_step import (
    REFUSED,
    Captured,
    Fetch,
    WeightWatch,
    capture,
    check_prompts,
    first_tokens,
    token_arrays,
)
from workbench.engine.graphs.static_batch import DecodeBatch, StaticBatch
from workbench.engine.layers.float8_products import products_of
from workbench.engine.layers.fused_layers import FusedLayers, fused, layers_of
from workbench.engine.layers.gemm_dispatch import TORCH, measurements_path
from workbench.engine.pages.paged_pool import Pool
from workbench.engine.pages.paged_prompt import PagedPrompt
from workbench.models import float8
from workbench.models.spec import attach

LAYERS = ("fused", "compiled", "model")
LOG = logging.getLogger(__name__)


@dataclass
class Runner:
    """Prefill and decoding of prompts over one pool.

    graphs    capture steps; None: on CUDA, if kernels read the pool
    compile   the same as layers="compiled"
    captured  captured steps by bucket
    layers    "fused": the workbench's kernels between matrix products (`engine.layers.fused_layers`); "compiled":
              torch.compile, some seconds more per bucket; "model": the model's own modules. None: fused if steps are
              captured and the model's layers are known, else the model's; `why` is the reason against fused layers
    measured  fused layers use the fastest GEMM for each shape, measured once (`engine.layers.gemm_dispatch`)
    coarse    pad requests to powers of two: fewer captures if lengths vary

    Several threads may share a runner, each on its own CUDA stream: steps take turns, the device (not the host) waits
    for other streams' work on the pages (`Pool.in_order`), and each answer in progress has its own inputs. A step
    holds a lease on the pages of its prompts. Before a step, BadInput is raised for a prompt that was closed or
    continued in another answer, for a freed block, and for replaced weights.
    """

    model: PreTrainedModel
    pool: Pool
    graphs: bool | None = None
    compile: bool = False
    captured: dict[Bucket, Captured] = field(default_factory=dict)
    layers: str | None = None
    measured: bool = True
    coarse: bool = False
    why: str = field(default="", init=False)
    why_uncaptured: str = field(default="", init=False)

    def __repr__(self) -> str:
        return f"Runner({self.pool!r}, layers={self.layers!r}, graphs={self.graphs})"

    def __post_init__(self) -> None:
        annotations.check("graphs", self.graphs, bool | None)
        if self.layers not in (None, *LAYERS):
            raise BadInput(f"layers {self.layers!r}: it is one of {', '.join(LAYERS)}, or None")
        if self.compile:
            self.layers = "compiled"
        self.compile = self.layers == "compiled"
        if not isinstance(self.pool, Pool):
            raise BadInput(f"pool is {format_value(self.pool)}: a Pool of this model is needed")
        self.pool.check_model(self.model)
        if self.graphs is None:
            self.graphs = self.pool.device.type == "cuda" and self.pool.kernels
        if self.graphs and self.pool.device.type != "cuda":
            raise BadInput(f"CUDA graphs on {self.pool.device}: they need a GPU")
        if self.compile and not self.graphs:
            raise BadInput(
                "layers are compiled for graphs only: without graphs, use `engine.layers.fused_layers.fused`"
            )
        self._memory = torch.cuda.graph_pool_handle() if self.graphs else None
        self._fused: FusedLayers | None = None
        # weights are packed before any capture: a graph contains their addresses
        products = products_of(self.model, measurements_path() if self.measured else None, self.pool.kernels)
        found = (
            layers_of(self.model, self.pool.kernels, products)
            if self.graphs or self.layers == "fused" or float8.is_float8(self.model)
            else "not captured"
        )
        if isinstance(found, str):
            self.why = found
            if self.layers == "fused":
                raise BadInput(f"layers of this model cannot be fused: {found}")
        elif self.layers in (None, "fused"):
            self._fused = found
        self.layers = self.layers or ("fused" if self._fused else "model")
        self._weights = WeightWatch(self.model)
        self._turn = RLock()
        self._spare: dict[Bucket, list[Captured]] = {}  # for concurrent answers of the same shape

    @property
    def products(self) -> dict[str, str]:
        """{shape: name of the GEMM that fused layers use for it}."""
        return {} if self._fused is None else {s: str(way or TORCH) for s, way in self._fused.products.chosen.items()}

    @annotations.checked
    @torch.no_grad()
    def prefill(
        self, prompts: Sequence[PagedPrompt], tokens: Sequence[Tensor], wait: Callable[[int], None] | None = None
    ) -> Tensor:
        """Compute the logits [B, V] after the last token of each request.

        `tokens[i]` [R] are the ids of the tokens to compute: first the recomputed tokens of the context, then the
        question. `wait(layer)` is called before cached pages of a layer are read, which may be loading; such a step is
        not captured.
        """
        return self._prefill(prompts, tokens, wait=wait)[0]

    @annotations.checked
    @torch.no_grad()
    def prefill_queries(
        self,
        prompts: Sequence[PagedPrompt],
        tokens: Sequence[Tensor],
        layers: tuple[int, ...],
        wait: Callable[[int], None] | None = None,
    ) -> tuple[Tensor, dict[int, Tensor]]:
        """Prefill as `prefill` does; return the logits and the queries {layer: [B, Hq, R, D]} of `layers`.

        R is the maximum number of tokens of a request; shorter requests are padded at the end.
        """
        return self._prefill(prompts, tokens, layers, wait)

    @annotations.checked
    @torch.no_grad()
    def prefill_each(self, prompts: Sequence[PagedPrompt], tokens: Sequence[Tensor]) -> list[Tensor]:
        """Prefill as `prefill` does; return the logits [R, V] after all computed tokens of each request."""
        logits, _ = self._prefill(prompts, tokens, every=True)
        return [rows[: len(ids)] for rows, ids in zip(logits, tokens, strict=True)]

    def _prefill(
        self,
        prompts: Sequence[PagedPrompt],
        tokens: Sequence[Tensor],
        layers: tuple[int, ...] = (),
        wait: Callable[[int], None] | None = None,
        every: bool = False,
    ) -> tuple[Tensor, dict[int, Tensor]]:
        with self._turn:
            host, most = token_arrays(self.pool, prompts, tokens), max(map(len, tokens))
            bucket = replace(self._bucket(prompts, most, queries=layers), every=every)
            ready = self._ready(bucket, wait is not None)
            batch = ready.batch
            batch.wait = wait
            batch.clear(common_page_count(prompts, most))
            for i, (prompt, ids) in enumerate(zip(prompts, host, strict=True)):
                batch.set_request(i, prompt, len(ids))
                batch.on_host["ids"][i, : len(ids)] = ids
            with self._leased(prompts):
                batch.send()
                logits = ready.run()
                if every:
                    logits = logits.unflatten(0, (bucket.batch, bucket.rows))[:, :most]
                logits = logits[: len(prompts)].clone()
                queries = {layer: x[: len(prompts), :, :most].clone() for layer, x in batch.queries.items()}
            for prompt, rows in zip(prompts, host, strict=True):  # only now: after a failure nothing counts as written
                prompt.written += len(rows)
        return logits, queries

    @annotations.checked
    @torch.no_grad()
    def decode(
        self,
        prompts: Sequence[PagedPrompt],
        logits: Tensor,
        count: int,
        eos: frozenset[int] = frozenset(),
        ahead: int = 1,
        waiting: Callable[[Any], None] | None = None,
    ) -> Iterator[list[int | None]]:
        """Stream greedy answers: one list of B token ids per step, None for requests that have ended.

        logits   [B, V] after the prompts, or [B] first tokens
        count    maximum number of tokens of an answer
        eos      ids that end an answer; they are not streamed
        ahead    steps by which the device runs ahead of the reader
        waiting  called with a CUDA event before the host waits for it

        Raises BadInput if called before prefill, for logits of another shape or dtype, and, when the stream is read,
        for a request whose largest logit is not finite.
        """
        annotations.check("count", count, int)
        check_prompts(self.pool, prompts)
        if count < 1 or any(prompt.reserve < count - 1 for prompt in prompts):
            raise BadInput(f"{count} tokens to decode, prompts have room for {[prompt.reserve for prompt in prompts]}")
        with self._turn, self.pool.in_order():
            first = first_tokens(self.pool, prompts, logits)
            if logits.is_cuda:  # their stream must not reuse the memory before it is read here
                logits.record_stream(torch.cuda.current_stream(logits.device))
            ready = self._free(self._bucket(prompts, 1, max(1, count)))
            batch = ready.batch
            assert isinstance(batch, DecodeBatch)
            batch.clear(common_page_count(prompts, 1))
            for i, prompt in enumerate(prompts):
                batch.set_request(i, prompt, min(1, prompt.reserve))
            batch.send()
            batch.start_answers(first.clamp(min=0))
            fetch = Fetch(batch, count, len(prompts))
            batch.reader = ref(fetch)
            fetch.start(first)
            written = [prompt.written for prompt in prompts]
        return self._stream(ready, batch, prompts, written, fetch, eos, max(1, ahead), waiting)

    def _stream(
        self,
        ready: Captured,
        batch: DecodeBatch,
        prompts: Sequence[PagedPrompt],
        written: list[int],
        fetch: Fetch,
        eos: frozenset[int],
        ahead: int,
        waiting: Callable[[Any], None] | None,
    ) -> Iterator[list[int | None]]:
        ended = [False] * len(prompts)
        count, begun = len(fetch.host), 0
        for number in range(count):
            for step in range(begun, min(number + ahead, count - 1)):
                with torch.no_grad(), self._turn, self._leased(prompts):
                    if self._weights.replaced:
                        raise BadInput("the model's weights were replaced: restart these answers with prefill")
                    if [prompt.written - step for prompt in prompts] != written:
                        raise BadInput("a prompt was continued in another answer: read one answer to its end first")
                    ready.run()
                    fetch.start(batch.tokens[step, : len(prompts)])
                    for prompt in prompts:
                        prompt.written += 1
                begun = step + 1
            tokens = fetch.wait(number, waiting)
            if REFUSED in tokens:
                for prompt, before in zip(prompts, written, strict=True):
                    prompt.written = before
                raise BadInput(f"request {tokens.index(REFUSED)} has no first token: its largest logit is not finite")
            ended = [done or token in eos for done, token in zip(ended, tokens, strict=True)]
            if all(ended):
                return
            yield [None if done else token for done, token in zip(ended, tokens, strict=True)]

    @contextmanager
    def _leased(self, prompts: Sequence[PagedPrompt]) -> Iterator[None]:
        """Keep prompts open for a step. Raises BadInput, before or after it, if their pages were freed."""
        with ExitStack() as leases:
            for prompt in sorted(prompts, key=id):
                leases.enter_context(prompt.lease)
            for prompt in prompts:
                self.pool.check(prompt)
            with self.pool.in_order():
                yield
            for prompt in prompts:
                self.pool.check(prompt)

    def _free(self, bucket: Bucket) -> Captured:
        """Return a step that no answer in progress uses: the first of its bucket, a spare one, or a new one."""
        first = self._ready(bucket)
        spare = self._spare.setdefault(bucket, [])
        for ready in (first, *spare):
            if isinstance(ready.batch, DecodeBatch) and ready.batch.reader() is None:
                return ready
        spare.append(self._made(bucket))
        return spare[-1]

    def has_captured(self, shape: Hashable) -> bool:
        """Return whether a step of this bucket has been captured."""
        return (shape.coarse if self.coarse and isinstance(shape, Bucket) else shape) in self.captured

    def _bucket(
        self, prompts: Sequence[PagedPrompt], rows: int, reserve: int = 0, queries: tuple[int, ...] = ()
    ) -> Bucket:
        bucket = Bucket.of(prompts, rows, reserve, queries)
        return bucket.coarse if self.coarse else bucket

    def _ready(self, bucket: Bucket, waits: bool = False) -> Captured:
        if self._fused is None:
            attach(self.model)  # the model may have been switched to another attention backend
        if self._weights.replaced:
            self.captured.clear()
            self._spare.clear()
            if self._fused is not None:
                self._fused = FusedLayers(self.model, self.pool.kernels, self._fused.products)
            self._weights = WeightWatch(self.model)
        if self._fused is not None:
            self._fused.follow()
        if bucket.is_large or waits:
            return Captured(StaticBatch(self.model, self.pool, bucket, self._fused))
        if bucket not in self.captured:
            self.captured[bucket] = self._made(bucket)
        return self.captured[bucket]

    def _made(self, bucket: Bucket) -> Captured:
        batch = (DecodeBatch if bucket.reserve else StaticBatch)(self.model, self.pool, bucket, self._fused)
        batch.send()
        if self._fused is not None and self.measured and self.graphs:
            self._fused.prepare(bucket.batch * bucket.rows, bucket.batch * (bucket.rows if bucket.every else 1))
        LOG.info("preparing %s, layers %s", bucket, self.layers)
        with fused(self.model) if self.compile else nullcontext():
            return self._captured(batch)

    def _captured(self, batch: StaticBatch) -> Captured:
        """Capture a step. If that fails, this and later steps run without graphs, and `why_uncaptured` is set."""
        if not self.graphs:
            return Captured(batch)
        try:
            return capture(batch, self._memory)
        except (BadInput, torch.OutOfMemoryError):
            raise
        except RuntimeError as problem:
            self.graphs, self.why_uncaptured = False, str(problem)
            LOG.warning("%s cannot be captured and runs without CUDA graphs: %s", self.pool.spec.name, problem)
            return Captured(batch)

"""Requests over pages: their state, and their page tables over cached blocks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from workbench.core.blocks import Prompt
from workbench.core.errors import BadInput
from workbench.core.kv import KV
from workbench.core.page_table import SeparateSoftmax
from workbench.core.plan import Pass, Plan
from workbench.engine.assembly import Positions
from workbench.engine.decoding import StopStrings, TokenChoice, eos_ids, special_ids, text_of
from workbench.engine.forward import PrefillRequest
from workbench.engine.graphs.batch_buckets import LARGE
from workbench.engine.graphs.cuda_graphs import Runner
from workbench.engine.pages.block_pages import BlockPages
from workbench.engine.pages.paged_prompt import Cached, PagedPrompt
from workbench.methods import Method, ReadyRequest, finish
from workbench.methods.answered import Generation
from workbench.methods.engines import why_not_captured
from workbench.methods.method import SamplingParams
from workbench.methods.modes.reuse import Reuse, as_computed
from workbench.methods.paged.chosen_rows import RowChoice, chosen_over_pages
from workbench.methods.request_report import Receipt, with_seconds
from workbench.models.spec import spec_for
from workbench.store import Store


@dataclass(eq=False)
class PageRequest:
    """A request that is answered over pages.

    limit    maximum number of answer tokens, by `max_new_tokens` and the model's context
    rows     number of its own slots that contain rows of the prompt; the others are for the answer
    context  blocks that it reads, pinned
    paged    its page table
    ready    the result of the method's `begin`
    copy     contiguous copy on which its rows were computed, until they are written to its pages
    table    makes its page table later, if its rows are computed first
    """

    prompt: Prompt
    method: Method
    store: Store
    limit: int
    choose: TokenChoice
    stops: StopStrings
    eos: frozenset[int]
    random: torch.Generator
    keep: bool = False
    tokens: list[int] = field(default_factory=list)
    rows: int = 0
    context: list[Cached] = field(default_factory=list)
    paged: PagedPrompt | None = None
    ready: ReadyRequest | None = None
    logits: Tensor | None = None
    copy: KV | None = None
    table: Callable[[], None] | None = None
    receipt: Receipt | None = None
    first: float = 0.0
    ended: float | None = None

    @property
    def positions(self) -> Positions:
        """Positions of its context's keys, as in `engine.assembly.assemble`."""
        return self.method.positions if type(self.method) is Reuse else "re-encoded"

    def take(self, token: int) -> bool:
        """Add a token to the answer unless it is an end token; return whether the answer has ended."""
        over = token in self.eos
        if not over:
            self.tokens.append(token)
            over = self.stops(self.tokens) or len(self.tokens) >= self.limit
        self.ended = perf_counter() if over else None
        return over


def pages_needed(request: PageRequest, size: int) -> int:
    """Return the maximum number of pages that a request needs, for its blocks and its own tokens."""
    prompt, method = request.prompt, request.method
    context = sum(-(-len(block) // size) for block in prompt.context)
    if isinstance(method, Reuse) and method.correct and method.in_place:
        context *= 2  # cached and corrected blocks
    context += -(-getattr(method, "paths", 0) * len(prompt.question) // size)  # superposition: one per path
    computed = len(prompt.question) + request.limit
    if getattr(method, "select", None) is not None:
        computed += prompt.starts[-1]
    question = -(-len(prompt.question) // size)
    return context + question + -(-computed // size) + 1


def requests_of(
    model: PreTrainedModel,
    tokenizer: Any,
    prompts: Sequence[Prompt],
    method: Method,
    store: Store,
    params: SamplingParams,
    keep: bool = False,
) -> list[PageRequest]:
    """Make requests from prompts; `params` must be validated.

    Raises BadInput for a prompt that does not fit the model, and if the numbers of seeds and prompts differ.
    """
    spec = spec_for(model, (prompt.tokens for prompt in prompts))
    prompts = as_computed(model, method, prompts)
    seeds = params.seeds(len(prompts))
    eos = eos_ids(model, tokenizer) | special_ids(params.stops, tokenizer)
    choose, watch = TokenChoice(params.temperature, params.top_p), StopStrings(params.stops, tokenizer)
    most = params.max_new_tokens
    limits = [min(most, spec.context - len(p) + 1) if spec.context else most for p in prompts]
    return [
        PageRequest(prompt, method, store, limit, choose, watch, eos, torch.Generator().manual_seed(number), keep)
        for prompt, limit, number in zip(prompts, limits, seeds, strict=True)
    ]


def generation_of(request: PageRequest, tokenizer: Any, begin: float) -> Generation:
    """Return the answer of a request that has ended; `begin` is the time of the call, for its TTFT."""
    ready, receipt = request.ready, request.receipt
    assert ready is not None and receipt is not None and request.ended is not None
    decode = {"decode": request.ended - request.first}
    text = "" if tokenizer is None else text_of(tokenizer, request.tokens, request.stops.stops)
    return Generation(
        tuple(request.tokens),
        text,
        ready.computed,
        ready.reused,
        request.first - begin,
        ready.passes,
        with_seconds(receipt, {**receipt.seconds, **decode}),
    )


NOTHING = KV([], [])  # the KV of a request whose keys and values are in pages


def in_steps(ready: ReadyRequest) -> bool:
    """Return whether a request's last pass can be a captured step over pages."""
    plan, apart = ready.request.plan, apart_of(ready)
    if apart is not None and int(plan.rows[0]) >= apart.end:  # the steps read pages in two lists
        plan = replace(plan, backend=None)
    return ready.chunk is None and len(plan.rows) <= LARGE and not why_not_captured(plan)


def apart_of(ready: ReadyRequest) -> SeparateSoftmax | None:
    """Return the positions that a request attends to in a separate softmax; None if there are none."""
    found: SeparateSoftmax | None = getattr(ready.request.plan.backend, "apart", None)
    return found


def begin_reused(runner: Runner, blocks: BlockPages, group: Sequence[PageRequest], store: Store) -> None:
    """Place the blocks of prompts of one `Reuse` in pages, select rows, and make page tables."""
    method = group[0].method
    assert isinstance(method, Reuse)
    prompts = [request.prompt for request in group]
    cached = method.prepare(runner.model, prompts, store)
    for request, kvs in zip(group, cached, strict=True):
        if [len(kv) for kv in kvs] != [len(block) for block in request.prompt.context]:
            raise BadInput(f"{len(kvs)} cached KVs do not fit the {len(request.prompt.context)} blocks of a prompt")
        request.context = blocks.place(kvs)
    choices = [RowChoice(None)] * len(group)
    if method.select:
        contexts = [request.context for request in group]
        choices = chosen_over_pages(runner, method, prompts, contexts, blocks.make_room, copies=True)
    for request, (chosen, scores, copy, logits), kvs in zip(group, choices, cached, strict=True):
        prompt, rows = request.prompt, request.prompt.question
        if method.correct and not method.correct.over_pages(blocks, prompt, request.context):
            blocks.unpin(request.context)
            request.context = []
            begin_copied(runner, blocks, [request], method.begin_over(runner.model, [prompt], [kvs]))
            continue
        reserve = len(rows) + request.limit
        table = partial(_open, request, blocks, reserve, chosen)
        request.copy = None if method.correct else copy  # a copy made for the selection is not corrected
        rows = rows if chosen is None else torch.cat((chosen, rows))
        rule = method.attend.plan(prompt, rows, scores) if method.attend else {}
        request.ready = method.start(runner.model, prompt, NOTHING, rows, **rule)
        if logits is not None:  # rows are already computed
            request.logits, request.rows = logits, len(rows)
            if request.keep or request.limit > 1:
                table()
        elif in_steps(request.ready):
            table()
        else:  # deferred: the GPU first computes rows on a copy
            request.table = table


def _open(request: PageRequest, blocks: BlockPages, reserve: int, recompute: Tensor | None) -> None:
    """Make the page table of a request over its context."""
    blocks.make_room(-(-(reserve + (0 if recompute is None else len(recompute))) // blocks.pool.size))
    if request.context:
        request.paged = blocks.pool.open(request.context, reserve, recompute, request.positions)
    else:
        request.paged = blocks.pool.blank(reserve)
    assert request.ready is not None
    request.paged.apart = apart_of(request.ready)


def begin_blank(blocks: BlockPages, group: Sequence[PageRequest]) -> None:
    """Make page tables for prompts whose tokens are all computed."""
    for request in group:
        prompt, length = request.prompt, len(request.prompt)
        blocks.make_room(-(-(length + request.limit) // blocks.pool.size))
        request.paged = blocks.pool.blank(length + request.limit)
        one = PrefillRequest(prompt.tokens, Plan(torch.arange(length)), NOTHING)
        request.ready = ReadyRequest(one, (Pass(range(length), length),), length, 0)


def begin_copied(
    runner: Runner, blocks: BlockPages, group: Sequence[PageRequest], begun: Sequence[ReadyRequest]
) -> None:
    """Copy requests of any method from their contiguous KV into pages.

    Last passes that cannot be a captured step are computed first, for the logits.
    """
    before = [request for request in begun if not _can_step(request)]
    logits = dict(zip(map(id, before), finish(runner.model, before), strict=True)) if before else {}
    for request, ready in zip(group, begun, strict=True):
        kv, rows = ready.request.kv, ready.request.plan.rows
        request.logits = logits.get(id(ready))
        if request.logits is not None and request.limit == 1:  # the only token is known: needs no pages
            request.ready = ready
            continue
        length = len(kv) if request.logits is not None else int(rows[0])
        keys, values = ([x[:, :length] for x in part] for part in (kv.keys, kv.values))
        request.context = blocks.place([KV(keys, values)])
        reserve = request.limit + (len(rows) if request.logits is None else 0)
        blocks.make_room(-(-reserve // blocks.pool.size))
        request.paged = blocks.pool.open(request.context, reserve)
        request.paged.complete, request.paged.apart = request.logits is not None, apart_of(ready)
        request.ready = replace(ready, request=replace(ready.request, kv=NOTHING))


def _can_step(ready: ReadyRequest) -> bool:
    """Return whether a captured step can compute a request once all tokens before its rows are in pages."""
    rows = ready.request.plan.rows
    end = int(rows[0]) + len(rows)
    return in_steps(ready) and int(rows[0]) > 0 and end == len(ready.request.kv) == int(rows[-1]) + 1

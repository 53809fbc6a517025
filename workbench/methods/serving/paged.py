"""Serving engine over shared pages: requests read blocks in place, with CUDA graphs; used on GPUs."""

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from workbench.core.blocks import Block
from workbench.core.errors import BadInput
from workbench.core.kv import KV
from workbench.core.plan import Pass, Plan
from workbench.engine.decoding import StopStrings, TokenChoice, check_options, eos_ids, special_ids, text_of
from workbench.engine.forward import PrefillRequest
from workbench.engine.graphs.batch_buckets import Bucket
from workbench.engine.graphs.cuda_graphs import Runner
from workbench.methods import ReadyRequest
from workbench.methods.answered import Generation
from workbench.methods.modes.reuse import Reuse
from workbench.methods.paged.chosen_rows import chosen_over_pages
from workbench.methods.prepare.independent import Independent
from workbench.methods.request_report import receipts_of, with_seconds
from workbench.methods.select import QuestionGuided, budget
from workbench.methods.serving.computation import rows_of
from workbench.methods.serving.loaders import PageLoads
from workbench.methods.serving.tickets import Arrived, Ticket, Wait
from workbench.store.tiering.pages import PageTier


@dataclass
class PagedEngine:
    """Computes requests with `method` over `pages`; blocks come from the tiers behind it.

    method    a `Reuse` with any positions and selector
    quantum   number of answer tokens that are computed before another request can join

    The other options are those of `generate`. Raises BadInput for methods with sparse attention or chunks, and for a
    selector that writes to cached rows.
    """

    runner: Runner
    pages: PageTier
    tokenizer: Any = None
    method: Reuse = field(default_factory=Reuse)
    quantum: int = 8
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    stop: str | Sequence[str] = ()
    overlaps: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        if self.method.sparse or self.method.chunk or not self.method.plain:
            raise BadInput(f"{self.method}: over pages all rows run at once, over every tile, and blocks are only read")
        stops = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)
        check_options(1, self.temperature, self.top_p, stops, self.tokenizer)
        self._choose, self._stops = TokenChoice(self.temperature, self.top_p), StopStrings(stops, self.tokenizer)
        if self.quantum < 1:
            raise BadInput(f"quantum is {self.quantum}: at least 1 is needed")
        self.model, self.pool = self.runner.model, self.runner.pool
        self.overlaps = self.pool.device.type == "cuda"
        self.meanwhile: Callable[[], bool] = bool
        self._loads = PageLoads(self.model, self.pages, self.method.prepare)
        self._eos, self._seen = (
            eos_ids(self.model, self.tokenizer) | special_ids(stops, self.tokenizer),
            set[Hashable](),
        )

    def check(self, ticket: Ticket) -> None:
        """Raise BadInput for a prompt that does not fit the model, or an empty pool."""
        prompt, spec = ticket.prompt, self.pool.spec
        spec.check_tokens(prompt.tokens)
        if spec.context and len(prompt) + ticket.max_new_tokens > spec.context:
            raise BadInput(
                f"{len(prompt)} tokens and {ticket.max_new_tokens} more are over {spec.context}, the context"
            )
        own, size = self._own(ticket), self.pool.size
        if own + prompt.starts[-1] // size + len(prompt.context) <= self.pages.pages:
            return
        needed = own + sum(-(-len(block) // size) for block in set(prompt.context))
        if needed > self.pages.pages:
            raise BadInput(f"request {ticket.name} needs {needed} pages, the pool has {self.pages.pages}")

    def rows(self, ticket: Ticket) -> int:
        """Estimate how many tokens the prefill of a request computes."""
        return rows_of(self.method, ticket)

    def load(self, ticket: Ticket, arrived: Arrived | None = None) -> dict[str, Any]:
        """Load the blocks into pages; the engine computes blocks that no tier contains."""
        about = self._loads.load(ticket, self._own(ticket), arrived)
        if arrived is None and self.method.select is None and not self.pages.empty(ticket.held.keys):
            self._open(ticket, None)
        return about

    def admit(self, ticket: Ticket) -> dict[str, Any] | None:
        """Admit a request whose blocks are all in pages; without a selector, its page table is made at once."""
        about = self._loads.admit(ticket, self._own(ticket))
        if about is not None and self.method.select is None:
            self._open(ticket, None)
        return about

    def prefill(self, tickets: Sequence[Ticket], waits: Sequence[Wait | None]) -> list[bool]:
        """Encode missing blocks, select rows, and compute them and the questions in one step."""
        wait = _all_of([wait for wait in waits if wait is not None])
        self._encode(tickets)
        for ticket in tickets:
            ticket.tokens.clear()
            ticket.held.used = None  # unknown until this step is launched
            if ticket.held.paged is None or ticket.held.paged.written:  # layerwise load, or second attempt
                self._open(ticket, wait)
        prompts = [ticket.held.paged for ticket in tickets]
        ids = [t.prompt.tokens[torch.cat((t.held.rows, t.prompt.question))] for t in tickets]
        with self._excluding_copies(Bucket.of(prompts, max(map(len, ids))), wait):
            logits = self.runner.prefill(prompts, ids, wait)
        for ticket in tickets:
            ticket.held.random.manual_seed(self.seed)
        return self._take_next(tickets, logits)

    def decode(self, tickets: Sequence[Ticket]) -> list[bool]:
        """Compute up to `quantum` more tokens of every request, or one if tokens are sampled."""
        prompts = [ticket.held.paged for ticket in tickets]
        for ticket in tickets:
            ticket.held.used = None
        if self.temperature:
            with self._excluding_copies(Bucket.of(prompts, 1)):
                logits = self.runner.prefill(prompts, [torch.tensor(ticket.tokens[-1:]) for ticket in tickets])
            return self._take_next(tickets, logits)
        count = min(self.quantum, *(ticket.max_new_tokens - len(ticket.tokens) for ticket in tickets))
        last = torch.tensor([ticket.tokens[-1] for ticket in tickets], device=self.pool.device)
        with self._excluding_copies(Bucket.of(prompts, 1, count + 1)):
            ahead = count if self.overlaps else 1
            steps = list(self.runner.decode(prompts, last, count + 1, self._eos, ahead, self._work_until))[1:]
        self._used(tickets)
        ended = []
        for i, ticket in enumerate(tickets):
            tokens = [step[i] for step in steps]
            over = len(tokens) < count or None in tokens
            ended.append(self._take(ticket, [token for token in tokens if token is not None]) or over)
        return ended

    def finish(self, ticket: Ticket) -> Generation:
        """Return the answer, with its receipt."""
        held, prompt, select = ticket.held, ticket.prompt, self.method.select
        rows = torch.cat((held.rows, prompt.question))
        passes = (*(select.passes(self.model, prompt) if select else ()), Pass(rows.tolist(), len(prompt), forward=1))
        request = PrefillRequest(prompt.tokens, Plan(rows), KV([], []))
        ready = ReadyRequest(request, passes, len(rows), len(prompt) - len(rows))
        (receipt,) = receipts_of([prompt], [ready], held.lookups, self.method.positions)
        text = "" if self.tokenizer is None else text_of(self.tokenizer, ticket.tokens, self.stop)
        ttft = (ticket.first or 0.0) - ticket.arrived
        seconds = ticket.seconds | {"encode": held.encoding}
        return Generation(
            tuple(ticket.tokens), text, ready.computed, ready.reused, ttft, passes, with_seconds(receipt, seconds)
        )

    def release(self, ticket: Ticket) -> None:
        """Free the pages of a request, and release its blocks."""
        held, ticket.held = ticket.held, None
        if held is None:
            return
        with self.pages.lock:
            if held.paged is not None:
                self.pool.close(held.paged)
            self.pages.release(dict.fromkeys(held.keys), held.own, held.used)

    def _encode(self, tickets: Sequence[Ticket]) -> None:
        blocks: dict[str, Block] = {}
        for ticket in tickets:
            missing = set(self.pages.empty(ticket.held.keys))
            blocks |= {k: b for k, b in zip(ticket.held.keys, ticket.prompt.context, strict=True) if k in missing}
        if not blocks:
            return
        begin, encoding = perf_counter(), [t for t in tickets if set(t.held.keys) & set(blocks)]
        if isinstance(self.method.prepare, Independent):
            self.pages.encode(self.model, blocks)
        else:
            for ticket in encoding:
                (kvs,) = self.method.prepare(self.model, [ticket.prompt], self.pages.behind)
                made = dict(zip(ticket.held.keys, kvs, strict=True))
                self.pages.fill({key: made[key] for key in self.pages.empty(dict.fromkeys(ticket.held.keys))})
        for ticket in encoding:
            ticket.held.encoding = perf_counter() - begin

    def _open(self, ticket: Ticket, wait: Wait | None) -> None:
        """Select the rows of a request to recompute, and make its page table."""
        held, prompt, select = ticket.held, ticket.prompt, self.method.select
        context = [self.pages.cached(key) for key in held.keys]
        with self.pages.lock:
            if held.paged is not None:  # a second attempt
                self.pool.close(held.paged)
                held.paged = None
        if select is not None:
            with self._excluding_copies((len(prompt), len(prompt.question)), wait):
                (choice,) = chosen_over_pages(self.runner, self.method, [prompt], [context], wait=wait)
                assert choice.rows is not None
                held.rows = choice.rows
        with self.pages.lock:
            reserve = len(prompt.question) + ticket.max_new_tokens
            order = sorted(range(len(context)), key=lambda i: context[i].serial)  # the same order in all requests
            held.paged = self.pool.open(context, reserve, held.rows, self.method.positions, order=order)
            self.pages.mark_allocated(held.own)
            held.own = 0

    def _used(self, tickets: Sequence[Ticket]) -> Any:
        """Record a GPU event, after which these requests no longer use their pages."""
        event = torch.cuda.current_stream().record_event() if self.overlaps else None
        for ticket in tickets:
            ticket.held.used = event
        return event

    def _work_until(self, event: Any) -> None:
        """Do the scheduler's pending work until the GPU reaches the event."""
        while event is not None and not event.query() and self.meanwhile():
            pass

    def _take(self, ticket: Ticket, tokens: Sequence[int]) -> bool:
        """Add tokens to an answer; return whether it has ended."""
        for token in tokens:
            if token in self._eos:
                return True
            ticket.tokens.append(token)
            if self._stops(ticket.tokens):
                return True
        return len(ticket.tokens) >= ticket.max_new_tokens

    def _take_next(self, tickets: Sequence[Ticket], logits: Tensor) -> list[bool]:
        """Choose the next token of each request from its logits [V]; return whether each has ended."""
        if self.temperature:
            tokens = [self._choose(row, t.held.random) for t, row in zip(tickets, logits, strict=True)]
        else:
            likeliest = logits.argmax(-1)
            self._work_until(self._used(tickets))
            tokens = likeliest.tolist()
        return [self._take(ticket, [token]) for ticket, token in zip(tickets, tokens, strict=True)]

    def _own(self, ticket: Ticket) -> int:
        """Return the number of pages for the computed tokens of a request, including recomputed rows."""
        prompt, select, chosen = ticket.prompt, self.method.select, 0
        if select is not None:
            bounded = isinstance(select, QuestionGuided) and self.method.ratio is not None
            chosen = budget(prompt, self.method.ratio or 0.0, select.system) if bounded else prompt.starts[-1]
        return -(-(len(prompt.question) + ticket.max_new_tokens + chosen) // self.pool.size)

    @contextmanager
    def _excluding_copies(self, shape: Hashable, wait: Wait | None = None) -> Iterator[None]:
        """Block copies during the first step of a shape, which may be captured; steps with a `wait` are not."""
        new = self.runner.graphs and wait is None and not (shape in self._seen or self.runner.has_captured(shape))
        self._seen.add(shape)
        with self.pages.copies.lock if new else nullcontext():
            yield


def _all_of(waits: Sequence[Wait]) -> Wait | None:
    """Combine the waits of several requests; None if there are none."""

    def wait(layer: int) -> None:
        for each in waits:
            each(layer)

    return wait if waits else None

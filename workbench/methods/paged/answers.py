"""Answer prompts over the pages of one pool with CUDA graphs, in continuous batches of any lengths and methods.

Cached blocks are in pages shared by all prompts (`engine.pages.block_pages`). Requests wait until the pool has pages
for them, are prefilled together, and are decoded together a few tokens at a time; a request that ends makes room for
others. Prefills without a fixed shape (sparse attention, chunks, mask rules, thousands of rows) run on a contiguous
copy of the pages, and their rows are written back; decoding is captured for every request.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from math import isfinite
from time import perf_counter

import torch
from torch import Tensor
from transformers import PreTrainedModel

from workbench.core.errors import BadInput
from workbench.engine.forward import Wait
from workbench.engine.graphs.batch_buckets import LARGE, bend_of
from workbench.engine.graphs.cuda_graphs import Runner
from workbench.engine.pages.block_pages import BlockPages
from workbench.engine.pages.page_allocator import NoPages
from workbench.engine.pages.paged_prompt import PagedPrompt
from workbench.methods import ReadyRequest, finish
from workbench.methods.engines import PAGE, pages_of
from workbench.methods.modes.full import Full
from workbench.methods.modes.reuse import Reuse
from workbench.methods.paged.request import PageRequest, begin_blank, begin_copied, begin_reused, in_steps, pages_needed
from workbench.methods.request_report import WatchedStore, receipts_of, with_seconds

ROWS = 4096  # maximum number of prompt tokens, padding included, per captured step
UNCAPTURED = 256  # without capture, longer full prompts are computed on contiguous KV


def prefill(runner: Runner, blocks: BlockPages, group: Sequence[PageRequest]) -> None:
    """Prefill requests of one method and store, up to the logits after their prompts."""
    begin = perf_counter()
    watched = WatchedStore(group[0].store)
    method, prompts = group[0].method, [request.prompt for request in group]
    if type(method) is Reuse and method.in_place:
        begin_reused(runner, blocks, group, watched)
    elif method == Full() and max(map(len, prompts)) <= (LARGE if runner.graphs else UNCAPTURED):
        begin_blank(blocks, group)
    else:
        begin_copied(runner, blocks, group, method.begin(runner.model, prompts, watched))
    placed = perf_counter()
    _compute(runner, group)
    seconds = dict(watched.seconds) | {"prefill": perf_counter() - placed}
    seconds["place"] = placed - begin - sum(watched.seconds.values())
    ready = [request.ready for request in group if request.ready is not None]
    receipts = receipts_of(prompts, ready, watched.lookups, getattr(method, "positions", "re-encoded"))
    for request, receipt in zip(group, receipts, strict=True):
        request.receipt = with_seconds(receipt, seconds)


def _compute(runner: Runner, group: Sequence[PageRequest]) -> None:
    """Run the rest of the prefill: in captured steps, or in one pass over contiguous copies."""
    steps, copies = list[PageRequest](), list[PageRequest]()
    for request in group:
        if request.logits is None:
            ready = request.ready
            assert ready is not None
            request.rows = len(ready.request.plan.rows)
            if in_steps(ready):
                request.copy = None
                steps.append(request)
            else:
                copies.append(request)
    for part in _packs(steps):
        inputs = [_step_input(request) for request in part]
        logits = runner.prefill([paged for paged, _ in inputs], [ids for _, ids in inputs])
        for request, row in zip(part, logits, strict=True):
            request.logits = row
    if copies:
        _compute_copied(runner, copies)


def _compute_copied(runner: Runner, group: Sequence[PageRequest]) -> None:
    """Compute requests on copies of their pages, layer by layer as they are gathered; `_write_back` must follow."""
    ready, waits, pool = list[ReadyRequest](), list[Wait | None](), runner.pool
    for request in group:
        one = request.ready
        assert one is not None
        wait: Wait | None = None
        source = request.context, len(request.prompt) - sum(map(len, request.context)), request.positions
        if not request.context:
            request.copy = pool.spec.empty(len(request.prompt))
        elif request.copy is None and one.chunk:
            request.copy = pool.gather(*source)
        elif request.copy is None:
            request.copy, wait = pool.gathering(*source)
        ready.append(replace(one, request=replace(one.request, kv=request.copy)))
        waits.append(wait)
    for request, row in zip(group, finish(runner.model, ready, waits), strict=True):
        request.logits = row
        if request.table is not None and (request.keep or request.limit > 1):
            request.table()
        request.table = None


def _write_back(runner: Runner, request: PageRequest) -> None:
    """Write rows that were computed on a copy into the pages of a request, if they will be read."""
    if request.copy is not None and request.paged is not None and request.ready is not None:
        if request.keep or request.ended is None:
            runner.pool.write(request.paged, request.copy, len(request.ready.request.plan.rows))
        request.copy = None


def _step_input(request: PageRequest) -> tuple[PagedPrompt, Tensor]:
    assert request.paged is not None and request.ready is not None
    one = request.ready.request
    return request.paged, one.tokens[one.plan.rows]


def _packs(requests: Sequence[PageRequest]) -> Iterator[list[PageRequest]]:
    """Group requests of similar numbers of rows, up to ROWS tokens per group, padding included."""
    group: list[PageRequest] = []
    for request in sorted(requests, key=lambda one: len(_step_input(one)[1])):
        if group and (len(group) + 1) * len(_step_input(request)[1]) > ROWS:
            yield group
            group = []
        group.append(request)
    if group:
        yield group


MOST = 32  # default maximum number of requests decoded together
PROMPTS = 16384  # maximum prompt tokens that are prefilled together, or a quarter of the pool if that is more
QUANTUM = 8  # tokens decoded between admissions
FORCED = 1024  # maximum number of teacher-forced tokens per step, padding included


class PagedAnswers:
    """Answers requests over the pages of `model`; used by one thread at a time, within `pages_of(model).lock`.

    At most `most` requests are decoded together; others wait. Raises NoPages for a request that does not fit into an
    empty pool.
    """

    def __init__(self, model: PreTrainedModel, requests: Sequence[PageRequest], most: int = MOST):
        self.model, self.most = model, most
        self.waiting, self.running = deque(requests), list[PageRequest]()
        self.progress: Callable[[int, int], None] | None = None  # called with (ended, total) every few tokens
        self._held: list[PageRequest] = []  # ended requests with `keep`
        self._pages = pages_of(model)
        self.runner, self.blocks = self._pages.of(model, max((pages_needed(one, PAGE) for one in requests), default=1))
        self.pool = self.runner.pool

    def run(self) -> Generator[tuple[PageRequest, int], None, None]:
        """Answer all requests and stream (request, token id); pages are freed at the end, except those with `keep`."""
        total, ended = len(self.waiting), 0
        try:
            while self.waiting or self.running:
                yield from self._admit()
                yield from self._decode()
                now = total - len(self.waiting) - len(self.running)
                if self.progress and now > ended:
                    self.progress(now, total)
                ended = now
        except BaseException:
            for request in (*self.running, *self._held):
                self.release(request)
            raise

    def release(self, request: PageRequest) -> None:
        """Free the pages of a request."""
        if request.paged is not None:
            self.pool.close(request.paged)
            request.paged = None
        self.blocks.unpin(request.context)
        request.context = []

    def copy_out(self, request: PageRequest) -> ReadyRequest:
        """Return an ended request with its KV, which is copied out of its pages; the pages are freed."""
        ready = request.ready
        assert ready is not None
        if request.paged is None:
            return ready
        if request.rows:
            kv = self.pool.read_kv(request.context, request.paged, request.rows, request.positions)
        else:  # the whole prompt was copied into pages
            kv = self.pool.gather(request.context, 0, request.positions)
        request.ready = replace(ready, request=replace(ready.request, kv=kv))
        self.release(request)
        return request.ready

    def force(self, requests: Sequence[PageRequest], answers: Sequence[Sequence[int]]) -> list[Tensor] | None:
        """Run teacher-forced answers of ended requests, in few steps over their pages (`Answered.force`)."""
        prompts, inputs = list[PagedPrompt](), list[Tensor]()
        for request, ids in zip(requests, answers, strict=True):
            paged = request.paged
            if paged is None or len(paged.own) < request.rows + len(ids) - 1:
                return None
            if len(ids) > 1:
                paged.written = request.rows  # overwrites decoded tokens
                prompts.append(paged)
                inputs.append(torch.tensor(ids[:-1]))
        found = iter(list[Tensor]())
        batch = max(1, FORCED // max(map(len, inputs), default=1))
        for at in range(0, len(prompts), batch):
            found = chain(found, self.runner.prefill_each(prompts[at : at + batch], inputs[at : at + batch]))
        rows = [request.logits[None] for request in requests if request.logits is not None]
        return [next(found) if len(ids) > 1 else row[:0] for row, ids in zip(rows, answers, strict=True)]

    def _admit(self) -> Iterator[tuple[PageRequest, int]]:
        """Prefill as many waiting requests as fit, if they are enough to justify interrupting decoding."""
        free = self.most - len(self.running)
        if not self.waiting or (self.running and free < min(len(self.waiting), max(1, self.most // 4))):
            return
        group = self._group(free)
        if not group:
            if not self.running:
                request = self.waiting[0]
                raise NoPages(
                    pages_needed(request, self.pool.size),
                    self.blocks.available_pages,
                    f"a prompt of {len(request.prompt)} tokens",
                )
            return
        try:
            prefill(self.runner, self.blocks, group)
        except BaseException:
            for request in group:
                self.release(request)
            raise
        self.running += group
        for request, token in zip(group, self._chosen(group), strict=True):
            yield from self._take(request, [token], close=False)
        for request in group:
            _write_back(self.runner, request)
            self._end(request)

    def _group(self, free: int) -> list[PageRequest]:
        """Take requests off the queue that are prefilled together: of one method and store, with room for all."""
        group: list[PageRequest] = []
        pages = tokens = 0
        while self.waiting and len(group) < free:
            request = self.waiting[0]
            if group and (request.method, id(request.store)) != (group[0].method, id(group[0].store)):
                break
            pages += pages_needed(request, self.pool.size)
            tokens += len(request.prompt)
            if group and tokens > max(PROMPTS, self.pool.pages * self.pool.size // 4):
                break
            if not self._room(pages):
                break
            group.append(self.waiting.popleft())
        return group

    def _room(self, pages: int) -> bool:
        """Return whether there is room for `pages`; if necessary, kept requests are copied out to free theirs."""
        for request in list(self._held):
            if pages <= self.blocks.available_pages:
                break
            self._held.remove(request)
            self.copy_out(request)
        for other in list(self._pages.unread) if pages > self.blocks.available_pages else ():
            other.copy_out()
        return pages <= self.blocks.available_pages

    def _decode(self) -> Iterator[tuple[PageRequest, int]]:
        """Decode some tokens of all running requests."""
        alike: dict[tuple[object, bool], list[PageRequest]] = {}
        for request in self.running:
            bend = None if request.paged is None else bend_of(request.paged)
            alike.setdefault((bend, bool(request.choose.temperature)), []).append(request)
        for (_, drawn), group in alike.items():
            if not drawn:
                yield from self._decode_greedily(group)
            for _ in range(QUANTUM if drawn else 0):
                if live := [request for request in group if request.ended is None]:
                    yield from self._decode_drawn(live)

    def _decode_greedily(self, group: list[PageRequest]) -> Iterator[tuple[PageRequest, int]]:
        prompts = [request.paged for request in group if request.paged is not None]
        count = min(request.limit - len(request.tokens) for request in group)
        if self.waiting or len(group) < len(self.running):
            count = min(count, QUANTUM)
        counts = [len(request.tokens) for request in group]
        written = [prompt.written for prompt in prompts]
        last = torch.tensor([request.tokens[-1] for request in group], device=self.pool.device)
        steps = self.runner.decode(prompts, last, count + 1)
        next(steps)  # the first token is known
        for step in steps:
            for request, token in zip(group, step, strict=True):
                if request.ended is None and token is not None:
                    yield from self._take(request, [token], close=False)
            over = sum(request.ended is not None for request in group)
            if over == len(group) or (self.waiting and 2 * over >= len(group)):
                break
        for request, prompt, before, base in zip(group, prompts, counts, written, strict=True):
            prompt.written = base + len(request.tokens) - before  # the device has computed more
            self._end(request)

    def _decode_drawn(self, group: list[PageRequest]) -> Iterator[tuple[PageRequest, int]]:
        prompts = [request.paged for request in group if request.paged is not None]
        logits = self.runner.prefill(prompts, [torch.tensor(request.tokens[-1:]) for request in group])
        for request, row in zip(group, logits, strict=True):
            yield from self._take(request, [request.choose(row, request.random)])

    def _chosen(self, group: Sequence[PageRequest]) -> list[int]:
        """Choose the first token of each request from its logits."""
        rows = [request.logits for request in group if request.logits is not None]
        best = torch.stack(rows).float().max(-1)
        values, likeliest = torch.stack((best.values.double(), best.indices.double())).tolist()
        if not all(map(isfinite, values)):
            raise BadInput("logits of a request contain nan or infinity: its keys, values or weights are corrupt")
        tokens = [
            request.choose(row, request.random) if request.choose.temperature else int(token)
            for request, row, token in zip(group, rows, likeliest, strict=True)
        ]
        for request in group:
            request.first = perf_counter()
        return tokens

    def _take(
        self, request: PageRequest, tokens: Sequence[int], close: bool = True
    ) -> Iterator[tuple[PageRequest, int]]:
        for token in tokens:
            before = len(request.tokens)
            request.take(token)
            if len(request.tokens) > before:
                yield request, token
        if close:
            self._end(request)

    def _end(self, request: PageRequest) -> None:
        """Stop running a request that has ended, and free its pages unless it is kept."""
        if request.ended is None or request not in self.running:
            return
        self.running.remove(request)
        if request.keep:
            self._held.append(request)
        else:
            self.release(request)
            request.logits = None

"""The prefill of requests over pages: from their prompts to the logits behind them, by captured steps where it can."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from time import perf_counter

from torch import Tensor

from workbench.engine.graphs.batch_buckets import LARGE
from workbench.engine.graphs.cuda_graphs import Runner
from workbench.engine.pages.block_pages import BlockPages
from workbench.engine.pages.paged_prompt import PagedPrompt
from workbench.methods import finish
from workbench.methods.modes.full import Full
from workbench.methods.modes.reuse import Reuse
from workbench.methods.paged.begin import begin_blank, begin_copied, begin_reused, in_steps
from workbench.methods.paged.request import PageRequest
from workbench.methods.request_report import WatchedStore, receipts_of, timed

ROWS = 4096  # tokens of prompts, padding included, that one captured step computes
UNCAPTURED = 256  # rows above which a whole prompt is computed in place, where nothing is captured


def prefill(runner: Runner, blocks: BlockPages, group: Sequence[PageRequest]) -> None:
    """Bring requests of one method and store to the logits behind their prompts."""
    begin = perf_counter()
    watched = WatchedStore(group[0].store)
    method, prompts = group[0].method, [request.prompt for request in group]
    if type(method) is Reuse and method.plain:
        begin_reused(runner, blocks, group, watched)
    elif method == Full() and max(map(len, prompts)) <= (LARGE if runner.graphs else UNCAPTURED):
        begin_blank(blocks, group)
    else:
        begin_copied(runner, blocks, group, method.begin(runner.model, prompts, watched))
    begun = perf_counter()
    _compute(runner, group)
    seconds = dict(watched.seconds) | {"prefill": perf_counter() - begun}
    seconds["place"] = begun - begin - sum(watched.seconds.values())
    ready = [request.ready for request in group if request.ready is not None]
    receipts = receipts_of(prompts, ready, watched.lookups, getattr(method, "positions", "re-encoded"))
    for request, receipt in zip(group, receipts, strict=True):
        request.receipt = timed(receipt, seconds)


def _compute(runner: Runner, group: Sequence[PageRequest]) -> None:
    """Run what is left of the prefill: captured steps, or one pass over contiguous copies."""
    steps, copies = list[PageRequest](), list[PageRequest]()
    for request in group:
        if request.logits is None:
            ready = request.ready
            assert ready is not None
            request.rows = len(ready.request.plan.rows)
            (steps if in_steps(ready) else copies).append(request)
    for part in _packs(steps):
        asked = [_asked(request) for request in part]
        logits = runner.prefill([paged for paged, _ in asked], [ids for _, ids in asked])
        for request, row in zip(part, logits, strict=True):
            request.logits = row
    if copies:
        _compute_copied(runner, copies)


def _compute_copied(runner: Runner, group: Sequence[PageRequest]) -> None:
    ready, pool = [], runner.pool
    for request in group:
        paged, one = request.paged, request.ready
        assert paged is not None and one is not None
        kv = pool.read(request.context, paged, len(one.request.plan.rows), request.positions)
        ready.append(replace(one, request=replace(one.request, kv=kv)))
    for request, one, row in zip(group, ready, finish(runner.model, ready), strict=True):
        assert request.paged is not None
        pool.write(request.paged, one.request.kv, len(one.request.plan.rows))
        request.logits = row


def _asked(request: PageRequest) -> tuple[PagedPrompt, Tensor]:
    assert request.paged is not None and request.ready is not None
    one = request.ready.request
    return request.paged, one.tokens[one.plan.rows]


def _packs(requests: Sequence[PageRequest]) -> Iterator[list[PageRequest]]:
    """Group requests of about as many rows to at most ROWS tokens, padding included."""
    group: list[PageRequest] = []
    for request in sorted(requests, key=lambda one: len(_asked(one)[1])):
        if group and (len(group) + 1) * len(_asked(request)[1]) > ROWS:
            yield group
            group = []
        group.append(request)
    if group:
        yield group

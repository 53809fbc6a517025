"""Chunked prefill: the tokens of a plan are computed in chunks, each over the KV of the chunks before it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from transformers import PreTrainedModel

from workbench.core.errors import BadInput
from workbench.core.masks import causal, visible
from workbench.core.plan import Plan
from workbench.engine.forward import PrefillOutput, PrefillRequest, prefill_many
from workbench.engine.graphs.chunk_graph import ChunkGraph, replays

ELEMENTS = 1 << 24  # maximum number of (query, key) pairs whose mask is checked at once
MANY = 4  # from this many passes of equal size, capturing the computation between attentions pays off
REPLAYED = 6  # from this many chunks of a prompt, capturing whole chunks pays off


def prefill_chunked(
    model: PreTrainedModel, request: PrefillRequest, chunk: int, logits_to_keep: int = 0
) -> PrefillOutput:
    """Prefill in passes of `chunk` tokens; a sparse method selects tiles in each pass, for its query tokens.

    With dense attention the result is that of one pass. The tokens may be scattered among cached blocks. Raises
    BadInput for a chunk below 1 or below the method's tile, and for a mask rule under which a token attends to tokens
    of later chunks.
    """
    return prefill_chunked_many(model, [request], chunk, logits_to_keep)[0]


def prefill_chunked_many(
    model: PreTrainedModel, requests: Sequence[PrefillRequest], chunk: int, logits_to_keep: int = 0
) -> list[PrefillOutput]:
    """Prefill a batch chunk by chunk: the i-th chunks of all requests are packed into one forward pass."""
    for request in requests:
        check_chunk(request.plan, chunk)
    chunked = [ChunkedRequest(request, chunk, logits_to_keep) for request in requests]
    for _ in passes(model, chunked):
        pass
    return [one.output() for one in chunked]


def passes(model: PreTrainedModel, requests: Sequence["ChunkedRequest"]) -> Iterator[int]:
    """Prefill the i-th chunks of all requests in one pass and yield i + 1; on a GPU the pass may still be running.

    Chunks of a single request between its first and last are replayed as a CUDA graph where possible.
    """
    count = max((len(one.rows) for one in requests), default=0)
    together = [[one for one in requests if number < len(one.rows)] for number in range(count)]
    rows = [sum(len(one.rows[number]) for one in current) for number, current in enumerate(together)]
    graph = _graph_of(model, requests)
    for number, current in enumerate(together):
        if graph is not None and 0 < number < count - 1 and not current[0].logits_of(number):
            graph.compute(current[0].rows[number])
            current[0].backends |= graph.backends
            yield number + 1
            continue
        most = max(one.logits_of(number) for one in current)
        parts = [one.request(number, most) for one in current]
        outputs = prefill_many(model, parts, most or 1, repeated=graph is None and rows.count(rows[number]) >= MANY)
        for one, output in zip(current, outputs, strict=True):
            one.take(number, output)
        yield number + 1


def _graph_of(model: PreTrainedModel, requests: Sequence["ChunkedRequest"]) -> ChunkGraph | None:
    """Return the CUDA graph that replays the chunks of a request; None if they are few or cannot be replayed."""
    if len(requests) != 1 or len(requests[0].rows) < REPLAYED:
        return None
    return ChunkGraph(model, requests[0].whole) if replays(model, requests[0].whole, requests[0].chunk) else None


def check_chunk(plan: Plan, chunk: int) -> None:
    """Raise BadInput for a chunk below 1 or a tile, and for a mask rule under which tokens attend to later chunks."""
    if isinstance(chunk, bool) or not isinstance(chunk, int) or chunk < 1:
        raise BadInput(f"chunk is {chunk!r}: it is a number of rows, 1 or more")
    tile = getattr(plan.sparse, "size", 1)  # a plain function has no `size`
    if chunk < tile:
        raise BadInput(f"chunk {chunk} is smaller than a tile of the sparse method: choose {tile} or more")
    if plan.sees is not causal and (ahead := _sees_ahead(plan, chunk)):
        raise BadInput(f"row {ahead[0]} may see row {ahead[1]} of a later chunk: prefill in one pass")


def _sees_ahead(plan: Plan, chunk: int) -> tuple[int, int] | None:
    rows = plan.rows
    for at in range(0, len(rows), chunk):
        later = rows[at + chunk :]
        step = max(1, ELEMENTS // max(1, len(later)))
        for part in rows[at : at + chunk].split(step):
            if len(later) and len(pairs := visible(plan.sees, part, later).nonzero()):
                return int(part[pairs[0, 0]]), int(later[pairs[0, 1]])
    return None


@dataclass
class ChunkedRequest:
    """A request that is being prefilled chunk by chunk."""

    whole: PrefillRequest
    chunk: int
    keep: int  #: number of last tokens that get logits; 0: all

    def __post_init__(self) -> None:
        self.rows = self.whole.plan.rows.split(self.chunk)
        self.logits: list[Tensor] = []
        self.queries: dict[int, list[Tensor]] = {layer: [] for layer in self.whole.plan.return_queries}
        self.backends: dict[int, str] = {}  # of the last chunk

    def logits_of(self, number: int) -> int:
        """Return how many of the last tokens of a chunk get logits."""
        if self.whole.plan.num_layers is not None:
            return 0
        total, end = len(self.whole.plan.rows), min((number + 1) * self.chunk, len(self.whole.plan.rows))
        first = total - self.keep if self.keep else 0
        return max(0, min(end - first, len(self.rows[number])))

    def request(self, number: int, most: int) -> PrefillRequest:
        """Return the request of one chunk; with `most` 0 (no logits needed) it ends at the last layer's KV."""
        num_layers = self.whole.plan.num_layers or (None if most else len(self.whole.kv.keys))
        return replace(self.whole, plan=replace(self.whole.plan, rows=self.rows[number], num_layers=num_layers))

    def take(self, number: int, output: PrefillOutput) -> None:
        if (count := self.logits_of(number)) and output.logits is not None:
            self.logits.append(output.logits[-count:])
        self.backends |= output.backends
        for layer, queries in output.queries.items():
            self.queries[layer].append(queries)

    def output(self) -> PrefillOutput:
        logits = torch.cat(self.logits) if self.logits else None
        return PrefillOutput(
            logits, {layer: torch.cat(parts, 1) for layer, parts in self.queries.items()}, self.backends
        )

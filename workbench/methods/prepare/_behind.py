"""Passages computed behind others that are cached: over pages, or over a copy for each."""

from collections.abc import Sequence
from contextlib import ExitStack

from transformers import PreTrainedModel

from workbench.core.plan import Plan
from workbench.engine.assembly import assemble
from workbench.engine.forward import PrefillRequest, prefill_many
from workbench.engine.pages.behind_context import encode_behind
from workbench.methods.engines import PAGE, pages_of
from workbench.methods.prepare import KV, Prompt


def over_pages(model: PreTrainedModel, chunks: Sequence[Prompt], cached: Sequence[Sequence[KV]]) -> list[KV]:
    """Compute the KV of the last block of every chunk over cached blocks in pages, where several chunks read them."""
    with pages_of(model).use(model), ExitStack() as stack:
        own = sum(-(-len(chunk.question) // PAGE) for chunk in chunks)
        theirs = {id(kv): -(-len(kv) // PAGE) for kvs in cached for kv in kvs}
        _, blocks = pages_of(model).of(model, own + sum(theirs.values()))
        here = []
        for kvs in cached:
            here.append(blocks.place(kvs))
            stack.callback(blocks.unpin, here[-1])
        blocks.make_room(own)
        return encode_behind(model, blocks.pool, here, [chunk.blocks[-1] for chunk in chunks])


def assembled(model: PreTrainedModel, chunks: Sequence[Prompt], cached: Sequence[Sequence[KV]]) -> list[KV]:
    """Compute the same over a copy of the cached blocks for each chunk."""
    kvs = [assemble(model, chunk, blocks) for chunk, blocks in zip(chunks, cached, strict=True)]
    plans = [Plan(chunk.question, num_layers=len(kv.keys)) for chunk, kv in zip(chunks, kvs, strict=True)]
    requests = [PrefillRequest(c.tokens, plan, kv) for c, plan, kv in zip(chunks, plans, kvs, strict=True)]
    prefill_many(model, requests)
    return [request.kv.slice(int(request.plan.rows[0]), len(request.kv)) for request in requests]

"""Compute passages after cached blocks: over shared pages, or over a copy for each passage."""

from collections.abc import Sequence
from contextlib import ExitStack

from transformers import PreTrainedModel

from workbench.core.plan import Plan
from workbench.engine.assembly import assemble
from workbench.engine.attention_backends.choice import on_gpu
from workbench.engine.encoding import packs
from workbench.engine.forward import PrefillRequest, prefill_many
from workbench.engine.pages.behind_context import encode_behind
from workbench.engine.pages.page_allocator import NoPages
from workbench.methods.engines import PAGE, pages_of, why_not_pages
from workbench.methods.prepare import KV, Prompt, contexts, preceding_blocks, split_by_prompt
from workbench.store import Store, fetch

TOKENS = 32768  # maximum per pass, neighbours included; twice as many over pages, where each block is stored once


def pages_serve(model: PreTrainedModel) -> bool:
    """Return whether passages are computed over pages: on a GPU, for models supported by the kernels."""
    return on_gpu(model.device) and not why_not_pages(model)


def behind_system(model: PreTrainedModel, chunks: Sequence[Prompt], store: Store, system: int) -> list[KV]:
    """Compute the KV of the last block of every chunk over the `after_system` KV of the blocks before it."""
    computed: list[KV] = []
    for group in packs([len(chunk) for chunk in chunks], TOKENS * (2 if pages_serve(model) else 1)):
        part = [chunks[i] for i in group]
        cached = split_by_prompt(part, fetch(model, contexts(part), store, preceding_blocks(part, system)))
        computed += computed_behind(model, part, cached)
    return computed


def computed_behind(model: PreTrainedModel, chunks: Sequence[Prompt], cached: Sequence[Sequence[KV]]) -> list[KV]:
    """Compute the KV of the last block of every chunk over the cached blocks before it.

    If running requests leave too few pages, fewer chunks are computed at a time; a single chunk falls back to a copy.
    """
    if not pages_serve(model):
        return assembled(model, chunks, cached)
    try:
        return over_pages(model, chunks, cached)
    except NoPages:
        half = len(chunks) // 2
        if not half:
            return assembled(model, chunks, cached)
    parts = slice(half), slice(half, None)
    return [kv for part in parts for kv in computed_behind(model, chunks[part], cached[part])]


def over_pages(model: PreTrainedModel, chunks: Sequence[Prompt], cached: Sequence[Sequence[KV]]) -> list[KV]:
    """Compute chunks over cached blocks in the pages of the model's pool, which several chunks can share.

    Raises NoPages if the pool has no room for all chunks, before any work.
    """
    with pages_of(model).use(model), ExitStack() as stack:
        own = sum(-(-len(chunk.question) // PAGE) for chunk in chunks)
        shared = {id(kv): -(-len(kv) // PAGE) for kvs in cached for kv in kvs}
        _, blocks = pages_of(model).of(model, 0)  # not enlarged: requests may be running
        if (needed := own + sum(shared.values())) > blocks.available_pages:
            raise NoPages(needed, blocks.available_pages, f"preparing {len(chunks)} passages")
        paged = []
        for kvs in cached:
            paged.append(blocks.place(kvs))
            stack.callback(blocks.unpin, paged[-1])
        blocks.make_room(own)
        return encode_behind(model, blocks.pool, paged, [chunk.blocks[-1] for chunk in chunks])


def assembled(model: PreTrainedModel, chunks: Sequence[Prompt], cached: Sequence[Sequence[KV]]) -> list[KV]:
    """Compute chunks over a separate copy of the cached blocks for each."""
    kvs = [assemble(model, chunk, blocks) for chunk, blocks in zip(chunks, cached, strict=True)]
    plans = [Plan(chunk.question, num_layers=len(kv.keys)) for chunk, kv in zip(chunks, kvs, strict=True)]
    requests = [PrefillRequest(c.tokens, plan, kv) for c, plan, kv in zip(chunks, plans, kvs, strict=True)]
    prefill_many(model, requests)
    return [request.kv.slice(int(request.plan.rows[0]), len(request.kv)) for request in requests]

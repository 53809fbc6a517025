"""Chunked prefill is prefill: any chunk, any rows, with and without cached blocks and sparse methods."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.random_models import model_of, prompt_of
from tests.refusals import refused
from workbench.core.errors import BadInput
from workbench.core.masks import block_attention, same_block
from workbench.core.plan import Plan, Site
from workbench.engine import chunked
from workbench.engine.assembly import assemble, empty
from workbench.engine.chunked import prefill_chunked, prefill_chunked_many
from workbench.engine.encoding import encode_many
from workbench.engine.forward import PrefillRequest, prefill, prefill_many
from workbench.engine.graphs.chunk_graph import ChunkGraph
from workbench.methods import sparse

MODEL = model_of("llama")
PROMPT = prompt_of(9, 40, 33, 25, 12)
LENGTH = len(PROMPT)
ALL = torch.arange(LENGTH)
CLOSE = {"atol": 1e-5, "rtol": 1e-4}
CACHED = encode_many(MODEL, PROMPT.context)


def same(step, kv, one, other):
    torch.testing.assert_close(step.logits, one.logits, **CLOSE)
    torch.testing.assert_close([*kv.tensors()], [*other.tensors()], **CLOSE)


@pytest.mark.parametrize("chunk", [1, 7, 32, LENGTH - 1, LENGTH, 1000])
@pytest.mark.parametrize("tiles", [None, "dense(block=1)", "bfla(block=1, tile=1, flat=1, mass=1)"])
def test_a_whole_prompt_in_chunks(chunk, tiles):
    kv, other = empty(MODEL, LENGTH), empty(MODEL, LENGTH)
    one = prefill(MODEL, PROMPT.tokens, Plan(ALL), other)
    step = prefill_chunked(
        MODEL, PrefillRequest(PROMPT.tokens, Plan(ALL, sparse=tiles and sparse.from_spec(tiles)), kv), chunk
    )
    same(step, kv, one, other)


@settings(max_examples=25)
@given(data=st.data())
def test_scattered_rows_over_cached_blocks_in_chunks(data):
    """Recomputed tokens and the question, as with reuse: rows see the cache as one pass leaves it."""
    context = PROMPT.starts[-1]
    some = data.draw(st.sets(st.integers(0, context - 1), max_size=30))
    rows = torch.cat((torch.tensor(sorted(some), dtype=torch.long), PROMPT.question))
    kv = assemble(MODEL, PROMPT, CACHED)
    other = kv.clone()
    one = prefill(MODEL, PROMPT.tokens, Plan(rows), other)
    step = prefill_chunked(MODEL, PrefillRequest(PROMPT.tokens, Plan(rows), kv), data.draw(st.integers(1, 40)))
    same(step, kv, one, other)


@pytest.mark.parametrize("name", ["llama", "gemma3", "mistral-window"])
def test_the_rule_of_a_plan_holds_across_chunks(name):
    model = model_of(name)
    plan = Plan(ALL, sees=block_attention(PROMPT))
    kv, other = empty(model, LENGTH), empty(model, LENGTH)
    one = prefill(model, PROMPT.tokens, plan, other)
    same(prefill_chunked(model, PrefillRequest(PROMPT.tokens, plan, kv), 19), kv, one, other)


def test_every_chunk_asks_the_sparse_method_with_its_own_rows():
    asked = []

    def notes(queries, keys, rows, site):
        asked.append((rows.tolist(), keys.shape[1], site))
        return sparse.from_spec("dense(block=4)")(queries, keys, rows, site)

    rows = torch.tensor([2, 3, 30, 31, 32, 110])
    kv = assemble(MODEL, PROMPT, CACHED)
    prefill_chunked(MODEL, PrefillRequest(PROMPT.tokens, Plan(rows, sparse=notes), kv), 4)
    expected = [([2, 3, 30, 31], 32, Site(layer, LENGTH)) for layer in range(3)]
    assert asked == expected + [([32, 110], 111, Site(layer, LENGTH)) for layer in range(3)]


@pytest.mark.parametrize("spec", ["xattention(block=8, stride=4, threshold=0.5)", "flash_prefill(block=8, alpha=0.5)"])
def test_a_method_that_decides_by_query_block_gives_one_result_for_all_aligned_chunks(spec):
    """Choices of a query block depend on its own rows: aligned chunks compute what one pass computes."""
    plan = Plan(ALL, sparse=sparse.from_spec(spec))
    kv, other = empty(MODEL, LENGTH), empty(MODEL, LENGTH)
    one = prefill(MODEL, PROMPT.tokens, plan, other)
    same(prefill_chunked(MODEL, PrefillRequest(PROMPT.tokens, plan, kv), 24), kv, one, other)


REPLAYED = (
    "flash_prefill(block=8, alpha=0.5, tail=1)",
    "xattention(block=8, stride=4, threshold=0.5)",
    "bfla(block=16, tile=8, flat=8, mass=0.6)",
    "window(block=8)",
    "dense(block=8)",
    "strided(block=8)",
    "random(block=8)",
    "compact(over=flash_prefill(block=8, alpha=0.9))",
)


@pytest.mark.parametrize("spec", REPLAYED)
def test_chunks_over_the_whole_cache_are_those_over_what_is_written(spec):
    """What stands behind a chunk is not a number, and changes nothing. (A GPU replays such a pass.)"""
    plan = Plan(ALL, sparse=sparse.from_spec(spec))
    kv, other = empty(MODEL, LENGTH), empty(MODEL, LENGTH)
    for x in kv.tensors():
        x.fill_(torch.nan)
    one = prefill_chunked(MODEL, PrefillRequest(PROMPT.tokens, plan, other), 16, 1)
    request = PrefillRequest(PROMPT.tokens, plan, kv)
    graph, (first, *between, last) = ChunkGraph(MODEL, request), ALL.split(16)
    prefill_many(MODEL, [replace(request, plan=replace(plan, rows=first))], 1)
    for rows in between:
        graph.compute(rows)
    step = prefill_many(MODEL, [replace(request, plan=replace(plan, rows=last))], 1)[0]
    same(step, kv, one, other)


def test_compact_attention_by_chunks_is_its_page_table():
    """Chunk by chunk, a reader of the pages computes what the reference path computes under the union."""
    choice = sparse.from_spec("compact(over=oracle(block=8, mass=0.4))")
    tables = []

    def paged(q, k, v, rows, sees, tiles, scale):
        indptr, indices = tiles.pages(2)
        tables.append((indptr, indices, k.shape[1]))
        out = torch.empty_like(q)
        for group in range(2):
            cols = torch.cat(
                [torch.arange(j * 8, min(j * 8 + 8, k.shape[1])) for j in indices[indptr[group] : indptr[group + 1]]]
            )
            logits = q[2 * group : 2 * group + 2] @ k[group, cols].T * scale
            out[2 * group : 2 * group + 2] = (
                logits.masked_fill(cols > rows[:, None], -torch.inf).softmax(-1) @ v[group, cols]
            )
        return out

    def kv():
        return empty(MODEL, LENGTH)

    masked = prefill_chunked(MODEL, PrefillRequest(PROMPT.tokens, Plan(ALL, sparse=choice), kv()), 16)
    read = prefill_chunked(MODEL, PrefillRequest(PROMPT.tokens, Plan(ALL, sparse=choice, backend=paged), kv()), 16)
    torch.testing.assert_close(read.logits, masked.logits, **CLOSE)
    assert min(len(indices) / (2 * -(-length // 8)) for _, indices, length in tables) < 0.9, "pages are left out"


def test_a_batch_goes_chunk_by_chunk_together():
    prompts = [PROMPT, prompt_of(5, 6), prompt_of(30, 20)]
    plans = [
        Plan(ALL, return_queries=(1,)),
        Plan(torch.arange(11), num_layers=2),
        Plan(torch.arange(50), sparse=sparse.from_spec("dense(block=8)")),
    ]
    requests = [PrefillRequest(p.tokens, plan, empty(MODEL, len(p))) for p, plan in zip(prompts, plans, strict=True)]
    alone = prefill_many(MODEL, [PrefillRequest(w.tokens, w.plan, w.kv.clone()) for w in requests])
    steps = prefill_chunked_many(MODEL, requests, 16)
    assert steps[1].logits is None
    for step, one in zip((steps[0], steps[2]), (alone[0], alone[2]), strict=True):
        torch.testing.assert_close(step.logits, one.logits, **CLOSE)
    torch.testing.assert_close(steps[0].queries[1], alone[0].queries[1], **CLOSE)


@pytest.mark.parametrize("keep", [0, 1, 5, 20, 500])
def test_logits_of_the_last_rows(keep):
    one = prefill(MODEL, PROMPT.tokens, Plan(ALL), empty(MODEL, LENGTH), keep)
    step = prefill_chunked(
        MODEL, PrefillRequest(PROMPT.tokens, Plan(ALL, return_queries=(0, 2)), empty(MODEL, LENGTH)), 16, keep
    )
    torch.testing.assert_close(step.logits, one.logits, **CLOSE)
    assert step.queries[2].shape == (4, LENGTH, 16)


def test_chunks_that_do_not_fit():
    def request(**plan):
        return PrefillRequest(PROMPT.tokens, Plan(ALL, **plan), empty(MODEL, LENGTH))

    for chunk in (0, -3, 2.5, True):
        refused("it is a number of rows, 1 or more", prefill_chunked, MODEL, request(), chunk)
    with pytest.raises(BadInput, match="chunk 63 is smaller than a tile of the sparse method: choose 64 or more"):
        prefill_chunked(MODEL, request(sparse=sparse.from_spec("bfla")), 63)
    asked = request(sees=same_block(PROMPT))
    refused("row 9 may see row 30 of a later chunk: prefill in one pass", prefill_chunked, MODEL, asked, 30)
    assert not asked.kv.keys[0].any(), "before any work"
    prefill_chunked(MODEL, asked, LENGTH)


def test_rules_are_checked_in_parts(monkeypatch):
    monkeypatch.setattr(chunked, "ELEMENTS", 1)
    refused("row 9 may see row 30", lambda: chunked.check_chunk(Plan(ALL, sees=same_block(PROMPT)), 30))
    chunked.check_chunk(Plan(ALL, sees=block_attention(PROMPT)), 30)


def test_reuse_recomputed_rows_sparse_tiles_and_chunks_at_once():
    """Each chunk of scattered rows attends exactly to the keys of its own choice, over cached and fresh keys alike."""
    choice = sparse.from_spec("bfla(block=8, tile=4, flat=2, mass=0.5, local=1, stride=5)")

    def slow(q, k, v, rows, sees, tiles, scale):
        mask = (torch.arange(k.shape[1]) <= rows[:, None]) & tiles.visible(len(rows), k.shape[1])
        k, v = (x.repeat_interleave(2, 0) for x in (k, v))
        return (q @ k.mT * scale).masked_fill(~mask, -torch.inf).softmax(-1) @ v

    rows = torch.cat((torch.arange(12, 31, 3), torch.arange(70, 80), PROMPT.question))
    kv, other = assemble(MODEL, PROMPT, CACHED), assemble(MODEL, PROMPT, CACHED)
    step = prefill_chunked(MODEL, PrefillRequest(PROMPT.tokens, Plan(rows, sparse=choice), kv), 8)
    plan = Plan(rows, sparse=choice, backend=slow)
    same(step, kv, prefill_chunked(MODEL, PrefillRequest(PROMPT.tokens, plan, other), 8), other)
    dense = prefill(MODEL, PROMPT.tokens, Plan(rows), assemble(MODEL, PROMPT, CACHED)).logits
    assert (step.logits - dense).abs().max() > 1e-3

"""Prompts over shared pages compute what assembled prompts compute: questions, recomputed tokens, answers."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from tests.random_models import FAMILIES, block_of, model_of
from tests.refusals import refused
from workbench.core.blocks import Prompt
from workbench.core.plan import Plan
from workbench.engine.assembly import assemble
from workbench.engine.decoding import decode
from workbench.engine.encoding import encode_many
from workbench.engine.forward import prefill
from workbench.engine.graphs.batch_buckets import Bucket, _octave
from workbench.engine.graphs.cuda_graphs import Runner
from workbench.engine.pages import paged_pool as pools
from workbench.engine.pages.page_tables import PageTable, context_of, joined_pages, table_of
from workbench.engine.pages.paged_pool import Pool

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
MODEL = model_of(num_hidden_layers=2).to(DEVICE)
BLOCKS = [block_of(n, seed=n) for n in (19, 7, 33, 16)]
OWN, PLACES = np.arange(70, 72, dtype=np.int32), np.arange(20, dtype=np.int32)  # of a prompt's own pages
CLOSE = dict.fromkeys(("atol", "rtol"), 1e-4 if DEVICE == "cpu" else 1e-3)


def expected(prompt, recompute=(), positions="re-encoded"):
    """Logits of the last row, and the KV, by an assembled copy."""
    kv = assemble(MODEL, prompt, encode_many(MODEL, prompt.context), positions, reserve=16)
    rows = torch.cat((torch.tensor(sorted(recompute), dtype=torch.long), prompt.question))
    return prefill(MODEL, prompt.tokens, Plan(rows), kv, logits_to_keep=1).logits[-1], kv


def opened(pool, cached, prompt, reserve=16, recompute=()):
    which = [BLOCKS.index(block) for block in prompt.context]
    question = len(prompt.question)
    return pool.open([cached[i] for i in which], question + reserve, torch.tensor(sorted(recompute), dtype=torch.long))


def asked(prompt, recompute=()):
    return prompt.tokens[torch.cat((torch.tensor(sorted(recompute), dtype=torch.long), prompt.question))]


def made(*which, question=5, seed=50):
    return Prompt((*(BLOCKS[i] for i in which), block_of(question, seed)))


@pytest.fixture(scope="module", params=[False, True], ids=["reference", "kernels"])
def filled(request):
    if request.param:
        pytest.importorskip("triton", reason="Triton is not available on this platform")
    pool = Pool(MODEL, 60, 16, kernels=request.param)
    return pool, pool.encode(MODEL, BLOCKS)


def test_packed_blocks_are_those_encoded_one_by_one(filled):
    pool, cached = filled
    for found, kv in zip(cached, encode_many(MODEL, BLOCKS), strict=True):
        slots = pool.slots(found).to(DEVICE)
        for mine, theirs in zip((*pool.keys, *pool.values), kv.tensors(), strict=True):
            torch.testing.assert_close(mine[:, slots], theirs, **CLOSE)


def test_requests_over_shared_pages_are_those_over_their_own_copies(filled):
    """Three prompts in one step: blocks shared, in other places, read twice; questions of different lengths."""
    pool, cached = filled
    prompts = [made(0, 1, 2), made(2, 0, question=9, seed=51), made(3, 3, question=1, seed=52)]
    before = [x.clone() for x in pool.keys]
    held = [opened(pool, cached, prompt) for prompt in prompts]
    got = Runner(MODEL, pool).prefill(held, [asked(prompt) for prompt in prompts])
    for one, prompt in zip(got, prompts, strict=True):
        torch.testing.assert_close(one, expected(prompt)[0], **CLOSE)
    slots = pool.slots(*cached).to(DEVICE)
    for old, new in zip(before, pool.keys, strict=True):
        assert torch.equal(old[:, slots], new[:, slots]), "cached pages are never written"
    for one in held:
        pool.close(one)


@settings(max_examples=4)
@given(recompute=st.sets(st.integers(0, 58), min_size=1, max_size=30))
def test_tokens_computed_again_hide_their_cached_entries(recompute):
    pool = Pool(MODEL, 30, 16)
    cached, prompt = pool.encode(MODEL, BLOCKS), made(0, 1, 2)
    held = opened(pool, cached, prompt, recompute=recompute)
    got = Runner(MODEL, pool).prefill([held], [asked(prompt, recompute)])[0]
    torch.testing.assert_close(got, expected(prompt, recompute)[0], **CLOSE)


def test_answers_over_shared_pages_are_those_of_decode(filled):
    pool, cached = filled
    prompts = [made(0, 1, 2), made(0, 1, 2, question=3, seed=53), made(3, 1, seed=54)]
    held = [opened(pool, cached, prompt) for prompt in prompts]
    runner = Runner(MODEL, pool)
    logits = runner.prefill(held, [asked(prompt) for prompt in prompts])
    count = 3 if pool.kernels and DEVICE == "cpu" else 12  # the interpreter is slow
    got = list(runner.decode(held, logits, count))
    starts = [expected(prompt) for prompt in prompts]
    theirs = list(decode(MODEL, [kv for _, kv in starts], [row for row, _ in starts], count))
    assert got[: len(theirs)] == theirs
    for one in held:
        pool.close(one)


def test_a_context_that_all_requests_share_is_read_once_for_all():
    """Eight pages in common; one request has another block behind them. Kernels on a GPU read pages of 16."""
    pytest.importorskip("triton", reason="Triton is not available on this platform")
    for kernels in (False, True):
        longer = 4 if kernels and DEVICE == "cuda" else 1
        blocks = [block_of(longer * n, seed=n) for n in (19, 7, 33)]
        pool = Pool(MODEL, 80, 4 * longer, kernels=kernels)
        cached = pool.encode(MODEL, blocks)
        asks = [((2, 1, 0), 2, 9), ((2, 1), 3, 10), ((2, 1, 0), 5, 11)]
        prompts = [Prompt((*(blocks[i] for i in which), block_of(n, seed))) for which, n, seed in asks]
        held = [pool.open([cached[i] for i in which], n + 16) for which, n, _ in asks]
        runner = Runner(MODEL, pool)
        logits = runner.prefill(held, [asked(prompt) for prompt in prompts])
        count = 3 if kernels else 9  # the interpreter is slow
        got = list(runner.decode(held, logits, count))
        starts = [expected(prompt) for prompt in prompts]
        theirs = decode(MODEL, [kv for _, kv in starts], [row for row, _ in starts], count)
        assert got == list(theirs)
        ran = [captured.batch.backend for captured in runner.captured.values()]
        assert ran == ["question_attention", "shared_attention"]


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a CUDA device: the interpreter multiplies tiles of any size")
def test_pages_that_tensor_cores_cannot_multiply_are_read_without_kernels():
    assert not Pool(MODEL, 8, 4).kernels and Pool(MODEL, 8, 16).kernels
    refused("pages of 4 tokens: kernels on a GPU need 16", Pool, MODEL, 8, 4, kernels=True)


def test_an_answer_ends_at_its_end_token_and_goes_on_after_a_pause():
    pool = Pool(MODEL, 40, 16)
    cached, prompt = pool.encode(MODEL, BLOCKS), made(1, 3)
    runner, held = Runner(MODEL, pool), opened(pool, cached, prompt)
    whole = [step[0] for step in runner.decode([held], runner.prefill([held], [asked(prompt)]), 10)]
    recompute = opened(pool, cached, prompt)
    logits = runner.prefill([recompute], [asked(prompt)])
    first = whole.index(whole[4])
    assert list(runner.decode([recompute], logits, 10, frozenset(whole[4:5]))) == [[token] for token in whole[:first]]
    third = opened(pool, cached, prompt)
    logits = runner.prefill([third], [asked(prompt)])
    half = [step[0] for step in runner.decode([third], logits, 4)]
    logits = runner.prefill([third], [torch.tensor(half[-1:])])  # its KV is not written yet
    assert half + [step[0] for step in runner.decode([third], logits, 6)] == whole


def test_steps_of_one_bucket_are_captured_once_and_leave_nothing_behind(filled):
    pool, cached = filled
    runner, prompts = Runner(MODEL, pool), [made(0, 1, 2), made(1, 3, question=7), made(0, 1, 2)]
    results = []
    for prompt in prompts:
        held = opened(pool, cached, prompt)
        results.append(runner.prefill([held], [asked(prompt)])[0])
        pool.close(held)
    assert len(runner.captured) == 1
    assert torch.equal(results[0], results[2]) and not torch.allclose(results[0], results[1])


@pytest.mark.parametrize("name", ["llama3", "glm4", "phi3", "qwen3"])
def test_families_turn_their_keys_in_their_own_way(name):
    assert name in FAMILIES
    model, prompt = model_of(name).to(DEVICE), made(2, 1, 0)
    pool = Pool(model, 30, 16)
    held = pool.open(pool.encode(model, prompt.context), 5)
    kv = assemble(model, prompt, encode_many(model, prompt.context))
    theirs = prefill(model, prompt.tokens, Plan(prompt.question), kv, logits_to_keep=1).logits[-1]
    got = Runner(model, pool).prefill([held], [asked(prompt)])[0]
    torch.testing.assert_close(got, theirs, **CLOSE)


def test_a_context_is_gathered_as_it_is_assembled(filled):
    pool, cached = filled
    prompt = made(2, 0, 1)
    kv = pool.gather([cached[2], cached[0], cached[1]], len(prompt.question))
    theirs = assemble(MODEL, prompt, encode_many(MODEL, prompt.context))
    torch.testing.assert_close([*kv.tensors()], [*theirs.tensors()], **CLOSE)


def test_a_run_of_tokens_is_put_into_a_pool():
    pool, (kv,) = Pool(MODEL, 9, 16), encode_many(MODEL, [BLOCKS[2]], [[BLOCKS[1]]])
    found = pool.write_kv(kv)
    assert (len(found), found.start) == (33, 7)
    assert torch.equal(pool.keys[1][:, pool.slots(found).to(DEVICE)], kv.keys[1])


@pytest.mark.parametrize(
    "call",
    [
        lambda: Pool(MODEL, 1),
        lambda: Pool(MODEL, 9, 48),
        lambda: Pool(model_of("mistral-window").to(DEVICE), 9),
        lambda: Pool(MODEL, 9, 16).encode(MODEL, BLOCKS * 4),
        lambda: Pool(MODEL, 9, 16).open([], 5),
        lambda: Pool(MODEL, 9, 16).gather([], 5),
    ],
)
def test_what_does_not_fit_is_refused(call):
    refused(".", call)


def test_more_tokens_than_room_are_refused(filled):
    pool, cached = filled
    runner, held = Runner(MODEL, pool), pool.open(cached[:1], 3)
    refused("room for 3", runner.prefill, [held], [torch.arange(4)])
    logits = runner.prefill([held], [torch.arange(3)])
    refused(".", runner.decode, [held], logits, 2)
    pool.close(held)


@given(st.integers(1, 5000))
def test_pages_are_rounded_up_by_an_eighth_at_most(count):
    assert count <= _octave(count) <= max(8, count * 9 / 8 + 1)


def test_a_bucket_holds_what_it_is_made_for(filled):
    pool, cached = filled
    held = [pool.open(cached[:2], 9), pool.open(cached[2:], 3)]
    bucket = Bucket.of(held, 17)
    assert (bucket.batch, bucket.rows, bucket.shifted, bucket.reserve) == (2, 24, True, 0)
    assert Bucket.of(held, 1, reserve=70).reserve == 128 and Bucket.of(held, 1, reserve=70).rows == 1
    assert Bucket.of(held, 3000).rows == 3000 and Bucket.of(held, 3000).is_large
    for one in held:
        pool.close(one)


def test_pages_in_order_are_made_as_the_kernels_make_them():
    """The page table of a prompt without recomputed tokens is put together without sorting."""
    pool = Pool(MODEL, 40, 16)
    cached = [pools.Cached(torch.tensor(pool.take(n)), n) for n in (19, 16, 33, 5)]
    for which in ([0, 1, 2], [1, 1], [3, 0], [2]):
        pages = pool.open([cached[i] for i in which], 7).pages
        same = type(pages).of(pages.table, pages.positions, pages.shifts, pages.partial_pages)
        for field in ("table", "positions", "first", "last"):
            assert torch.equal(getattr(pages, field), getattr(same, field)), (which, field)


def _table(cached, begin, **how) -> PageTable:
    return table_of(context_of(joined_pages(cached, 16), 16, **how), OWN, PLACES + begin, 16)


def test_the_table_of_a_context_is_kept_until_pages_are_given_back():
    """Prompts over the same blocks share what is worked out of them; blocks that are gone are refused none the less."""
    pool = Pool(MODEL, 40, 16)
    one, two, three = (pool.cached(n) for n in (19, 16, 33))
    first, again = (pool.open([one, two], 7) for _ in range(2))
    other = pool.open([two, one], 7)
    count = len(first.table) - len(first.owned)
    for name in ("numbers", "first", "slots", "shifts", "page_max", "last"):
        assert (getattr(first.table, name)[:count] == getattr(again.table, name)[:count]).all(), name
    assert (other.table.numbers[:count] != first.table.numbers[:count]).any()
    assert pool.open([one, two], 7, positions="naive").table.shifts is None
    pool.free_pages(three)
    assert pool.open([one, two], 7).table.first.tolist() == first.table.first.tolist()
    pool.free_pages(two)
    refused("given back", pool.open, [one, two], 7)


def test_no_more_than_some_tables_of_contexts_are_kept():
    pool = Pool(MODEL, 400, 16)
    blocks = [pool.cached(16) for _ in range(20)]
    for block in blocks:
        pool.close(pool.open([block], 1))
    assert len(pool._contexts) == pools.CONTEXTS < len(blocks)


def test_blocks_of_odd_pages_are_followed_by_an_empty_one_where_pages_are_rerotated_in_pairs():
    """Every second page begins a step, whose keys are rerotated alike; what rows see is the same."""
    pool = Pool(MODEL, 80, 16)
    pool.run = 2
    cached = [pools.Cached(torch.tensor(pool.take(n)), n) for n in (33, *[128] * 5, 16)]
    plain, paired = (_table(cached, 689, run=run) for run in (1, 2))
    assert (plain.run, paired.run, len(paired)) == (1, 2, len(plain) + 2)
    pairs = paired.shifts[: len(paired) // 2 * 2].reshape(-1, 2)
    assert (pairs[:, 0] == pairs[:, 1]).all() and (np.diff(paired.first) >= 0).all()
    for name in ("numbers", "first", "slots", "shifts"):
        assert (getattr(paired, name)[paired.slots > 0] == getattr(plain, name)).all(), name
    assert _table([cached[0], cached[-1]], 49, run=2).run == 1, "too many would be empty"
    assert _table(cached, 689, positions="naive", run=2).shifts is None


def test_pages_in_pairs_compute_what_single_pages_do():
    pool, answers = Pool(MODEL, 80, 16), []
    cached = pool.encode(MODEL, [block_of(n, seed=n) for n in (33, *[128] * 5, 16)])
    for run in (1, 2):
        pool.run = run
        held = pool.open(cached, 5)
        assert held.table.run == run
        answers.append(Runner(MODEL, pool).prefill([held], [torch.arange(5)]))
    torch.testing.assert_close(answers[0], answers[1])


@settings(max_examples=6)
@given(order=st.permutations(range(7)), positions=st.sampled_from(["re-encoded", "naive", "shared"]))
def test_blocks_are_read_in_any_order_with_the_same_sums(order, positions):
    pool, answers = Pool(MODEL, 80, 16), []
    cached = pool.encode(MODEL, [block_of(n, seed=n) for n in (33, *[128] * 5, 19)])
    for pool.run, each in ((1, ()), (1, order), (2, order)):
        held = pool.open(cached, 5, positions=positions, order=each)
        answers.append(Runner(MODEL, pool).prefill([held], [torch.arange(5)]))
    torch.testing.assert_close(answers[1], answers[0])
    torch.testing.assert_close(answers[2], answers[0])
    refused("order is", pool.open, cached, 5, order=order[:-1])


def test_a_request_is_put_together_without_tensor_operations():
    """Torch would wake its threads for kilobytes; what is left: the copy to the device, and the result."""
    pool = Pool(MODEL, 60, 16, kernels=False)
    cached, runner, ran = pool.encode(MODEL, BLOCKS), Runner(MODEL, pool), []
    question = block_of(5).tokens

    class Noted(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            ran.append(str(function))
            return function(*args, **(kwargs or {}))

    for _ in range(2):  # the first makes the inputs
        held = pool.open(cached, 5)
        runner.prefill([held], [torch.tensor(question)])
    (ready,) = runner.captured.values()
    result = torch.zeros(1, 97)
    ready.batch.forward = lambda: result
    ids = torch.tensor(question)
    with Noted():
        held = pool.open(cached, 5)
        runner.prefill([held], [ids])
    assert len(ran) <= 6, ran

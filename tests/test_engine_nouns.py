"""Blocks, prompts, plans, KV and the rotation of keys."""

import resource
import subprocess
import sys
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import workbench
from tests.random_models import model_of, prompt_of
from tests.refusals import refused
from workbench.core.blocks import Block, Prompt
from workbench.core.errors import BadInput
from workbench.core.kv import KV
from workbench.core.page_table import INVALID_POS
from workbench.core.plan import Plan
from workbench.core.rope import rotate
from workbench.engine import attention_maps
from workbench.engine.assembly import assemble
from workbench.engine.encoding import encode_many
from workbench.engine.graphs.cuda_graphs import Runner
from workbench.engine.pages import paged_question
from workbench.engine.pages.page_tables import context_of, joined_pages, table_of
from workbench.engine.pages.paged_pool import Pool
from workbench.kernels._pages import block_scores
from workbench.models.loading import keep_freed

TABLE = 1e4 ** (-torch.arange(0, 16, 2) / 16)


def kv_of(length: int, reserve: int = 0) -> KV:
    torch.manual_seed(length)
    kv = KV.zeros([(2, 4), (1, 6)], length, reserve)
    for x in kv.tensors():
        x.normal_()
    return kv


def test_a_block_is_its_tokens_and_not_its_label():
    assert Block((1, 2), "a") == Block([1, 2], "b") and Block((1, 2)).key == Block((1, 2), "x").key
    assert Block((1, 23)).key != Block((12, 3)).key and len(Block((4, 5, 6))) == 3


@given(st.lists(st.integers(1, 5), min_size=2, max_size=6))
def test_a_prompt_knows_where_its_blocks_stand(lengths):
    prompt = prompt_of(*lengths)
    for i, block in enumerate(prompt.blocks):
        span = slice(prompt.starts[i], prompt.starts[i] + len(block))
        assert tuple(prompt.tokens[span].tolist()) == block.tokens and set(prompt.block_of[span].tolist()) == {i}
    assert prompt.question.tolist() == list(range(sum(lengths[:-1]), sum(lengths))) and len(prompt) == sum(lengths)
    assert prompt.context == prompt.blocks[:-1]


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Block((), "passage 3"), "block 'passage 3' is empty"),
        (lambda: Block((1, -2)), "token id -2"),
        (lambda: Prompt((Block((1,)),)), "at least one block before its question, got 1"),
        (lambda: Prompt(()), "got 0"),
        (lambda: Plan(torch.tensor([], dtype=torch.long)), "at least one position"),
        (lambda: Plan(torch.tensor([0.5])), "float32"),
        (lambda: Plan(torch.tensor([2, 1])), "strictly rising"),
        (lambda: Plan(torch.tensor([1, 1])), "strictly rising"),
        (lambda: Plan(torch.tensor([-1, 1])), "from 0"),
        (lambda: kv_of(4).slice(2, 9), "2:9 of a KV of 4"),
        (lambda: kv_of(4).lock().grow(1), "read-only"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_sentence(make, sentence):
    refused(sentence, make)


@given(st.integers(1, 9), st.integers(0, 9), st.lists(st.integers(1, 5), max_size=5))
def test_growing_keeps_what_is_there_and_adds_zeros(length, reserve, steps):
    kv = kv_of(length, reserve)
    before = [x.clone() for x in kv.tensors()]
    for step in steps:
        kv.grow(step)
    assert len(kv) == length + sum(steps)
    for new, old in zip(kv.tensors(), before, strict=True):
        assert torch.equal(new[:, :length], old) and not new[:, length:].any()


def test_growing_copies_nothing_within_the_capacity_and_takes_tensors_that_somebody_put_in():
    kv = kv_of(5)
    kv.reserve(7)
    place = [x.data_ptr() for x in kv.tensors()]
    for _ in range(7):
        kv.grow(1)
    assert [x.data_ptr() for x in kv.tensors()] == place and kv.nbytes == 12 * (2 * 4 + 6) * 2 * 4
    kv = kv_of(5, reserve=7)
    kv.keys[0] = torch.ones(2, 5, 4)
    kv.grow(2)
    assert torch.equal(kv.keys[0][:, :5], torch.ones(2, 5, 4)) and len(kv) == kv.keys[1].shape[1] == 7


def test_slices_clones_and_locks_share_nothing():
    kv = kv_of(6).lock()
    part, copy = kv.slice(2, 5), kv.clone(reserve=3)
    before = kv.keys[0].clone()
    part.keys[0].zero_()
    copy.grow(1)
    copy.keys[0].zero_()
    assert torch.equal(kv.keys[0], before) and (part.start, len(part)) == (2, 3)
    assert kv.to("cpu") is kv and not copy.read_only and not part.read_only


@given(st.integers(-300, 300), st.integers(-300, 300), st.sampled_from(["neox", "interleaved"]), st.booleans())
def test_rotations_add_up_and_leave_still_channels_alone(first, second, pairing, per_token):
    torch.manual_seed(0)
    keys = torch.randn(2, 3, 24)
    move = (lambda d: torch.full((3,), d)) if per_token else (lambda d: d)
    twice = rotate(rotate(keys, move(first), TABLE, pairing), second, TABLE, pairing)
    torch.testing.assert_close(twice, rotate(keys, first + second, TABLE, pairing), atol=2e-5, rtol=1e-4)
    assert torch.equal(twice[..., 16:], keys[..., 16:])
    assert torch.equal(rotate(keys, move(0), TABLE, pairing), keys)


def test_rotation_is_the_complex_product_token_by_token_and_rounded_once():
    keys = torch.randn(1, 4, 16)
    turned = torch.view_as_complex(keys.unflatten(-1, (8, 2)).double())
    expected = torch.view_as_real(turned * torch.polar(torch.ones(8).double(), 777 * TABLE.double())).flatten(-2)
    torch.testing.assert_close(rotate(keys, 777, TABLE, "interleaved").double(), expected, atol=1e-6, rtol=1e-5)
    keys, distance = torch.randn(2, 4, 16), torch.tensor([0, 5, 5, -9])
    moved = rotate(keys, distance, TABLE)
    for i, d in enumerate(distance.tolist()):
        torch.testing.assert_close(moved[:, i : i + 1], rotate(keys[:, i : i + 1], d, TABLE))
    keys = torch.randn(2, 50, 16).bfloat16()
    assert torch.equal(rotate(keys, 300, TABLE), rotate(keys.float(), 300, TABLE).bfloat16())


def test_every_public_name_is_there_and_importing_costs_no_torch():
    for name in workbench.__all__:
        assert getattr(workbench, name) is not None and name in dir(workbench)
    with pytest.raises(AttributeError, match="nothing"):
        _ = workbench.nothing
    code = "import sys, workbench; assert 'torch' not in sys.modules and 'transformers' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[1])


# --- Memory that is kept for the next request
@pytest.mark.skipif(not keep_freed(), reason="this C library gives memory back")
def test_what_a_reader_prints_is_one_short_line_and_a_wrong_name_is_answered_with_the_right_one():
    (sample,) = workbench.data.load("lab", samples=1)
    loaded = workbench.models.load("lab-full")
    (prompt,) = loaded.layout.prompts([sample], loaded.tokenizer)
    pool = Pool(loaded.model, pages=32)
    request = pool.open(blocks := pool.encode(loaded.model, prompt.context), reserve=8)
    cached = workbench.prepare.from_spec("independent")(loaded.model, [prompt], store := workbench.MemoryStore())
    found = [sample, loaded, prompt, pool, request, blocks[0], Runner(loaded.model, pool), cached[0][0], store]
    for each in [*found, *prompt.blocks, workbench.Trial("lab-full", mode="block"), workbench.results.read()]:
        assert len(repr(each)) < 160 and "\n" not in repr(each), type(each)
    assert "mode='block'" in (said := repr(workbench.Trial("lab-full", mode="block"))) and "positions" not in said
    with pytest.raises(BadInput, match="did you mean 'samples'"):
        workbench.Trial("lab-full", sampels=3)
    for module, wrong, right in ((workbench, "slect", "select"), (workbench.models, "laod", "load")):
        with pytest.raises(AttributeError, match=rf"did you mean '{right}'\?"):
            getattr(module, wrong)


def test_memory_that_was_freed_is_taken_again_without_new_pages():
    def faults() -> int:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        parts = [torch.ones(1 << 20) for _ in range(16)]  # 64 MiB, as the keys and values of a request
        assert len(parts) == 16
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    pages = (64 << 20) // resource.getpagesize()
    assert min(faults() for _ in range(6)) < pages / 10, "the same memory, over and over"


def test_other_systems_are_left_alone(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert keep_freed() is False


# --- The page table of a prompt says of every token in which slot it lies, and how far its key is shifted
SIZE = 16


@given(
    blocks=st.lists(st.tuples(st.integers(1, 70), st.integers(0, 90)), max_size=6),
    rows=st.integers(1, 40),
    run=st.sampled_from((1, 2, 3)),
)
def test_every_token_of_a_prompt_is_found_where_its_block_was_cached(blocks, rows, run):
    context, slots, shifts, page = [], [], [], 1
    for length, start in blocks:
        numbers = np.arange(page, page - (-length // SIZE), dtype=np.int32)
        context.append(SimpleNamespace(length=length, start=start, numbers=numbers))
        shifts += [len(slots) - start] * length
        slots += range(page * SIZE, page * SIZE + length)
        page += len(numbers)
    places = np.arange(len(slots), len(slots) + rows, dtype=np.int32)
    own = np.arange(page, page - (-rows // SIZE), dtype=np.int32)
    table = table_of(context_of(joined_pages(context, SIZE), SIZE, run=run), own, places, SIZE)
    positions = table.every_position()
    seen = positions != INVALID_POS
    there = (table.numbers[:, None] * SIZE + np.arange(SIZE))[seen]
    assert positions[seen].tolist() == list(range(len(slots) + rows))
    assert there.tolist() == slots + list(range(page * SIZE, page * SIZE + rows))
    if table.shifts is None:
        assert not any(shifts)
    else:
        assert np.repeat(table.shifts, seen.sum(1)).tolist() == shifts + [0] * rows
        whole = table.shifts[: len(table) // table.run * table.run].reshape(-1, table.run)
        own_begin = (len(table) - len(own)) // table.run
        assert (whole[:own_begin] == whole[:own_begin, :1]).all(), "pages side by side are shifted alike"


# --- Attention from the question over pages: the scores of an assembled cache, without one
PROMPT = prompt_of(4, 9, 7, 12, 5)


@pytest.fixture(scope="module", params=["llama", "qwen3"])
def model(request):
    return model_of(request.param)


@pytest.fixture
def runner(model):
    return Runner(model, Pool(model, 12, size=8, kernels=False))


@pytest.mark.parametrize("layers", ["last", "all", (0, -1)])
@pytest.mark.parametrize("last", [None, 1, 3])
@pytest.mark.parametrize("over", ["block", "documents", "context"])
def test_scores_over_pages_are_those_over_an_assembled_cache(model, runner, layers, last, over):
    kv = assemble(model, PROMPT, encode_many(model, PROMPT.context))
    (wanted,) = attention_maps.from_question(model, [PROMPT], [kv], layers, last, over)
    cached = runner.pool.encode(model, PROMPT.context)
    free, question = runner.pool.free, PROMPT.tokens[PROMPT.question]
    found = paged_question.from_question(runner, cached, question, layers, last, over=over)
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-3)
    assert runner.pool.free == free, "the question's pages are given back"


@pytest.mark.parametrize("layers", ["last", "all"])
@pytest.mark.parametrize("last", [None, 1])
@pytest.mark.parametrize("over", ["block", "documents", "context"])
def test_a_kernel_scores_all_layers_in_their_pages(model, layers, last, over, monkeypatch):
    pytest.importorskip("triton", reason="Triton is not available on this platform")
    model = deepcopy(model).to("cuda" if torch.cuda.is_available() else "cpu")
    runner = Runner(model, Pool(model, 12, size=16, kernels=True), layers="model")
    cached, question = runner.pool.encode(model, PROMPT.context)[::-1], PROMPT.tokens[PROMPT.question]
    found = paged_question.from_question(runner, cached, question, layers, last, over=over)
    monkeypatch.setattr(paged_question, "by_kernel", lambda *_: None)
    wanted = paged_question.from_question(runner, cached, question, layers, last, over=over)
    assert not torch.equal(found, wanted), "one of them was not computed"
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-3)


def test_what_a_kernel_does_not_take_is_scored_layer_by_layer(model, runner):
    context = runner.pool.encode(model, PROMPT.context)
    queries = {0: torch.zeros(1, 4, 5, 16)}
    assert paged_question.by_kernel(runner, context, queries, None) is None, "the pool has no kernels"
    takes, alike = block_scores.takes, [torch.zeros(2, 16, 8) for _ in range(2)]
    table = torch.ones(4)
    assert not takes([alike[0], alike[1][:, :8]], [table] * 2) and not takes(alike, [table, table.clone()])
    assert not takes(alike, [table] * 2, block_scores.LONGEST + 1)


def test_blocks_that_stand_where_they_were_encoded_are_not_rerotated(model, runner):
    system, passage = PROMPT.context[:2]
    cached = [runner.pool.write_kv(kv) for kv in encode_many(model, [system, passage], [(), (system,)])]
    assert paged_question.BlockTokens.of(runner.pool, cached).shift is None
    assert paged_question.BlockTokens.of(runner.pool, [*cached, cached[0]]).shift is not None


def test_a_long_question_is_scored_in_parts(model, runner, monkeypatch):
    cached, question = runner.pool.encode(model, PROMPT.context), PROMPT.tokens[PROMPT.question]
    whole = paged_question.from_question(runner, cached, question, "all")
    monkeypatch.setattr(attention_maps, "ELEMENTS", 1)
    torch.testing.assert_close(paged_question.from_question(runner, cached, question, "all"), whole)


def test_a_pool_without_room_for_the_question_is_refused_and_left_as_it_was(model):
    pool = Pool(model, 2, size=8, kernels=False)
    cached = pool.encode(model, PROMPT.context[:1])
    with pytest.raises(BadInput, match="0 of the pool are free"):
        paged_question.from_question(Runner(model, pool), cached, PROMPT.tokens[PROMPT.question])
    assert pool.free == 0


def test_queries_are_kept_for_the_layers_that_are_asked_for_and_prefill_is_what_it_was(model, runner):
    cached, question = runner.pool.encode(model, PROMPT.context), PROMPT.tokens[PROMPT.question]
    plain = runner.prefill([runner.pool.open(cached, len(question))], [question])
    logits, queries = runner.prefill_queries([runner.pool.open(cached, len(question))], [question], (0, 2))
    assert torch.equal(logits, plain) and sorted(queries) == [0, 2]
    assert all(x.shape == (1, 4, len(question), 16) for x in queries.values())

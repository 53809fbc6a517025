"""Prefill under any plan, against dense attention; encoding and assembling under edits."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.random_models import block_of, model_of, prompt_of, stock
from tests.refusals import refused
from workbench.core.blocks import Prompt
from workbench.core.kv import KV
from workbench.core.masks import block_attention, causal, sink, visible, window
from workbench.core.plan import Plan
from workbench.core.tiling.tiles import Tiles
from workbench.engine.assembly import assemble, empty
from workbench.engine.attention_backends import attention
from workbench.engine.encoding import encode, encode_many
from workbench.engine.forward import PrefillRequest, prefill, prefill_many

MODEL = model_of("llama")
PROMPT = prompt_of(13, 7, 11, 5)
TOKENS, ALL = PROMPT.tokens, torch.arange(len(PROMPT))
CLOSE = {"atol": 2e-5, "rtol": 1e-4}


def poisoned(model, length):
    """A KV whose unwritten entries are NaN: whatever reads one of them shows it."""
    kv = empty(model, length)
    for x in kv.tensors():
        x.fill_(float("nan"))
    return kv


RULES = {
    "full": causal,
    "block": block_attention(PROMPT),
    "window": window(4),
    "window and sink": window(3) | sink(2),
    "block and window": block_attention(PROMPT) & (window(6) | sink(1)),
    "a plain function": lambda row, col: (col <= row) & ((row - col) % 3 != 1),
    "not causal": lambda row, col: (col - row).abs() < 5,
}


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("kept", [1, 3])
def test_rows_without_logits_still_write_their_keys_and_values_in_the_last_layer(name, kept):
    whole, tail = poisoned(MODEL, len(TOKENS)), poisoned(MODEL, len(TOKENS))
    expected = prefill(MODEL, TOKENS, Plan(ALL, RULES[name]), whole).logits
    got = prefill(MODEL, TOKENS, Plan(ALL, RULES[name]), tail, logits_to_keep=kept).logits
    torch.testing.assert_close(got, expected[-kept:], **CLOSE)
    assert all(torch.equal(a, b) for a, b in zip(whole.tensors(), tail.tensors(), strict=True))


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("elements", [1 << 24, 100])  # 100: masks are built three rows at a time
def test_any_rule_is_dense_attention_under_its_mask(name, elements, monkeypatch):
    monkeypatch.setattr(attention, "MASK_ELEMENTS", elements)
    expected = stock(MODEL, TOKENS, visible(RULES[name], ALL, ALL))
    got = prefill(MODEL, TOKENS, Plan(ALL, RULES[name]), poisoned(MODEL, len(TOKENS))).logits
    torch.testing.assert_close(got, expected, **CLOSE)


@pytest.mark.parametrize("name", ["full", "block", "window and sink"])
def test_the_second_half_over_a_cached_first_half_is_the_whole(name):
    rule, kv = RULES[name], poisoned(MODEL, len(TOKENS))
    whole = prefill(MODEL, TOKENS, Plan(ALL, rule), empty(MODEL, len(TOKENS))).logits
    parts = [prefill(MODEL, TOKENS, Plan(rows, rule), kv).logits for rows in (ALL[:17], ALL[17:18], ALL[18:])]
    torch.testing.assert_close(torch.cat(parts), whole, **CLOSE)


@settings(max_examples=25)
@given(st.sets(st.integers(0, len(PROMPT) - 1), min_size=1), st.sampled_from(["full", "block"]))
def test_scattered_rows_computed_again_over_a_right_cache_change_nothing(chosen, name):
    rule, kv = RULES[name], empty(MODEL, len(TOKENS))
    whole = prefill(MODEL, TOKENS, Plan(ALL, rule), kv).logits
    rows = torch.tensor(sorted(chosen))
    torch.testing.assert_close(prefill(MODEL, TOKENS, Plan(rows, rule), kv).logits, whole[rows], **CLOSE)


@pytest.mark.parametrize("rule", ["full", "window", "block"])
def test_what_no_row_sees_cannot_poison_a_result(rule):
    """Rows 0-12 (block 0), then the question under a window that reaches only itself: all else is NaN."""
    kv = poisoned(MODEL, len(TOKENS) + 3)
    first = prefill(MODEL, TOKENS, Plan(ALL[:13], RULES[rule]), kv).logits
    assert first.isfinite().all()
    assert prefill(MODEL, TOKENS, Plan(ALL[-2:], window(1)), kv).logits.isfinite().all()

    def gap(row, col):  # block 0 and itself, nothing between
        return (col == row) | (col < 13)

    assert prefill(MODEL, TOKENS, Plan(ALL[-1:], gap), kv).logits.isfinite().all()


def test_a_row_that_sees_nothing_gets_nothing():
    def blind(row, col):
        return (col <= row) & (row != 3)

    logits = prefill(MODEL, TOKENS, Plan(ALL, blind), empty(MODEL, len(TOKENS))).logits
    assert logits.isfinite().all()
    alone = prefill(MODEL, TOKENS, Plan(ALL[:1], lambda row, col: row < 0), empty(MODEL, len(TOKENS))).logits
    assert alone.isfinite().all()


def test_requests_of_a_batch_are_computed_as_if_alone():
    prompts = [prompt_of(4, 9, 3, seed=1), prompt_of(2, 2, seed=2), prompt_of(8, 1, 6, 7, seed=3)]
    rules = [causal, window(2), block_attention(prompts[2])]
    rows = [prompts[0].question, torch.arange(4), torch.tensor([0, 3, 9, 20])]
    depths = [None, 2, None]

    def requests():
        for prompt, rule, chosen, num_layers in zip(prompts, rules, rows, depths, strict=True):
            kv = assemble(MODEL, prompt, encode_many(MODEL, prompt.context))
            yield PrefillRequest(prompt.tokens, Plan(chosen, rule, return_queries=(1,), num_layers=num_layers), kv)

    together, alone = list(requests()), list(requests())
    steps = prefill_many(MODEL, together)
    for step, batched, request in zip(steps, together, alone, strict=True):
        single = prefill(MODEL, request.tokens, request.plan, request.kv)
        assert (step.logits is None) == (single.logits is None) == (request.plan.num_layers is not None)
        if step.logits is not None:
            torch.testing.assert_close(step.logits, single.logits, **CLOSE)
        torch.testing.assert_close(step.queries[1], single.queries[1], **CLOSE)
        torch.testing.assert_close([*batched.kv.tensors()], [*request.kv.tensors()], **CLOSE)


def test_a_block_packed_with_others_is_encoded_as_if_alone(monkeypatch):
    monkeypatch.setattr("workbench.engine.encoding.PACK", 20)  # several forward passes
    blocks = [block_of(n, n) for n in (3, 19, 1, 8, 25, 8)]
    after = [[], [blocks[0]], [], [blocks[2], blocks[0]], [], [blocks[0]]]
    for kv, block, past in zip(encode_many(MODEL, blocks, after), blocks, after, strict=True):
        alone = encode(MODEL, block, past)
        assert kv.start == alone.start == sum(map(len, past)) and len(kv) == len(block)
        torch.testing.assert_close([*kv.tensors()], [*alone.tensors()], **CLOSE)


def test_what_several_blocks_stand_behind_is_computed_once(monkeypatch):
    rows = []
    monkeypatch.setattr("workbench.engine.encoding.run", lambda model, parts: rows.append([len(p[0]) for p in parts]))
    first, *blocks = (block_of(n, n) for n in (7, 3, 5, 4))
    encode_many(MODEL, blocks, [[first], [first], [first, first]])
    assert rows == [[7], [3, 5, 18]]


def test_a_block_encoded_after_its_neighbours_is_that_part_of_the_whole():
    whole = empty(MODEL, len(TOKENS))
    prefill(MODEL, TOKENS, Plan(ALL), whole)
    part = encode(MODEL, PROMPT.blocks[2], after=PROMPT.blocks[:2])
    expected = whole.slice(20, 31)
    torch.testing.assert_close([*part.tensors()], [*expected.tensors()], **CLOSE)


def test_a_partial_depth_writes_the_first_layers_and_stops():
    whole, kv = empty(MODEL, len(TOKENS)), poisoned(MODEL, len(TOKENS))
    prefill(MODEL, TOKENS, Plan(ALL), whole)
    for num_layers in (1, 2, 3):
        step = prefill(MODEL, TOKENS, Plan(ALL, num_layers=num_layers, return_queries=(num_layers - 1,)), kv)
        assert step.logits is None and list(step.queries) == [num_layers - 1]
        torch.testing.assert_close(kv.keys[num_layers - 1], whole.keys[num_layers - 1])
        torch.testing.assert_close(kv.values[num_layers - 1], whole.values[num_layers - 1])
        assert all(x.isnan().all() for x in kv.keys[num_layers:])


def test_watched_queries_give_the_attention_that_was_used():
    kv = empty(MODEL, len(TOKENS))
    step = prefill(
        MODEL,
        TOKENS,
        Plan(PROMPT.question, return_queries=(0, 2)),
        assemble(MODEL, PROMPT, encode_many(MODEL, PROMPT.context)),
    )
    full = prefill(MODEL, TOKENS, Plan(ALL, return_queries=(0,)), kv)
    assert sorted(step.queries) == [0, 2] and step.queries[2].shape == (4, 5, 16)
    torch.testing.assert_close(step.queries[0], full.queries[0][:, PROMPT.question], **CLOSE)


@pytest.mark.parametrize("rows", [ALL, ALL[-9:], torch.tensor([1, 4, 5, 30])])
@pytest.mark.parametrize("elements", [1 << 24, 500])  # 500: three rows at a time
def test_tiles_hide_keys_per_head(rows, elements, monkeypatch):
    monkeypatch.setattr(attention, "MASK_ELEMENTS", elements)
    torch.manual_seed(3)
    kept = torch.rand(4, 9, 9) < 0.5
    kept[..., 0] = True
    kv = empty(MODEL, len(TOKENS))
    prefill(MODEL, TOKENS, Plan(ALL), kv)
    seen = {}

    def choose(q, k, at, site):
        assert q.shape == (4, len(rows), 16) and k.shape[0] == 2 and torch.equal(at, rows)
        return Tiles(kept[:, : -(-len(rows) // 4), : -(-k.shape[1] // 4)], 4)

    def dense(q, k, v, at, sees, tiles, scale):
        mask = visible(sees, at, torch.arange(k.shape[1])) & tiles.visible(len(at), k.shape[1])
        seen["called"] = True
        k, v = (x.repeat_interleave(2, 0) for x in (k, v))
        return ((q @ k.mT * scale).masked_fill(~mask, float("-inf")).softmax(-1) @ v).nan_to_num()

    ours = prefill(MODEL, TOKENS, Plan(rows, sparse=choose), kv.clone()).logits
    kernel = prefill(MODEL, TOKENS, Plan(rows, sparse=choose, backend=dense), kv.clone()).logits
    assert seen["called"]
    torch.testing.assert_close(ours, kernel, **CLOSE)


EDITS = st.lists(
    st.tuples(st.sampled_from(["insert", "delete", "swap"]), st.integers(0, 99), st.integers(0, 99)), max_size=6
)


@settings(max_examples=20)
@given(EDITS)
def test_edited_prompts_made_of_cached_blocks_equal_prompts_computed_anew(edits):
    """Insert, delete and reorder blocks: the untouched blocks are reused from their first encoding, only moved."""
    blocks = list(PROMPT.context)
    cache = dict(zip(blocks, encode_many(MODEL, blocks), strict=True))
    for kind, i, j in edits:
        i, j = i % len(blocks), j % len(blocks)
        if kind == "insert" and len(blocks) < 6:
            blocks.insert(i, new := block_of(2 + j, 7 + i))
            cache[new] = encode(MODEL, new)
        elif kind == "delete" and len(blocks) > 1:
            del blocks[i]
        else:
            blocks[i], blocks[j] = blocks[j], blocks[i]
    prompt = Prompt((*blocks, PROMPT.blocks[-1]))
    edited = assemble(MODEL, prompt, [cache[block] for block in blocks])
    anew = empty(MODEL, len(prompt))
    rows = torch.arange(len(prompt))
    expected = prefill(MODEL, prompt.tokens, Plan(rows, block_attention(prompt)), anew, len(PROMPT.question)).logits
    for a, b in zip(edited.tensors(), anew.tensors(), strict=True):
        torch.testing.assert_close(a[:, : prompt.starts[-1]], b[:, : prompt.starts[-1]], **CLOSE)
    torch.testing.assert_close(prefill(MODEL, prompt.tokens, Plan(prompt.question), edited).logits, expected, **CLOSE)


def test_assembling_twice_reads_the_cached_copy_and_never_writes_it():
    cached = encode_many(MODEL, PROMPT.context)
    before = [kv.clone() for kv in cached]
    first, second = assemble(MODEL, PROMPT, cached), assemble(MODEL, PROMPT, cached, reserve=9)
    prefill(MODEL, TOKENS, Plan(ALL), first)
    for kv, copy in zip(cached, before, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(kv.tensors(), copy.tensors(), strict=True))
    assert len(second) == len(PROMPT) and not second.keys[0][:, PROMPT.starts[-1] :].any()


LONG = torch.randint(1, 90, (513,))
CACHED, BEHIND = encode_many(MODEL, PROMPT.context), encode(MODEL, block_of(3), [block_of(2)])
CACHE = empty(MODEL, 36)
HALF = KV.zeros([(2, 16)] * 3, len(PROMPT), dtype=torch.float16)
OTHER = model_of("llama", num_key_value_heads=4)
BAD = {
    "context": (lambda: prefill(MODEL, LONG, Plan(torch.arange(513)), empty(MODEL, 513)), "513 tokens is over .* 512"),
    "context, encoding": (lambda: encode(MODEL, block_of(513)), "513 tokens is over .* 512"),
    "context, assembling": (
        lambda: assemble(MODEL, prompt_of(500, 13), [empty(MODEL, 500)]),
        "513 tokens is over .* 512",
    ),
    "vocabulary": (lambda: prefill(MODEL, TOKENS + 90, Plan(ALL), empty(MODEL, 36)), "vocabulary of 97"),
    "shape of tokens": (lambda: prefill(MODEL, TOKENS[None], Plan(ALL), empty(MODEL, 36)), r"\(1, 36\)"),
    "row outside the prompt": (lambda: prefill(MODEL, TOKENS, Plan(torch.tensor([36])), empty(MODEL, 40)), "row 36"),
    "row outside the KV": (lambda: prefill(MODEL, TOKENS, Plan(ALL), empty(MODEL, 20)), "row 35 is outside a KV of 20"),
    "too few cached": (lambda: assemble(MODEL, PROMPT, CACHED[:2]), "2 cached KVs for 3 context blocks"),
    "too many cached": (lambda: assemble(MODEL, PROMPT, [*CACHED, CACHED[0]]), "4 cached KVs for 3"),
    "cached in another order": (lambda: assemble(MODEL, PROMPT, CACHED[::-1]), "cached KV 0 holds 11 tokens, .* 13"),
    "cached by another model": (lambda: assemble(OTHER, PROMPT, CACHED), "KV is of another model"),
    "prefilled by another model": (lambda: prefill(OTHER, TOKENS, Plan(ALL), empty(MODEL, 36)), "of another model"),
    "positions": (lambda: assemble(MODEL, PROMPT, CACHED, "exact"), "positions is 'exact'"),
    "a cached block prefilled": (
        lambda: prefill(MODEL, TOKENS, Plan(ALL[:3]), BEHIND),
        "starts at position 2",
    ),
    "a shared KV written": (lambda: prefill(MODEL, TOKENS, Plan(ALL), empty(MODEL, 36).lock()), "read-only"),
    "num_layers": (lambda: prefill(MODEL, TOKENS, Plan(ALL, num_layers=4), CACHE), "num_layers 4: the model has 3"),
    "return_queries": (
        lambda: prefill(MODEL, TOKENS, Plan(ALL, return_queries=(2,), num_layers=2), CACHE),
        r"return queries of layers \[2\]",
    ),
    "dtype": (lambda: prefill(MODEL, TOKENS, Plan(ALL), HALF), "KV is .*float16.*computes in torch.float32"),
    "after": (lambda: encode_many(MODEL, PROMPT.blocks, [[]]), "1 entries for 4 blocks"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_one_sentence_before_any_work(what, monkeypatch):
    call, sentence = BAD[what]

    def worked(*_, **__):
        raise AssertionError("the model was run")

    monkeypatch.setattr(MODEL.model, "forward", worked)
    refused(sentence, call)

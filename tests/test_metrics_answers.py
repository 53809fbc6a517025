"""Scores of answers with their intervals, the cost of a first token, times and their ratios, tokens chosen."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import Gemma3TextConfig, GPT2Config, LlamaConfig, MixtralConfig, T5Config

from tests.random_models import Letters, prompt_of
from tests.refusals import refused
from workbench import data
from workbench.data.layouts import LAB
from workbench.metrics import answers, cost, latency, published_numbers
from workbench.metrics.kv.selection import agreement, antecedents, by_block, by_offset, selection_mask, summary
from workbench.metrics.latency import ENOUGH, Quantiles, measure, quantiles, ratio


@pytest.mark.parametrize(
    "text, plain",
    [
        ("The Quick, brown  fox!", "quick brown fox"),
        ("A", "a"),
        ("?!", "?!"),
        ("Röntgen", "ro\u0308ntgen"),
        ("U.S.A.", "usa"),
    ],
)
def test_case_articles_and_punctuation_do_not_count(text, plain):
    assert answers.normalise(text) == plain


@pytest.mark.parametrize(
    "prediction, aliases, em, f1, contained",
    [
        ("Walls and Bridges", ["Walls and Bridges"], 1, 1, 1),
        ("the walls and bridges.", ["Walls and Bridges"], 1, 1, 1),
        ("Walls", ["Walls and Bridges"], 0, 0.5, 0),  # precision 1, recall 1/3
        ("It is Walls and Bridges", ["Walls and Bridges"], 0, 0.75, 1),  # precision 3/5, recall 1
        ("Corvex", ["Corvex Labs", "Corvex"], 1, 1, 1),  # the best alias counts
        ("", ["yes"], 0, 0, 0),
        ("no no", ["no"], 0, 2 / 3, 1),
        ("The answer is 19.", ["9"], 0, 0, 0),
        ("19 or 9", ["9"], 0, 0.5, 1),
        ("Yorkshire", ["York"], 0, 0, 0),
        ("答えは東京です", ["東京"], 0, 0, 1),
    ],
)
def test_scores_of_worked_examples(prediction, aliases, em, f1, contained):
    assert answers.exact_match(prediction, aliases) == em
    assert answers.f1(prediction, aliases) == pytest.approx(f1)
    assert answers.contains(prediction, aliases) == contained


@given(st.text(max_size=20), st.lists(st.text(max_size=20), min_size=1, max_size=3))
def test_f1_is_between_exact_match_and_one(prediction, aliases):
    assert answers.exact_match(prediction, aliases) <= answers.f1(prediction, aliases) <= 1
    assert answers.exact_match(prediction, aliases) <= answers.contains(prediction, aliases)


def test_wilson_interval_of_a_textbook_proportion():
    low, high = answers.wilson(15, 20)  # Newcombe 1998: 0.5313 to 0.8881 for 15 of 20
    assert (round(low, 4), round(high, 4)) == (0.5313, 0.8881)
    assert answers.wilson(0, 0) == (0, 1)
    assert answers.wilson(20, 20)[1] == 1


def test_bootstrap_interval_agrees_with_the_normal_one_and_repeats_with_its_seed():
    values = np.random.default_rng(0).random(400)
    low, high = answers.bootstrap(values, seed=3)
    half = 1.96 * values.std() / math.sqrt(400)
    assert low == pytest.approx(values.mean() - half, abs=0.004)
    assert high == pytest.approx(values.mean() + half, abs=0.004)
    assert answers.bootstrap(values, seed=3) == (low, high)
    assert answers.bootstrap([1.0, 1.0]) == (1, 1)
    assert math.isnan(answers.bootstrap([])[0])


def test_bootstrap_intervals_of_several_samples_are_those_of_each_alone():
    rng = np.random.default_rng(0)
    samples = [rng.random(n) for n in (5, 0, 400, 5, 400)]
    alone = [answers.bootstrap(values) for values in samples]
    assert np.array(answers.bootstraps(samples)) == pytest.approx(np.array(alone), nan_ok=True)
    assert answers.bootstraps([]) == []


def test_bootstrap_intervals_of_many_columns_are_about_those_of_each():
    values = np.random.default_rng(0).normal([[0.0, 5.0]], [[1.0, 3.0]], (400, 2))
    low, high = answers.bootstrap_columns(values)
    for column in (0, 1):
        alone = answers.bootstrap(values[:, column].tolist())
        width = alone[1] - alone[0]
        assert (low[column], high[column]) == pytest.approx(alone, abs=width / 10)
    again = answers.bootstrap_columns(values[:, ::-1])
    assert (again[0][::-1] == pytest.approx(low)) and (again[1][::-1] == pytest.approx(high))
    low, high = answers.bootstrap_columns(np.ones((491, 2)))
    assert low.tolist() == high.tolist() == [1.0, 1.0], "an interval of equal values is that value"


def test_score_of_four_answers():
    found = answers.score(["Ana", "Ana Reyes", "no", "it is Bo"], [["Ana"], ["Ana"], ["yes"], ["Bo"]])
    assert (found.n, found.em, found.contains) == (4, 0.25, 0.75)
    assert found.f1 == pytest.approx((1 + 2 / 3 + 0 + 1 / 2) / 4)
    assert (found.em_low, found.em_high) == answers.wilson(1, 4)
    assert found.f1_low <= found.f1 <= found.f1_high


@pytest.mark.parametrize("predictions, aliases", [([], []), (["a"], [])])
def test_a_score_needs_as_many_answers_as_predictions(predictions, aliases):
    refused(".", answers.score, predictions, aliases)


def test_a_score_is_normalised_between_reuse_and_full_attention():
    full, reuse, some = [1.0] * 4, [1.0, 0, 0, 0], [1.0, 1, 0, 0]
    value, low, high = answers.normalised(some, reuse, full)
    assert value == pytest.approx(1 / 3) and low <= value <= high
    assert answers.normalised(full, reuse, full)[0] == 1 and answers.normalised(reuse, reuse, full) == (0, 0, 0)
    assert all(map(math.isnan, answers.normalised(some, full, full))) and all(
        map(math.isnan, answers.normalised([], [], []))
    )


def test_the_interval_is_paired():
    """Questions that are hard for every method do not widen it: a constant share of the gap has no spread."""
    rng = np.random.default_rng(0)
    reuse = rng.random(200)
    full = reuse + rng.random(200)
    some = reuse + 0.3 * (full - reuse)
    assert answers.normalised(some, reuse, full) == pytest.approx((0.3, 0.3, 0.3))
    noisy = (some + rng.normal(0, 0.2, 200)).tolist()
    value, low, high = answers.normalised(noisy, reuse, full)
    assert low < value < high and high - low > 0.01 and answers.normalised(noisy, reuse, full) == (value, low, high)


SMALL = {
    "vocab_size": 100,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
}
LAYER = 32 * 32 * 2 + 32 * 16 * 2 + 3 * 32 * 48  # q, o; k, v; gate, up, down


@pytest.fixture(scope="module")
def llama():
    return cost.shape(LlamaConfig(**published_numbers.LLAMA_3_8B))


def test_weights_of_a_llama_by_hand():
    shape = cost.shape(LlamaConfig(**SMALL, tie_word_embeddings=False))
    assert (shape.linear, shape.head, shape.stored) == (3 * LAYER, 3200, 3 * LAYER + 6400 + 7 * 32)
    assert cost.shape(LlamaConfig(**SMALL, tie_word_embeddings=True)).stored == shape.stored - 3200


def test_the_convention_reproduces_the_published_table(llama):
    assert llama.convention == 8030261248 - 128256 * 4096 - 65 * 4096  # all of it but the input embedding and the norms
    table = published_numbers.TABLE_3
    for length, full, block in zip(table["length"], table["flops"]["full"], table["flops"]["block"], strict=True):
        ours = cost.convention(llama.convention, length)
        unit = 10.0 ** (np.floor(np.log10(full)) - (2 if full == 2.45e14 else 1))
        assert np.floor(ours / unit) * unit == pytest.approx(full)  # the table cuts digits off
        question = cost.convention(llama.convention, published_numbers.QUESTION)
        assert np.floor(question / 1e10) * 1e10 == pytest.approx(block)


def test_attention_is_counted_apart_and_grows_with_the_square(llama):
    full = cost.first_token(llama, range(32768), 32768)
    assert full.attention == 32 * 4 * 4096 * 32768 * 32769 / 2
    assert full.linear == pytest.approx(2 * (llama.linear * 32768 + llama.head))
    assert full.flops > cost.convention(llama.convention, 32768)
    question = cost.first_token(llama, range(32768 - 50, 32768), 32768)
    assert question.attention == 32 * 4 * 4096 * sum(range(32768 - 49, 32769))
    assert 1 - question.flops / full.flops > 0.99


def test_bytes_of_a_cached_prompt_of_an_8b_model(llama):
    block = cost.first_token(llama, range(32768 - 50, 32768), 32768)
    per_token = 32 * 2 * 8 * 128 * 2  # 128 KiB a token
    assert block.weights == pytest.approx(16.06e9, rel=1e-3)
    assert (block.kv_written, block.kv_read, block.kv_loaded) == (50 * per_token, 32768 * per_token, 32718 * per_token)
    assert block.bytes == block.weights + 2 * 32768 * per_token


def test_a_sliding_layer_sees_its_window():
    shape = cost.shape(
        Gemma3TextConfig(
            **SMALL, sliding_window=8, layer_types=["sliding_attention", "full_attention", "sliding_attention"]
        )
    )
    assert shape.windows == (8, None, 8)
    seen = [min(row + 1, 8) for row in range(20)]
    assert cost.first_token(shape, range(20), 20).attention == 4 * 32 * (2 * sum(seen) + 210)


def test_experts_count_as_far_as_they_are_used():
    shape = cost.shape(MixtralConfig(**SMALL, num_local_experts=4, num_experts_per_tok=2))
    assert shape.linear == 3 * (32 * 32 * 2 + 32 * 16 * 2 + 2 * 3 * 32 * 48 + 32 * 4)


def test_blocks_encoded_apart_cost_less_than_together():
    shape = cost.shape(LlamaConfig(**SMALL))
    apart = cost.encoding(shape, [10, 10])
    assert apart.attention == 2 * 3 * 4 * 32 * 55
    assert apart.linear == 2 * shape.linear * 20


def test_gpt2_without_gqa_fields():
    shape = cost.shape(GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=100, n_positions=64))
    assert shape.kv_width == (64, 64)


@pytest.mark.parametrize("rows", [[], [5], [-1]])
def test_lists_rows_and_models_that_cannot_be_scored_are_refused(rows):
    refused("positions from 0 to 4", lambda: cost.first_token(cost.shape(LlamaConfig(**SMALL)), rows, 5))
    refused("T5Config", lambda: cost.shape(T5Config()))


def test_quantiles_of_a_hundred_and_one_measurements():
    assert quantiles([i / 100 for i in range(101)]) == Quantiles(0.05, 0.5, 0.95, 101, 0, 1)


def test_jobs_run_one_at_a_time_and_only_the_first_is_warmed_up():
    ran = []
    found = measure([lambda i=i: ran.append(i) for i in range(3)], torch.device("cpu"), warm_up=2)
    assert ran == [0, 0, 0, 1, 2]
    assert found.n == 3 and 0 < found.p5 <= found.p95


@pytest.mark.parametrize(("enough", "n", "runs"), [(3, 2, 3), (100, 5, 6), (1, 1, 2)])
def test_slow_jobs_are_warmed_up_once_and_timed_until_that_is_enough(monkeypatch, enough, n, runs):
    now, ran = [0.0], []

    def job():
        now[0] += 2
        ran.append(now[0])

    monkeypatch.setattr(latency.time, "perf_counter", lambda: now[0])
    assert measure([job] * 5, torch.device("cpu"), enough=enough) == Quantiles(2, 2, 2, n, 2, 2)
    assert len(ran) == runs


# --- Tokens and neighbours that methods choose: agreement, places, antecedents
def test_selectors_agree_by_the_tokens_that_they_share():
    rows = {"a": [torch.tensor([1, 2, 3]), torch.tensor([1])], "b": [torch.tensor([2, 3, 4, 5]), torch.tensor([2])]}
    rows["none"] = [torch.arange(0)] * 2
    jaccard, smaller = agreement(rows), agreement(rows, "smaller")
    assert jaccard[0, 1] == pytest.approx((2 / 5 + 0) / 2) and smaller[0, 1] == pytest.approx((2 / 3 + 0) / 2)
    assert jaccard[0, 2] == 0 and math.isnan(smaller[0, 2]) and math.isnan(jaccard[2, 2])
    refused("measure", agreement, rows, "cosine")
    refused("same prompts", agreement, {"a": [], "b": [torch.arange(1)]})


@given(st.lists(st.lists(st.sets(st.integers(0, 20)), min_size=2, max_size=2), min_size=1, max_size=4))
@settings(max_examples=30, deadline=None)
def test_agreement_is_symmetric_and_at_most_one(choices):
    rows = {str(i): [torch.tensor(sorted(c), dtype=torch.long) for c in each] for i, each in enumerate(choices)}
    for share in ("jaccard", "smaller"):
        found = agreement(rows, share)
        np.testing.assert_array_equal(found, found.T)
        assert not (found < 0).any() and not (found > 1).any()
        assert all(math.isnan(x) or x == 1 for x in found.diagonal())


def test_chosen_tokens_are_counted_by_block_and_by_place_in_it():
    prompts, rows = [prompt_of(2, 4, 8, 3), prompt_of(2, 4, 3)], [torch.tensor([2, 3, 6, 13]), torch.tensor([2])]
    masks = [selection_mask(choice, prompt) for choice, prompt in zip(rows, prompts, strict=True)]
    np.testing.assert_allclose(by_block(masks, prompts), [[2 / 4, 2 / 8], [1 / 4, np.nan]])
    np.testing.assert_allclose(by_offset(masks, prompts, bins=2), [[3 / 6, 1 / 6], [1 / 2, 0]])
    first, second = summary(by_block(masks, prompts), "some", [1, 2])
    assert (first["mean"], first["n"], second["n"]) == (pytest.approx(3 / 8), 2, 1)
    assert first["low"] <= first["mean"] <= first["high"] and second["low"] == second["high"] == 0.25


@given(sizes=st.lists(st.integers(1, 15), min_size=3, max_size=6), bins=st.integers(1, 12))
@settings(max_examples=30, deadline=None)
def test_a_constant_has_no_place(sizes, bins):
    prompt = prompt_of(*sizes)
    ones = [torch.ones(prompt.starts[-1])]
    assert np.nanmin(by_offset(ones, [prompt], bins)) == np.nanmax(by_offset(ones, [prompt], bins)) == 1
    assert (by_block(ones, [prompt]) == 1).all()


class Words(Letters):
    bos_token, bos_token_id = "\0", 0

    def __call__(self, texts, add_special_tokens=False, verbose=True):
        if isinstance(texts, str):
            return {"input_ids": [ord(letter) for letter in texts]}
        return {"input_ids": [[ord(letter) for letter in text] for text in texts]}

    def convert_ids_to_tokens(self, ids):
        return [chr(i) for i in ids]


def test_a_continued_passage_is_counted_once_and_found_by_the_passage_before_it():
    samples = data.load("lab", 16, 3, 10)
    prompts = LAB.prompts(samples, Words())
    before = {b: a for p in prompts for a, b in zip(p.context, p.context[1:], strict=False)}
    titles = {
        p.blocks[1 + i]
        for s, p in zip(samples, prompts, strict=True)
        for i, c in enumerate(s.ctxs)
        if c.title.startswith("Continued")
    }
    assert antecedents(samples, prompts, lambda block: [before[block]]) == (len(titles), len(titles))
    assert antecedents(samples, prompts, lambda block: [block]) == (0, len(titles)) and titles


# --- Ratios of two times: of few runs the ends are the range, never percentiles
FAST = {"ms": 2.0, "p5": 1.9, "p95": 2.2, "least": 1.0, "most": 4.0}
SLOW = {"ms": 6.0, "p5": 5.7, "p95": 6.6, "least": 5.0, "most": 8.0}


EARLIER = {name: value for name, value in SLOW.items() if name not in ("least", "most")}  # of an earlier version


@pytest.mark.parametrize(
    ("slow", "fast", "ends"),
    [
        (SLOW | {"runs": ENOUGH}, FAST | {"runs": ENOUGH}, (5.7 / 2.2, 6.6 / 1.9)),
        (SLOW | {"runs": ENOUGH - 1}, FAST | {"runs": ENOUGH - 1}, (5.0 / 4.0, 8.0 / 1.0)),
        (SLOW | {"runs": 2}, FAST | {"runs": 2}, (5.0 / 4.0, 8.0)),
        (SLOW | {"runs": 3}, FAST | {"runs": 200}, (5.0 / 2.2, 8.0 / 1.9)),  # each side has the ends of its own runs
        (EARLIER | {"runs": 4}, FAST | {"runs": 20}, (5.7 / 2.2, 6.6 / 1.9)),
    ],
)
def test_the_ends_are_percentiles_only_of_enough_runs(slow, fast, ends):
    assert ratio(slow, fast) == pytest.approx((3.0, *ends))

"""Where deviation comes from, what recomputing repairs, what methods choose, and how much quality comes back."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.random_models import model_of, prompt_of
from workbench.core.errors import BadInput
from workbench.core.plan import Plan
from workbench.engine.assembly import assemble
from workbench.engine.encoding import encode_many
from workbench.engine.forward import prefill
from workbench.methods import select
from workbench.metrics.answers import normalised
from workbench.metrics.kv_deviation import causes, concentration, deviation, full_attention_kv, repair, squared
from workbench.metrics.selection import agreement, by_block, by_offset, chosen, summary

SIZES = (4, 9, 7, 12, 5)
PROMPT = prompt_of(*SIZES)
END = PROMPT.starts[-1]


@pytest.fixture(scope="module")
def model():
    return model_of("llama")


@pytest.fixture(scope="module")
def cached(model):
    system, *rest = PROMPT.context
    return encode_many(model, PROMPT.context, [(), *[(system,)] * len(rest)])


# --- causes


def test_causes_are_three_and_apart(model, cached):
    found = causes(model, PROMPT, cached)
    first, later = slice(0, 13), slice(13, END)  # the system block and the first passage are an exact prefix
    assert found.position.values.max() == 0, "values do not depend on the position"
    assert found.position.keys[first].max() == 0 < found.position.keys[later].min()
    assert found.context.keys[first].max() < 1e-5 < found.context.keys[later, 1:].min()
    assert found.context.keys[:, 0].max() < 1e-5, "the first layer sees no context yet"
    for part in (found.precision.keys, found.precision.values):
        assert 0 < part.max() < 2**-7 and part.mean() > 1e-4, "one rounding to 8 bits"
    assert causes(model, PROMPT, cached, torch.float32).precision.keys.max() == 0


def test_context_is_the_deviation_of_the_assembled_cache(model, cached):
    whole = deviation(assemble(model, PROMPT, cached).slice(0, END), full_attention_kv(model, PROMPT).slice(0, END))
    torch.testing.assert_close(causes(model, PROMPT, cached).context.keys, whole.keys)


def test_squared_deviation_is_equation_7(model, cached):
    kv, truth = assemble(model, PROMPT, cached), full_attention_kv(model, PROMPT)
    found = squared(kv, truth)
    assert found.shape == (len(PROMPT), 3)
    for token, layer in ((15, 1), (30, 2)):
        both = [(kv.keys, truth.keys), (kv.values, truth.values)]
        expected = sum(float((a[layer][:, token] - b[layer][:, token]).square().sum()) for a, b in both)
        assert float(found[token, layer]) == pytest.approx(expected, rel=1e-4)


# --- repair


def test_recomputing_everything_repairs_everything(model, cached):
    kv, truth = assemble(model, PROMPT, cached), full_attention_kv(model, PROMPT)
    before = [x.clone() for x in kv.tensors()]
    nothing, everything = repair(model, PROMPT, kv, [torch.arange(0), torch.arange(END)], truth)
    assert torch.equal(nothing.before, nothing.after)
    assert (nothing.context[1:] == 1).all() and (nothing.asked[1:] == 1).all()
    assert everything.after.max() == 0 or everything.asked[1:].max() < 1e-9
    assert all(torch.equal(a, b) for a, b in zip(before, kv.tensors(), strict=True)), "the cache is left as it is"


def test_tokens_that_are_not_recomputed_keep_their_deviation(model, cached):
    kv, truth = assemble(model, PROMPT, cached), full_attention_kv(model, PROMPT)
    rows = select.named("oracle").rows(model, [PROMPT], [kv], ratio=0.3)[0]
    (found,) = repair(model, PROMPT, kv, [rows], truth)
    kept = torch.ones(END, dtype=torch.bool)
    kept[rows] = False
    assert torch.equal(found.before[:END][kept], found.after[:END][kept])
    assert (found.chosen[1:] < 1).all() and (found.context[1:] < 1).all()
    kv_after = kv.clone()
    prefill(model, PROMPT.tokens, Plan(torch.cat((rows, PROMPT.question))), kv_after)
    torch.testing.assert_close(found.after, squared(kv_after, truth), atol=1e-4, rtol=1e-4)


def test_in_the_second_layer_recomputed_tokens_are_exact(model, cached):
    """Layer 0 does not deviate, so what is computed again sees only exact keys there (CacheBlend's premise)."""
    kv, truth = assemble(model, PROMPT, cached), full_attention_kv(model, PROMPT)
    (found,) = repair(model, PROMPT, kv, [torch.tensor([14, 20, 30])], truth)
    assert found.chosen[1] < 1e-6 and found.chosen[2] > 1e-6


# --- choices


def test_agreement_by_hand():
    rows = {"a": [torch.tensor([1, 2, 3]), torch.tensor([1])], "b": [torch.tensor([2, 3, 4, 5]), torch.tensor([2])]}
    rows["none"] = [torch.arange(0)] * 2
    jaccard, smaller = agreement(rows), agreement(rows, "smaller")
    assert jaccard[0, 1] == pytest.approx((2 / 5 + 0) / 2) and smaller[0, 1] == pytest.approx((2 / 3 + 0) / 2)
    assert jaccard[0, 2] == 0 and math.isnan(smaller[0, 2]) and math.isnan(jaccard[2, 2])
    with pytest.raises(BadInput, match="measure"):
        agreement(rows, "cosine")
    with pytest.raises(BadInput, match="same prompts"):
        agreement({"a": [], "b": [torch.arange(1)]})


@given(st.lists(st.lists(st.sets(st.integers(0, 20)), min_size=2, max_size=2), min_size=1, max_size=4))
@settings(max_examples=30, deadline=None)
def test_agreement_is_symmetric_and_at_most_one(choices):
    rows = {str(i): [torch.tensor(sorted(c), dtype=torch.long) for c in each] for i, each in enumerate(choices)}
    for measure in ("jaccard", "smaller"):
        found = agreement(rows, measure)
        np.testing.assert_array_equal(found, found.T)
        assert not (found < 0).any() and not (found > 1).any()
        assert all(math.isnan(x) or x == 1 for x in found.diagonal())


def test_places_by_hand():
    prompts, rows = [prompt_of(2, 4, 8, 3), prompt_of(2, 4, 3)], [torch.tensor([2, 3, 6, 13]), torch.tensor([2])]
    masks = [chosen(choice, prompt) for choice, prompt in zip(rows, prompts, strict=True)]
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


def test_kv_deviation_prefers_later_blocks_and_starts(model):
    """Figure 3b: tokens at the start of a block and in later blocks lack the most context."""
    prompts = [prompt_of(3, 12, 12, 12, 12, 4, seed=i) for i in range(12)]
    kvs = [assemble(model, p, encode_many(model, p.context, [(), *[(p.blocks[0],)] * 4])) for p in prompts]
    rows = select.named("kv_deviation").rows(model, prompts, kvs, ratio=0.25)
    masks = [chosen(choice, prompt) for choice, prompt in zip(rows, prompts, strict=True)]
    ranks, offsets = by_block(masks, prompts).mean(0), by_offset(masks, prompts, bins=4).mean(0)
    assert ranks[0] == 0 and ranks[3] > ranks[1]
    assert offsets[0] == offsets.max()


@given(st.integers(1, 40), st.integers(2, 30))
@settings(max_examples=30, deadline=None)
def test_concentration_rises_to_everything(count, points):
    gaps = torch.rand(count, 2, generator=torch.Generator().manual_seed(count)) + 0.01
    held = concentration(gaps, points)
    assert held.shape == (points, 2) and (held[0] == 0).all() and held[-1].tolist() == pytest.approx([1, 1])
    assert (held.diff(dim=0) >= 0).all()


def test_concentration_by_hand():
    gaps = torch.tensor([[1.0, 0], [3.0, 0], [0.0, 0], [4.0, 0]])
    assert concentration(gaps, 5)[:, 0].tolist() == pytest.approx([0, 4 / 8, 7 / 8, 1, 1])
    assert concentration(gaps, 5)[:, 1].isnan().all()


# --- normalised


def test_normalised_by_hand():
    full, reuse, some = [1.0] * 4, [1.0, 0, 0, 0], [1.0, 1, 0, 0]
    value, low, high = normalised(some, reuse, full)
    assert value == pytest.approx(1 / 3) and low <= value <= high
    assert normalised(full, reuse, full)[0] == 1 and normalised(reuse, reuse, full) == (0, 0, 0)
    assert all(map(math.isnan, normalised(some, full, full))) and all(map(math.isnan, normalised([], [], [])))


def test_the_interval_is_paired():
    """Questions that are hard for every method do not widen it: a constant share of the gap has no spread."""
    rng = np.random.default_rng(0)
    reuse = rng.random(200)
    full = reuse + rng.random(200)
    some = reuse + 0.3 * (full - reuse)
    assert normalised(some, reuse, full) == pytest.approx((0.3, 0.3, 0.3))
    noisy = (some + rng.normal(0, 0.2, 200)).tolist()
    value, low, high = normalised(noisy, reuse, full)
    assert low < value < high and high - low > 0.01 and normalised(noisy, reuse, full) == (value, low, high)

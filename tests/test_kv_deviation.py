"""How far cached keys and values are from exact ones, where it comes from, and what recomputing repairs."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.random_models import model_of, prompt_of
from tests.refusals import refused
from workbench.core.blocks import Block, Prompt
from workbench.core.kv import KV
from workbench.core.plan import Plan
from workbench.data.retrieval_corpus import Corpus
from workbench.engine.assembly import assemble
from workbench.engine.encoding import encode_many
from workbench.engine.forward import prefill
from workbench.methods import select
from workbench.metrics.kv.kv_deviation import (
    PARTS,
    concentration,
    deviation,
    full_attention_kv,
    measure_causes,
    repair,
    repair_records,
    squared,
)
from workbench.metrics.kv.selection import published, token_stages
from workbench.metrics.published_numbers import FUSION_FIGURE_6
from workbench.plots.tokens import plans

SIZES = (4, 9, 7, 12, 5)
PROMPT = prompt_of(*SIZES)
END = PROMPT.starts[-1]


@pytest.fixture(scope="module")
def cached(model):
    system, *rest = PROMPT.context
    return encode_many(model, PROMPT.context, [(), *[(system,)] * len(rest)])


def kv(*layers, start=0):
    return KV([torch.tensor(layer) for layer in layers], [torch.tensor(layer) for layer in layers], start)


def test_relative_error_of_every_token_layer_and_head():
    exact = kv([[[3.0, 4.0], [0.0, 2.0]]], [[[1.0, 0.0], [0.0, 1.0]]])  # two layers, one head, two tokens
    cached = kv([[[3.0, 4.5], [0.0, 2.0]]], [[[2.0, 0.0], [1.0, 1.0]]])
    found = deviation(cached, exact)
    assert found.keys.shape == (2, 2, 1)
    assert torch.allclose(found.keys[..., 0], torch.tensor([[0.1, 1.0], [0.0, 1.0]]))
    assert torch.allclose(found.tokens, torch.tensor([0.55, 0.5]))


def test_layers_with_fewer_heads_are_filled_with_nan():
    exact = kv([[[1.0]], [[2.0]]], [[[1.0]]])
    found = deviation(exact, exact)
    assert found.values[0, 0].tolist() == [0, 0]
    assert found.values[0, 1, 0] == 0 and found.values[0, 1, 1].isnan()
    assert found.tokens[0] == 0


def test_a_zero_vector_that_is_met_deviates_by_nothing_and_one_that_is_missed_by_infinity():
    assert deviation(kv([[[0.0]]]), kv([[[0.0]]])).keys.item() == 0
    assert deviation(kv([[[1.0]]]), kv([[[0.0]]])).keys.item() == torch.inf


@pytest.mark.parametrize(
    "other", [kv([[[1.0], [1.0]]]), kv([[[1.0]], [[1.0]]]), kv([[[1.0]]], [[[1.0]]]), kv([[[1.0]]], start=3)]
)
def test_what_cannot_be_compared_is_refused(other):
    refused("cannot be compared", lambda: deviation(kv([[[1.0]]]), other))


@given(st.integers(1, 40), st.integers(2, 30))
@settings(max_examples=30, deadline=None)
def test_concentration_rises_to_everything(count, points):
    gaps = torch.rand(count, 2, generator=torch.Generator().manual_seed(count)) + 0.01
    held = concentration(gaps, points)
    assert held.shape == (points, 2) and (held[0] == 0).all() and held[-1].tolist() == pytest.approx([1, 1])
    assert (held.diff(dim=0) >= 0).all()


def test_concentration_is_the_share_of_the_most_deviating_tokens():
    gaps = torch.tensor([[1.0, 0], [3.0, 0], [0.0, 0], [4.0, 0]])
    assert concentration(gaps, 5)[:, 0].tolist() == pytest.approx([0, 4 / 8, 7 / 8, 1, 1])
    assert concentration(gaps, 5)[:, 1].isnan().all()


def test_causes_are_three_and_apart(model, cached):
    found = measure_causes(model, PROMPT, cached)
    first, later = slice(0, 13), slice(13, END)  # the system block and the first passage are an exact prefix
    assert found.position.values.max() == 0, "values do not depend on the position"
    assert found.position.keys[first].max() == 0 < found.position.keys[later].min()
    assert found.context.keys[first].max() < 1e-5 < found.context.keys[later, 1:].min()
    assert found.context.keys[:, 0].max() < 1e-5, "the first layer sees no context yet"
    for part in (found.precision.keys, found.precision.values):
        assert 0 < part.max() < 2**-7 and part.mean() > 1e-4, "one rounding to 8 bits"
    assert measure_causes(model, PROMPT, cached, torch.float32).precision.keys.max() == 0


def test_context_is_the_deviation_of_the_assembled_cache(model, cached):
    whole = deviation(assemble(model, PROMPT, cached).slice(0, END), full_attention_kv(model, PROMPT).slice(0, END))
    torch.testing.assert_close(measure_causes(model, PROMPT, cached).context.keys, whole.keys)


def test_squared_deviation_is_equation_7(model, cached):
    kv, truth = assemble(model, PROMPT, cached), full_attention_kv(model, PROMPT)
    found = squared(kv, truth)
    assert found.shape == (len(PROMPT), 3)
    for token, layer in ((15, 1), (30, 2)):
        both = [(kv.keys, truth.keys), (kv.values, truth.values)]
        expected = sum(float((a[layer][:, token] - b[layer][:, token]).square().sum()) for a, b in both)
        assert float(found[token, layer]) == pytest.approx(expected, rel=1e-4)


def test_tokens_that_are_not_recomputed_keep_their_deviation(model, cached):
    kv, truth = assemble(model, PROMPT, cached), full_attention_kv(model, PROMPT)
    rows = select.from_spec("oracle").rows(model, [PROMPT], [kv], ratio=0.3)[0]
    (found,) = repair(model, PROMPT, kv, [rows], truth)
    kept = torch.ones(END, dtype=torch.bool)
    kept[rows] = False
    assert torch.equal(found.before[:END][kept], found.after[:END][kept])
    assert (found.recomputed_left[1:] < 1).all() and (found.context[1:] < 1).all()
    kv_after = kv.clone()
    prefill(model, PROMPT.tokens, Plan(torch.cat((rows, PROMPT.question))), kv_after)
    torch.testing.assert_close(found.after, squared(kv_after, truth), atol=1e-4, rtol=1e-4)


def test_in_the_second_layer_recomputed_tokens_are_exact(model, cached):
    """Layer 0 does not deviate, so what is computed again sees only exact keys there (CacheBlend's premise)."""
    kv, truth = assemble(model, PROMPT, cached), full_attention_kv(model, PROMPT)
    (found,) = repair(model, PROMPT, kv, [torch.tensor([14, 20, 30])], truth)
    assert found.recomputed_left[1] < 1e-6 and found.recomputed_left[2] > 1e-6


def test_every_part_of_a_repair_is_recorded(model, cached):
    kv, truth = assemble(model, PROMPT, cached), full_attention_kv(model, PROMPT)
    found = repair(model, PROMPT, kv, [torch.tensor([14, 20, 30])], truth)
    records = [one for one in repair_records({"oracle": found}) if one["at"] == 2]
    expected = [float(share[2]) for share in (found[0].context, found[0].recomputed_left, found[0].question_left)]
    assert [one["part"] for one in records] == list(PARTS)
    assert [one["mean"] for one in records] == pytest.approx(expected)


# --- Timelines and masks are read off plans
@pytest.fixture(scope="module")
def planned():
    prompt = prompt_of(3, 20, 20, 20, 4)
    corpus = Corpus(prompt.context[1:], tuple(f"passage {i}" for i in range(3)))
    return prompt, token_stages(model_of(), prompt, published(corpus, ratio=0.25))


def test_full_attention_computes_everything_and_full_reuse_the_question(planned):
    prompt, found = planned
    full, reuse = found["Full attention"], found["Full Reuse"]
    assert full.online.all() and not full.offline.any() and full.rows == len(prompt) and not full.encoded
    assert reuse.online.nonzero().flatten().tolist() == prompt.question.tolist()
    assert reuse.offline.sum() == reuse.encoded == prompt.starts[-1]


def test_selectors_compute_their_share_and_what_they_score_by(planned):
    prompt, found = planned
    blend, fusion = found["CacheBlend"], found["FusionRAG"]
    again = 0.25 * (prompt.starts[-1] - prompt.starts[1])
    for one in (blend, fusion):
        assert one.online.sum() == again + len(prompt.question)
    assert blend.scored[: prompt.starts[-1]].all() and not fusion.scored[: prompt.starts[-1]].any()
    assert fusion.encoded > blend.encoded, "chunks are encoded again behind their neighbours"


def test_the_mask_of_cache_fusion_is_the_papers_example():
    prompt = Prompt(tuple(map(Block, FUSION_FIGURE_6["blocks"])))
    fig = plans.fusion_mask(prompt, FUSION_FIGURE_6["chosen"])
    seen = torch.arange(len(prompt)) < torch.tensor(FUSION_FIGURE_6["seen"])[:, None]
    assert torch.equal(torch.as_tensor(fig.data[0].z) > 0, seen)

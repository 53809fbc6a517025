"""Selectors: the contract that every file of workbench/select is held to, and how scores become rows."""

from functools import cache
from threading import Thread

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.by_hand import forward
from tests.random_models import FAMILIES, Letters, model_of, prompt_of
from workbench.core.blocks import Prompt
from workbench.core.errors import BadInput
from workbench.core.plan import Plan
from workbench.engine.assembly import assemble, empty
from workbench.engine.encoding import encode_many
from workbench.engine.forward import prefill
from workbench.methods import select
from workbench.methods.generation import answer
from workbench.methods.modes.full import Full
from workbench.methods.modes.reuse import Reuse
from workbench.methods.prepare.after_system import AfterSystem
from workbench.methods.sampling import SamplingParams
from workbench.methods.select import budget, choose, documents
from workbench.store import MemoryStore, fetch

SIZES = (4, 9, 7, 12, 5)  # system, three passages, question
FIRST = SamplingParams(max_new_tokens=1)
OPTIONS = [
    *select.names(),
    "first_k(k=3)",
    "kv_deviation(part=v)",
    "kv_deviation(part=k, layer=2)",
    "kv_deviation(stages=(1.0,))",
    "qc_fuse(layers=all, digest=0.3, sink=1)",
    "cache_clip(layers=all, window=3)",
    "oracle(layers=(0, -1))",
    "query_guided(layers=all, tokens=last, softmax=prompt)",
    "inter_attention(side=receives, layers=(0, 1))",
    "cache_craft(alpha=1)",
]


@pytest.fixture(scope="module")
def model():
    return model_of("llama")


def stitched(model, prompt: Prompt):
    """The system block at the front, every passage cached behind it."""
    system, *rest = prompt.context
    return assemble(model, prompt, encode_many(model, prompt.context, [(), *[(system,)] * len(rest)]))


def checksum(kv, end: int) -> list[bytes]:
    return [x[:, :end].contiguous().numpy().tobytes() for x in kv.tensors()]


# --- the contract


@pytest.mark.parametrize("spec", OPTIONS)
def test_scores_are_one_number_a_context_token(model, spec):
    prompt = prompt_of(*SIZES)
    scores = select.named(spec)(model, prompt, stitched(model, prompt))
    assert scores.shape == (sum(SIZES[:-1]),)
    assert scores.dtype == torch.float32 and scores.device.type == "cpu"
    assert not scores.isnan().any()
    if spec != "all":
        assert (scores[: SIZES[0]] == -torch.inf).all(), "the system block is exact as cached"
        assert not (scores == torch.inf).any()


@pytest.mark.parametrize("spec", OPTIONS)
def test_scoring_reads_the_context_and_leaves_it_alone(model, spec):
    prompt = prompt_of(*SIZES)
    kv = stitched(model, prompt)
    before = checksum(kv, prompt.starts[-1])
    first = select.named(spec)(model, prompt, kv)
    assert checksum(kv, prompt.starts[-1]) == before
    assert torch.equal(first, select.named(spec)(model, prompt, kv)), "the same request, the same scores"


@pytest.mark.parametrize("spec", OPTIONS)
def test_a_batch_scores_as_its_prompts_do_alone(model, spec):
    prompts = [prompt_of(*SIZES), prompt_of(3, 8, 6, seed=1), prompt_of(4, 11, seed=2)]
    selector = select.named(spec)
    together = selector.many(model, prompts, [stitched(model, prompt) for prompt in prompts])
    for prompt, scores in zip(prompts, together, strict=True):
        torch.testing.assert_close(scores, selector(model, prompt, stitched(model, prompt)), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_any_family_can_be_scored(family):
    model, prompt = model_of(family), prompt_of(3, 6, 7, 4)
    kv = stitched(model, prompt)
    for name in select.names():
        rows = select.named(name).rows(model, [prompt], [kv], ratio=0.5)[0]
        if name not in ("all", "none", "cache_craft"):
            assert len(rows) == round(0.5 * 13) and int(rows[0]) >= 3, name


@pytest.mark.parametrize("spec", select.names())
def test_a_prompt_without_passages_has_nothing_to_choose(model, spec):
    prompt = prompt_of(6, 4)
    rows = select.named(spec).rows(model, [prompt], [stitched(model, prompt)], ratio=0.5)[0]
    assert rows.tolist() == (list(range(6)) if spec == "all" else [])


@pytest.fixture(scope="module", params=["contiguous", "paged"])
def logits(model, request):
    """Logits behind a prompt by a method, on both engines, over blocks that are encoded once."""
    prompts, store = [prompt_of(*SIZES)], MemoryStore(1 << 30)
    return cache(lambda method: answer(model, Letters(), prompts, method, store, FIRST, request.param).logits[0])


@pytest.mark.parametrize("spec", select.names())
def test_all_tokens_are_full_attention_and_none_is_reuse(logits, spec):
    chosen = select.named(spec)
    if spec not in ("none", "cache_craft"):  # which have a number of their own
        whole = logits(Reuse(prepare=AfterSystem(), select=chosen, ratio=1.0))
        torch.testing.assert_close(whole, logits(Full()), atol=1e-3, rtol=1e-3)
    if spec != "all":
        nothing = logits(Reuse(prepare=AfterSystem(), select=chosen, ratio=0.0))
        torch.testing.assert_close(nothing, logits(Reuse(prepare=AfterSystem())), atol=1e-4, rtol=1e-4)


def test_a_cache_of_another_prompt_is_refused(model):
    with pytest.raises(BadInput, match="assemble it from this prompt"):
        select.named("random")(model, prompt_of(3, 4, 5), empty(model, 11))


@pytest.mark.parametrize("spec", ["query_guided(layers=(7,))", "oracle(layers=(-4,))", "kv_deviation(layer=3)"])
def test_a_layer_the_model_does_not_have_is_refused(model, spec):
    prompt = prompt_of(3, 4, 5)
    with pytest.raises(BadInput, match="layers"):
        select.named(spec)(model, prompt, stitched(model, prompt))


# --- scores become rows


@given(
    sizes=st.lists(st.integers(1, 12), min_size=2, max_size=6),
    ratio=st.floats(0, 1),
    system=st.integers(0, 2),
    data=st.data(),
)
@settings(max_examples=60, deadline=None)
def test_the_budget_is_met_exactly_by_the_best_tokens(sizes, ratio, system, data):
    prompt = prompt_of(*sizes)
    end, first = prompt.starts[-1], int(sum(sizes[: min(system, len(sizes) - 1)]))
    values = data.draw(st.lists(st.integers(0, 3), min_size=end, max_size=end))
    scores = torch.tensor([-torch.inf if i < first else float(x) for i, x in enumerate(values)])
    rows = choose(scores, prompt, ratio, system=system).tolist()
    wanted = round(ratio * (end - first))
    ranked = sorted(range(first, end), key=lambda i: (-values[i], i))  # the slow way: ties by position
    assert rows == sorted(ranked[:wanted])
    assert budget(prompt, ratio, system) == wanted
    assert documents(prompt, system).tolist() == list(range(first, end))
    assert choose(scores, prompt, tokens=wanted, system=system).tolist() == rows


def test_without_a_ratio_the_selector_says_how_many():
    prompt = prompt_of(2, 4, 3)
    scores = torch.tensor([-torch.inf, -torch.inf, 1, -torch.inf, 3, 2])
    assert choose(scores, prompt).tolist() == [2, 4, 5]
    assert choose(scores, prompt, ratio=1.0).tolist() == [2, 4, 5], "what it never recomputes stays cached"
    assert choose(scores, prompt, ratio=0.5).tolist() == [4, 5]
    scores[0] = torch.inf
    assert choose(scores, prompt, ratio=0.0).tolist() == [0], "taken in any case, and not counted"


@pytest.mark.parametrize("bad", [{"ratio": -0.1}, {"ratio": 1.01}, {"ratio": float("nan")}, {"tokens": -1}])
def test_a_budget_that_makes_no_sense_is_refused(model, bad):
    prompt = prompt_of(2, 4, 3)
    with pytest.raises(BadInput):
        choose(torch.zeros(6), prompt, **bad)
    with pytest.raises(BadInput):  # before any work: this cache could not be scored
        select.named("oracle").rows(model, [prompt], [empty(model, 1)], **bad)


def test_two_budgets_at_once_nan_scores_and_a_wrong_length_are_refused():
    prompt = prompt_of(2, 4, 3)
    for scores, options in (
        (torch.zeros(6), {"ratio": 0.1, "tokens": 2}),
        (torch.full((6,), torch.nan), {}),
        (torch.zeros(9), {}),
    ):
        with pytest.raises(BadInput):
            choose(scores, prompt, **options)


# --- recomputation


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_all_tokens_computed_again_are_full_attention_to_the_bit(family):
    model, prompt = model_of(family), prompt_of(3, 6, 7, 4)
    everything = torch.arange(len(prompt))
    full = prefill(model, prompt.tokens, Plan(everything), empty(model, len(prompt))).logits
    kv = stitched(model, prompt)
    rows = select.named("all").rows(model, [prompt], [kv], ratio=0.15)[0]
    again = prefill(model, prompt.tokens, Plan(torch.cat((rows, prompt.question))), kv).logits
    assert full is not None and again is not None
    assert torch.equal(full, again)


def test_scattered_rows_see_what_stands_before_them(model):
    """A row sees the cache and the fresh rows up to its own position, not the last columns of a square mask."""
    prompt = prompt_of(*SIZES)
    kv = stitched(model, prompt)
    rows = torch.cat((torch.tensor([5, 6, 14, 20, 30]), prompt.question))
    theirs = forward(model, prompt.tokens, kv, rows).logits
    ours = prefill(model, prompt.tokens, Plan(rows), kv).logits
    torch.testing.assert_close(ours, theirs, atol=2e-4, rtol=1e-4)


def test_cached_blocks_survive_concurrent_requests_that_share_them(model):
    """Eight threads select, recompute and answer over the same blocks of one store; no byte of a block changes."""
    shared = prompt_of(4, 9, 7, 12, 5).context
    prompts = [Prompt((*shared, prompt_of(1, 5, seed=i + 1).blocks[-1])) for i in range(8)]
    store = MemoryStore(1 << 30)
    blocks = fetch(model, shared, store)
    before = [checksum(kv, len(kv)) for kv in blocks]
    specs = [select.names()[i % len(select.names())] for i in range(8)]

    def answer(prompt, spec):
        kv = assemble(model, prompt, fetch(model, prompt.context, store))
        rows = select.named(spec).rows(model, [prompt], [kv], ratio=0.3)[0]
        return prefill(model, prompt.tokens, Plan(torch.cat((rows, prompt.question))), kv, logits_to_keep=1).logits

    alone = [answer(prompt, spec) for prompt, spec in zip(prompts, specs, strict=True)]
    found: dict[int, torch.Tensor] = {}
    threads = [Thread(target=lambda i=i: found.update({i: answer(prompts[i], specs[i])})) for i in range(len(prompts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [checksum(kv, len(kv)) for kv in fetch(model, shared, store)] == before
    for i, logits in enumerate(alone):
        torch.testing.assert_close(found[i], logits, atol=1e-5, rtol=1e-5)

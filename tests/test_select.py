"""Selectors: the contract that every file of workbench/select is held to, and how scores become rows."""

from dataclasses import replace
from functools import cache
from threading import Thread

import numpy as np
import pandas as pd
import pytest
import torch
from attack_prompts import corpus, victims_of
from hypothesis import given, settings
from hypothesis import strategies as st
from poisoned import CHAINS, MEASURES, TOKENS, TokenKeyStore, attacked, measured, misses

from tests.by_hand import forward
from tests.random_models import FAMILIES, Letters, model_of, prompt_of
from tests.refusals import refused
from workbench import data, results
from workbench.core.blocks import Prompt
from workbench.core.errors import BadInput
from workbench.core.plan import Plan
from workbench.data import embedders
from workbench.data.retrieval_corpus import nearest
from workbench.engine.assembly import assemble, empty
from workbench.engine.encoding import encode_many
from workbench.engine.forward import prefill
from workbench.methods import select
from workbench.methods.generation import answer
from workbench.methods.method import SamplingParams
from workbench.methods.modes.full import Full
from workbench.methods.modes.reuse import Reuse
from workbench.methods.prepare.after_system import AfterSystem
from workbench.methods.prepare.with_neighbours import WithNeighbours
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
    refused("assemble it from this prompt", lambda: select.named("random")(model, prompt_of(3, 4, 5), empty(model, 11)))


@pytest.mark.parametrize("spec", ["query_guided(layers=(7,))", "oracle(layers=(-4,))", "kv_deviation(layer=3)"])
def test_a_layer_the_model_does_not_have_is_refused(model, spec):
    prompt = prompt_of(3, 4, 5)
    refused("layers", lambda: select.named(spec)(model, prompt, stitched(model, prompt)))


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
    refused(".", lambda: choose(torch.zeros(6), prompt, **bad))
    with pytest.raises(BadInput):  # before any work: this cache could not be scored
        select.named("oracle").rows(model, [prompt], [empty(model, 1)], **bad)


def test_two_budgets_at_once_nan_scores_and_a_wrong_length_are_refused():
    prompt = prompt_of(2, 4, 3)
    for scores, options in (
        (torch.zeros(6), {"ratio": 0.1, "tokens": 2}),
        (torch.full((6,), torch.nan), {}),
        (torch.zeros(9), {}),
    ):
        refused(".", choose, scores, prompt, **options)


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


# --- Vectors that were saved are an embedder of their own
TEXTS = ("the cat sat on the mat", "a cat on a mat", "stocks fell on Monday", "stocks rose on Friday")


def test_saved_vectors_find_the_same_neighbours_in_any_order_of_the_texts(tmp_path):
    path = tmp_path / "vectors.npz"
    embedders.save(path, TEXTS, "tfidf")
    for texts in (TEXTS, TEXTS[::-1], TEXTS[:3]):
        saved = embedders.embed(texts, str(path))
        np.testing.assert_allclose(saved, embedders.embed(TEXTS, "tfidf")[[TEXTS.index(t) for t in texts]], atol=1e-3)
    np.testing.assert_array_equal(nearest(TEXTS, 1, str(path), "exact"), nearest(TEXTS, 1, "tfidf", "exact"))


def test_files_of_vectors_that_do_not_fit_are_refused_in_one_sentence(tmp_path):
    path, broken = tmp_path / "vectors.npz", tmp_path / "broken.npz"
    embedders.save(path, TEXTS[:2], "tfidf")
    broken.write_bytes(path.read_bytes()[:90])
    refused(r"no vector of 2 of 4 texts, first 'stocks fell", embedders.embed, TEXTS, str(path))
    refused("not a file of vectors, or is not whole", embedders.embed, TEXTS, str(broken))
    refused("no such file of vectors", embedders.check, str(tmp_path / "missing.npz"))
    refused(r"ends in \.npz", embedders.save, tmp_path / "vectors.npy", TEXTS, "tfidf")
    assert not (tmp_path / "vectors.npy").exists()


# --- Poisoned caches: keys of content chains serve nothing that has seen an attacker; keys of tokens alone do
@pytest.fixture(scope="module")
def victims(loaded):
    return victims_of(loaded, data.load("lab", 400, 0, 4), 3)


def kv_of(loaded, victim, store):
    (cached,) = AfterSystem()(loaded.model, [victim.prompt], store)
    return cached[victim.prompt.blocks.index(victim.passage)]


def test_a_victim_is_one_of_its_passages_and_its_poison_has_another_answer(victims):
    for victim in victims:
        answer, text = victim.sample.answers[0], victim.sample.ctxs[victim.at].text
        assert answer in text and victim.poison.text == text.replace(answer, victim.target) != text
        assert victim.poison_block != victim.passage in victim.prompt.context
        assert victim.target not in victim.sample.answers and victim.harmless.text.startswith(text)
    assert len({id(victim.sample.ctxs) for victim in victims}) == len(victims)


def test_a_content_chain_does_not_serve_what_an_attacker_had_computed(loaded, victims):
    victim, clean, store = victims[0], MemoryStore(), MemoryStore()
    attacked(loaded, [victim], store)
    ours, expected = (kv_of(loaded, victim, each) for each in (store, clean))
    assert ours.start == expected.start
    assert all(torch.equal(a, b) for a, b in zip(ours.tensors(), expected.tensors(), strict=True))
    (miss,) = misses(loaded, [victim])
    assert miss.reason == "other context before it" and "kept 2" in miss.detail and "asked 1" in miss.detail


def test_keys_of_tokens_alone_serve_it(loaded, victims):
    victim, store = victims[0], TokenKeyStore()
    attacked(loaded, [victim], store)
    ours, expected = (kv_of(loaded, victim, each) for each in (store, MemoryStore()))
    assert ours.start != expected.start
    assert not all(torch.equal(a, b) for a, b in zip(ours.values, expected.values, strict=True))


def test_a_poisoned_corpus_reaches_a_passage_through_its_neighbours(loaded, victims):
    honest = corpus(loaded, victims)
    tampered = corpus(loaded, victims, [victim.poison for victim in victims])
    assert set(tampered.blocks) - set(honest.blocks) == {victim.poison_block for victim in victims}
    prepare = WithNeighbours(tampered, n=1, search="exact")
    assert all(prepare.neighbours(victim.passage) == (victim.poison_block,) for victim in victims)


def test_rows_are_zero_for_chains_and_for_all_when_everything_is_recomputed(loaded, victims):
    counts = pd.DataFrame(measured(loaded, victims[:2], (0.0, 1.0), (1,)))
    rows = counts.pivot(index=["method", "ratio"], columns="measure", values="value")
    assert set(rows) == set(MEASURES) and counts.high[counts.method == CHAINS].max() <= 1
    assert (rows.loc[CHAINS][["kl", "changed", "toward"]] == 0).all(axis=None)
    assert rows.kl[TOKENS, 0.0] > 0 and rows.kl["1 neighbour", 0.0] > 0
    assert rows.xs(1.0, level="ratio").kl.max() < 1e-6
    assert rows.reached["1 neighbour", 0.0] == 1 and len(rows) == 8


def test_shipped_rows_have_n_and_intervals():
    counts = results.read().counts("poisoned")
    (missed,) = counts[counts.measure == "misses"].to_dict("records")
    assert missed["kind"] == "other context before it" and missed["value"] == missed["n"] >= 50
    kl = counts[counts.measure == "kl"]
    assert ((kl.low <= kl.value) & (kl.value <= kl.high) & (kl.n == missed["n"])).all()
    assert (kl[kl.method == CHAINS].value == 0).all()


def test_samples_without_a_victim_are_refused(loaded):
    samples = [replace(sample, answers=("nowhere",)) for sample in data.load("lab", 2, 0, 4)]
    refused("2 samples: none has its answer in one passage", victims_of, loaded, samples)

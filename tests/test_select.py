"""Selectors: the contract that every file of workbench/select is held to, and how scores become rows."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from itertools import pairwise
from math import ceil, exp

import numpy as np
import pandas as pd
import pytest
import torch
from attack_prompts import corpus, victims_of
from hypothesis import given, settings
from hypothesis import strategies as st
from poisoned import CHAINS, MEASURES, TOKENS, TokenKeyStore, attacked, measured, misses

from tests.by_hand import forward
from tests.random_models import FAMILIES, Letters, model_of, prompt_of, stitched
from tests.refusals import refused
from workbench import data, results
from workbench.core.blocks import Prompt
from workbench.core.errors import BadInput
from workbench.core.plan import Plan
from workbench.data import embedders, token_text
from workbench.data.retrieval_corpus import nearest_texts
from workbench.engine import attention_maps, encoding
from workbench.engine.assembly import assemble, empty
from workbench.engine.chunk_past import ChunkContext, pasts, prefix_fit
from workbench.engine.encoding import encode_many, even_packs, packs
from workbench.engine.forward import prefill
from workbench.engine.full_context import context_pass
from workbench.methods import select
from workbench.methods.generation import answer
from workbench.methods.method import SamplingParams
from workbench.methods.modes.full import Full
from workbench.methods.modes.reuse import Reuse
from workbench.methods.prepare.after_system import AfterSystem
from workbench.methods.prepare.with_neighbours import WithNeighbours
from workbench.methods.select import budget, choose, documents, qc_fuse
from workbench.methods.select.cache_craft import CacheCraft
from workbench.methods.select.query_guided import QueryGuided
from workbench.models.spec import attach
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


def checksum(kv, end: int) -> list[bytes]:
    return [x[:, :end].contiguous().numpy().tobytes() for x in kv.tensors()]


# --- the contract
@pytest.mark.parametrize("spec", OPTIONS)
def test_scores_are_one_number_a_context_token_and_leave_the_context_alone(model, spec):
    prompt = prompt_of(*SIZES)
    scores = select.from_spec(spec)(model, prompt, stitched(model, prompt))
    assert scores.shape == (sum(SIZES[:-1]),)
    assert scores.dtype == torch.float32 and scores.device.type == "cpu"
    assert not scores.isnan().any()
    if spec != "all":
        assert (scores[: SIZES[0]] == -torch.inf).all(), "the system block is exact as cached"
        assert not (scores == torch.inf).any()
    kv = stitched(model, prompt)
    before = checksum(kv, prompt.starts[-1])
    first = select.from_spec(spec)(model, prompt, kv)
    assert checksum(kv, prompt.starts[-1]) == before
    assert torch.equal(first, select.from_spec(spec)(model, prompt, kv)), "the same request, the same scores"


@pytest.mark.parametrize("spec", OPTIONS)
def test_a_batch_scores_as_its_prompts_do_alone(model, spec):
    prompts = [prompt_of(*SIZES), prompt_of(3, 8, 6, seed=1), prompt_of(4, 11, seed=2)]
    selector = select.from_spec(spec)
    together = selector.score_many(model, prompts, [stitched(model, prompt) for prompt in prompts])
    for prompt, scores in zip(prompts, together, strict=True):
        torch.testing.assert_close(scores, selector(model, prompt, stitched(model, prompt)), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_any_family_can_be_scored(family):
    model, prompt = model_of(family), prompt_of(3, 6, 7, 4)
    kv = stitched(model, prompt)
    for name in select.names():
        rows = select.from_spec(name).rows(model, [prompt], [kv], ratio=0.5)[0]
        if name not in ("all", "none", "cache_craft"):
            assert len(rows) == round(0.5 * 13) and int(rows[0]) >= 3, name


@pytest.mark.parametrize("spec", select.names())
def test_a_prompt_without_passages_has_nothing_to_choose(model, spec):
    prompt = prompt_of(6, 4)
    rows = select.from_spec(spec).rows(model, [prompt], [stitched(model, prompt)], ratio=0.5)[0]
    assert rows.tolist() == (list(range(6)) if spec == "all" else [])


@pytest.fixture(scope="module", params=["contiguous", "paged"])
def logits(model, request):
    """Logits behind a prompt by a method, on both engines, over blocks that are encoded once."""
    prompts, store = [prompt_of(*SIZES)], MemoryStore(1 << 30)
    return cache(lambda method: answer(model, Letters(), prompts, method, store, FIRST, request.param).logits[0])


@pytest.mark.parametrize("spec", select.names())
def test_all_tokens_are_full_attention_and_none_is_reuse(logits, spec):
    chosen = select.from_spec(spec)
    if spec not in ("none", "cache_craft"):  # which have a number of their own
        whole = logits(Reuse(prepare=AfterSystem(), select=chosen, ratio=1.0))
        torch.testing.assert_close(whole, logits(Full()), atol=1e-3, rtol=1e-3)
    if spec != "all":
        nothing = logits(Reuse(prepare=AfterSystem(), select=chosen, ratio=0.0))
        torch.testing.assert_close(nothing, logits(Reuse(prepare=AfterSystem())), atol=1e-4, rtol=1e-4)


def test_a_cache_of_another_prompt_is_refused(model):
    refused(
        "assemble it from this prompt", lambda: select.from_spec("random")(model, prompt_of(3, 4, 5), empty(model, 11))
    )


@pytest.mark.parametrize("spec", ["query_guided(layers=(7,))", "oracle(layers=(-4,))", "kv_deviation(layer=3)"])
def test_a_layer_the_model_does_not_have_is_refused(model, spec):
    prompt = prompt_of(3, 4, 5)
    refused("layers", lambda: select.from_spec(spec)(model, prompt, stitched(model, prompt)))


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


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_scores_of_any_dtype_choose_rows_with_or_without_a_gradient(dtype):
    scores = torch.tensor([0, 0, 1, 2, 3, 2], dtype=dtype, requires_grad=True)
    assert choose(scores, prompt_of(2, 4, 3), tokens=2).tolist() == [3, 4]


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
        select.from_spec("oracle").rows(model, [prompt], [empty(model, 1)], **bad)


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
    rows = select.from_spec("all").rows(model, [prompt], [kv], ratio=0.15)[0]
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
        rows = select.from_spec(spec).rows(model, [prompt], [kv], ratio=0.3)[0]
        return prefill(model, prompt.tokens, Plan(torch.cat((rows, prompt.question))), kv, logits_to_keep=1).logits

    alone = [answer(prompt, spec) for prompt, spec in zip(prompts, specs, strict=True)]
    with ThreadPoolExecutor(len(prompts)) as threads:
        found = list(threads.map(answer, prompts, specs))
    assert [checksum(kv, len(kv)) for kv in fetch(model, shared, store)] == before
    torch.testing.assert_close(found, alone, atol=1e-5, rtol=1e-5)


# --- Vectors that were saved are an embedder of their own
TEXTS = ("the cat sat on the mat", "a cat on a mat", "stocks fell on Monday", "stocks rose on Friday")


def test_saved_vectors_find_the_same_neighbours_in_any_order_of_the_texts(tmp_path):
    path = tmp_path / "vectors.npz"
    embedders.save(path, TEXTS, "tfidf")
    for texts in (TEXTS, TEXTS[::-1], TEXTS[:3]):
        saved = embedders.embed(texts, str(path))
        np.testing.assert_allclose(saved, embedders.embed(TEXTS, "tfidf")[[TEXTS.index(t) for t in texts]], atol=1e-3)
    np.testing.assert_array_equal(
        nearest_texts(TEXTS, 1, str(path), "exact"), nearest_texts(TEXTS, 1, "tfidf", "exact")
    )


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


# --- Each selector against its own paper's rule, by a slow reference
PROMPT = prompt_of(*SIZES)
END = PROMPT.starts[-1]
BLOCKS = [range(a, b) for a, b in pairwise([*PROMPT.starts, len(PROMPT)])]
OPEN = slice(SIZES[0], END)


@pytest.fixture(scope="module")
def kv(model):
    return stitched(model, PROMPT)


@pytest.fixture(scope="module")
def full(model):
    return forward(model, PROMPT.tokens, empty(model, len(PROMPT)), torch.arange(len(PROMPT)))


def scores(spec: str, model, kv) -> torch.Tensor:
    return select.from_spec(spec)(model, PROMPT, kv)


def close(ours: torch.Tensor, theirs) -> None:
    torch.testing.assert_close(ours[OPEN], torch.as_tensor(theirs)[OPEN].float(), atol=1e-4, rtol=1e-3)


# --- question-guided
@pytest.mark.parametrize("tokens", ["all", "last"])
@pytest.mark.parametrize(("layers", "wanted"), [("last", [2]), ("all", [0, 1, 2]), ("(-1, 0)", [0, 2])])
def test_query_guided_sums_a_softmax_within_each_block(model, kv, layers, wanted, tokens):
    """FusionRAG, section 3.2: rows are question tokens, columns the tokens of one chunk; columns are summed."""
    attention = forward(model, PROMPT.tokens, kv, PROMPT.question).attention
    expected = [0.0] * END
    for layer in wanted:
        for head in attention[layer]:
            for row in head[-1:] if tokens == "last" else head:
                for block in BLOCKS[:-1]:
                    share = row[list(block)].softmax(0)
                    for i, value in zip(block, share.tolist(), strict=True):
                        expected[i] += value
    close(scores(f"query_guided(layers={layers}, tokens={tokens})", model, kv), expected)


def test_query_guided_over_the_prompt_weighs_as_the_model_does(model, kv):
    attention = forward(model, PROMPT.tokens, kv, PROMPT.question).attention[-1]
    close(scores("query_guided(softmax=prompt)", model, kv), attention.softmax(-1).sum((0, 1)))


@pytest.mark.parametrize(
    ("spec", "layers", "first"),
    [("prophet_kv", range(3), 0), ("a3", [0], SIZES[0]), ("query_guided(softmax=documents)", [2], SIZES[0])],
)
def test_blocks_compete_where_the_softmax_runs_over_all_of_them(model, kv, spec, layers, first):
    """ProphetKV: all layers, over all context keys. A³: layer 0, over the tokens of all passages."""
    attention = forward(model, PROMPT.tokens, kv, PROMPT.question).attention
    expected = torch.zeros(END)
    for layer in layers:
        expected[first:] += attention[layer][:, :, first:END].softmax(-1).sum((0, 1))
    close(scores(spec, model, kv), expected)


def test_a3_reads_what_full_attention_has_in_the_layer_that_it_asks(model, kv, full):
    """Its released code computes layer 0 of every token to know it: the scores are the same without."""
    attention = full.attention[0][:, PROMPT.question, SIZES[0] : END].softmax(-1).sum((0, 1))
    torch.testing.assert_close(scores("a3", model, kv)[OPEN], attention, atol=1e-4, rtol=1e-3)
    (done,) = select.from_spec("a3").passes(model, PROMPT)
    assert (list(done.rows), done.num_layers) == (PROMPT.question.tolist(), 1)


@pytest.mark.parametrize("window", [1, 3, 99])
def test_answer_guided_asks_the_end_of_the_question_in_all_layers(model, kv, window):
    attention = forward(model, PROMPT.tokens, kv, PROMPT.question).attention
    expected = torch.zeros(END)
    for block in BLOCKS[:-1]:
        for layer in attention:
            expected[list(block)] += layer[:, -window:, list(block)].softmax(-1).sum((0, 1))
    close(scores(f"answer_guided(window={window})", model, kv), expected)


def test_the_last_layer_is_one_that_sees_the_whole_prompt():
    mixed = model_of("gemma3")
    windows = [layer for layer, size in enumerate(attach(mixed).windows) if not size]
    assert attention_maps.layers_of(mixed, "last") == [max(windows)]
    sliding = model_of("mistral-window")
    assert attention_maps.layers_of(sliding, "last") == [2]


def test_what_a_sliding_window_hides_scores_nothing():
    model = model_of("mistral-window")  # 16 positions
    found = QueryGuided()(model, PROMPT, stitched(model, PROMPT))
    assert (found[SIZES[0] : END - 15] == 0).all() and found[END - 15 :].min() > 0


def test_a_question_of_long_blocks_is_scored_in_parts(model, kv, monkeypatch):
    whole = scores("query_guided(layers=all)", model, kv)
    monkeypatch.setattr(attention_maps, "ELEMENTS", 1)  # a row at a time
    torch.testing.assert_close(scores("query_guided(layers=all)", model, kv), whole)


# --- deviation
@pytest.mark.parametrize("part", ["kv", "k", "v"])
@pytest.mark.parametrize("layer", [0, 1, 2])
def test_kv_deviation_is_the_squared_distance_at_one_layer(model, kv, full, layer, part):
    """FusionRAG, equation 7, at CacheBlend's layer."""
    expected = [0.0] * END
    for i in range(END):
        for name, ours, theirs in (("k", kv.keys, full.kv.keys), ("v", kv.values, full.kv.values)):
            if name in part:
                expected[i] += float((ours[layer][:, i].double() - theirs[layer][:, i].double()).square().sum())
    close(scores(f"kv_deviation(layer={layer}, part={part})", model, kv), expected)


def test_nothing_deviates_in_the_first_layer_nor_in_the_first_passage(model, kv):
    assert scores("kv_deviation(layer=0)", model, kv)[OPEN].max() < 1e-6
    found = scores("kv_deviation", model, kv)
    assert found[list(BLOCKS[1])].max() < 1e-6 < found[list(BLOCKS[2])].min(), "it is an exact prefix"


def test_kv_deviation_computes_no_more_than_it_needs(model, kv):
    (done,) = select.from_spec("kv_deviation").passes(model, PROMPT)
    assert (list(done.rows), done.length, done.num_layers) == (list(range(END)), END, 2)
    (done,) = select.from_spec("query_guided").passes(model, PROMPT)
    assert (list(done.rows), done.length, done.num_layers) == (PROMPT.question.tolist(), len(PROMPT), 3)
    assert select.from_spec("random").passes(model, PROMPT) == ()


def test_kv_deviation_leaves_its_layers_fresh_where_it_is_asked_to(model, kv, full):
    """CacheBlend's released code: behind the check layer the KV of layers 0 and 1 is that of full attention."""
    ours, plain = kv.clone(), kv.clone()
    found = scores("kv_deviation(fresh=True)", model, ours)
    close(found, scores("kv_deviation", model, plain))
    for layer in range(3):
        truth = full.kv if layer < 2 else kv
        for mine, theirs in ((ours.keys, truth.keys), (ours.values, truth.values)):
            torch.testing.assert_close(mine[layer][:, :END], theirs[layer][:, :END], atol=1e-4, rtol=1e-4)
    for x, y in zip(plain.tensors(), kv.tensors(), strict=True):
        assert torch.equal(x[:, :END], y[:, :END]), "without it the context is only read"


def test_a_prompt_under_the_released_cacheblend_is_computed_over_fresh_early_layers(model, kv, full):
    rows = torch.cat((choose(scores("kv_deviation(part=v)", model, kv.clone()), PROMPT, 0.2), PROMPT.question))
    mixed = kv.clone()
    for layer in range(2):
        mixed.keys[layer][:, :END] = full.kv.keys[layer][:, :END]
        mixed.values[layer][:, :END] = full.kv.values[layer][:, :END]
    select_ = select.from_spec("kv_deviation(part=v, fresh=True)")
    store, after = MemoryStore(1 << 30), [(), *[PROMPT.context[:1]] * (len(PROMPT.context) - 1)]
    (ready,) = Reuse(prepare=AfterSystem(), select=select_, ratio=0.2).begin(model, [PROMPT], store)
    assert ready.request.plan.rows.tolist() == rows.tolist()
    ours = prefill(model, PROMPT.tokens, ready.request.plan, ready.request.kv).logits
    torch.testing.assert_close(ours, forward(model, PROMPT.tokens, mixed, rows).logits, atol=5e-4, rtol=1e-3)
    blocks = fetch(model, PROMPT.context, store, after), encode_many(model, PROMPT.context, after)
    for cached, before in zip(*blocks, strict=True):
        torch.testing.assert_close([*cached.tensors()], [*before.tensors()], atol=1e-5, rtol=1e-4)


def test_gradual_filtering_goes_on_with_those_that_deviate_most_layer_by_layer():
    """CacheBlend, section 4.3, in one pass by hand: who is filtered out keeps what is cached from there on."""
    deep, everything = model_of("llama", num_hidden_layers=4), torch.arange(len(PROMPT))
    kv = assemble(deep, PROMPT, encode_many(deep, PROMPT.context))
    truth = forward(deep, PROMPT.tokens, empty(deep, len(PROMPT)), everything).kv
    found = scores("kv_deviation(stages=(0.5, 0.25))", deep, kv)[OPEN]
    mixed, alive = kv.clone(), everything[OPEN]

    def best(computed, layer, count):
        pairs = ((kv.keys, computed.keys), (kv.values, computed.values))
        apart = sum((mine[layer] - theirs[layer])[:, alive].square().sum((0, 2)) for mine, theirs in pairs)
        return alive[apart.argsort(descending=True)[:count]].sort().values

    for layer, count in ((1, 14), (2, 7), (3, 4)):
        computed = truth if layer == 1 else forward(deep, PROMPT.tokens, mixed, alive).kv
        done = range(2) if layer == 1 else range(layer, layer + 1)
        for part in ("keys", "values"):
            for at in done:
                getattr(mixed, part)[at][:, alive] = getattr(computed, part)[at][:, alive]
        alive = best(computed, layer, count)
        assert (found.argsort(descending=True)[:count] + SIZES[0]).sort().values.tolist() == alive.tolist()
    passes = select.from_spec("kv_deviation(stages=(0.5, 0.2))").passes(deep, PROMPT)
    assert [(len(done.rows), done.num_layers) for done in passes] == [(END, 2), (14, 3), (6, 4)]
    refused("the model has layers 0 to 3", scores, "kv_deviation(stages=(0.5, 0.4, 0.3))", deep, kv)


@pytest.mark.parametrize("packed", [False, True], ids=["by plans", "as on a GPU"])
def test_the_question_of_qcfuse_reads_what_a_passage_would_be_repeated_from(model, packed, monkeypatch):
    chooser, scored = select.from_spec("qc_fuse(layers=all, digest=0.3, sink=1)"), []
    if packed:  # by the kernel's reference
        monkeypatch.setattr(encoding, "_by_kernels", lambda *given: True)
        monkeypatch.setattr(encoding, "packed_pass", lambda *a, kernels, of=encoding.packed_pass: of(*a, kernels=False))
    monkeypatch.setattr(qc_fuse, "logits", lambda *a, of=qc_fuse.logits: scored.append(a[1]) or of(*a))
    seen = chooser._seen(model, PROMPT)
    assert scored == [*range(len(seen))], "a layer scores all passages at once"
    assert seen[:, : SIZES[0]].all() and seen[:, END:].all(), "the system prompt and the question are read in whole"
    for block, here in zip(PROMPT.context[1:], BLOCKS[1:], strict=False):
        twice = torch.tensor(block.tokens * 2)
        attention = forward(model, twice, empty(model, len(twice)), torch.arange(len(twice))).attention
        for layer, each in enumerate(attention):
            importance = each[:, len(block) :].softmax(-1)[..., : len(block)].amax((0, 1))
            importance[0] = 9
            best = importance.argsort(descending=True)[: ceil(0.3 * len(block))]
            assert seen[layer, list(here)].nonzero()[:, 0].tolist() == best.sort().values.tolist()


def test_qcfuse_with_whole_digests_is_prophetkv_and_weighs_all_keys_in_any_case(model, kv):
    whole = scores("qc_fuse(digest=1, layers=all)", model, kv)
    torch.testing.assert_close(whole, scores("prophet_kv(softmax=prompt)", model, kv), atol=1e-4, rtol=1e-3)
    chooser = select.from_spec("qc_fuse(layers=(1,), digest=0.2)")
    found = chooser(model, PROMPT, kv.clone())
    assert (found[OPEN] > 0).all() and not torch.allclose(
        found[OPEN], scores("prophet_kv(layers=(1,))", model, kv)[OPEN]
    )


def test_a_helper_scores_by_its_last_layer_and_neighbours_share(model, kv, full):
    attention = full.attention[-1][:, PROMPT.question].softmax(-1)[..., :END].sum((0, 1))
    close(scores("cache_clip(window=1)", model, kv), attention)
    smoothed = [
        attention[[j for j in range(i - 1, i + 2) if j in block]].mean() for block in BLOCKS[:-1] for i in block
    ]
    close(scores("cache_clip(window=3)", model, kv), smoothed)


def test_scores_of_another_tokenizer_are_carried_over_by_characters():
    text, other = token_text.shared_text([4, 5, 7], [2, 5, 6, 7]), token_text.shared_text([3], [3])
    assert token_text.transfer_scores(torch.tensor([4.0, 1.0, 2.0]), [text]).tolist() == [2.0, 3.0, 1.0, 1.0]
    several = token_text.transfer_scores(torch.tensor([5.0, 4.0, 1.0, 2.0, 5.0]), [other, text, other])
    assert several.tolist() == [5.0, 2.0, 3.0, 1.0, 1.0, 5.0]


@given(st.lists(st.integers(1, 900), min_size=1, max_size=60), st.sampled_from([900, 2000, 8000, float("inf")]))
def test_passages_of_a_helper_are_read_in_as_few_groups_as_fit_whatever_their_lengths(lengths, room):
    even, fewest = even_packs(lengths, room), packs(lengths, room)
    assert [i for group in even for i in group] == list(range(len(lengths)))
    assert len(even) == len(fewest) and all(sum(lengths[i] for i in group) <= room for group in even)
    longest = [max(sum(lengths[i] for i in group) for group in groups) for groups in (even, fewest)]
    assert longest[0] <= longest[1]


def test_sam_kv_keeps_anchors_and_as_many_blocks_as_are_worth_more_than_they(model, kv):
    """Its released rule in loops: queries of the question and of the other passages, mean keys of anchors, blocks."""
    anchors = [{block[0], *list(block)[-2:]} for block in BLOCKS[1:-1]]
    read = {*BLOCKS[0], *BLOCKS[-1], *set().union(*anchors)}
    visible = torch.tensor([t in read for t in range(len(PROMPT))])
    plan = Plan(PROMPT.question, lambda row, col: (col <= row) & visible[col], return_queries=(1, 2))
    asked = prefill(model, PROMPT.tokens, plan, kv.clone()).queries
    shares = [dict[int, float]() for _ in anchors]
    values = [dict[int, list[float]]() for _ in anchors]
    for layer in (1, 2):
        generic, own = asked[layer].mean(1), []
        for block in PROMPT.context[1:]:
            alone = Plan(torch.arange(len(block)), return_queries=(layer,))
            query = prefill(model, block.ids, alone, empty(model, len(block))).queries[layer][:, -2:].mean(1)
            near = torch.nn.functional.cosine_similarity(query, generic, dim=-1).abs()
            own.append(query * near[:, None])
        for i, block in enumerate(BLOCKS[1:-1]):
            query = generic + sum(one for j, one in enumerate(own) if j != i) / 2
            inner = [t for t in block if t not in anchors[i]]
            groups = [inner[at : at + 2] for at in range(0, len(inner), 2)]

            def worth(tokens, query=query, layer=layer):
                key = kv.keys[layer][:, tokens].mean(1)
                return sum(float(query[2 * h : 2 * h + 2].mean(0) @ key[h]) for h in range(2))

            anchor, each = worth(sorted(anchors[i])), [worth(group) for group in groups]
            inside = min(each) < anchor <= max(each)
            shares[i][layer] = (max(each) - anchor) / (max(each) - min(each)) if inside else 0.0
            values[i][layer] = each
    expected = set[int]()
    for i, block in enumerate(BLOCKS[1:-1]):
        inner = [t for t in block if t not in anchors[i]]
        count = int(-(-len(inner) // 2) * sum(shares[i].values()) / 2)
        expected |= anchors[i]
        for each in values[i].values():
            for at in sorted(range(len(each)), key=lambda j, each=each: -each[j])[:count]:
                expected |= {*inner[2 * at : 2 * at + 2]}
    found = scores("sam_kv(first=1, last=2, block=2, layers=(1, 2))", model, kv.clone())
    assert set((found > -torch.inf).nonzero()[:, 0].tolist()) == expected
    assert any(share for each in shares for share in each.values()), "some blocks are worth more"


def test_a_ratio_of_sam_kv_takes_anchors_from_the_ends_of_every_passage(model, kv):
    spec = "sam_kv(first=2, last=3, block=2)"
    rows = select.from_spec(spec).rows(model, [PROMPT], [kv.clone()], tokens=2 * len(BLOCKS[1:-1]))[0].tolist()
    assert rows == sorted(t for block in BLOCKS[1:-1] for t in (block[0], block[-1]))


def test_the_oracle_sums_all_layers(model, kv):
    each = [scores(f"kv_deviation(layer={layer})", model, kv) for layer in range(3)]
    close(scores("oracle", model, kv), sum(each))
    close(scores("oracle(layers=(0, -1), part=v)", model, kv), scores("kv_deviation(layer=2, part=v)", model, kv))


# --- attention between chunks
def between(full, token: int) -> tuple[float, float]:
    """(attention paid to other passages before, attention received from passages behind), mean over layers and heads"""
    of = PROMPT.block_of.tolist()
    paid, received, count = 0.0, 0.0, 0
    for layer in full.attention:
        for head in layer[:, :END, :END].softmax(-1):
            count += 1
            paid += sum(float(head[token, j]) for j in range(SIZES[0], token) if of[j] != of[token])
            received += sum(float(head[i, token]) for i in range(token + 1, END) if of[i] != of[token])
    return paid / count, received / count


def test_inter_attention_is_what_goes_to_other_passages(model, kv, full):
    expected = [between(full, token) for token in range(END)]
    close(scores("inter_attention", model, kv), [paid for paid, _ in expected])
    close(scores("inter_attention(side=receives)", model, kv), [received for _, received in expected])


def chunk_attention(full, i: int, j: int) -> float:
    """Σ of the attention that chunk i pays to chunk j, mean over layers and heads."""
    heads = torch.cat([layer[:, :END, :END].softmax(-1) for layer in full.attention])
    return float(heads[:, list(BLOCKS[i])][:, :, list(BLOCKS[j])].sum((1, 2)).mean())


@pytest.mark.parametrize("alpha", [0.3, 0.9, 3.0])
def test_cache_craft_recomputes_cfo_of_each_chunk(model, kv, full, alpha):
    """CCI = σ(a / b), CFO = clip(α · CCI · (1 - β'), 0, 1); no chunk has a past, so β' is 0 where there is a prefix."""
    rows = select.from_spec(f"cache_craft(alpha={alpha})").rows(model, [PROMPT], [kv])[0].tolist()
    expected = []
    for i in (2, 3):
        a = sum(chunk_attention(full, i, j) / (SIZES[i] * SIZES[j]) for j in range(1, i))
        b = chunk_attention(full, i, i) / SIZES[i] ** 2
        cfo = min(alpha / (1 + exp(-a / b)), 1.0)
        best = sorted(BLOCKS[i], key=lambda token: -between(full, token)[0])
        expected += best[: ceil(cfo * SIZES[i])]
    assert rows == sorted(expected)


def test_a_chunk_behind_its_old_prefix_needs_nothing(model, kv):
    (attention,) = attention_maps.crossing(model, [PROMPT])
    past = dict(zip((b.key for b in PROMPT.blocks[1:4]), pasts(PROMPT, attention), strict=True))
    again = CacheCraft(alpha=1.0, before=lambda block: past.get(block.key))
    assert again.rows(model, [PROMPT], [kv])[0].tolist() == []
    first = PROMPT.blocks[1].key
    forgetful = CacheCraft(
        alpha=1.0, before=lambda block: None if block.key == PROMPT.blocks[3].key else past[block.key]
    )
    assert {int(PROMPT.block_of[i]) for i in forgetful.rows(model, [PROMPT], [kv])[0]} == {3}
    turned = ChunkContext((*past[PROMPT.blocks[3].key].prefix[::-1],), 0.8)
    swapped = CacheCraft(alpha=1.0, before=lambda block: turned if len(block) == 12 else past[block.key])
    assert swapped.shares(PROMPT, [0.5] * 3) == pytest.approx([0, 0, 0.8]), "the same chunks in the other order: γ = 1"
    assert past[PROMPT.blocks[3].key].prefix[0][0] == first


def test_a_chunk_that_was_measured_once_costs_later_prompts_nothing(model, kv, monkeypatch):
    asked, system = [], PROMPT.blocks[0]
    one, two, three, question = PROMPT.blocks[1:]
    monkeypatch.setattr(
        "workbench.methods.select.cache_craft.crossing",
        lambda *given: asked.append(given[1]) or attention_maps.crossing(*given),
    )
    selector, whole = CacheCraft(), context_pass(model, PROMPT, 3)
    assert selector.passes(model, PROMPT) == whole
    first = selector(model, PROMPT, kv)
    assert selector.passes(model, PROMPT) == whole and asked == [[PROMPT]]
    again = selector(model, PROMPT, kv)
    assert torch.equal(first, again) and selector.passes(model, PROMPT) == () and asked[1:] == [[]]
    other = Prompt((system, two, three, one, question))  # what stood first there was not measured
    assert selector.passes(model, other) == context_pass(model, other, 3)
    scores = selector(model, other, kv)
    known = first[PROMPT.starts[3] : PROMPT.starts[4]]
    torch.testing.assert_close(scores[other.starts[2] : other.starts[3]], known)
    assert asked[2:] == [[other]] and selector.passes(model, other) == context_pass(model, other, 3)


def test_prefix_fit_by_the_papers_formula():
    """β = Σ of inter over chunks kept / Σ over all; γ = discordant pairs / all pairs; β' = β (1 - γ)."""
    old = [("a", 1.0), ("b", 2.0), ("c", 5.0)]
    assert prefix_fit(old, ["a", "b", "c"]) == 1
    assert prefix_fit(old, ["x", "c"]) == 5 / 8
    assert prefix_fit(old, ["b", "a", "c"]) == pytest.approx(1 - 1 / 3)
    assert prefix_fit(old, ["c", "b"]) == pytest.approx(7 / 8 * (1 - 1))
    assert prefix_fit(old, []) == 0
    assert prefix_fit([], ["a"]) == 0 and prefix_fit([], []) == 1


# --- by position and by chance
def test_first_k_takes_the_start_of_every_passage(model, kv):
    """EPIC, LegoLink-k."""
    rows = select.from_spec("first_k(k=3)").rows(model, [PROMPT], [kv])[0].tolist()
    assert rows == [i for block in BLOCKS[1:-1] for i in block[:3]]
    rows = select.from_spec("first_k").rows(model, [PROMPT], [kv], tokens=7)[0].tolist()
    assert rows == sorted([4, 13, 20, 5, 14, 21, 6]), "evenly, the rest from the front"


def test_random_draws_do_not_depend_on_the_batch(model, kv):
    one, other = scores("random", model, kv), scores("random(seed=1)", model, kv)
    assert not torch.equal(one, other)
    moved = prompt_of(*SIZES, seed=3)
    assert not torch.equal(one[OPEN], select.from_spec("random")(model, moved, kv)[OPEN]), (
        "another prompt, another draw"
    )
    many = [select.from_spec(f"random(seed={i})")(model, PROMPT, kv)[OPEN] for i in range(300)]
    assert torch.stack(many).mean(0).sub(0.5).abs().max() < 0.1, "every token alike"


def test_none_chooses_nothing_and_all_chooses_everything(model, kv):
    for ratio in (None, 0.0, 0.3, 1.0):
        assert select.from_spec("none").rows(model, [PROMPT], [kv], ratio)[0].tolist() == []
        assert select.from_spec("all").rows(model, [PROMPT], [kv], ratio)[0].tolist() == list(range(END))


def test_layers_are_refused_by_what_they_are():
    for bad in ((), ("a",), (True,), "middle", 3):
        refused("layers", QueryGuided, layers=bad)

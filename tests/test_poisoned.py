"""Poisoned caches: keys of content chains serve nothing that has seen an attacker; keys of tokens alone do."""

from dataclasses import replace

import pandas as pd
import pytest
import torch
from attack_prompts import corpus, victims_of
from poisoned import CHAINS, MEASURES, TOKENS, TokenKeyStore, attacked, measured, misses

from workbench import data, results
from workbench.core.errors import BadInput
from workbench.methods.prepare.after_system import AfterSystem
from workbench.methods.prepare.with_neighbours import WithNeighbours
from workbench.store import MemoryStore


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
    with pytest.raises(BadInput, match="2 samples: none has its answer in one passage"):
        victims_of(loaded, samples)

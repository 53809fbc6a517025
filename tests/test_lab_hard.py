"""The harder lab: old seeds stay as they were, every question has one answer and needs the passages it should need."""

import json
from hashlib import sha256
from itertools import product
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench import data, models
from workbench.core.errors import BadInput
from workbench.data.lab_corpus import facts as lab_facts
from workbench.data.lab_corpus import hard_words
from workbench.data.lab_corpus import samples as lab
from workbench.data.lab_corpus.style import HARD, PLAIN, Style
from workbench.data.lab_corpus.words import LISTS, RELATIONS
from workbench.data.lab_corpus.world import World, passages_of
from workbench.data.retrieval_corpus import Corpus, nearest
from workbench.data.sample import document_starts
from workbench.metrics.kv.selection import antecedents

LAB_AS_IT_WAS = {  # seed: SHA-256 of 50 samples before there were switches
    0: "a1c89d0b508967d5b547b6810965ec5a92dd3bf8a57d2f018a698d94046bafdd",
    1: "1d0a76143448920ffba627a1bf8fcc952715cba6af05fd2e074503084dc39847",
    7: "5bd93a2fc3177a421dc2b20c9a588dde75010d28a5e292efb29efb8adfbb4203",
    20000: "bf9bc2e635436cfaf33fd5f91369f3731054b3b4802c8461521bf1db9732ecaf",
    30000: "d61a511848ac8052b214d7f92bee001b100f9958fd0503f49b2a92a63c651b3b",
}
STYLES = [PLAIN, HARD, Style(hints=0.0, chain=3, continued=0.8), Style(titles="kept"), Style(distractors=2.0)]
STYLES += [Style(paraphrases=1.0), Style(phrases=1.0), Style(values=1.0)]


@pytest.mark.parametrize("seed", LAB_AS_IT_WAS)
def test_with_every_switch_off_the_lab_corpus_is_what_it_was(seed):
    drawn = [sample.to_json() for sample in data.load("lab", 50, seed)]
    assert sha256(json.dumps(drawn).encode()).hexdigest() == LAB_AS_IT_WAS[seed]
    assert data.load("lab()", 50, seed) == data.load("lab", 50, seed)


@settings(max_examples=25)
@given(st.integers(0, 9999), st.integers(2, 16), st.sampled_from(STYLES))
def test_what_is_read_from_passages_is_what_is_true_of_the_world(seed, passages, style):
    world = World(Random(seed), passages, style)
    context = world.context(passages)
    told = [s for s in lab_facts.statements(passages_of(context)) if s.relation != "alias"]
    true = [(e.name, fact.relation.name, fact.object) for e in context for facts in e.facts for fact in facts]
    true += [(name, fact.relation.name, fact.object) for e in context for name, fact in e.contrasts]
    assert sorted((s.subject, s.relation, s.object) for s in told) == sorted(true)


@settings(max_examples=25)
@given(st.integers(0, 9999), st.integers(1, 14), st.sampled_from(STYLES))
def test_every_question_is_answered_by_its_passages_and_has_one_answer(seed, passages, style):
    for sample in lab.samples(8, seed, passages, style=style):
        assert {sample.answers[0]} <= set(lab_facts.supported(sample)) <= set(sample.answers)


@pytest.mark.parametrize("spec", ["lab-hard", "lab-hard(titles=continued)", "lab-hard(chain=2)"])
def test_a_continued_passage_does_not_answer_without_the_one_that_names_its_subject(spec):
    asked = 0
    for sample in lab.samples(60, 2, kinds=["continuation"], style=lab.named(spec)):
        starts = document_starts(sample.ctxs)
        for i, first in enumerate(starts):
            if first < i:
                alone = data.Sample("alone", sample.question, sample.answers, (sample.ctxs[i],))
                assert lab_facts.supported(alone) == ()
        later = [passage for i, passage in enumerate(sample.ctxs) if starts[i] < i]
        assert sample.answers[0] in " ".join(passage.text for passage in later)
        document = tuple(p for p in sample.ctxs if p.title in sample.supporting_titles) if "titles" not in spec else ()
        if document:
            assert set(lab_facts.supported(data.Sample("whole", sample.question, ("?",), document)))
        asked += 1
    assert asked == 60


def test_every_sentence_of_the_harder_lab_says_its_own_relation_alone():
    for relation in (relation for relations in RELATIONS.values() for relation in relations):
        things = {"person": "Ada Kelric", "company": "Lordex Mills", "place": "Tamby"}
        thing = things.get(relation.target) or LISTS[relation.target][0]
        for says, before in product(hard_words.sentences_of(relation), ("", "Unlike her, ")):
            passage = data.Passage("Otto Dorman", before + says.format(s="Otto Dorman", o=thing))
            assert lab_facts.statements([passage]) == [lab_facts.Statement("Otto Dorman", relation.name, thing)]


def test_kept_titles_name_a_document_and_never_its_subject():
    world = World(Random(1), 40, HARD)
    titles = [{passage.title for passage in entity.passages} for entity in world.documents]
    assert all(len(own) == 1 for own in titles) and len(set.union(*titles)) == len(titles)
    assert max(len(entity.passages) for entity in world.documents) == 3
    for entity in world.documents:
        assert not set(entity.name.split()) & set(entity.passages[0].title.split())
        assert not any(entity.name in passage.text for passage in entity.passages[1:])


def test_evidence_in_the_middle_has_as_many_passages_before_it_as_behind():
    for sample in lab.samples(60, 3, 12, kinds=["continuation", "two-hop"], style=lab.named("lab-hard(middle=1)")):
        places = [i for i, p in enumerate(sample.ctxs) if p.title in sample.supporting_titles]
        assert abs(places[0] - (11 - places[-1])) <= 3
    drawn = [lab.samples(20, 3, style=Style(middle=share)) for share in (0.0, 1.0)]
    assert all(set(a.ctxs) and a.question for pair in zip(*drawn, strict=True) for a in pair)


def test_several_values_are_asked_for_as_a_whole_in_any_order():
    for sample in lab.samples(40, 4, kinds=["multi-value"], style=HARD):
        assert sample.question.endswith("Name all.") and " and " in sample.answers[0]
        values = sample.answers[0].replace(" and ", ", ").split(", ")
        assert len(set(values)) == len(values) in (2, 3)
        assert len(sample.answers) >= 2 and f"{values[-1]}" in " ".join(p.text for p in sample.ctxs)


def found_among(name: str, counts: tuple[int, ...]) -> list[float]:
    """Share of the continued passages of a corpus whose antecedent is among so many most alike by TF-IDF."""
    tokenizer, layout = models.load("lab-full")[1:]
    samples = data.load(name, 48, seed=5)
    corpus, prompts = Corpus.of(samples, layout, tokenizer), layout.prompts(samples, tokenizer)
    near = dict(zip(corpus.blocks, nearest(corpus.texts, max(counts), search="exact"), strict=True))
    found = [antecedents(samples, prompts, lambda b, n=n: [corpus.blocks[i] for i in near[b][:n]]) for n in counts]
    assert min(number for _, number in found) >= 25
    return [those / number for those, number in found]


def test_tfidf_finds_antecedents_more_often_by_kept_titles_than_without():
    kept, continued = (found_among(f"lab-hard(titles={titles})", (4, 10)) for titles in ("kept", "continued"))
    assert kept[0] >= continued[0] + 0.1 and kept[1] >= continued[1] + 0.25


def test_forty_hard_passages_fit_the_context_of_the_lab_models():
    tokenizer, layout = models.load("lab-full")[1:]
    assert max(len(layout.prompt(sample, tokenizer)) for sample in data.load("lab-hard", 8, 8, 40)) < 4096


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("lab(hint=0)", "lab has no switch 'hint'; allowed: facts, pronouns"),
        ("lab(hints=2)", "hints is 2: a share from 0 to 1 is needed"),
        ("lab(titles=lost)", "titles is 'lost': it is continued or kept"),
        ("lab-hard(chain=4)", "chain is 4: a document that goes on has up to 2 or 3 passages"),
        ("lab-hard(facts=0)", "facts is 0: a whole number of at least 1 is needed"),
        ("lab-hard(asides=x)", "asides is 'x': a number of 0 or more is needed"),
        ("lab(0)", r"'lab\(0\)' is not understood"),
        ("lab-harder", "unknown data 'lab-harder': allowed are lab, lab-hard"),
    ],
)
def test_switches_that_do_not_exist_are_refused_in_one_sentence(spec, message):
    with pytest.raises(BadInput, match=message):
        data.load(spec, 1)


def test_a_corpus_is_named_by_its_switches_too():
    drawn = data.load("lab-hard", 12, 3, 6)
    assert {len(sample.ctxs) for sample in drawn} == {6} and drawn[0].id == "lab-hard-3-0"
    assert data.load("lab-hard(middle=.5)", 12, 3, 6) == drawn and data.corpus("lab-hard", 12, 3, 6) == drawn
    assert data.load("lab-hard(values=0)", 12, 3, 6) != drawn and lab.named("lab") == PLAIN
    assert "multi-value" in {sample.kind for sample in data.load("lab-hard", 60, 3, 6)}
    assert {"lab", "lab-hard"} <= set(data.names())

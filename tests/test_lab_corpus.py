"""The lab corpus: seeded, answerable, and hard in the ways that reuse stumbles over."""

import json
from collections import Counter
from hashlib import sha256
from itertools import islice
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.refusals import refused
from workbench import data, models
from workbench.data.lab_corpus import facts as lab_facts
from workbench.data.lab_corpus import samples as lab
from workbench.data.lab_corpus import words as lab_words
from workbench.data.lab_corpus import world as lab_world
from workbench.data.lab_corpus.style import PLAIN, Style

LAB_AS_IT_WAS = {  # seed: SHA-256 of 50 samples of the lab corpus
    0: "a1c89d0b508967d5b547b6810965ec5a92dd3bf8a57d2f018a698d94046bafdd",
    1: "1d0a76143448920ffba627a1bf8fcc952715cba6af05fd2e074503084dc39847",
    7: "5bd93a2fc3177a421dc2b20c9a588dde75010d28a5e292efb29efb8adfbb4203",
    20000: "bf9bc2e635436cfaf33fd5f91369f3731054b3b4802c8461521bf1db9732ecaf",
    30000: "d61a511848ac8052b214d7f92bee001b100f9958fd0503f49b2a92a63c651b3b",
}
STYLES = [PLAIN, Style(hints=0.0, continued=0.8), Style(alike=1.0), Style(asides=0.0, pronouns=1.0)]


def test_the_same_seed_gives_the_same_samples_and_another_seed_other_ones():
    first, again, other = (list(lab.samples(20, seed)) for seed in (3, 3, 4))
    assert first == again
    assert {s.ctxs for s in first}.isdisjoint(s.ctxs for s in other)


@given(st.integers(0, 10_000), st.integers(1, 40))
def test_a_context_has_the_passages_asked_for_and_its_titles_name_them(seed, passages):
    (sample,) = lab.samples(1, seed, passages)
    titles = [passage.title for passage in sample.ctxs]
    assert len(titles) == passages == len(set(titles))
    assert set(sample.supporting_titles) <= set(titles)


@pytest.mark.parametrize("kind", lab.KINDS)
def test_the_answer_stands_in_a_supporting_passage(kind):
    for sample in lab.samples(60, 1, kinds=[kind]):
        support = [p for p in sample.ctxs if p.title in sample.supporting_titles]
        text = " ".join(f"{passage.title} {passage.text}" for passage in support)
        assert any(answer in text for answer in sample.answers), sample
        assert sample.kind == kind and sample.hops == (2 if kind in ("two-hop", "comparison") else 1)


def test_a_continued_passage_follows_the_one_that_names_its_subject_and_never_names_it_itself():
    seen = 0
    for sample in lab.samples(100, 2, kinds=["continuation"]):
        name, title = sample.supporting_titles
        titles = [passage.title for passage in sample.ctxs]
        assert titles.index(title) == titles.index(name) + 1
        text = sample.ctxs[titles.index(title)].text
        assert name not in text and name.split()[0] not in text.split()
        handle = title.removeprefix(lab_words.CONTINUED + " (the ").removesuffix(")")
        assert handle in sample.ctxs[titles.index(name)].text
        seen += sample.answers[0] in text
    assert seen == 100


def test_a_two_hop_question_does_not_name_the_entity_that_its_answer_is_about():
    for sample in lab.samples(60, 5, kinds=["two-hop"]):
        first, second = sample.supporting_titles
        assert first in sample.question and second not in sample.question


def test_a_comparison_is_answered_by_the_earlier_of_two_years():
    for sample in lab.samples(60, 6, kinds=["comparison"]):
        years = {}
        for passage in sample.ctxs:
            if passage.title in sample.supporting_titles:
                years[passage.title] = [w for w in passage.text.replace(".", " ").split() if w in lab_words.YEARS]
        assert min(years, key=lambda title: years[title]) in sample.answers


def test_kinds_come_in_their_shares_and_passages_come_back_from_sample_to_sample():
    drawn = list(lab.samples(1000, 7))
    shares = Counter(sample.kind for sample in drawn)
    assert all(abs(shares[kind] / 1000 - share) < 0.05 for kind, share in lab.SHARE_OF.items())
    passages = [passage for sample in drawn for passage in sample.ctxs]
    assert len(set(passages)) < len(passages) / 3


def test_forty_passages_fit_two_thousand_tokens_and_every_word_of_the_lab_world_is_one_token():
    _, tokenizer, layout = models.load("lab-full")
    longest = max(len(layout.prompt(sample, tokenizer)) for sample in lab.samples(40, 8, 40))
    assert 1500 < longest <= 2048
    lists = [lab_words.WOMEN, lab_words.MEN, lab_words.LAST_NAMES, lab_words.COMPANIES, lab_words.PLACES]
    words = [word for words in [*lists, lab_words.ALIASES, *lab_words.LISTS.values()] for word in words]
    encoded = tokenizer([f" {word}" for word in words], add_special_tokens=False).input_ids
    assert [word for word, ids in zip(words, encoded, strict=True) if len(ids) != 1] == []


def test_any_text_round_trips_through_the_tokenizer():
    _, tokenizer, _ = models.load("lab-full")
    text = "Größe: 3 µm — «naïve»\n\tfür 日本 🙂"
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"passages": 0}, "0"),
        ({"passages": 41}, "41"),
        ({"kinds": ["three-hop"]}, "three-hop"),
        ({"passages": 1, "kinds": ["two-hop"]}, "two-hop"),
    ],
)
def test_bad_requests_are_refused_in_words(arguments, named):
    refused(named, lambda: next(lab.samples(1, 0, **arguments)))


def test_a_style_without_hints_gives_titles_that_say_nothing():
    world = lab_world.World(Random(1), 40, lab_world.Style(hints=0.0, continued=1.0))
    titles = {passage.title for entity in world.documents for passage in islice(entity.passages, 1, None)}
    assert titles == {lab_words.CONTINUED}


def test_an_order_question_is_answered_by_the_title_that_stands_there():
    for sample in lab.samples(60, 9, kinds=["order"]):
        assert sample.answers == (sample.ctxs[0 if "first" in sample.question else -1].title,)


@pytest.mark.parametrize("seed", LAB_AS_IT_WAS)
def test_the_lab_corpus_is_what_it_was(seed):
    drawn = [sample.to_json() for sample in data.load("lab", 50, seed)]
    assert sha256(json.dumps(drawn).encode()).hexdigest() == LAB_AS_IT_WAS[seed]
    assert data.load("lab()", 50, seed) == data.load("lab", 50, seed)


@settings(max_examples=25)
@given(st.integers(0, 9999), st.integers(2, 16), st.sampled_from(STYLES))
def test_what_is_read_from_passages_is_what_is_true_of_the_world(seed, passages, style):
    context = lab_world.World(Random(seed), passages, style).context(passages)
    told = [s for s in lab_facts.statements(lab_world.passages_of(context)) if s.relation != "alias"]
    true = [(e.name, fact.relation.name, fact.object) for e in context for facts in e.facts for fact in facts]
    assert sorted((s.subject, s.relation, s.object) for s in told) == sorted(true)


@settings(max_examples=25)
@given(st.integers(0, 9999), st.integers(1, 14), st.sampled_from(STYLES))
def test_every_question_is_answered_by_its_passages_and_has_one_answer(seed, passages, style):
    for sample in lab.samples(8, seed, passages, style=style):
        assert {sample.answers[0]} <= set(lab_facts.supported(sample)) <= set(sample.answers)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("lab(hint=0)", "lab has no switch 'hint'; allowed: facts, pronouns"),
        ("lab(hints=2)", "hints is 2: a share from 0 to 1 is needed"),
        ("lab(facts=0)", "facts is 0: a whole number of at least 1 is needed"),
        ("lab(facts=1.5)", "facts is 1.5: it must be a whole number"),
        ("lab(asides=x)", "asides is 'x': it must be a number"),
        ("lab(asides=-1)", "asides is -1: a number of 0 or more is needed"),
        ("lab(asides=1e999)", "asides is inf: a number of 0 or more is needed"),
        ("lab(0)", r"'lab\(0\)' is not understood"),
        ("lab-hard", "unknown data 'lab-hard': allowed are lab, needles"),
    ],
)
def test_switches_that_do_not_exist_are_refused_in_one_sentence(spec, message):
    refused(message, data.load, spec, 1)

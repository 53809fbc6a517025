"""The lab corpus: seeded, answerable, and hard in the ways that reuse stumbles over."""

from collections import Counter
from itertools import islice
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench import models
from workbench.core.errors import BadInput
from workbench.data.lab_corpus import samples as lab
from workbench.data.lab_corpus import words as lab_words
from workbench.data.lab_corpus import world as lab_world


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
    with pytest.raises(BadInput, match=named):
        next(lab.samples(1, 0, **arguments))


def test_a_style_without_hints_gives_titles_that_say_nothing():
    world = lab_world.World(Random(1), 40, lab_world.Style(hints=0.0, continued=1.0))
    titles = {passage.title for entity in world.documents for passage in islice(entity.passages, 1, None)}
    assert titles == {lab_words.CONTINUED}


def test_an_order_question_is_answered_by_the_title_that_stands_there():
    for sample in lab.samples(60, 9, kinds=["order"]):
        assert sample.answers == (sample.ctxs[0 if "first" in sample.question else -1].title,)

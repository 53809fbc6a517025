"""Needles: what is asked for stands in the needle and nowhere else, at the depth that is asked for."""

import re
from itertools import pairwise

import pytest

from tests.refusals import refused
from workbench import data
from workbench.data.lab_corpus.words import RELATIONS
from workbench.data.sources import needles
from workbench.data.sources.needles import named, samples, values


def stated(passage, relation):
    """The object of a relation, where a passage states it."""
    for says in relation.says:
        pattern = re.escape(says).replace(r"\{s\}", r"(?:[\w ]+?)").replace(r"\{o\}", r"([\w ]+)")
        if found := re.search(rf"(?:^|[.] ){pattern}", passage.text):
            return found[1]
    return None


def asked(sample):
    """The relation of a question about a person."""
    for relation in RELATIONS["person"]:
        for asks in relation.asks:
            words = re.escape(asks).replace("does\\ \\{n\\}", "(?:does .+|do most people)")
            words = words.replace("did\\ \\{n\\}", "(?:did .+|did most people)").replace("\\{n\\}", ".+")
            if re.fullmatch(words, sample.question):
                return relation
    raise AssertionError(sample.question)


@pytest.mark.parametrize("task", needles.TASKS)
def test_draws_are_repeatable_and_whole(task):
    found = list(samples(5, 7, task, 9))
    assert found == list(samples(5, 7, task, 9)) != list(samples(5, 8, task, 9))
    assert found[:2] == list(samples(2, 7, task, 9)), "a longer draw begins with a shorter one"
    for sample in found:
        assert len(sample.ctxs) == 9 and sample.kind == task and "{" not in sample.question
        text = " ".join(passage.text for passage in sample.ctxs)
        assert "{" not in text and all(value in text for value in values(sample))
        assert set(sample.supporting_titles) <= {passage.title for passage in sample.ctxs}


@pytest.mark.parametrize("passages", [3, 30, 60])
def test_a_single_needle_is_the_only_passage_of_its_kind(passages):
    for sample in samples(10, 0, "single", passages):
        holding = [p for p in sample.ctxs if stated(p, asked(sample))]
        assert [p.title for p in holding] == list(sample.supporting_titles)
        assert stated(holding[0], asked(sample)).endswith(sample.answers[0])


def test_with_many_keys_every_passage_states_it_of_somebody_else():
    for sample in samples(10, 0, "multi-key", 30):
        assert all(stated(p, asked(sample)) for p in sample.ctxs)
        assert len({p.title for p in sample.ctxs}) == 30
        (title,) = sample.supporting_titles
        assert title in sample.question


def test_many_values_stand_in_as_many_passages():
    for sample in samples(10, 0, "multi-value", 30):
        mine = [p for p in sample.ctxs if p.title == sample.supporting_titles[0]]
        assert len(mine) == sample.hops == len(set(values(sample))) == 3
        assert sorted(next(v for v in values(sample) if v in p.text) for p in mine) == sorted(values(sample))


@pytest.mark.parametrize("hops", [2, 3, 5])
def test_a_chain_leads_from_passage_to_passage(hops):
    for sample in samples(10, 0, "tracking", 12, hops=hops):
        titles = sample.supporting_titles
        by_title = {p.title: p.text for p in sample.ctxs}
        assert len(titles) == hops == sample.hops and titles[0] in sample.question
        assert not any(title in sample.question for title in titles[1:])
        for one, other in pairwise(titles):
            assert other in by_title[one]
        assert sample.answers[0] in by_title[titles[-1]]


@pytest.mark.parametrize("passages", [5, 20, 60])
def test_the_common_thing_is_said_most_often(passages):
    for sample in samples(10, 0, "common", passages):
        found = [stated(p, asked(sample)) for p in sample.ctxs]
        assert None not in found and "most people" in sample.question
        counts = {town: found.count(town) for town in found}
        assert counts.pop(sample.answers[0]) == max(2, round(0.4 * passages)) and set(counts.values()) == {1}


def test_tasks_are_data_sets_by_name():
    found = data.load("needles-multi-key", 4, 7, 9)
    assert found == list(samples(4, 7, "multi-key", 9)) == data.corpus("needles-multi-key", 4, 7, 9)
    mixed = data.load("needles", 12, 7, 9)
    assert [sample.kind for sample in mixed[:6]] == [*needles.TASKS, "single"] and mixed[5].id == "single-7-1"
    assert mixed[:7] == data.load("needles", 7, 7, 9) and len({sample.id for sample in mixed}) == len(mixed) == 12
    assert {"needles", *(f"needles-{task}" for task in needles.TASKS)} <= set(data.names())
    assert len(data.load("needles-single", 1)[0].ctxs) == data.HAYSTACK
    refused(r"unknown data 'needles-essay': allowed are lab, needles, needles-single", data.load, "needles-essay")
    refused("passages is 3: common has 5 to 60", data.load, "needles", 5, 0, 3)


@pytest.mark.parametrize(("depth", "place"), [(0, 0), (0.5, 10), (1, 20)])
def test_the_needle_stands_where_it_is_put(depth, place):
    for sample in samples(5, 0, "single", 21, depth=depth):
        assert sample.ctxs[place].title == sample.supporting_titles[0]


def test_values_that_an_answer_names():
    (sample,) = samples(1, 0, "multi-value", 5)
    one, _, three = values(sample)
    assert named(sample, f"They are {one.upper()}, {three}.") == pytest.approx(2 / 3)
    assert (named(sample, sample.answers[0]), named(sample, "nothing")) == (1, 0)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"task": "essay"}, "unknown task 'essay': allowed are single, multi-key"),
        ({"task": "single", "passages": 0}, "passages is 0: single has 1 to 60"),
        ({"task": "single", "passages": 61}, "passages is 61"),
        ({"task": "multi-value", "passages": 2}, "multi-value has 3 to 60"),
        ({"task": "tracking", "passages": 3, "hops": 4}, "tracking has 4 to 60"),
        ({"task": "tracking", "hops": 1}, "hops is 1: a chain has 2 to 5 passages"),
        ({"task": "single", "depth": 1.5}, "depth is 1.5"),
    ],
)
def test_tasks_that_cannot_be(arguments, sentence):
    refused(sentence, lambda: next(samples(1, 0, **arguments)))

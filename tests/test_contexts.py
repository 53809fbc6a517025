"""Contexts of a wanted size, made from the passages of a question file."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench import data
from workbench.data import Passage, Sample
from workbench.data.contexts import sized, stands_in

REAL = Path(__file__).resolve().parents[2] / "shared" / "data"
NQ = REAL / "lost_in_the_middle" / "nq-open-oracle.jsonl.gz"
HOTPOT = REAL / "reflexion_hotpot" / "hotpotqa_distractor_100.jsonl"
MUSIQUE = REAL / "ircot" / "musique_dev_demos.jsonl"
real = pytest.mark.skipif(not REAL.is_dir(), reason="the real question files are not in the repository")


def sample(i: int, passages: int = 1, answer: str = "Ana") -> Sample:
    ctxs = tuple(Passage(f"T{i}.{j}", f"Text {i}.{j}.") for j in range(passages))
    return Sample(f"q{i}", f"Who is {i}?", (answer,), ctxs, (ctxs[0].title,))


@given(st.integers(1, 6), st.integers(1, 14), st.integers(0, 3))
def test_a_context_has_the_wanted_size_its_own_passages_in_order_and_no_passage_twice(own, wanted, seed):
    file = [sample(i, own) for i in range(8)]
    for before, after in zip(file, sized(file, wanted, file, seed), strict=True):
        assert len(after.ctxs) == len(set(after.ctxs)) == min(wanted, 8 * own)
        kept = [ctx for ctx in after.ctxs if ctx in before.ctxs]
        assert kept == list(before.ctxs[: len(kept)]) and len(kept) == min(own, wanted)
        assert replace(after, ctxs=before.ctxs) == before


def test_passages_that_hold_an_answer_or_a_title_of_the_context_are_not_drawn():
    asked = replace(sample(0), answers=("May 18, 2018", "1984"))
    texts = ["It came on May 18, 2018.", "in 1984, they", "of 19845 days", "MAY 18, 2018", "fine"]
    other = Sample("o", "?", ("x",), (*(Passage(f"O{i}", text) for i, text in enumerate(texts)), Passage("1984", "a")))
    twin = Sample("t", "?", ("x",), (Passage("T0.0", "another text"), Passage("O4", "also fine")))
    (found,) = sized([asked], 9, [asked, other, twin])
    drawn = {ctx.title: ctx.text for ctx in found.ctxs}
    assert drawn.keys() == {"T0.0", "O2", "O4"} and drawn["T0.0"] == "Text 0.0." and len(found.ctxs) == 3


@pytest.mark.parametrize(
    "answer, text, held",
    [
        ("Ana", "ANA plays", True),
        ("Ana", "Anabel and Diana", False),
        ("Ana", "Anabel, then Ana.", True),
        ("'l2'", "default='l2'", True),
        ("0", "10 or 0.5", True),
        ("0", "10", False),
        ("(n,)", "shape (n,)of", True),
    ],
)
def test_an_answer_stands_in_a_text_as_words_of_its_own(answer, text, held):
    assert stands_in(answer, text) is held


def test_a_context_depends_on_seed_and_question_and_not_on_how_many_are_drawn(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(json.dumps(sample(i).to_json()) for i in range(40)))
    whole = data.load(path, passages=6, seed=1)
    few = data.load(path, samples=7, passages=6, seed=1)
    assert few == [each for each in whole if each.id in {one.id for one in few}]
    assert whole == data.load(path, passages=6, seed=1) != data.load(path, passages=6, seed=2)
    assert data.load(path) == [replace(sample(i)) for i in range(40)]


def test_neighbours_come_from_the_whole_file(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(json.dumps(sample(i, 2).to_json()) for i in range(9)))
    corpus = {ctx for each in data.corpus(path, samples=2, passages=5) for ctx in each.ctxs}
    assert len(corpus) == 18
    assert {ctx for each in data.load(path, samples=2, passages=5) for ctx in each.ctxs} < corpus


@real
def test_gold_passages_of_natural_questions_get_distractors_of_other_questions():
    drawn = data.load(NQ, samples=400, seed=0, passages=10)
    gold = {each.id: each.ctxs[0] for each in data.load(NQ)}
    for each in drawn:
        assert len({ctx.title for ctx in each.ctxs}) == 10
        assert [ctx for ctx in each.ctxs if ctx.title in each.supporting_titles] == [gold[each.id]]
        others = [ctx for ctx in each.ctxs if ctx != gold[each.id]]
        assert not any(stands_in(answer, f"{c.title}\n{c.text}") for answer in each.answers for c in others)
    places = Counter(each.ctxs.index(gold[each.id]) for each in drawn)
    assert len(places) == 10 and min(places.values()) > 20


@real
def test_files_with_distractors_keep_their_supporting_passages():
    for wanted in (4, 10, 16):
        drawn = data.load(HOTPOT, samples=20, passages=wanted)
        assert all(len(each.ctxs) == wanted for each in drawn)
        assert all(set(each.supporting_titles) <= {ctx.title for ctx in each.ctxs} for each in drawn)
    own = {each.id: set(each.ctxs) for each in data.load(MUSIQUE)}
    assert all(own[each.id] < set(each.ctxs) and len(each.ctxs) == 10 for each in data.load(MUSIQUE, passages=10))


@real
def test_kinds_are_those_of_the_source():
    assert Counter(each.kind for each in data.load(HOTPOT)) == {"bridge": 85, "comparison": 15}
    assert Counter((each.kind, each.hops) for each in data.load(MUSIQUE)) == {
        ("2hop", 2): 14,
        ("3hop", 3): 4,
        ("4hop", 4): 2,
    }

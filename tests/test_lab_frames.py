"""States of a lab world: one document changes from frame to frame, and the answer is what its passages say now."""

from itertools import pairwise

import lab_frames
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.refusals import refused
from workbench.data.layouts import LAB
from workbench.experiments.serving import sessions

FRAMES = lab_frames.samples(50, seed=3, passages=20, length=25)


def test_one_document_changes_from_frame_to_frame_and_a_new_world_begins_after_so_many():
    changed = [sum(x != y for x, y in zip(a.ctxs, b.ctxs, strict=True)) for a, b in pairwise(FRAMES)]
    assert changed[24] > 10, "another world"
    assert {*changed[:24], *changed[25:]} <= {1, 2}
    assert {len(frame.ctxs) for frame in FRAMES} == {20} and {frame.kind for frame in FRAMES} == set(lab_frames.KINDS)


def test_equal_seeds_give_equal_frames_and_a_longer_draw_begins_with_a_shorter_one():
    assert lab_frames.samples(6, 1, 8) == lab_frames.samples(9, 1, 8)[:6] != lab_frames.samples(6, 2, 8)


@given(st.integers(0, 100))
@settings(max_examples=8)
def test_the_answer_stands_in_the_passages_as_they_are_now(seed):
    for frame in lab_frames.samples(6, seed, 12):
        text = " ".join(f"{passage.title} {passage.text}" for passage in frame.ctxs)
        assert any(answer in text for answer in frame.answers), frame


def test_what_has_just_changed_is_asked_about_where_it_can_be():
    single = [(a, b) for a, b in pairwise(FRAMES[:25]) if b.kind == "single-hop"]
    moved = [
        {y.title for x, y in zip(a.ctxs, b.ctxs, strict=True) if x != y} & set(b.supporting_titles) for a, b in single
    ]
    assert all(moved)


def test_a_prompt_has_a_block_a_passage():
    (step,) = sessions.of_frames(FRAMES[:1], LAB)
    assert len(step.pieces) == 22 and step.answers == FRAMES[0].answers
    assert FRAMES[0].ctxs[4].text in step.pieces[5] and FRAMES[0].question in step.pieces[-1]


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"n": 0}, "frames is 0"),
        ({"n": 1, "length": 0}, "length 0"),
        ({"n": 1, "passages": 41}, "passages is 41; a state has 8 to 40"),
        ({"n": 1, "passages": 7}, "passages is 7"),
    ],
)
def test_frames_that_cannot_be_are_refused(asked, words):
    refused(words, lab_frames.samples, **asked)

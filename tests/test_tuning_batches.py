"""Batches for self-distillation: contexts are mixed, filled up to one length, and stay the same examples."""

from dataclasses import replace
from pathlib import Path

import tiny
import torch
from hypothesis import given
from hypothesis import strategies as st
from self_teacher import CONFIG

from workbench import data
from workbench.data.layouts import LAB
from workbench.training.tuning.start import start
from workbench.training.tuning.teacher import pack_taught
from workbench.training.tuning.text.batches import chunks, drawn, examples_of, fitting, room_of
from workbench.training.tuning.text.examples import Data, Example, Limits, Mixed, OwnAnswers, QuestionAnswer
from workbench.training.tuning.text.packing import pack


def test_rows_of_the_student_meet_the_same_tokens_of_the_teacher(sharp, texts):
    _, source = start(CONFIG, sharp, Data(texts["train"]), Path("unused"))
    batch = pack_taught([source[0], source[1]], replace(CONFIG, question_weight=0.5))
    token = batch.student.tokens[batch.student.rows]
    assert torch.equal(token, batch.teacher.tokens[batch.teacher.rows][batch.same])
    assert torch.equal(batch.student.targets, batch.teacher.targets[batch.same])
    of_answers = torch.zeros(len(token), dtype=torch.bool)
    of_answers[batch.of_answers] = True
    assert set(batch.weights[of_answers].tolist()) == {1.0} and set(batch.weights[~of_answers].tolist()) == {0.5}


def test_contexts_are_mixed_from_passages_that_answer_and_their_questions_asked():
    samples, words = data.load("lab", samples=12, seed=5, passages=4), tiny.tokenizer()
    common = (samples, LAB, words, Limits(4000), 3, OwnAnswers("missing", 4))
    source = Mixed(*common, passages=(2, 6), questions=3)
    texts = {
        words.decode(words(LAB.passage.format(title=p.title, text=p.text))["input_ids"])
        for s in samples
        for p in s.ctxs
    }
    for i in range(12):
        drawn = source[i]
        assert 1 <= len(drawn.context) - 1 <= 6 and 1 <= len(drawn.questions) <= 3
        assert {words.decode(block) for block in drawn.context[1:]} <= texts
        assert len(set(drawn.context)) == len(drawn.context)
    assert [source[i] for i in (7, 2)] == [Mixed(*common, passages=(2, 6), questions=3)[i] for i in (7, 2)]
    short = Mixed(samples, LAB, words, Limits(900), 3, passages=(6, 6))
    assert all(short[i].length <= 900 for i in range(6))


def test_batches_are_filled_up_to_one_length_and_stay_the_same_examples(sharp, texts):
    _, source = start(CONFIG, sharp, Data(texts["train"]), Path("unused"))
    room, share = room_of(source, CONFIG, 128)
    assert room % 128 == 0 and 0.5 < share <= 1
    batches = [drawn(source, CONFIG, room, i) for i in range(6)]
    assert {len(batch.student.tokens) for batch in batches} == {2 * room}
    assert {len(batch.teacher.tokens) for batch in batches} == {room}
    bare = pack_taught(examples_of(source, CONFIG, 0), CONFIG)
    assert torch.equal(bare.student.targets, batches[0].student.targets)
    assert torch.equal(bare.student.tokens[bare.student.rows], batches[0].student.tokens[batches[0].student.rows])


@given(st.lists(st.integers(1, 60), min_size=1, max_size=20), st.integers(1, 5), st.integers(1, 40))
def test_batches_keep_to_their_room_unless_one_example_needs_more(lengths, most, units):
    room = 8 * units
    examples = [Example(str(i), ((7,) * (8 * n),), (QuestionAnswer((1, 2), (3,)),)) for i, n in enumerate(lengths)]
    assert all(example.tokens == len(pack([example], ("full",)).tokens) for example in examples)
    assert fitting(examples, 0) == examples
    kept = fitting(examples, room)
    assert kept[0] is examples[0] and [each for each in examples if each in kept] == kept
    for batch in (kept, *chunks(examples, most, room)):
        tokens = sum(example.tokens for example in batch)
        assert tokens <= room or len(batch) == 1
        filled = len(pack(batch, ("full",), least=room).tokens)
        assert filled >= tokens and filled in {room << i for i in range(8)} and (filled == room or filled < 2 * tokens)
    assert [example for chunk in chunks(examples, most, room) for example in chunk] == examples
    assert all(len(chunk) <= most for chunk in chunks(examples, most, 0))

"""What is trained on: the same whatever draws it, never a question of a trial, refused where it does not fit."""

from dataclasses import replace
from itertools import pairwise

import chat_tokenizers
import pytest
import tiny

from tests.refusals import refused
from workbench import data
from workbench.data.layouts import LAB
from workbench.metrics import fidelity
from workbench.training.tuning.text.examples import Data, Files, Lab, Limits, example


@pytest.fixture(scope="module")
def words():
    return tiny.tokenizer()


@pytest.fixture(scope="module")
def samples():
    return data.load("lab", samples=7, seed=5, passages=2)


LIMITS = Limits(4000)


def test_an_example_is_the_prompt_of_inference_and_the_answer_with_its_end(words, samples):
    found, prompt = example(samples[:1], LAB, words), LAB.prompt(samples[0], words)
    assert found.context == tuple(block.tokens for block in prompt.context)
    assert found.questions[0].question == prompt.blocks[-1].tokens
    assert words.decode(found.questions[0].answer) == f" {samples[0].answers[0]}\n"
    assert found.length == len(prompt) + len(found.questions[0].answer)


@pytest.mark.parametrize("family", ["phi3", "mistral3", "gemma2"])  # SentencePiece
def test_an_answer_has_the_tokens_that_it_has_behind_its_question(family, samples):
    tokenizer, layout = chat_tokenizers.of(family), replace(LAB, bos=False)
    one = example(samples[:1], layout, tokenizer).questions[0]
    written = "".join(tokenizer.convert_ids_to_tokens(one.answer))
    assert written == f" {samples[0].answers[0]}\n".replace(" ", "▁")  # without a second blank in front
    assert fidelity.gold_answers(samples[:1], layout, tokenizer) == [one.answer]


def test_a_file_gives_every_sample_once_an_epoch_in_a_new_order(words, samples):
    source = Files(samples, LAB, words, LIMITS, seed=3)
    first, second = ([source[i].id for i in range(n, n + 7)] for n in (0, 7))
    assert sorted(first) == sorted(second) == sorted(s.id for s in samples)
    assert first != second
    assert [Files(samples, LAB, words, LIMITS, seed=3)[i].id for i in (9, 2, 8)] == [second[2], first[2], second[1]]
    assert [Files(samples, LAB, words, LIMITS, seed=4)[i].id for i in range(7)] != first


def test_lab_worlds_are_a_function_of_seed_and_number(words):
    one, two = (Lab(LAB, words, LIMITS, seed=1, passages=(1, 6), questions=4) for _ in range(2))
    assert [one[i] for i in (5, 2, 7)] == [two[i] for i in (5, 2, 7)]
    assert one[2] != Lab(LAB, words, LIMITS, seed=2, passages=(1, 6), questions=4)[2]


def test_lab_contexts_have_the_passages_asked_for_and_every_question_once(words):
    source = Lab(LAB, words, LIMITS, passages=(2, 6), questions=6)
    found = [source[i] for i in range(40)]
    assert {len(e.context) - 1 for e in found} == {2, 3, 4, 5, 6}  # the system block is one
    for e in found:
        assert 1 <= len(e.questions) <= 6 and len(set(e.questions)) == len(e.questions)


def test_neighbours_spread_over_all_lengths_so_batches_are_alike(words):
    source = Lab(LAB, words, LIMITS, passages=(1, 6), questions=1)
    counts = [sum(len(source[i].context) - 1 for i in range(n, n + 16)) for n in range(0, 160, 16)]
    assert max(counts) - min(counts) <= 8  # independent draws: about 18


def test_kinds_and_continued_documents_can_be_practised(words):
    usual, hard = (
        Lab(LAB, words, LIMITS, passages=(6, 6), questions=8, **more)
        for more in ({}, {"kinds": {"continuation": 1.0}, "continued": 1.0})
    )
    shares = []
    for source in (usual, hard):
        texts = [words.decode(block) for i in range(8) for block in source[i].context[1:]]
        shares.append(sum(text.startswith("Title: Continued") for text in texts) / len(texts))
    assert shares[0] < 0.35 < shares[1]
    assert usual.identity != hard.identity and "continuation 1, 100% of documents continued" in hard.identity


def test_shuffled_contexts_part_what_belongs_together_and_nobody_asks_for_their_order(words):
    kinds = {"continuation": 1, "order": 1}
    ordered, mixed = (
        Lab(LAB, words, LIMITS, passages=(6, 6), questions=8, continued=1.0, kinds=kinds, shuffled=share)
        for share in (0.0, 1.0)
    )

    def heads(source, i):
        return ["Continued" in words.decode(block).split("\n")[0] for block in source[i].context[1:]]

    def placed(source, i):
        return sum("passage" in words.decode(qa.question) for qa in source[i].questions)

    assert not any(one and two for i in range(6) for one, two in pairwise(heads(ordered, i)))
    assert any(one and two for i in range(6) for one, two in pairwise(heads(mixed, i)))
    assert sum(placed(ordered, i) for i in range(6)) and not sum(placed(mixed, i) for i in range(6))
    assert "100% of contexts shuffled" in mixed.identity


@pytest.mark.parametrize(
    ("change", "limits", "message"),
    [
        ({"answers": ()}, LIMITS, "sample 'lab-5-3' has no answer"),
        ({"answers": ("  ",)}, LIMITS, "sample 'lab-5-3' has no answer"),
        ({}, Limits(50), r"sample 'lab-5-3' has \d+ tokens with its answer, the limit is 50"),
        (
            {},
            Limits(4000, block=20),
            r"sample 'lab-5-3' has a block of \d+ tokens, over the model's sliding window of 20",
        ),
    ],
)
def test_a_sample_that_cannot_be_trained_on_is_refused_by_name(words, samples, change, limits, message):
    refused(message, Files, [replace(samples[3], **change)], LAB, words, limits)


@pytest.mark.parametrize(
    ("asked", "limits", "message"),
    [
        (Data("nowhere"), LIMITS, "unknown data 'nowhere'"),
        (Data("lab", passages=(3, 50)), LIMITS, "passages is 3-50: a range within 1 to 40"),
        (Data("lab", passages=(4, 2)), LIMITS, "passages is 4-2"),
        (Data("lab", questions=0), LIMITS, "questions is 0"),
        (Data("lab-sample", passages=(1, 2)), LIMITS, "passages, questions, kinds, continued and shuffled"),
        (Data("lab-sample", kinds={"order": 1}), LIMITS, "are for data 'lab'"),
        (Data("lab", kinds={"order": 1, "riddle": 1}), LIMITS, "unknown kind of question 'riddle'"),
        (Data("lab", kinds={"order": 0}), LIMITS, "a positive weight for each"),
        (Data("lab", continued=1.5), LIMITS, "continued is 1.5"),
        (Data("lab", shuffled=-0.5), LIMITS, "shuffled is -0.5"),
        (Data("lab", shuffled=0.5, kinds={"order": 1}), LIMITS, "'order' alone cannot be asked of shuffled"),
        (Data("lab"), Limits(300), r"has \d+ tokens with its answer, the limit is 300"),
    ],
)
def test_data_that_does_not_fit_is_refused(words, asked, limits, message):
    refused(message, asked.source, LAB, words, limits, 0)


def test_worlds_of_other_switches_are_trained_on_by_their_name(words):
    source = Data("lab(hints=0)", passages=(4, 4), continued=0.2).source(LAB, words, LIMITS, seed=0)
    assert source.identity.startswith("lab(hints=0), 4-4 passages")
    assert (source.style.hints, source.style.continued) == (0, 0.2)

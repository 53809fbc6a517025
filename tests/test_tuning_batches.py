"""Batches and examples to tune on: contexts are mixed, filled up to one length, and stay the same examples."""

from dataclasses import replace
from itertools import pairwise
from math import inf, nan
from pathlib import Path

import chat_tokenizers
import pytest
import tiny
import torch
from hypothesis import given
from hypothesis import strategies as st
from random_models import FAMILIES, block_of, model_of
from self_teacher import CONFIG
from torch.nn.attention.flex_attention import create_block_mask

from tests.refusals import refused
from workbench import data, engine
from workbench.core.blocks import Block, Prompt
from workbench.core.masks import visible
from workbench.core.plan import Plan
from workbench.data.layouts import LAB
from workbench.metrics import fidelity
from workbench.models.spec import attach
from workbench.training.tuning.attention import NAME, TILE, masks_of
from workbench.training.tuning.start import start
from workbench.training.tuning.teacher import pack_taught
from workbench.training.tuning.text.batches import chunks, draw_batch, examples_of, fit_into, room_of
from workbench.training.tuning.text.examples import (
    Data,
    Example,
    Files,
    Lab,
    Limits,
    Mixed,
    OwnAnswers,
    QuestionAnswer,
    example,
)
from workbench.training.tuning.text.packing import BLOCK, FULL, pack, padded_length
from workbench.training.tuning.train import forward


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
    batches = [draw_batch(source, CONFIG, room, i) for i in range(6)]
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
    assert fit_into(examples, 0) == examples
    kept = fit_into(examples, room)
    assert kept[0] is examples[0] and [each for each in examples if each in kept] == kept
    for batch in (kept, *chunks(examples, most, room)):
        tokens = sum(example.tokens for example in batch)
        assert tokens <= room or len(batch) == 1
        filled = len(pack(batch, ("full",), least=room).tokens)
        assert filled >= tokens and filled in {room << i for i in range(8)} and (filled == room or filled < 2 * tokens)
    assert [example for chunk in chunks(examples, most, room) for example in chunk] == examples
    assert all(len(chunk) <= most for chunk in chunks(examples, most, 0))


# --- A packed training sequence computes what inference computes, in both modes, for every family
def example_of(seed: int, *lengths: int, questions: int = 2) -> Example:
    def tokens(length: int, number: int) -> tuple[int, ...]:
        return block_of(length, 1000 * seed + number).tokens

    context = tuple(tokens(length, i) for i, length in enumerate(lengths))
    return Example(
        f"e{seed}", context, tuple(QuestionAnswer(tokens(4 + t, 50 + t), tokens(3, 70 + t)) for t in range(questions))
    )


EXAMPLES = [example_of(1, 7, 9, 4, questions=3), example_of(2, 12, 3, questions=1), example_of(3, 6, questions=2)]


def of_inference(model, example: Example, qa: QuestionAnswer, mode: str, positions: str) -> torch.Tensor:
    """Logits that predict the answer, from the engine: blocks encoded apart and assembled, or everything computed."""
    prompt = Prompt((*(Block(tokens) for tokens in example.context), Block(qa.question + qa.answer[:-1])))
    if mode == "block":
        kv, rows = engine.assemble(model, prompt, engine.encode_many(model, prompt.context), positions), prompt.question
    else:
        kv, rows = engine.empty(model, len(prompt)), torch.arange(len(prompt))
    logits = engine.prefill(model, prompt.tokens, Plan(rows), kv).logits
    assert logits is not None
    return logits[-len(qa.answer) :]


@pytest.mark.parametrize("positions", ["re-encoded", "naive"])
@pytest.mark.parametrize("family", FAMILIES)
def test_training_logits_are_those_of_inference_over_cached_blocks(family, positions):
    model = model_of(family)
    windows = tuple(attach(model).windows)
    packed = pack(EXAMPLES, ("full", "block"), positions == "naive")
    model.set_attn_implementation(NAME)
    with torch.no_grad():
        found = forward(model, packed, masks_of(packed, windows))
    wanted = [
        (mode, of_inference(model, example, qa, mode, positions))
        for example in EXAMPLES
        for mode in ("full", "block")
        for qa in example.questions
    ]
    assert packed.modes.tolist() == [BLOCK if mode == "block" else FULL for mode, _ in wanted]
    torch.testing.assert_close(found, torch.cat([logits for _, logits in wanted]), rtol=0, atol=1e-5)


@pytest.mark.parametrize("family", ["llama", "mistral-window"])
def test_tiles_and_parts_give_what_a_dense_mask_gives(family):
    model = model_of(family)
    windows = tuple(attach(model).windows)
    model.set_attn_implementation(NAME)
    packed = pack([example_of(1, 90, 130, 4), example_of(2, 60, questions=1)], ("full", "block"), multiple=128)
    with torch.no_grad():
        dense, *others = (forward(model, packed, masks_of(packed, windows, how)) for how in ("dense", "tiles", "parts"))
    for found in others:
        torch.testing.assert_close(found, dense, rtol=0, atol=1e-5)


@given(
    st.lists(st.tuples(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.integers(1, 3)), min_size=1, max_size=3),
    st.sampled_from([("full",), ("block",), ("full", "block")]),
    st.sampled_from([1, 16]),
)
def test_the_rule_is_the_papers_sentence(shapes, copies, multiple):
    """Tokens of a block see that block; the question and its answer see all blocks; nothing crosses examples."""
    examples = [example_of(i, *lengths, questions=questions) for i, (lengths, questions) in enumerate(shapes)]
    packed = pack(examples, copies, multiple=multiple)
    spans = []  # (copy, block within the copy, question) of every token
    for number, (one, mode) in enumerate((e, m) for e in examples for m in copies):
        for i, tokens in enumerate(one.context):
            spans += [(number, i if mode == "block" else 0, -1)] * len(tokens)
        for t, qa in enumerate(one.questions):
            spans += [(number, -1, t)] * (len(qa.question) + len(qa.answer) - 1)
    spans += [(-1, 0, -1)] * (len(packed.tokens) - len(spans))
    rows = torch.arange(len(packed.tokens))
    for row, seen in enumerate(visible(packed.sees(), rows, rows).tolist()):
        copy, block, question = spans[row]
        for col, is_seen in enumerate(seen):
            other, of_block, of_question = spans[col]
            same = block == of_block if question < 0 else of_question in (-1, question)
            assert is_seen == (col <= row and copy == other and same and not (question < 0 <= of_question))
    parts = masks_of(packed, [None], "parts")[None]
    assert [row for part in parts for row in range(len(packed.tokens))[part.rows]] == rows.tolist()
    assert sum(int(part.mask.sum()) for part in parts) == int(visible(packed.sees(), rows, rows).sum())


def test_only_answer_tokens_are_predicted_each_from_the_token_before_it():
    packed = pack(EXAMPLES, ("full", "block"))
    answers = [qa.answer for example in EXAMPLES for _ in range(2) for qa in example.questions]
    assert packed.targets.tolist() == [token for answer in answers for token in answer]
    for number, answer in enumerate(answers):
        rows = packed.rows[packed.answers == number]
        assert packed.tokens[rows].tolist()[1:] == list(answer[:-1])
        assert packed.in_question[rows].all()


@pytest.mark.parametrize("window", [None, 100])
def test_a_block_mask_has_the_tiles_that_torch_finds_in_all_pairs(window):
    packed = pack([example_of(1, 90, 130, 4), example_of(2, 260, 300, questions=1)], ("full", "block"), least=2304)
    found, sees = masks_of(packed, [window], "tiles")[window], packed.sees(window)
    length = len(packed.tokens)
    wanted = create_block_mask(lambda b, h, row, col: sees(row, col), None, None, length, length, "cpu", TILE)
    assert found.seq_lengths == wanted.seq_lengths == (2304, 2304) and found.kv_num_blocks.sum() > 18
    for kind in ("", "full_"):
        counts, columns = (getattr(found, f"{kind}kv_{name}") for name in ("num_blocks", "indices"))
        assert torch.equal(counts, getattr(wanted, f"{kind}kv_num_blocks"))
        for row, count in enumerate(counts[0, 0].tolist()):
            of_torch = getattr(wanted, f"{kind}kv_indices")[0, 0, row, :count]
            assert torch.equal(columns[0, 0, row, :count], of_torch)


@given(st.integers(1, 10**6))
def test_a_length_is_filled_by_an_eighth_at_most_and_lengths_are_few(length):
    found = padded_length(length, 128)
    assert found >= length and found % 128 == 0
    assert found - length < max(128, length / 8 + 128)
    assert padded_length(found, 128) == found


def test_lengths_up_to_a_hundred_thousand_tokens_are_compiled_for_at_most_64_times():
    assert len({padded_length(length, 128) for length in range(2048, 100_000)}) <= 64


def test_the_training_attention_refuses_other_uses():
    model = model_of("llama")
    model.set_attn_implementation(NAME)
    refused("is for training", lambda: model(input_ids=torch.tensor([[1, 2, 3]])))


# --- What is trained on: the same whatever draws it, never a question of a trial, refused where it does not fit
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
        *((Data("lab", kinds={"order": weight}), LIMITS, "a positive weight for each") for weight in (0, -1, inf, nan)),
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

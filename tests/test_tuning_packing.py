"""A packed training sequence computes what inference computes, in both modes, for every family."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from random_models import FAMILIES, block_of, model_of
from torch.nn.attention.flex_attention import create_block_mask

from workbench import engine
from workbench.core.blocks import Block, Prompt
from workbench.core.errors import BadInput
from workbench.core.masks import visible
from workbench.core.plan import Plan
from workbench.models.spec import attach
from workbench.training.tuning.attention import NAME, TILE, masks_of
from workbench.training.tuning.text.examples import Example, QuestionAnswer
from workbench.training.tuning.text.packing import BLOCK, FULL, pack, padded
from workbench.training.tuning.train import forward


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
    for number, (example, mode) in enumerate((e, m) for e in examples for m in copies):
        for i, tokens in enumerate(example.context):
            spans += [(number, i if mode == "block" else 0, -1)] * len(tokens)
        for t, qa in enumerate(example.questions):
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
    found = padded(length, 128)
    assert found >= length and found % 128 == 0
    assert found - length < max(128, length / 8 + 128)
    assert padded(found, 128) == found


def test_lengths_up_to_a_hundred_thousand_tokens_are_compiled_for_at_most_64_times():
    assert len({padded(length, 128) for length in range(2048, 100_000)}) <= 64


def test_the_training_attention_refuses_other_uses():
    model = model_of("llama")
    model.set_attn_implementation(NAME)
    with pytest.raises(BadInput, match="is for training"):
        model(input_ids=torch.tensor([[1, 2, 3]]))

"""Mask rules against their definitions, token by token."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.random_models import prompt_of
from workbench.core.errors import BadInput
from workbench.core.masks import block_attention, causal, same_block, sink, visible, window

LENGTHS = st.lists(st.integers(1, 6), min_size=2, max_size=6)


def dense(rule, size):
    positions = torch.arange(size)
    return visible(rule, positions, positions)


@given(LENGTHS)
def test_block_attention_is_its_definition(lengths):
    prompt = prompt_of(*lengths)
    owner = [i for i, length in enumerate(lengths) for _ in range(length)]
    last = len(lengths) - 1
    expected = [
        [c <= r and (owner[r] == owner[c] or owner[r] == last) for c in range(len(owner))] for r in range(len(owner))
    ]
    assert dense(block_attention(prompt), len(prompt)).tolist() == expected


@given(LENGTHS, st.integers(1, 4))
def test_what_is_generated_belongs_to_the_question(lengths, more):
    prompt = prompt_of(*lengths)
    grown = prompt_of(*lengths[:-1], lengths[-1] + more)
    size = len(grown)
    assert torch.equal(dense(block_attention(prompt), size), dense(block_attention(grown), size))


@given(LENGTHS)
def test_block_attention_is_causal_attention_less_what_is_in_other_blocks(lengths):
    prompt = prompt_of(*lengths)

    def to_question(row, col):
        return (row >= prompt.starts[-1]) & (col <= row)

    assert torch.equal(
        dense(block_attention(prompt), len(prompt)), dense((causal & same_block(prompt)) | to_question, len(prompt))
    )


@given(st.integers(1, 12), st.integers(1, 15), st.integers(0, 15))
def test_a_window_and_a_sink_show_what_they_say(size, width, first):
    expected = [[c <= r and (r - c < width or c < first) for c in range(size)] for r in range(size)]
    assert dense(window(width) | sink(first), size).tolist() == expected


@given(st.integers(1, 10))
def test_a_rule_is_negated_and_names_its_parts(size):
    assert torch.equal(dense(~causal, size), ~dense(causal, size))
    assert str(causal & (window(3) | sink(1))) == "(causal & (window(3) | sink(1)))"


def test_any_function_is_a_rule_and_a_constant_answer_is_spread():
    assert visible(lambda row, col: torch.tensor(True), torch.arange(3), torch.arange(2)).tolist() == [[True] * 2] * 3


@pytest.mark.parametrize(
    ("make", "sentence"), [(lambda: window(0), "window size 0"), (lambda: sink(-1), "sink count -1")]
)
def test_sizes_that_make_no_sense(make, sentence):
    with pytest.raises(BadInput, match=sentence):
        make()

import json
from dataclasses import replace

import pytest

from tests import tiny
from workbench import data
from workbench.core.errors import BadInput
from workbench.data import Passage, Sample
from workbench.data.layouts import LAB, RELEASED, Layout, prompts

SAMPLE = Sample("1", "Who {is} it?", ("Ana",), (Passage("T", "One."), Passage("U", "Two {x}.")))


@pytest.fixture(scope="module")
def tokenizer():
    return tiny.tokenizer()


def test_the_released_format_is_block_attentions():
    pieces = RELEASED.pieces(SAMPLE)
    assert pieces[0].startswith("<|user|>\nYou are an intelligent AI assistant.") and pieces[0].endswith(
        "question.\n\n"
    )
    assert pieces[1:3] == ["- Title: T\nOne.\n", "- Title: U\nTwo {x}.\n"]
    assert pieces[3].startswith("\n\nPlease write") and pieces[3].endswith("Question: Who {is} it?\n<|assistant|>\n")


def test_a_prompt_reads_as_its_pieces_with_one_bos(tokenizer):
    prompt = LAB.prompt(SAMPLE, tokenizer)
    assert tokenizer.decode(prompt.tokens) == "<s>" + "".join(LAB.pieces(SAMPLE))
    assert prompt.tokens.tolist().count(tokenizer.bos_token_id) == 1
    assert [block.label for block in prompt.blocks[1:]] == [
        "Title: T Text: One.",
        "Title: U Text: Two {x}.",
        "Question: Who {is} it? Answer:",
    ]


def test_a_passage_is_the_same_block_wherever_it_stands(tokenizer):
    turned = replace(SAMPLE, ctxs=SAMPLE.ctxs[::-1])
    one, other = LAB.prompts([SAMPLE, turned], tokenizer)
    assert one.blocks[1] == other.blocks[2] and one.blocks[0] == other.blocks[0]
    assert one.blocks[1].key == other.blocks[2].key


def test_the_lab_corpus_fits_the_layout(tokenizer):
    found = LAB.prompts(data.load("lab", samples=5, seed=1), tokenizer)
    assert [len(prompt.blocks) for prompt in found] == [12] * 5


def test_without_a_system_text_bos_opens_the_first_passage(tokenizer):
    prompt = replace(LAB, system="").prompt(SAMPLE, tokenizer)
    assert prompt.blocks[0].tokens[0] == tokenizer.bos_token_id and len(prompt.blocks) == 3


def test_a_layout_survives_json():
    assert Layout.from_json(json.loads(json.dumps(LAB.to_json()))) == LAB


@pytest.mark.parametrize(
    "change, message",
    [
        ({"passage": "Title: {title}"}, r"no \{text\}"),
        ({"question": "Answer:"}, r"no \{question\}"),
        ({"passage": "{text"}, "template passage"),
        ({"stop": "\n"}, "a list of texts"),
        ({"stop": [""]}, "empty stop string"),
        ({"bos": 1}, "'bos' is 1; bool"),
        ({"colour": "red"}, "unknown layout field 'colour'"),
    ],
)
def test_a_bad_layout_is_refused(change, message):
    with pytest.raises(BadInput, match=message):
        Layout.from_json(LAB.to_json() | change)


def test_a_missing_bos_a_lone_question_and_an_empty_piece_are_refused(tokenizer):
    without = tiny.tokenizer()
    without.bos_token = None
    with pytest.raises(BadInput, match="BOS"):
        LAB.prompt(SAMPLE, without)
    with pytest.raises(BadInput, match="at least one block before its question"):
        prompts([["Who?"]], tokenizer)
    with pytest.raises(BadInput, match="empty"):
        prompts([["", "Who?"]], tokenizer)

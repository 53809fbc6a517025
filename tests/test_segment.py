"""Pieces of texts, chats and states; layouts and the prompts made of them; contexts of a wanted size."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import tiny
from tests.refusals import refused
from workbench import data
from workbench.data import Passage, Sample, segment
from workbench.data.layouts import LAB, RELEASED, Layout, prompts
from workbench.data.sample import sized, stands_in

PIECES = st.lists(
    st.sampled_from(["\n\n", "---", "===", "\n\t", "\n", "```\n", "word", " ", "x = 1;\n", "é", "One two."]),
    max_size=60,
)


@given(PIECES.map("".join), st.integers(1, 20))
def test_text_pieces_join_to_the_text_and_are_at_most_so_many(whole, most):
    pieces = segment.text(whole, most)
    assert "".join(pieces) == whole
    assert all(pieces)
    assert len(pieces) <= most


FENCE = "```python\nimport os\n\nprint(os.name)\n```\n"
CODE = "import os\n\n\ndef name(x):\n    return os.name\n\n\nfor i in range(3):\n    print(name(i))\n"


@pytest.mark.parametrize(
    "whole, pieces",
    [
        ("one\n\ntwo\n\n\nthree\nfour", ["one\n\n", "two\n\n\n", "three\nfour"]),
        ("one\n---\ntwo\nthree", ["one\n---\n", "two\nthree"]),
        ("one ===== two", ["one ===== ", "two"]),
        ("one\n\ttwo\nthree", ["one\n\t", "two\nthree"]),
        ("one\ntwo\n", ["one\n", "two\n"]),
        ("one two", ["one two"]),
        ("\n\none\n\n", ["\n\none\n\n"]),
        ("", []),
        (f"See this.\n\n{FENCE}\nDone.", ["See this.\n\n", f"{FENCE}\n", "Done."]),  # fenced code is left whole
        (f"See this.\n{FENCE}Done.\nBye.", ["See this.\n", FENCE, "Done.\n", "Bye."]),
        (CODE, [CODE]),
    ],
)
def test_the_first_separator_that_occurs_cuts_the_whole_text_but_for_code(whole, pieces):
    assert segment.text(whole) == pieces


def test_the_shortest_pieces_are_joined_first():
    assert segment.text("aaaa\n\nb\n\ncc\n\ndddddd", most=3) == ["aaaa\n\n", "b\n\ncc\n\n", "dddddd"]


def test_many_paragraphs_end_at_most_fifteen_of_similar_length():
    pieces = segment.text("\n\n".join(f"paragraph {i}" for i in range(3000)))
    assert len(pieces) == 15
    assert max(map(len, pieces)) < 3 * min(map(len, pieces))


def test_a_passage_is_one_piece():
    assert segment.passages([Passage("Ada", "She {lives}.")]) == ["Title: Ada\nShe {lives}.\n"]


def test_a_turn_is_a_user_message_with_its_replies_and_the_last_user_message_is_the_question():
    said = [
        ("system", "Be brief."),
        ("user", "Hi"),
        ("assistant", "Hello"),
        ("user", "Add 1"),
        ("tool", "2"),
        ("assistant", "2"),
        ("user", "And?"),
    ]
    pieces = segment.split_turns(
        [{"role": role, "content": content} for role, content in said], template="{role}: {content}\n"
    )
    assert pieces == [
        "system: Be brief.\n",
        "user: Hi\nassistant: Hello\n",
        "user: Add 1\ntool: 2\nassistant: 2\n",
        "user: And?\n",
    ]


def test_a_chat_that_opens_with_the_assistant_keeps_every_message():
    assert (
        len(segment.split_turns([{"role": "assistant", "content": "Welcome"}, {"role": "user", "content": "Hi"}])) == 2
    )


def test_a_message_without_role_is_refused():
    refused("message 0", segment.split_turns, [{"content": "Hi"}])


def test_every_demonstration_is_a_piece():
    shots = [{"question": "1+1", "answer": "2"}, {"question": "2+2", "answer": "4"}]
    assert segment.examples(shots) == ["Question: 1+1\nAnswer: 2\n\n", "Question: 2+2\nAnswer: 4\n\n"]
    refused("example 0 has no 'answer'", segment.examples, [{"question": "1+1"}])


HOLDEM = {
    "round": "flop",
    "chips": {"pot": 60, "p1": {"bet": 10, "remain": 990}, "p2": {"bet": 10, "remain": 990}},
    "board": ["Ah", "Kd"],
}


def test_a_game_state_is_one_block_a_leaf_group():
    assert segment.state(HOLDEM) == [
        'state: {"round": "flop"}\n',
        'state.chips: {"pot": 60}\n',
        'state.chips.p1: {"bet": 10, "remain": 990}\n',
        'state.chips.p2: {"bet": 10, "remain": 990}\n',
        'state.board: ["Ah", "Kd"]\n',
    ]


def test_a_changed_leaf_changes_its_own_block_only():
    after = json.loads(json.dumps(HOLDEM))
    after["chips"]["p2"] = {"bet": 50, "remain": 950}
    old, new = segment.state(HOLDEM), segment.state(after)
    assert [i for i, (a, b) in enumerate(zip(old, new, strict=True)) if a != b] == [3]


def test_a_new_part_leaves_the_blocks_of_the_old_parts_as_they_were():
    assert set(segment.state(HOLDEM)) < set(segment.state({"clock": {"left": 5}} | HOLDEM))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=12,
)


@given(JSON, JSON)
def test_different_states_give_different_pieces(one, other):
    same = json.dumps(one) == json.dumps(other)
    assert (segment.state(one) == segment.state(other)) == same


@given(JSON)
def test_state_pieces_are_single_lines(value):
    assert all(piece.endswith("\n") and piece.count("\n") == 1 for piece in segment.state(value))


SAMPLE = Sample("Who {is} it?", ("Ana",), (Passage("T", "One."), Passage("U", "Two {x}.")), id="1")


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
    refused(message, lambda: Layout.from_json(LAB.to_json() | change))


def test_a_missing_bos_a_lone_question_and_an_empty_piece_are_refused(tokenizer):
    without = tiny.tokenizer()
    without.bos_token = None
    refused("BOS", LAB.prompt, SAMPLE, without)
    refused("at least one block before its question", prompts, [["Who?"]], tokenizer)
    refused("empty", prompts, [["", "Who?"]], tokenizer)


# --- Contexts of a wanted size, made from the passages of a question file


def sample(i: int, passages: int = 1, answer: str = "Ana") -> Sample:
    ctxs = tuple(Passage(f"T{i}.{j}", f"Text {i}.{j}.") for j in range(passages))
    return Sample(f"Who is {i}?", (answer,), ctxs, (ctxs[0].title,), id=f"q{i}")


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
    other = Sample(
        "?", ("x",), (*(Passage(f"O{i}", text) for i, text in enumerate(texts)), Passage("1984", "a")), id="o"
    )
    twin = Sample("?", ("x",), (Passage("T0.0", "another text"), Passage("O4", "also fine")), id="t")
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

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.core.errors import BadInput
from workbench.data import Passage, segment

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
    ],
)
def test_the_first_separator_that_occurs_cuts_the_whole_text(whole, pieces):
    assert segment.text(whole) == pieces


def test_fenced_code_is_left_whole():
    fence = "```python\nimport os\n\nprint(os.name)\n```\n"
    assert segment.text(f"See this.\n\n{fence}\nDone.") == ["See this.\n\n", f"{fence}\n", "Done."]
    assert segment.text(f"See this.\n{fence}Done.\nBye.") == ["See this.\n", f"{fence}", "Done.\n", "Bye."]


def test_a_text_that_is_code_is_one_piece():
    code = "import os\n\n\ndef name(x):\n    return os.name\n\n\nfor i in range(3):\n    print(name(i))\n"
    assert segment.text(code) == [code]


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
    pieces = segment.turns(
        [{"role": role, "content": content} for role, content in said], template="{role}: {content}\n"
    )
    assert pieces == [
        "system: Be brief.\n",
        "user: Hi\nassistant: Hello\n",
        "user: Add 1\ntool: 2\nassistant: 2\n",
        "user: And?\n",
    ]


def test_a_chat_that_opens_with_the_assistant_keeps_every_message():
    assert len(segment.turns([{"role": "assistant", "content": "Welcome"}, {"role": "user", "content": "Hi"}])) == 2


def test_a_message_without_role_is_refused():
    with pytest.raises(BadInput, match="message 0"):
        segment.turns([{"content": "Hi"}])


def test_every_demonstration_is_a_piece():
    shots = [{"question": "1+1", "answer": "2"}, {"question": "2+2", "answer": "4"}]
    assert segment.examples(shots) == ["Question: 1+1\nAnswer: 2\n\n", "Question: 2+2\nAnswer: 4\n\n"]
    with pytest.raises(BadInput, match="example 0 has no 'answer'"):
        segment.examples([{"question": "1+1"}])


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

"""The card game: every frame keeps its rules, next to nothing changes between frames, answers are in the state."""

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.core.errors import BadInput
from workbench.data import segment
from workbench.data.sources import game

LONG = game.frames(400, seed=3, tables=2)


def held(table) -> dict[str, int]:
    return {card: table[card][0] for card in game.DECK if table[card]}


def test_a_hall_of_six_tables_has_over_300_blocks_of_which_99_in_100_repeat():
    frames = game.frames(120, seed=0)
    pieces = [frame.pieces() for frame in frames]
    assert {len(cut) for cut in pieces} == {6 * 56} and len(game.DECK) == 54
    repeated = [len(set(old) & set(new)) / len(new) for old, new in pairwise(pieces)]
    assert sum(repeated) / len(repeated) > 0.985
    assert all(len(set(cut)) == len(cut) for cut in pieces), "no two blocks of a frame are the same"


def test_the_pieces_are_those_of_the_whole_state_cut_by_structure():
    frame = game.frames(1, tables=2)[0]
    assert frame.pieces() == [line.removeprefix("hall.") for line in segment.state(frame.state, "hall")]


def test_equal_seeds_give_equal_frames_and_other_seeds_other_ones():
    assert game.frames(9, 1, 2) == game.frames(9, 1, 2) != game.frames(9, 2, 2)
    assert game.frames(9, 1, 2) == game.frames(12, 1, 2)[:9]


def test_cards_leave_hands_by_being_played_and_come_back_with_a_new_deal_only():
    for old, new in pairwise(LONG):
        changed = [name for name in new.state if old.state[name] != new.state[name]]
        name, what = new.event.split(": ")
        assert changed in ([], [name])
        before, after = held(old.state[name]), held(new.state[name])
        if what == "a new deal":
            assert sorted(Counter(after.values()).values()) == [17, 17, 20]
            continue
        player, verb = int(what.split()[1]), what.split()[2]
        assert player == old.state[name]["turn"] and new.state[name]["turn"] == player % 3 + 1
        gone = set(before.items()) - set(after.items())
        assert set(after.items()) <= set(before.items())
        assert gone == ({(card, player) for card in what.split()[3:]} if verb == "plays" else set())


def test_a_play_beats_the_one_before_it():
    seen = Counter()
    for old, new in pairwise(LONG):
        name, what = new.event.split(": ")
        before, after = old.state[name]["lead"], new.state[name]["lead"]
        if "plays" not in what:
            assert after in (before, "")
            continue
        kind, rank = after.split()
        seen[kind] += 1
        cards = what.split()[3:]
        assert len(cards) == {"single": 1, "pair": 2, "triple": 3, "bomb": 4, "straight": 5, "rocket": 2}[kind]
        if kind not in ("straight", "rocket"):
            assert {card[1] for card in cards} == {rank}
        if before and kind not in ("bomb", "rocket"):
            assert before.split()[0] == kind and game.RANKS.index(rank) > game.RANKS.index(before.split()[1])
    assert {"single", "pair", "triple", "straight"} <= set(seen)


def test_chips_change_hands_and_are_never_made():
    assert {sum(frame.state[name]["chips"]) for frame in LONG for name in frame.state} == {3 * game.CHIPS}
    assert len({tuple(frame.state["t1"]["chips"]) for frame in LONG}) > 1


@given(st.integers(0, 50))
@settings(max_examples=10)
def test_the_answer_can_be_read_from_the_state(seed):
    for frame in game.frames(8, seed, 2):
        words = frame.question.rstrip("?").split()
        table = frame.state[words[-1]]
        match frame.kind:
            case "holder":
                expected = table[words[3]][0]
            case "turn":
                expected = table["turn"]
            case "chips":
                expected = table["chips"][int(words[5]) - 1]
        assert frame.answers[0] == str(expected)


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"n": 0}, "frames is 0; at least 1"),
        ({"n": 1, "tables": 0}, "tables is 0; a hall has 1 to 64"),
        ({"n": 1, "tables": 65}, "tables is 65"),
    ],
)
def test_frames_that_cannot_be_are_refused(asked, sentence):
    with pytest.raises(BadInput, match=sentence):
        game.frames(**asked)

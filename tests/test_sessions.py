"""Sessions of prompts that share blocks: demonstrations, chats and games as prompts, and what they take."""

import json
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import figure_views
from tests.refusals import refused
from workbench.app.explore.panels.editing import EDITS, edit_pieces
from workbench.data import segment
from workbench.data.layouts import LAB
from workbench.data.sources import chat, game
from workbench.experiments.serving import sessions
from workbench.experiments.serving.sessions import answer_session, follow
from workbench.metrics.answers import bootstrap
from workbench.metrics.published_numbers import BLOCK_V2_TEXT
from workbench.plots.marks.styles import REUSE_STATUSES
from workbench.plots.reports.session_replay import frames, quality
from workbench.plots.tokens.plans import history, turnover
from workbench.results import schema


@given(seed=st.integers(0, 200), turns=st.integers(2, 14), memory=st.integers(1, 9))
@settings(max_examples=25)
def test_what_a_chat_asks_was_told_within_its_memory(seed, turns, memory):
    (talk,) = chat.conversations(1, seed, turns, memory)
    assert len(talk) == turns and talk[0].ctxs
    for at, turn in enumerate(talk):
        now = {ctx.title for ctx in turn.ctxs}
        told = [ctx for past in talk[max(0, at - memory) : at] for ctx in past.ctxs]
        holding = turn.ctxs if turn.kind == "told now" else told
        assert any(answer in ctx.text for ctx in holding for answer in turn.answers)
        if turn.kind == "told now":
            assert turn.supporting_titles[0] in now
        else:
            assert turn.supporting_titles[0] in {ctx.title for ctx in told}
        if turn.kind == "follow-up":
            assert turn.supporting_titles[1] in {ctx.title for ctx in told}


def test_chats_ask_every_kind_of_question():
    assert {turn.kind for talk in chat.conversations(6) for turn in talk} == set(chat.KINDS)


def test_a_chat_prompt_holds_the_last_turns_with_their_replies_each_a_block():
    (talk,) = chat.conversations(1, turns=7, memory=3)
    steps = sessions.of_chat(talk, LAB, memory=3)
    assert [len(step.pieces) for step in steps] == [2, 3, 4, 5, 5, 5, 5]
    for before, step in pairwise(steps):
        answer = LAB.answer.format(answer=before.answers[0])
        assert step.pieces[0] == LAB.system and step.pieces[-2] == before.pieces[-1] + answer


@given(seed=st.integers(0, 200), shots=st.integers(1, chat.POOL))
@settings(max_examples=15)
def test_demonstrations_are_drawn_from_one_pool_and_hold_their_answers(seed, shots):
    requests = chat.requests(6, seed, shots)
    assert [request.asked.kind for request in requests] == [*chat.SHOT_KINDS] * 3
    assert len({shot.id for request in requests for shot in request.demonstrations}) <= chat.POOL
    for request in requests:
        assert len(set(request.demonstrations)) == shots
        for shot in request.demonstrations:
            assert shot.answers[0] in shot.ctxs[0].text
        read = request.asked.ctxs or [shot.ctxs[0] for shot in request.demonstrations]
        assert any(answer in ctx.text for ctx in read for answer in request.asked.answers)
        if request.asked.kind == "own passage":
            assert request.asked.ctxs[0] not in [shot.ctxs[0] for shot in request.demonstrations]


def test_a_demonstration_is_one_block_with_its_answer():
    (step,) = sessions.of_demonstrations(chat.requests(1, shots=3), LAB)
    assert len(step.pieces) == 1 + 3 + 1
    assert all(piece.startswith("Title:") and piece.endswith("\n") for piece in step.pieces[1:-1])
    assert step.pieces[-1].endswith("Answer:")


def test_a_game_is_its_rules_its_state_and_a_question():
    frame = game.frames(1, tables=1)[0]
    (step,) = sessions.of_game([frame], LAB)
    assert step.pieces == (game.RULES, *frame.pieces(), LAB.question.format(question=frame.question))


def test_in_a_chat_the_rules_of_a_game_stand_inside_the_users_turn():
    frame = game.frames(1, tables=1)[0]
    chat_layout = replace(LAB, system="<system>Be brief.<user>", turn="<user>")
    (step,) = sessions.of_game([frame], chat_layout)
    assert step.pieces[0] == "<system>Be brief.<user>" + game.RULES and [*step.pieces[1:-1]] == [*frame.pieces()]


def test_following_a_game_encodes_what_changed_and_equals_encoding_all_anew(loaded):
    frames = game.frames(4, seed=1, tables=1)
    records = follow(loaded, sessions.of_game(frames, loaded[2]), max_new_tokens=3, repeats=1, full_every=3)
    assert [record["blocks_encoded"] for record in records[:1]] == [57]
    known: set[str] = set()
    for record, frame in zip(records, frames, strict=True):
        assert record["blocks_encoded"] == len({game.RULES, *frame.pieces()} - known)
        known |= {game.RULES, *frame.pieces()}
        assert sum(record[f"tokens_{status}"] for status in ("kept", "moved", "recalled", "encoded")) == sum(
            record["sizes"]
        )
        assert record["computed"] == record["tokens_encoded"] + record["question"] <= record["tokens"]
        assert record["equal"] and record["logit_gap"] < 2e-5 and record["answer"] == record["answer_anew"]
        assert record["ttft"] > 0 and record["label"] == frame.event
    assert [record["ttft_full"] is not None for record in records] == [True, False, False, True]


def test_timing_a_step_leaves_the_store_as_it_was(loaded):
    """Repeats would otherwise find the blocks that the first of them encoded."""
    steps = sessions.of_demonstrations(chat.requests(2, shots=2), loaded[2])
    once, thrice = (follow(loaded, steps, max_new_tokens=1, repeats=n, full_every=9) for n in (1, 3))
    assert [r["fates"] for r in once] == [r["fates"] for r in thrice]
    assert once[0]["blocks_encoded"] == 3


def test_every_step_is_answered_in_every_mode_and_held_against_the_first(loaded):
    steps = sessions.of_demonstrations(chat.requests(4, shots=1), loaded[2])
    seen: list[tuple[int, int]] = []
    rows = answer_session(loaded, steps, max_new_tokens=2, batch=3, progress=lambda *at: seen.append(at))
    assert [(row["mode"], row["question"], row["kind"]) for row in rows] == [
        (mode, str(number), step.kind) for mode in ("full", "block") for number, step in enumerate(steps)
    ]
    assert all(row["agree"] == 1 for row in rows[:4]) and {row["agree"] for row in rows} <= {0, 1}
    assert all(0 <= row[score] <= 1 for row in rows for score in ("em", "f1", "contains")) and seen[-1] == (8, 8)
    assert len(schema.rows("answers", rows, experiment="session", model="m")) == 8


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda of: chat.conversations(0), "conversations is 0; at least 1"),
        (lambda of: chat.conversations(1, turns=1), "turns is 1; a conversation has 2 to 30"),
        (lambda of: chat.conversations(1, turns=31), "turns is 31"),
        (lambda of: chat.conversations(1, memory=0), "memory is 0"),
        (lambda of: chat.requests(0), "requests is 0"),
        (lambda of: chat.requests(1, shots=17), "shots is 17; a request has 1 to 16"),
        (lambda of: sessions.of_chat([], LAB, memory=0), "memory is 0"),
        (lambda of: game.frames(0), "frames is 0; at least 1"),
        (lambda of: game.frames(1, tables=0), "tables is 0; a hall has 1 to 64"),
        (lambda of: game.frames(1, tables=65), "tables is 65"),
        (lambda of: follow(of, [], repeats=0), "repeats is 0"),
        (
            lambda of: follow(of, sessions.of_game(game.frames(1, tables=6), of[2])),
            r"context of 2048 tokens: ask for fewer tables, turns or demonstrations",
        ),
    ],
)
def test_a_session_that_cannot_be_is_refused(loaded, make, sentence):
    refused(sentence, make, loaded)


# --- The card game: every frame keeps its rules, next to nothing changes between frames, answers are in the state
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


def test_little_of_a_game_changes_between_its_states():
    shares = []
    for before, now in pairwise(game.frames(40)):
        old, pieces = set(before.pieces()), now.pieces()
        shares.append(sum(len(piece) for piece in pieces if piece not in old) / sum(map(len, pieces)))
    ms = BLOCK_V2_TEXT["game_ttft_ms"]
    assert bootstrap(shares)[1] < ms["block"] / ms["full"]


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


# --- Figures of sessions: every block and every frame is drawn once, in the colour of what became of it
SAID = {"caption": "n = 2, seed 0, CPU", "notice": "Look here."}


def record(step: int, statuses: list[str], **more) -> dict:
    count = {f"blocks_{status}": statuses.count(status) for status in REUSE_STATUSES}
    return {
        "step": step,
        "label": "a <move>",
        "fates": statuses,
        "moves": [3 if status == "moved" else 0 for status in statuses],
        "sizes": [4, 2, 6][: len(statuses)],
        "labels": ["rules", "<one>", "two"][: len(statuses)],
        "question": 5,
        "tokens": 17,
        "computed": 11,
        "after_prefix": 13,
        "ttft": 0.01,
        "ttft_anew": 0.05,
        "ttft_full": 0.1,
        **count,
        **more,
    }


RECORDS = [record(0, ["encoded"] * 3), record(1, ["kept", "encoded", "moved"], ttft_full=None)]


def check(fig) -> str:
    text = figure_views.check(fig, SAID)
    assert "<one>" not in text and "<move>" not in text, "texts of the prompt are no mark-up"
    return text


def test_history_draws_every_block_once_at_its_place():
    fig = history(RECORDS, title="t", unit="turn", **SAID)
    check(fig)
    bars = {
        (trace.y[i], trace.base[i], trace.x[i]): trace.marker.color
        for trace in fig.data
        for i in range(len(trace.base))
    }
    for at in (0, 1):
        places = [(at, 0, 4), (at, 4, 2), (at, 6, 6), (at, 12, 5)]
        colours = [REUSE_STATUSES[status].colour for status in RECORDS[at]["fates"]]
        assert [bars[place] for place in places[:3]] == colours and places[3] in bars
    assert len(bars) == 8
    assert any("shifted: keys re-encoded by +3" in text for trace in fig.data for text in trace.customdata)


def test_frames_have_one_step_each_and_begin_where_most_kinds_of_blocks_are():
    fig = frames(RECORDS, columns=2, rows=["t1"], **SAID)
    text = check(fig)
    (slider,) = fig.layout.sliders
    assert [step.args[0][0] for step in slider.steps] == [frame.name for frame in fig.frames] == ["1", "2"]
    assert slider.active == 1 and [step.label for step in slider.steps] == ["1", "2"]
    described = [frame.layout.xaxis.title.text.partition("<br>")[2] for frame in fig.frames]
    assert described[1].startswith("a &lt;move>") and fig.layout.xaxis.title.text.endswith(described[1])
    order = list(REUSE_STATUSES)
    assert np.array_equal(fig.data[0].z, [[order.index("encoded"), order.index("moved")]])
    assert np.array_equal(fig.frames[0].data[0].z, [[order.index("encoded")] * 2])
    scale = {colour for _, colour in fig.data[0].colorscale}
    assert scale == {look.colour for look in REUSE_STATUSES.values()} and len(json.loads(text)["frames"]) == 2
    named = {trace.name for trace in fig.data[1:]}
    assert named == {REUSE_STATUSES[kind].name for kind in ("moved", "encoded")}, "no entry without a mark"


def test_answers_that_are_all_right_are_counted_in_a_table():
    rows = [{"kind": kind, "mode": mode, "em": 1.0, "source": "here"} for kind in "aab" for mode in ("full", "block")]
    said = {"title": "t", "caption": "c"}
    fig = quality(answers := pd.DataFrame(rows), pd.DataFrame(), {}, **said)
    assert [list(cells) for cells in fig.data[0].cells["values"]] == [
        ["a", "b"],
        ["2 of 2", "1 of 1"],
        ["2 of 2", "1 of 1"],
    ]
    wrong = answers.assign(em=[0.0, *answers.em[1:]])
    means = pd.DataFrame([{"kind": "a", "mode": "full", "measure": "em", "value": 0.5, "source": "here"}])
    assert quality(wrong, means, {"em": {"title": "em", "axis": "share"}}, **said).data[0].type == "scatter"


def test_turnover_leaves_out_what_was_not_measured():
    fig = turnover(RECORDS, title="t", unit="frame", **SAID)
    check(fig)
    drawn = {(trace.name, trace.xaxis): list(trace.x) for trace in fig.data}
    assert drawn["full attention, no cache", "x"] == [1, 2]
    assert drawn["full attention, no cache", "x2"] == [1]
    assert [trace.showlegend for trace in fig.data].count(True) == 4
    assert max(fig.data[5].y) == pytest.approx(10), "milliseconds"


PIECES = ("rules\n", "Title: A\nText: One.\n", "two\n", "Q")


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        ("nothing", PIECES),
        ("add a sentence", ("rules\n", "Title: A\nText: One. New.\n", "two\n", "Q")),
        ("delete", ("rules\n", "two\n", "Q")),
        ("copy to the front", (PIECES[0], PIECES[1], *PIECES[1:])),
        ("move to the front", PIECES),
        ("reverse all blocks", ("rules\n", "two\n", "Title: A\nText: One.\n", "Q")),
    ],
)
def test_an_edit_changes_one_block_and_leaves_rules_and_question(edit, expected):
    assert edit_pieces(PIECES, edit, 1, "New.") == expected
    assert edit in EDITS


def test_edits_reach_the_last_block_and_do_not_need_one():
    assert edit_pieces(PIECES, "move to the front", 99, "")[1] == "two\n"
    assert edit_pieces(PIECES, "add a sentence", 2, "New.")[2] == "two New.\n"
    assert edit_pieces(("rules\n", "Q"), "delete", 1, "") == ("rules\n", "Q")


# --- Functions that shape records into tables and figures: sessions
ANSWERED = [
    {**record, "equal": True, "right": step == 1, "answer": "a", "answer_anew": "a", "logit_gap": 1e-6 * step}
    for step, record in enumerate(RECORDS)
]


def test_a_session_is_summarised_behind_its_first_prompt():
    summary = sessions.later_prompts(ANSWERED)
    assert summary["blocks"] == 3 and summary["repeated"] == pytest.approx(2 / 3)
    assert (summary["computed"], summary["tokens"], summary["after_prefix"]) == (11, 17, 13)
    assert summary["ttft_ms"] == pytest.approx(10) and summary["ttft_full_ms"] == pytest.approx(100)

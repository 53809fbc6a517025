"""Sessions of prompts that share blocks: demonstrations, chats and games as prompts, and what they take."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.core.errors import BadInput
from workbench.data.layouts import LAB
from workbench.data.sources import chat, demonstrations, game
from workbench.experiments.serving import sessions
from workbench.experiments.serving.session_replay import follow, scores


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


@given(seed=st.integers(0, 200), shots=st.integers(1, demonstrations.POOL))
@settings(max_examples=15)
def test_demonstrations_are_drawn_from_one_pool_and_hold_their_answers(seed, shots):
    requests = demonstrations.requests(6, seed, shots)
    assert [request.asked.kind for request in requests] == [*demonstrations.KINDS] * 3
    assert len({shot.id for request in requests for shot in request.demonstrations}) <= demonstrations.POOL
    for request in requests:
        assert len(set(request.demonstrations)) == shots
        for shot in request.demonstrations:
            assert shot.answers[0] in shot.ctxs[0].text
        read = request.asked.ctxs or [shot.ctxs[0] for shot in request.demonstrations]
        assert any(answer in ctx.text for ctx in read for answer in request.asked.answers)
        if request.asked.kind == "own passage":
            assert request.asked.ctxs[0] not in [shot.ctxs[0] for shot in request.demonstrations]


def test_a_demonstration_is_one_block_with_its_answer():
    (step,) = sessions.of_demonstrations(demonstrations.requests(1, shots=3), LAB)
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
    steps = sessions.of_demonstrations(demonstrations.requests(2, shots=2), loaded[2])
    once, thrice = (follow(loaded, steps, max_new_tokens=1, repeats=n, full_every=9) for n in (1, 3))
    assert [r["fates"] for r in once] == [r["fates"] for r in thrice]
    assert once[0]["blocks_encoded"] == 3


def test_scores_are_by_mode_and_kind(loaded):
    steps = sessions.of_demonstrations(demonstrations.requests(4, shots=1), loaded[2])
    seen: list[tuple[int, int]] = []
    rows = scores(loaded, steps, max_new_tokens=2, batch=3, progress=lambda *at: seen.append(at))
    assert [(row["mode"], row["kind"], row["n"]) for row in rows] == [
        (mode, kind, n)
        for mode in ("full", "block")
        for kind, n in (("all", 4), ("own passage", 2), ("demonstration", 2))
    ]
    assert all(row["em_low"] <= row["em"] <= row["em_high"] for row in rows) and seen[-1] == (8, 8)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: chat.conversations(0), "conversations is 0; at least 1"),
        (lambda: chat.conversations(1, turns=1), "turns is 1; a conversation has 2 to 30"),
        (lambda: chat.conversations(1, turns=31), "turns is 31"),
        (lambda: chat.conversations(1, memory=0), "memory is 0"),
        (lambda: demonstrations.requests(0), "requests is 0"),
        (lambda: demonstrations.requests(1, shots=17), "shots is 17; a request has 1 to 16"),
        (lambda: sessions.of_chat([], LAB, memory=0), "memory is 0"),
    ],
)
def test_a_session_that_cannot_be_is_refused(make, sentence):
    with pytest.raises(BadInput, match=sentence):
        make()


def test_a_session_that_does_not_fit_the_model_says_what_to_lower(loaded):
    steps = sessions.of_game(game.frames(1, tables=6), loaded[2])
    with pytest.raises(BadInput, match=r"context of 2048 tokens: ask for fewer tables, turns or demonstrations"):
        follow(loaded, steps)


def test_following_refuses_no_repeats(loaded):
    with pytest.raises(BadInput, match="repeats is 0"):
        follow(loaded, [], repeats=0)

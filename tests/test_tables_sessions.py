"""Functions that shape records into tables and figures: sessions."""

import pytest

from tests.figure_views import rows
from tests.test_plots_sessions import RECORDS
from workbench.data.sources import game
from workbench.experiments.serving import session_replay
from workbench.plots.reports import session_replay as session_figures

ANSWERED = [
    {**record, "equal": True, "right": step == 1, "answer": "a", "answer_anew": "a", "logit_gap": 1e-6 * step}
    for step, record in enumerate(RECORDS)
]


def test_a_session_is_summarised_behind_its_first_prompt():
    summary = session_replay.later_prompts(ANSWERED)
    assert summary["blocks"] == 3 and summary["repeated"] == pytest.approx(2 / 3)
    assert (summary["computed"], summary["tokens"], summary["after_prefix"]) == (11, 17, 13)
    assert summary["ttft_ms"] == pytest.approx(10) and summary["ttft_full_ms"] == pytest.approx(100)
    assert session_replay.total(ANSWERED, "right") == 1
    assert all("fates" not in record and "ttft" in record for record in session_replay.without_blocks(ANSWERED))


def test_scores_of_several_numbers_of_demonstrations_are_weighed_by_their_questions():
    score = {"em_low": 0.0, "em_high": 1.0, "f1": 0.5, "f1_low": 0.0, "f1_high": 1.0}
    found = [
        {"mode": mode, "kind": kind, "n": n, "em": em, **score}
        for mode in ("full", "block")
        for kind, n, em in (("all", 4, 0.25), ("own passage", 1, 1.0), ("demonstration", 3, 0.0))
    ]
    counted = session_replay.by_number(found, 8)
    assert [row["kind"] for row in counted[:2]] == ["own passage, 8", "demonstration, 8"] and counted[0]["shots"] == 8
    assert session_replay.mean_em(counted, "full") == 0.25
    assert session_figures.quality(counted, caption="tiny").data


def test_frames_of_a_game_stand_in_a_table_with_both_answers():
    played = game.frames(2, 0, 1)
    assert len(session_figures.game_frames(ANSWERED, played, seed=0).frames) == 2
    fig = session_figures.game_table(ANSWERED, played, model="tiny", device="CPU")
    assert [row[0] for row in rows(fig)] == ["1", "2"] and rows(fig)[1][3:] == ("a", "a", "yes", "1e-06", "1 of 3")
    assert len(rows(session_figures.game_table(ANSWERED, played, model="tiny", device="CPU", most=1))) == 1

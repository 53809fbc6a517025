"""Functions that shape records into tables and figures: sessions and sweeps."""

import pytest

from tests.figure_views import rows, texts
from tests.test_plots_sessions import RECORDS
from workbench.data import game
from workbench.experiments import results, session_replay
from workbench.plots import session_replay as session_figures
from workbench.plots import (
    sweep_curves,
    sweep_tables,
)

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
    assert session_figures.demonstrations_quality(counted, about="tiny", device="CPU").data


def test_frames_of_a_game_stand_in_a_table_with_both_answers():
    played = game.frames(2, 0, 1)
    assert len(session_figures.game_frames(ANSWERED, played, seed=0).frames) == 2
    fig = session_figures.game_table(ANSWERED, played, model="tiny", device="CPU")
    assert [row[0] for row in rows(fig)] == ["1", "2"] and rows(fig)[1][3:] == ("a", "a", "yes", "1e-06", "1 of 3")
    assert len(rows(session_figures.game_table(ANSWERED, played, model="tiny", device="CPU", most=1))) == 1


@pytest.fixture(scope="module")
def swept():
    return results.table("fusion")


def test_kinds_at_a_ratio_begin_with_full_attention_and_full_reuse(swept):
    fig = sweep_tables.kinds_at(swept, ["query_guided"])
    full = swept[(swept["mode"] == "full") & (swept.kind == "order")].iloc[0]
    column = [head.removeprefix("<b>").split(" (")[0] for head in fig.data[0].header["values"]].index("order")
    assert [row[0] for row in rows(fig)] == ["full attention", "Full Reuse", "question-guided (FusionRAG)"]
    assert rows(fig)[0][column] == f"{full.em:.0%} ({full.em_low:.0%}–{full.em_high:.0%})"


def test_selectors_and_preparations_stand_with_signed_differences(swept):
    low_high = {"normalised_low": 0.1, "normalised_high": 0.9, "difference_low": -0.02, "difference_high": 0.01}
    pair = {"select": "first_k", "em": 0.5, "normalised": 0.4, "difference": -0.01, **low_high}
    fig = sweep_tables.selectors_at(swept, [pair])
    first = ("first tokens (EPIC)", "50.0%", "0.40", "0.10 to 0.90", "-1.0 points", "-2.0 to +1.0")
    assert rows(fig) == [first] and "recovers 40%" in texts(fig)
    sides = {f"{side}{end}": 0.5 for side in ("one", "other") for end in ("", "_low", "_high")}
    pairs = [
        {"select": spec, "gain": gain, "gain_low": 0.0, "gain_high": 0.1, **sides}
        for spec, gain in (("none", 0.05), ("query_guided", -0.01))
    ]
    fig = sweep_tables.preparations(swept, pairs, neighbours=10)
    assert rows(fig)[0] == ("nothing recomputed", "50.0% (50%–50%)", "50.0% (50%–50%)", "+5.0 points", "+0.0 to +10.0")
    assert "nothing recomputed +5.0 and question-guided (FusionRAG) -1.0" in texts(fig)


def test_neighbours_antecedents_and_operations_of_the_shipped_sweep(swept):
    points = sweep_curves.by_neighbours(swept, ["none"])
    fig = sweep_curves.number_of_neighbours(swept, ["none"])
    assert f"Nothing recomputed {points[0]['mean']:.1%} at 0" in texts(fig)
    fig = sweep_tables.antecedents_table({1: (3, 12)}, passages=4000, seed=7)
    assert rows(fig) == [("1", "12", "3 (25%)")] and "4,000 passages" in texts(fig)
    fig = sweep_curves.quality_by_operations(swept, ["query_guided"])
    line = next(trace for trace in fig.data if trace.mode == "lines+markers")
    assert 0 < min(line.x) < 1 and f"{swept[swept['mode'] == 'full'].flops.iloc[0]:.1e}" in texts(fig)


def test_a_local_sweep_is_drawn_against_time_and_by_component(swept):
    timed = swept.assign(ttft_p50=0.02)
    partly = timed[(timed["mode"] == "block") & (timed.prepare == "after_system") & (timed.ratio != 1)]
    full = timed[timed["mode"] == "full"]
    fig = sweep_curves.quality_by_time(partly, full, ratios=[0.15], name="tiny on lab", about="n = 3")
    assert "in 20 ms. Points of a line are ratios 15%." in texts(fig)
    assert "full attention" in {trace.name for trace in fig.data}
    similar = "with_neighbours(n=10, search=exact)"
    parts = timed[timed.prepare.isin(["after_system", similar]) & timed["select"].isin(["none", "query_guided"])]
    parts = parts[(parts["select"] == "none") | (parts.ratio == 0.15)]
    fig = sweep_tables.components(parts, similar, about="tiny")
    assert [row[0] for row in rows(fig)][::3] == ["Full Reuse", "+ both (FusionRAG)"] and rows(fig)[0][-1] == "20.0"

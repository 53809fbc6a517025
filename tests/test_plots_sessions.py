"""Figures of sessions: every block and every frame is drawn once, in the colour of what became of it."""

import json

import numpy as np
import pytest

from workbench.app.explore.panels.editing import EDITS, edited
from workbench.plots.marks.styles import REUSE_STATUSES
from workbench.plots.marks.theme import TEMPLATE, WIDTH
from workbench.plots.reports.session_replay import frames
from workbench.plots.tokens.block_history import history, turnover

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
    assert fig.layout.template == TEMPLATE and fig.layout.width == WIDTH
    texts = [note.text for note in fig.layout.annotations]
    assert SAID["caption"] in texts and SAID["notice"] in texts
    assert any(text.startswith("<b>") for text in texts)
    text = fig.to_json()
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
    assert any("moved: keys rerotated by +3" in text for trace in fig.data for text in trace.customdata)


def test_frames_have_one_step_each_and_a_colour_for_every_status():
    fig = frames(RECORDS, columns=2, rows=["t1"], active=1, **SAID)
    text = check(fig)
    (slider,) = fig.layout.sliders
    assert [step.args[0][0] for step in slider.steps] == [frame.name for frame in fig.frames] == ["0", "1"]
    assert slider.active == 1 and slider.steps[1].label.startswith("2: a &lt;move>")
    order = list(REUSE_STATUSES)
    assert np.array_equal(fig.data[0].z, [[order.index("encoded"), order.index("moved")]])
    assert np.array_equal(fig.frames[0].data[0].z, [[order.index("encoded")] * 2])
    scale = {colour for _, colour in fig.data[0].colorscale}
    assert scale == {look.colour for look in REUSE_STATUSES.values()} and len(json.loads(text)["frames"]) == 2


def test_turnover_leaves_out_what_was_not_measured():
    fig = turnover(RECORDS, title="t", unit="frame", **SAID)
    check(fig)
    drawn = {(trace.name, trace.xaxis): list(trace.x) for trace in fig.data}
    assert drawn["full attention, nothing cached", "x"] == [1, 2]
    assert drawn["full attention, nothing cached", "x2"] == [1]
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
    assert edited(PIECES, edit, 1, "New.") == expected
    assert edit in EDITS


def test_edits_reach_the_last_block_and_do_not_need_one():
    assert edited(PIECES, "move to the front", 99, "")[1] == "two\n"
    assert edited(PIECES, "add a sentence", 2, "New.")[2] == "two New.\n"
    assert edited(("rules\n", "Q"), "delete", 1, "") == ("rules\n", "Q")

"""The papers' tables and figures: verdicts come from numbers, and every item has a cell or a reason."""

import json
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from workbench.app import notebook_run
from workbench.core.errors import BadInput
from workbench.experiments import papers
from workbench.experiments.papers import cells, evidence, sparse_evidence, verdicts
from workbench.experiments.papers.verdicts import CONFIRMED, CONTRADICTED, UNREACHABLE, Finding, judge
from workbench.metrics import published_numbers
from workbench.metrics.seeds import crossed
from workbench.plots import papers as figures
from workbench.results import Writer, read

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
NUMBERED = {"block1": (4, 2), "block2": (5, 3), "fusionrag": (19, 2), "bfla": (1, 5), "compact": (5, 0)}
OPPOSITE = {CONFIRMED: CONTRADICTED, CONTRADICTED: CONFIRMED, UNREACHABLE: UNREACHABLE}
NUMBERS = st.floats(-5, 5)


@pytest.fixture(scope="module")
def judged():
    return papers.answers(NOTEBOOKS)


def finding(low, value, high, side="above", bar=0.0, **more):
    return Finding("x", value, low, high, 10, "lab", side, bar, **more)


@given(st.lists(NUMBERS, min_size=3, max_size=3), NUMBERS, st.sampled_from(["above", "below"]))
def test_on_the_other_side_of_its_bar_a_number_has_the_opposite_verdict(numbers, bar, side):
    one = finding(*sorted(numbers), side, bar)
    mirrored = one.mirrored()
    assume(one.low < one.high and mirrored.low < mirrored.high)
    assume(all(abs(end - bar) > 1e-9 for end in (one.low, one.high)))  # mirrored exactly, but for rounding
    assert mirrored.verdict == OPPOSITE[one.verdict]
    other = finding(one.low, one.value, one.high, "below" if side == "above" else "above", bar)
    assert other.verdict == OPPOSITE[one.verdict]


def test_the_interval_decides_and_not_the_number():
    assert finding(0.1, 1, 2).verdict == CONFIRMED
    assert finding(-0.1, 1, 2).verdict == UNREACHABLE
    assert finding(-2, -1, -0.1).verdict == CONTRADICTED
    assert finding(0, 0, 0).verdict == CONTRADICTED, "a count that meets its bar is not above it"
    assert finding(3, 3, 3, "equals", 3).verdict == CONFIRMED and finding(2, 3, 4, "equals", 3).verdict == CONTRADICTED


def test_one_contradiction_contradicts_and_everything_that_decides_must_confirm():
    yes, no, either = finding(1, 2, 3), finding(-3, -2, -1), finding(-1, 0, 1)
    assert judge([yes, yes]) == CONFIRMED and judge([yes, no]) == CONTRADICTED
    assert judge([yes, either]) == UNREACHABLE == judge([])
    beside = verdicts.leading([yes], [no])
    assert judge(beside) == CONFIRMED and judge(verdicts.leading([], [no])) == CONTRADICTED


def test_equal_answers_to_every_question_leave_an_interval():
    alike = evidence.gap("a against b", [1.0] * 300, [1.0] * 300, "below", 0.0, "lab")
    assert (alike.low, alike.high) == pytest.approx((-0.01, 0.01)) and alike.verdict == UNREACHABLE
    over = evidence.over_seeds("a against b", crossed([[0.0] * 300] * 3), "below", 0.0)
    assert (over.low, over.high) == pytest.approx((-0.01, 0.01)), "3 of as many questions, whatever the seeds"


@pytest.mark.parametrize("dense", ["1111", "1101"])
def test_a_task_that_dense_attention_answers_wholly_decides_nothing(monkeypatch, tmp_path, dense):
    quoka = "quoka(block=64, keep=0.25)"
    with Writer(tmp_path, "trial@x", model="x", data="needles-common", mode="full") as out:
        out.answers(
            {"sparse": spec, "training_seed": seed, "question": f"q{i}", "em": float(digit)}
            for spec, digits in {sparse_evidence.DENSE: dense, quoka: "1100"}.items()
            for seed in (1, 2)
            for i, digit in enumerate(digits)
        )
    monkeypatch.setattr(sparse_evidence, "shipped", lambda kind: read(tmp_path).table(kind, "trial"))
    (found,) = sparse_evidence.needles_over_seeds("QUOKA", "common", quoka, "below", 0.0)
    assert found.decides == ("0" in dense)


def test_every_numbered_table_and_figure_is_listed_once():
    keys = [item.key for item in papers.items()]
    wanted = [
        f"{paper}-{kind}-{number}"
        for paper, counts in NUMBERED.items()
        for kind, count in zip(("fig", "table"), counts, strict=True)
        for number in range(1, count + 1)
    ]
    assert len(keys) == 46 and sorted(keys) == sorted(wanted)


def test_a_reason_tells_an_interval_that_holds_the_bar_from_a_measurement_of_less():
    held = Finding("narrow", 0.0, -1.0, 1.0, 20, "lab", "above", 0.0)
    shorter = Finding("64K", 1.4, 1.3, 1.5, 2, "shape", "above", 1.96, reached=False)
    item = verdicts.Item("compact-fig-5", "It gets faster.", missing="128K: not timed")
    parts = ("the interval holds the bar: narrow", "measured of less than the paper prints: 64K", "128K: not timed")
    assert papers.Answer(item, [held, shorter], []).reason == ". ".join(parts)


def test_an_item_has_a_cell_or_is_out_of_reach_with_a_reason(judged):
    for answer in judged:
        if answer.verdict == UNREACHABLE:
            assert answer.reason, f"{answer.item.key}: why is it out of reach?"
        else:
            assert answer.cells, f"{answer.item.key}: no cell's metadata.workbench.answers names it"


def test_every_verdict_of_an_item_turns_with_the_sign_of_its_numbers(judged):
    for answer in judged:
        for one in answer.findings:
            assert one.low <= one.value <= one.high and one.n > 0 and one.label in verdicts.LABELS, one
            if one.side != "equals":
                assert one.mirrored().verdict == OPPOSITE[one.verdict], one


def test_verdicts_add_up(judged):
    counts = papers.counts(judged)
    assert counts["items"] == len(judged) == sum(counts[verdict] for verdict in papers.VERDICTS)
    assert {row["key"] for row in papers.rows(judged)} == {answer.item.key for answer in judged}
    assert f"{counts['confirmed']} are confirmed" in figures.said(judged)


def test_a_cell_that_answers_nothing_known_is_refused(tmp_path):
    cell = {"id": "1", "metadata": {"workbench": {"answers": ["fusionrag-fig-99"]}}}
    (tmp_path / "01_x.ipynb").write_text(json.dumps({"cells": [cell]}))
    with pytest.raises(BadInput, match="a cell answers 'fusionrag-fig-99': there is no such figure or table"):
        papers.answers(tmp_path)
    cell["metadata"]["workbench"]["answers"] = "bfla-fig-1"
    (tmp_path / "01_x.ipynb").write_text(json.dumps({"cells": [cell]}))
    with pytest.raises(BadInput, match=r"01_x.ipynb, cell 1: answers is 'bfla-fig-1'; a list of names is needed"):
        cells.of_folder(tmp_path)
    with pytest.raises(BadInput, match="holds no notebooks"):
        cells.of_folder(tmp_path / "nowhere")


def test_a_link_leads_to_the_page_in_a_report_and_to_the_notebook_in_jupyter():
    assert cells.address(("08_x", "08-04"), live=False) == "../08_x/08_x.html#cell-id=08-04"
    assert cells.address(("08_x", "08-04"), live=True) == "08_x.ipynb#cell-id=08-04"


def test_the_table_has_a_row_an_item_and_begins_with_the_chosen_filter(judged):
    html = figures.listing(judged, paper="bfla", verdict="contradicted").data
    assert html.count("<tr class=") == 46 and "<script" not in html
    assert html.count(" checked>") == 2 and 'class="pick-paper-bfla" checked' in html
    assert "../10_sparse_quality/10_sparse_quality.html#cell-id=" in html


def test_what_was_not_measured_gives_no_finding(monkeypatch, tmp_path):
    monkeypatch.setattr(evidence.results, "FOLDER", tmp_path)
    assert evidence.times("prefill") == {} and evidence.measured("x", "y", "above", 0) == []
    assert list(evidence.real_pairs("a", "b", "kl")) == []
    assert evidence.faster("x", {}, "cudnn", 1.0) == []


def test_printed_speed_ups_and_averages_follow_from_the_printed_numbers():
    for table in (published_numbers.BFLA_TABLE_1, published_numbers.BFLA_TABLE_2):
        pairs = zip(table["seconds"]["dense"], table["seconds"]["bfla"], table["speedup"], strict=True)
        assert all(dense / bfla == pytest.approx(printed, abs=6e-4) for dense, bfla, printed in pairs)
    scores = published_numbers.BFLA_TABLE_3["score"].values()
    means = [sum(column) / len(scores) for column in zip(*scores, strict=True)]
    assert means == pytest.approx(published_numbers.BFLA_TABLE_3["average"], abs=6e-5)


@pytest.mark.parametrize(("given_", "allowed"), [({"paper": "v1"}, "paper is 'v1'"), ({"verdict": "yes"}, "'yes'")])
def test_the_notebook_refuses_what_is_no_filter(given_, allowed):
    with pytest.raises(BadInput, match=allowed):
        notebook_run.check(NOTEBOOKS / "13_papers.ipynb", given_)

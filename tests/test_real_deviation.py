"""Deviation and critical tokens of real text beside the lab's: all that is said turns with the numbers."""

import pytest

from workbench.experiments import deviation_results
from workbench.experiments.papers import evidence, fusion_rag_quality
from workbench.experiments.papers.verdicts import CONFIRMED, CONTRADICTED, UNREACHABLE

LAB = {
    "left_outside_15_percent": 0.2,
    "change_by_preparation": 0.1,
    "first_tenth_over_mean": 4.0,
    "later_half_over_mean": 1.2,
    "CacheBlend: first tenth": 0.3,
    "CacheBlend: later half": 1.3,
    "query-guided: first tenth": 0.2,
    "query-guided: later half": 1.1,
}
AGREEMENT = {
    "CacheBlend and query-guided: agreement": 0.3,
    "CacheBlend and answer-guided: agreement": 0.05,
    "query-guided and answer-guided: agreement": 0.5,
}
REAL = LAB | AGREEMENT | {"left_outside_15_percent": 0.6, "change_by_preparation": -0.6}


@pytest.fixture
def kept(monkeypatch):
    """What was measured, by model and data: the lab's numbers at first."""
    known = {}
    monkeypatch.setattr(deviation_results, "kept", lambda: sorted(known.values(), key=lambda one: one.is_real))
    write(known, "lab-full", "lab", LAB)
    return known


def write(known, model, data, numbers, n=200):
    measured = {key: {"value": x, "low": x - 0.01, "high": x + 0.01, "n": n} for key, x in numbers.items()}
    known[model, data] = deviation_results.Deviations(model, data, measured, {})


def test_what_ships_has_the_lab_first_and_every_number_by_its_selectors():
    lab, *others = deviation_results.kept()
    assert lab.where == "lab-full on lab" and others and all(one.is_real for one in others)
    assert set(REAL) | {"together_2", "together_10"} <= set(lab.numbers)


def test_real_text_decides_for_the_papers_and_few_questions_do_not(kept):
    assert [(one.label, one.decides) for one in fusion_rag_quality.deviation()] == [("lab", True)] * 3
    write(kept, "smollm2", "nq", REAL)
    first, lab = fusion_rag_quality.deviation()[:2]
    assert (first.label, first.decides, first.verdict) == ("real", True, CONFIRMED)
    assert (lab.label, lab.decides, lab.verdict) == ("lab", False, CONTRADICTED)
    write(kept, "smollm2", "nq", REAL, n=20)
    assert [one.decides for one in fusion_rag_quality.deviation()[:2]] == [False, True]


def test_a_selector_is_held_to_the_other_on_the_same_text(kept):
    write(kept, "smollm2", "nq", REAL | {"CacheBlend: first tenth": 0.2, "query-guided: first tenth": 0.25})
    real = [
        one for one in fusion_rag_quality.places() if one.label == "real" and one.what.startswith("Query-guided: first")
    ]
    assert [(one.verdict, one.bar) for one in real] == [(CONTRADICTED, pytest.approx(0.19))]
    assert all(one.verdict in (CONFIRMED, UNREACHABLE) for one in fusion_rag_quality.places() if one.label == "lab")


def test_passages_retrieved_together_are_read_of_the_lab_alone(kept):
    write(kept, "smollm2", "nq", REAL | {"together_2": 0.3})
    write(kept, "lab-full", "lab", LAB | {"together_2": 0.1})
    assert [one.label for one in evidence.measured("together", "together_2", "above", 0.5, real=False)] == ["lab"]

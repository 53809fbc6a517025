"""Deviation and critical tokens of real text beside the lab's: all that is said turns with the numbers."""

import json

import pytest

from workbench.experiments import deviation_results, results
from workbench.experiments.papers import evidence, fusion_rag_quality
from workbench.experiments.papers.verdicts import CONFIRMED, CONTRADICTED, UNREACHABLE
from workbench.plots import real_deviation as figures

ABOUT = {"seed": 1, "passages": 10, "device": "some GPU", "versions": {}}
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
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    write(tmp_path, "lab-full", "lab", LAB)
    return tmp_path


def write(folder, model, data, numbers, n=200):
    name = "deviation" if data == "lab" else f"deviation-{model}-{data}"
    measured = {key: {"value": x, "low": x - 0.01, "high": x + 0.01, "n": n} for key, x in numbers.items()}
    (folder / f"{name}.json").write_text(json.dumps({"model": model, "data": data, **ABOUT, "measured": measured}))


def test_nothing_is_drawn_without_real_text(folder):
    assert figures.deviation_beside_lab() is None
    assert figures.choices_beside_lab() is None and figures.agreement_beside_lab() is None


def test_real_text_stands_beside_the_lab(folder):
    write(folder, "smollm2", "nq", REAL)
    write(folder, "smollm2", "hotpotqa", REAL)
    assert [each.where for each in deviation_results.kept()] == [
        "lab-full on lab",
        "smollm2 on hotpotqa",
        "smollm2 on nq",
    ]
    shown = figures.deviation_beside_lab()
    assert {trace.name for trace in shown.data} == {"lab facts", "real text"}
    assert set(figures.choices_beside_lab().layout.yaxis.ticktext) == {
        "lab-full on lab",
        "smollm2 on nq",
        "smollm2 on hotpotqa",
    }


def test_real_text_decides_for_the_papers_and_few_questions_do_not(folder):
    assert [(one.label, one.decides) for one in fusion_rag_quality.deviation()] == [("lab", True)] * 3
    write(folder, "smollm2", "nq", REAL)
    first, lab = fusion_rag_quality.deviation()[:2]
    assert (first.label, first.decides, first.verdict) == ("real", True, CONFIRMED)
    assert (lab.label, lab.decides, lab.verdict) == ("lab", False, CONTRADICTED)
    write(folder, "smollm2", "nq", REAL, n=20)
    assert [one.decides for one in fusion_rag_quality.deviation()[:2]] == [False, True]


def test_a_selector_is_held_to_the_other_on_the_same_text(folder):
    write(folder, "smollm2", "nq", REAL | {"CacheBlend: first tenth": 0.2, "query-guided: first tenth": 0.25})
    real = [
        one for one in fusion_rag_quality.places() if one.label == "real" and one.what.startswith("Query-guided: first")
    ]
    assert [(one.verdict, one.bar) for one in real] == [(CONTRADICTED, pytest.approx(0.19))]
    assert all(one.verdict in (CONFIRMED, UNREACHABLE) for one in fusion_rag_quality.places() if one.label == "lab")


def test_passages_retrieved_together_are_read_of_the_lab_alone(folder):
    write(folder, "smollm2", "nq", REAL | {"together_2": 0.3})
    write(folder, "lab-full", "lab", LAB | {"together_2": 0.1})
    assert [one.label for one in evidence.measured("together", "together_2", "above", 0.5, real=False)] == ["lab"]

"""The report on recomputed rows read back by share: figure 14a of FusionRAG."""

import json

import pytest

from tests.figure_views import texts
from workbench.experiments import recompute_reports, results
from workbench.plots import recomputed_shares


def one(who, ms, **facts):
    return {"who": who, "ms": ms, "p5": ms * 0.98, "p95": ms * 1.02, "runs": 20, **facts}


def write(folder, *works):
    listed = [{"name": f"{i}", "shape": shape, "contestants": who} for i, (shape, who) in enumerate(works)]
    (folder / "recompute.json").write_text(json.dumps({"card": "NVIDIA H200", "workloads": listed}))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    return tmp_path


def test_without_a_report_nothing_is_drawn(folder):
    assert recomputed_shares.by_share() is None and recompute_reports.missing() == [0.0, 0.05, 0.15, 0.3]


@pytest.mark.parametrize(("ms", "words"), [(200, "confirmed here"), (800, "contradicted here"), (376, "left open")])
def test_shares_stand_beside_the_printed_range(folder, ms, words):
    full = [one("transformers, full prefill (cudnn)", 1000.0), one("transformers, full prefill (flash)", 1300.0)]
    chosen = {"recomputed": 0.15, "choice": "question-guided"}
    ours = [one("ours", ms, choice_ms=9.0), one("ours, loaded from host memory", ms + 60, loaded_gb=3.6)]
    write(folder, (chosen, [*ours, *full]), ({"recomputed": 0.0}, [one("ours", 12.0), *full]))
    rows = {(row["way"], row["at"]): row for row in recompute_reports.by_share()}
    assert rows["ours", 0.15]["mean"] == pytest.approx(1000 / ms) and rows["ours", 0.0]["at"] == 0
    said = texts(recomputed_shares.by_share())
    assert words in said and "Not measured yet with the choice: 5% and 30%" in said


def test_rows_of_an_earlier_report_are_called_drawn(folder):
    write(folder, ({"context": 27648}, [one("ours", 160.0), one("transformers, full prefill", 1000.0)]))
    (row,) = recompute_reports.by_share()
    assert row["way"] == "ours, random rows, no choice" and row["at"] == 0.15
    assert "rows drawn" in texts(recomputed_shares.by_share())

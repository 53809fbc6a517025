"""data/benchmarks/sparse.py: what is scored, what is refused, and rows that are measured again."""

import argparse
import json
import re
from pathlib import Path

import needles
import pandas as pd
import pytest
import sparse as script
from sparse_results import replaced

from workbench.core.errors import BadInput
from workbench.experiments.papers import compact_attention, evidence, sparse_evidence

FOLDER = Path(__file__).parents[1] / "data" / "benchmarks"


def tables(specs: dict[str, str], score: float, ids=("a", "b")) -> dict[str, pd.DataFrame]:
    """Committed files of settings {spec: method}, every number `score`."""
    rows = [
        {"data": name, "spec": spec, "method": method, "kind": kind, "em": score}
        for name in ("lab", "needles")
        for spec, method in specs.items()
        for kind in ("all", "one")
    ]
    answers = {"data": ["lab"] * len(ids), "kind": ["one"] * len(ids), "id": list(ids)}
    answers |= {f"{what} {spec}": [score] * len(ids) for what in ("em", "f1") for spec in specs}
    heads = [{"spec": spec, "layer": layer, "density": score} for spec in specs for layer in range(2)]
    return {"sparse": pd.DataFrame(rows), "sparse-answers": pd.DataFrame(answers), "sparse-heads": pd.DataFrame(heads)}


def test_rows_of_a_method_that_is_measured_again_replace_the_old_ones():
    before = tables({"dense": "dense", "quoka(old=1)": "quoka", "seer": "seer_attention", "window": "window"}, 0.0)
    made = tables({"seer": "seer_attention", "quoka(new=1)": "quoka"}, 1.0, ids=("b", "a"))
    found = replaced(before, made, ["seer_attention", "quoka"])
    specs = ["dense", "window", "seer", "quoka(new=1)"]
    assert list(dict.fromkeys(found["sparse"].spec)) == specs == list(dict.fromkeys(found["sparse-heads"].spec))
    for name, column in (("sparse", "em"), ("sparse-heads", "density")):
        again = found[name].spec.isin(["seer", "quoka(new=1)"])
        assert len(found[name]) == len(before[name]) and (found[name][column] == again.astype(float)).all()
    answers = found["sparse-answers"]
    assert list(answers.id) == ["a", "b"] and "em quoka(old=1)" not in answers
    assert answers["em seer"].tolist() == [1, 1] and answers["f1 dense"].tolist() == [0, 0]
    assert list(answers)[:3] == ["data", "kind", "id"]


def test_other_questions_than_those_of_the_files_are_refused():
    before, made = tables({"dense": "dense"}, 0.0), tables({"dense": "dense"}, 1.0, ids=("a", "c"))
    with pytest.raises(BadInput, match=r"2 questions were asked, .* has 2: ask the same"):
        replaced(before, made, ["dense"])


def test_the_gate_is_distilled_on_a_seed_that_is_not_scored():
    (seed,) = re.findall(r"--seed (\d+)", (FOLDER / "seer_gate.sh").read_text())
    others = {int(n.replace("_", "")) for p in FOLDER.glob("*.py") for n in re.findall(r"\b\d\d_000\b", p.read_text())}
    assert script.SEED in others and int(seed) not in others | {20_000, 30_000}


def test_a_scoring_of_some_methods_is_of_these_alone():
    assert script.method_names("quoka, dense") == ["quoka", "dense"]
    with pytest.raises(argparse.ArgumentTypeError, match="there is no method 'quokka': allowed are dense, oracle"):
        script.method_names("quokka")
    args = argparse.Namespace(
        steps=None, only=["quoka"], samples=3, needles=1, size=2, measured=1, heads=1, device="cpu", processes=1
    )
    work = script.units(args)
    assert [(unit.data, unit.start, unit.count) for unit in work] == [("lab", 0, 2), ("needles", 0, 1), ("lab", 2, 1)]
    assert {setting.method for unit in work for setting in unit.settings} == {"quoka"}


def test_rows_are_written_without_pandas_whatever_each_of_them_lacks(tmp_path):
    script.rows_to(tmp_path / "t", [{"a": 1, "x": None}, {"a": 2, "b": 0.5}], ("b",))
    found = pd.read_parquet(tmp_path / "t")
    assert (
        found["a"].tolist() == [1, 2] and found["b"].dtype == "float32" and found["b"].isna().tolist() == [True, False]
    )
    assert found["x"].dtype == "float64"


def test_needles_are_those_of_the_sparse_methods_and_decide_where_they_are_measured(tmp_path, monkeypatch):
    assert [(needles.MODEL, needles.SEED, needles.PASSAGES, needles.CHUNK)] == [
        (script.MODEL, script.SEED, script.PASSAGES, script.CHUNK)
    ]
    measured = set(evidence.table("sparse").spec)
    assert set(needles.SPECS) <= measured and set(needles.TASKS) == set(compact_attention.TASKS)
    before = sparse_evidence.sparse_right(needles.SPECS[1], "needles", "common")
    (tmp_path / "needles.json").write_text(json.dumps({"tasks": {"common": {needles.SPECS[1]: "0110"}}}))
    monkeypatch.setattr(evidence.results, "FOLDER", tmp_path)
    assert sparse_evidence.needles_right(needles.SPECS[1], "common") == [0, 1, 1, 0] and len(before) == 100

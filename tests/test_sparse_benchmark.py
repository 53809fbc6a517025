"""data/benchmarks/sparse.py: what is scored, what is refused, and rows that are measured again."""

import argparse
import re
from pathlib import Path

import pandas as pd
import pytest
import sparse as script
from sparse_results import measures, scores
from sparse_settings import fields

from workbench.results import Writer

FOLDER = Path(__file__).parents[1] / "data" / "benchmarks"


def test_rows_of_a_method_that_is_measured_again_replace_the_old_ones(tmp_path):
    specs = ("dense(block=64)", "quoka(block=64, keep=0.25)")
    with Writer(tmp_path, "trial@sparse") as out:
        out.counts({**fields(spec, 64), "measure": "em", "value": 0.0} for spec in specs)
    kept = script.before(tmp_path, [specs[1]])
    assert [row["sparse"] for row in kept["trial@sparse"]["counts"]] == [specs[0]]
    assert not any(rows for rows in kept["trial@sparse-heads"].values())


def test_measured_questions_become_counts_with_their_intervals():
    right = [1.0, 0.0, 1.0, 1.0]
    frame = pd.DataFrame({"em": right, "f1": right, "first": right, "tokens": [9] * 4, "measured": [True] * 4})
    frame = frame.assign(density=0.25, lowest=0.1, seconds=[1.0, 2.0, 3.0, 4.0])
    found = {row["measure"]: row for row in [*scores(frame), *measures(frame)]}
    assert found["em"]["value"] == 0.75 and found["em"]["low"] < 0.75 < found["em"]["high"] and found["em"]["n"] == 4
    assert found["density"]["value"] == 0.25 and found["prefill_seconds"]["value"] == 2.5
    assert found["prompt_tokens"]["value"] == 9 and "mass" not in found


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

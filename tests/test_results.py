"""Committed results: they are read back, belong together, and are compared question by question."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.core.errors import BadInput
from workbench.experiments import results
from workbench.experiments.record import Record
from workbench.experiments.results import FOLDER
from workbench.methods import sparse


def entry(digits: str) -> dict:
    return {"right": digits}


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=50))
def test_a_difference_is_taken_question_by_question(pairs):
    ours, theirs = ("".join(str(int(bit)) for bit in column) for column in zip(*pairs, strict=True))
    gap, (low, high) = results.difference(entry(ours), entry(theirs))
    assert gap == pytest.approx((ours.count("1") - theirs.count("1")) / len(pairs))
    assert low <= gap + 1e-9 and high >= gap - 1e-9
    assert results.difference(entry(theirs), entry(ours))[0] == pytest.approx(-gap)


def test_pairing_makes_the_interval_narrower_than_that_of_two_samples():
    digits = "10" * 200
    _, (low, high) = results.difference(entry(digits), entry(digits))
    assert (low, high) == (0, 0)


def test_different_questions_are_not_compared():
    with pytest.raises(BadInput, match="3 and 2 questions"):
        results.difference(entry("010"), entry("01"))


def test_results_that_are_not_there_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    (tmp_path / "half.json").write_text('{"methods": {')
    with pytest.raises(BadInput, match=r"no results 'other' in .*: there are half"):
        results.read("other")
    with pytest.raises(BadInput, match=r"half\.json is no whole JSON file"):
        results.read("half")


def test_results_that_are_written_are_read_back(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    held = next(iter(results.read_json(FOLDER / "last-rows.json")["methods"].values()))
    made = results.entry(Record.from_json(held["record"]), [{"em": 1.0}, {"em": 0.0}])
    results.write(tmp_path / "written.json", 2, 7, {"a method": made})
    assert results.read("written") == {"samples": 2, "seed": 7, "methods": {"a method": made}}
    assert made["right"] == "10" and Record.from_json(made["record"]).n == held["record"]["n"]
    assert results.summary({"a method": made}).startswith(f"a method {held['record']['em']:.3f} [")


def test_the_shipped_tables_of_sparse_methods_belong_together():
    swept, answers, heads = (results.table(name) for name in ("sparse", "sparse-answers", "sparse-heads"))
    assert set(swept.data) <= {"lab", "needles"} and {"dense", "oracle", "bfla"} <= set(swept.method)
    for row in swept.itertuples():
        of = answers[answers.data == row.data]
        of = of if row.kind == "all" else of[of.kind == row.kind]
        assert row.n == len(of) and row.em == pytest.approx(of[f"em {row.spec}"].mean())
        assert row.em_low <= row.em <= row.em_high and sparse.named(row.spec)
    lab = swept[(swept.data == "lab") & (swept.kind == "all")].set_index("spec")
    dense = lab[lab.method == "dense"].iloc[0]
    assert dense.density == 1 and dense.mass == pytest.approx(1)
    assert dense.kl == lab.kl.min() and dense.kl < 1e-3  # not 0: in bf16 chunks round otherwise than one pass
    assert set(heads.spec) == set(lab.index) and lab.density.between(0, 1).all() and lab.mass.between(0, 1.001).all()


def test_the_shipped_results_without_whole_last_rows_are_of_the_questions_of_the_sparse_table():
    found, swept, answers = results.read("last-rows"), results.table("sparse"), results.table("sparse-answers")
    lab = answers[answers.data == "lab"]
    assert lab.id.tolist() == [f"lab-{found['seed']}-{i}" for i in range(found["samples"])] and found["samples"] >= 500
    for spec, entry in found["methods"].items():
        assert entry["with"] in set(swept.spec) and sparse.named(spec).tail == 0 < sparse.named(entry["with"]).tail
        assert len(entry["right"]) == found["samples"] == entry["record"]["n"]
        assert entry["record"]["em"] == pytest.approx(np.mean([int(digit) for digit in entry["right"]]))
        assert entry["record"]["trial"]["seed"] == found["seed"] == swept.seed.iloc[0]


def test_a_table_is_written_smaller_and_read_back_to_the_last_bit(tmp_path):
    draw = np.random.default_rng(0)
    frame = pd.DataFrame({"kl": draw.random(5000).astype("float32"), "id": [f"q{i % 50}" for i in range(5000)]})
    frame.loc[3, "kl"] = np.nan
    results.write_table(tmp_path / "kept.parquet", frame)
    frame.to_parquet(tmp_path / "plain.parquet", compression="zstd")
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "kept.parquet"), frame, check_exact=True)
    assert (tmp_path / "kept.parquet").stat().st_size < 0.9 * (tmp_path / "plain.parquet").stat().st_size

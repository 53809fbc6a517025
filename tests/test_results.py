"""Committed results: they are read back, belong together, and are compared question by question."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.core.errors import BadInput
from workbench.experiments import results
from workbench.methods import sparse
from workbench.results import read


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


def test_the_shipped_counts_of_sparse_methods_are_those_of_their_answers():
    found = read()
    same = ["data", "sparse", "kind"]
    answers, counts = (
        table[(table.model == "lab-full") & (table.passages == 40) & table.data.isin(["lab", "needles"])]
        for table in (found.answers("trial"), found.counts("trial"))
    )
    counted = counts[(counts.measure == "em") & counts["sparse"].isin(answers["sparse"])].set_index(same)
    means = pd.concat([answers, answers.assign(kind="all")]).groupby(same).em.agg(["mean", "size"])
    assert set(means.index) == set(counted.index)
    both = counted.join(means)
    assert np.allclose(both.value, both["mean"]) and (both.n == both["size"]).all()
    assert ((both.low <= both.value) & (both.value <= both.high)).all()
    assert all(sparse.named(spec) for spec in counts["sparse"].unique())


def test_a_table_is_written_smaller_and_read_back_to_the_last_bit(tmp_path):
    draw = np.random.default_rng(0)
    frame = pd.DataFrame({"kl": draw.random(5000).astype("float32"), "id": [f"q{i % 50}" for i in range(5000)]})
    frame.loc[3, "kl"] = np.nan
    results.write_table(tmp_path / "kept.parquet", frame)
    frame.to_parquet(tmp_path / "plain.parquet", compression="zstd")
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "kept.parquet"), frame, check_exact=True)
    assert (tmp_path / "kept.parquet").stat().st_size < 0.9 * (tmp_path / "plain.parquet").stat().st_size

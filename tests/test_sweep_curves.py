"""Curves and paired differences out of a sweep's table."""

import pandas as pd
import pytest

from workbench.core.errors import BadInput
from workbench.experiments.compare import with_explained
from workbench.plots.measures import measure_of
from workbench.plots.sweep_curves import (
    against,
    by_neighbours,
    by_preparation,
    curves,
    levels,
)


def row(trial, mode="block", prepare="after_system", select="none", ratio=None, em=0.5, kind="all", flops=1.0):
    return {
        "trial": trial,
        "mode": mode,
        "prepare": prepare,
        "select": select,
        "ratio": ratio,
        "kind": kind,
        "em": em,
        "em_low": em - 0.1,
        "em_high": em + 0.1,
        "flops": flops,
    }


TEN = "with_neighbours(n=10, search=exact)"
SWEPT = pd.DataFrame(
    [
        row("full", "full", "independent", em=1.0),
        row("reuse", em=0.25, flops=1.0),
        row("a15", select="first_k", ratio=0.15, em=0.5, flops=3.0),
        row("a30", select="first_k", ratio=0.3, em=0.75, flops=5.0),
        row("b15", select="random", ratio=0.15, em=0.25, flops=2.0),
        row("reuse10", prepare=TEN, em=0.5),
        row("b15-10", prepare=TEN, select="random", ratio=0.15, em=0.75),
        row("reuse", em=0.0, kind="order"),
    ]
)
RIGHT = {
    "full": [1, 1, 1, 1],
    "reuse": [1, 0, 0, 0],
    "a15": [1, 1, 0, 0],
    "a30": [1, 1, 1, 0],
    "b15": [0, 1, 0, 0],
    "reuse10": [1, 1, 0, 0],
    "b15-10": [1, 1, 1, 0],
}
ANSWERS = pd.DataFrame({f"{score} {trial}": right for trial, right in RIGHT.items() for score in ("em", "f1")})


def test_a_curve_begins_at_full_reuse_and_rises_with_the_ratio():
    assert [(r["at"], r["mean"]) for r in curves(SWEPT, ["first_k"])] == [(0, 0.25), (0.15, 0.5), (0.3, 0.75)]
    assert [r["at"] for r in curves(SWEPT, ["first_k"], x="flops")] == [1, 3, 5]
    assert [(r["name"], r["at"]) for r in curves(SWEPT, ["none", "first_k"], only=0.15)] == [
        ("nothing recomputed", 0),
        ("first tokens (EPIC)", 0.15),
    ]
    with pytest.raises(BadInput, match="no trial of 'oracle' on passages cached 'after_system', kind 'order'"):
        curves(SWEPT, ["oracle"], kind="order", only=0.15)


def test_a_curve_against_the_ratio_ends_where_every_token_is_computed():
    swept = pd.concat([SWEPT, pd.DataFrame([row("all", select="all", ratio=1.0, em=1.0)])])
    assert [(r["at"], r["mean"]) for r in curves(swept, ["first_k"])][-1] == (1, 1.0)
    assert [r["at"] for r in curves(swept, ["all"])] == [0, 1]
    assert [r["at"] for r in curves(swept, ["first_k"], x="flops")] == [1, 3, 5], "choosing costs something of its own"


def test_levels_are_those_of_full_attention_and_full_reuse():
    assert levels(SWEPT) == {("full", "all"): 1.0, ("none", "all"): 0.25, ("none", "order"): 0.0}


def test_selectors_are_compared_on_the_same_questions_the_best_first():
    best, other = against(SWEPT, ANSWERS, "random", "after_system", 0.15)
    assert (best["select"], other["select"]) == ("first_k", "random")
    assert best["difference"] == 0.25 and other["difference"] == other["difference_low"] == 0
    assert best["normalised"] == pytest.approx((0.5 - 0.25) / (1 - 0.25)) and other["normalised"] == 0


def test_preparations_are_compared_on_the_same_questions():
    reuse, drawn = by_preparation(SWEPT, ANSWERS, ["none", "random"], "after_system", TEN, 0.15)
    assert (reuse["one"], reuse["other"], reuse["gain"]) == (0.25, 0.5, 0.25)
    assert drawn["gain"] == 0.5 and drawn["gain_low"] <= 0.5 <= drawn["gain_high"]


def test_neighbours_are_counted_from_the_spec():
    assert [(r["at"], r["mean"]) for r in by_neighbours(SWEPT, ["none"])] == [(0, 0.25), (10, 0.5)]


LOSSES = {"full": 0.0, "reuse": 4.0, "a15": 2.0, "a30": 1.0, "b15": 3.0, "reuse10": 3.0, "b15-10": 1.0}


@pytest.fixture(scope="module")
def measured():
    """The sweep with losses, and what its trials explain of them; four questions, all lose alike."""
    kl = SWEPT.trial.map(LOSSES)
    ends = {f"{loss}{end}": kl for loss in ("kl", "nll") for end in ("", "_low", "_high")}
    swept = SWEPT.assign(**ends, n=4, seed=0, model="a/model-1.7B", data="nq.jsonl")
    rows = [
        {"trial": trial, "id": i, "kind": "order" if i == 3 else "", "kl": loss, "nll": loss + 1, "nll_full": 1.0}
        for trial, loss in LOSSES.items()
        for i in range(4)
    ]
    return with_explained(swept, pd.DataFrame(rows), "reuse")


def test_any_score_of_a_sweep_is_a_curve(measured):
    assert [r["mean"] for r in curves(measured, ["first_k"], metric="kl")] == [4, 2, 1]
    for loss in ("kl", "nll"):
        shares = curves(measured, ["first_k"], metric=f"{loss}_explained")
        assert [(r["mean"], r["low"], r["high"]) for r in shares] == [(x, x, x) for x in (0, 0.5, 0.75)]
    assert [r["mean"] for r in by_neighbours(measured, ["random"], metric="kl_explained")] == [0.25, 0.75]
    assert levels(measured, "kl_explained")["full", "all"] == 1


def test_a_score_that_the_table_lacks_is_refused():
    with pytest.raises(BadInput, match="the table has no metric 'kl': its trials were run without it"):
        curves(SWEPT, ["first_k"], metric="kl")
    with pytest.raises(BadInput, match="unknown metric 'bleu': allowed are em, f1"):
        measure_of("bleu", SWEPT)

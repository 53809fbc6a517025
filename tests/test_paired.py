"""Paired comparisons of two methods on the same questions."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.refusals import refused
from workbench.metrics.answers import bootstrap
from workbench.metrics.paired import FEWEST, bits_explained, count_differing, difference, mcnemar, over_runs, ranks
from workbench.results import over_seeds

LOSSES = st.lists(st.tuples(*[st.floats(0, 10)] * 3), min_size=2, max_size=12)


def test_mcnemar_is_the_exact_binomial_test():
    """10 questions only the first answers, 2 only the second: 2 · (1 + 12 + 66) / 2^12."""
    one = [1] * 10 + [0] * 2 + [1] * 5
    other = [0] * 10 + [1] * 2 + [1] * 5
    found = mcnemar(one, other)
    assert (found.only_one, found.only_other) == (10, 2)
    assert found.p == pytest.approx(2 * (1 + 12 + 66) / 2**12)
    assert mcnemar(other, one).p == pytest.approx(found.p)


def test_methods_that_are_right_together_do_not_differ():
    assert mcnemar([1, 0, 1], [1, 0, 1]).p == 1
    same = difference([0.5, 0.25], [0.5, 0.25])
    assert (same.mean, same.low, same.high, same.n) == (0, 0, 0, 2)


def test_a_difference_is_taken_question_by_question():
    hard = np.arange(20.0)
    found = difference(hard + 1, hard)
    assert (found.mean, found.low, found.high) == (1, 1, 1)


@pytest.mark.parametrize(("moved", "n", "few"), [(0, 9, True), (1, 1, True), (2, 8, True), (5, 8, True), (6, 6, False)])
def test_a_difference_has_an_interval_from_as_many_questions_as_an_exact_test_needs(moved, n, few):
    found = difference([1.0] * moved + [0.0] * (n - moved), [0.0] * n)
    assert (found.moved, found.few) == (moved, few)


def test_how_many_questions_differ_stands_in_place_of_an_interval():
    assert count_differing(3, 8) == "3 of 8 differ: too few"
    assert count_differing(0, 40) == "none of 40 differ" and count_differing(0, 1) == "none of 1 differs"


def test_no_test_of_the_ranks_tells_apart_what_too_few_questions_show():
    for n in range(1, FEWEST):
        assert ranks(np.stack([np.arange(n) + 1.0, np.zeros(n)], 1), True).together == ((0, 1),)
    assert ranks(np.stack([np.arange(FEWEST) + 1.0, np.zeros(FEWEST)], 1), True).together == ()


def test_bits_explained_by_hand():
    found = bits_explained([2, 2], [4, 4], [0, 0])
    assert (found.gap, found.share, found.low, found.high, found.note) == (4, 0.5, 0.5, 0.5, "")


@given(LOSSES)
def test_reuse_explains_nothing_full_attention_all_and_an_interval_begins_before_it_ends(losses):
    _, reuse, full = map(np.array, zip(*losses, strict=True))
    nothing, everything = bits_explained(reuse, reuse, full), bits_explained(full, reuse, full)
    if reuse.mean() - full.mean() > 0:
        assert nothing.share == 0 and everything.share == pytest.approx(1)
    else:
        assert nothing.share is everything.share is None and "no gap" in nothing.note
    found = bits_explained(*np.array(losses).T)
    if found.low is not None and found.high is not None:
        assert found.low <= found.high


@given(LOSSES, st.floats(0.5, 3), st.floats(-5, 5))
def test_bits_explained_does_not_depend_on_the_unit_or_the_zero(losses, unit, zero):
    table = np.array(losses).T
    found, other = bits_explained(*table), bits_explained(*(unit * table + zero))
    if found.gap > 1e-3:
        assert other.share == pytest.approx(found.share, abs=1e-6, rel=1e-6)


def test_of_divergence_full_attention_is_zero():
    assert bits_explained([1, 3], [4, 4]).share == pytest.approx(0.5)


def test_an_uncertain_gap_has_no_end():
    found = bits_explained([1.0, 1.0], [3.0, 0.0], [0.0, 1.0])
    assert found.share is not None and found.low is None and found.high is None


@pytest.mark.parametrize(
    "call, problem",
    [
        (lambda: difference([1], [1, 2]), "1 and 2 questions"),
        (lambda: difference([], []), "0 and 0 questions"),
        (lambda: mcnemar([0.5], [1]), "0.5 is neither"),
        (lambda: bits_explained([1], [float("nan")]), "missing or not finite"),
    ],
)
def test_what_cannot_be_compared_is_refused(call, problem):
    refused(problem, call)


RUNS = [
    ([(0.1, 0.0, 0.2), (0.2, 0.1, 0.3), (0.3, 0.2, 0.4)], (0.2, 0.2 - 0.2484, 0.2 + 0.2484)),  # t(2) = 4.3027
    ([(0.2, 0.1, 0.3)] * 3, (0.2, 0.1, 0.3)),  # runs that agree: as wide as the questions of one
    ([(0.2, 0.1, 0.3)], (0.2, 0.1, 0.3)),
]


@pytest.mark.parametrize(("runs", "expected"), RUNS, ids=["runs apart", "runs alike", "one run"])
def test_training_runs_have_student_s_interval_or_that_of_their_questions(runs, expected):
    assert over_runs(runs) == pytest.approx(expected, abs=1e-4)


def test_tables_over_training_runs_have_the_interval_of_the_judge():
    scores = {1: [1, 1, 0, 1], 2: [1, 0, 0, 1], 3: [0, 1, 1, 1]}
    rows = [
        {"training_seed": seed, "question": q, "em": x, "model": "m"}
        for seed, of in scores.items()
        for q, x in enumerate(of)
    ]
    (got,) = over_seeds(pd.DataFrame(rows), "em", ["model"]).to_dict("records")
    expected = over_runs([(sum(of) / 4, *bootstrap(of)) for of in scores.values()])
    assert [got[name] for name in ("value", "low", "high", "n", "seeds")] == pytest.approx([*expected, 4, 3])


def test_tables_over_training_runs_never_join_prompts_of_different_numbers_of_passages():
    rows = [
        {"training_seed": seed, "question": q, "em": float(passages == 10), "model": "m", "passages": passages}
        for seed in (1, 2)
        for q in range(4)
        for passages in (10, 40)
    ]
    told = over_seeds(pd.DataFrame(rows), "em", ["model"])
    assert dict(zip(told.passages, told.value, strict=True)) == {10: 1, 40: 0}

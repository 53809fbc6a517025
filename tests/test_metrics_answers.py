import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.core.errors import BadInput
from workbench.metrics import answers


@pytest.mark.parametrize(
    "text, plain",
    [
        ("The Quick, brown  fox!", "quick brown fox"),
        ("A", "a"),
        ("?!", "?!"),
        ("Röntgen", "ro\u0308ntgen"),
        ("U.S.A.", "usa"),
    ],
)
def test_case_articles_and_punctuation_do_not_count(text, plain):
    assert answers.normalise(text) == plain


@pytest.mark.parametrize(
    "prediction, aliases, em, f1, contained",
    [
        ("Walls and Bridges", ["Walls and Bridges"], 1, 1, 1),
        ("the walls and bridges.", ["Walls and Bridges"], 1, 1, 1),
        ("Walls", ["Walls and Bridges"], 0, 0.5, 0),  # precision 1, recall 1/3
        ("It is Walls and Bridges", ["Walls and Bridges"], 0, 0.75, 1),  # precision 3/5, recall 1
        ("Corvex", ["Corvex Labs", "Corvex"], 1, 1, 1),  # the best alias counts
        ("", ["yes"], 0, 0, 0),
        ("no no", ["no"], 0, 2 / 3, 1),
        ("The answer is 19.", ["9"], 0, 0, 0),
        ("19 or 9", ["9"], 0, 0.5, 1),
        ("Yorkshire", ["York"], 0, 0, 0),
        ("答えは東京です", ["東京"], 0, 0, 1),
    ],
)
def test_scores_of_worked_examples(prediction, aliases, em, f1, contained):
    assert answers.exact_match(prediction, aliases) == em
    assert answers.f1(prediction, aliases) == pytest.approx(f1)
    assert answers.contains(prediction, aliases) == contained


@given(st.text(max_size=20), st.lists(st.text(max_size=20), min_size=1, max_size=3))
def test_f1_is_between_exact_match_and_one(prediction, aliases):
    assert answers.exact_match(prediction, aliases) <= answers.f1(prediction, aliases) <= 1
    assert answers.exact_match(prediction, aliases) <= answers.contains(prediction, aliases)


def test_wilson_interval_of_a_textbook_proportion():
    low, high = answers.wilson(15, 20)  # Newcombe 1998: 0.5313 to 0.8881 for 15 of 20
    assert (round(low, 4), round(high, 4)) == (0.5313, 0.8881)
    assert answers.wilson(0, 0) == (0, 1)
    assert answers.wilson(20, 20)[1] == 1


def test_bootstrap_interval_agrees_with_the_normal_one_and_repeats_with_its_seed():
    values = np.random.default_rng(0).random(400)
    low, high = answers.bootstrap(values, seed=3)
    half = 1.96 * values.std() / math.sqrt(400)
    assert low == pytest.approx(values.mean() - half, abs=0.004)
    assert high == pytest.approx(values.mean() + half, abs=0.004)
    assert answers.bootstrap(values, seed=3) == (low, high)
    assert answers.bootstrap([1.0, 1.0]) == (1, 1)
    assert math.isnan(answers.bootstrap([])[0])


def test_bootstrap_intervals_of_many_columns_are_about_those_of_each():
    values = np.random.default_rng(0).normal([[0.0, 5.0]], [[1.0, 3.0]], (400, 2))
    low, high = answers.bootstrap_columns(values)
    for column in (0, 1):
        alone = answers.bootstrap(values[:, column].tolist())
        width = alone[1] - alone[0]
        assert (low[column], high[column]) == pytest.approx(alone, abs=width / 10)
    again = answers.bootstrap_columns(values[:, ::-1])
    assert (again[0][::-1] == pytest.approx(low)) and (again[1][::-1] == pytest.approx(high))


def test_score_of_four_answers():
    found = answers.score(["Ana", "Ana Reyes", "no", "it is Bo"], [["Ana"], ["Ana"], ["yes"], ["Bo"]])
    assert (found.n, found.em, found.contains) == (4, 0.25, 0.75)
    assert found.f1 == pytest.approx((1 + 2 / 3 + 0 + 1 / 2) / 4)
    assert (found.em_low, found.em_high) == answers.wilson(1, 4)
    assert found.f1_low <= found.f1 <= found.f1_high


@pytest.mark.parametrize("predictions, aliases", [([], []), (["a"], [])])
def test_a_score_needs_as_many_answers_as_predictions(predictions, aliases):
    with pytest.raises(BadInput):
        answers.score(predictions, aliases)


def test_a_score_is_normalised_between_reuse_and_full_attention():
    full, reuse, some = [1.0] * 4, [1.0, 0, 0, 0], [1.0, 1, 0, 0]
    value, low, high = answers.normalised(some, reuse, full)
    assert value == pytest.approx(1 / 3) and low <= value <= high
    assert answers.normalised(full, reuse, full)[0] == 1 and answers.normalised(reuse, reuse, full) == (0, 0, 0)
    assert all(map(math.isnan, answers.normalised(some, full, full))) and all(
        map(math.isnan, answers.normalised([], [], []))
    )


def test_the_interval_is_paired():
    """Questions that are hard for every method do not widen it: a constant share of the gap has no spread."""
    rng = np.random.default_rng(0)
    reuse = rng.random(200)
    full = reuse + rng.random(200)
    some = reuse + 0.3 * (full - reuse)
    assert answers.normalised(some, reuse, full) == pytest.approx((0.3, 0.3, 0.3))
    noisy = (some + rng.normal(0, 0.2, 200)).tolist()
    value, low, high = answers.normalised(noisy, reuse, full)
    assert low < value < high and high - low > 0.01 and answers.normalised(noisy, reuse, full) == (value, low, high)


def test_scores_by_kind_are_those_of_the_questions_of_a_kind():
    predictions, aliases, kinds = ["Ana", "no", "Bo", "yes"], [["Ana"], ["yes"], ["Bo"], ["yes"]], ["b", "a", "b", "a"]
    scores = answers.score_by_kind(predictions, aliases, kinds, seed=1)
    assert list(scores) == ["b", "a"]
    assert scores["a"] == answers.score(["no", "yes"], [["yes"], ["yes"]], seed=1)
    assert (scores["b"].em, scores["b"].n) == (1.0, 2)


def test_an_interval_of_equal_values_is_that_value():
    low, high = answers.bootstrap_columns(np.ones((491, 2)))
    assert low.tolist() == high.tolist() == [1.0, 1.0]

"""The harder lab over training seeds: whatever results there are, are read, and the intervals hold seeds and worlds."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.figure_views import texts
from workbench.core.errors import BadInput
from workbench.experiments import lab_hard_results, results
from workbench.metrics.seeds import crossed, gains_over_seeds, gap_over_seeds, over_seeds
from workbench.plots import lab_hard as figures

SHARES = st.lists(st.floats(0, 1), min_size=1, max_size=5)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    (tmp_path / "lab-hard").mkdir()
    return tmp_path / "lab-hard"


def write(folder, size, seed, full, reuse, document=0.9):
    kinds = {figures.FULL: full, figures.REUSE: reuse}
    scored = {name: {"all": {"n": 1000, "em": em}, "order": {"n": 90, "em": em}} for name, em in kinds.items()}
    (folder / f"{size}-{seed}.json").write_text(json.dumps({"model": size, "samples": 1000, **scored}))
    for prepare, em in (("after_system", reuse), ("behind_document", document), ("with_neighbours-n-4--", reuse)):
        record = {"n": 1000, "em": em, "by_kind": {"order": {"n": 90, "em": em}}}
        (folder / f"{size}-{seed}-kept-{prepare}.json").write_text(json.dumps(record))


@given(SHARES, st.integers(1, 500))
def test_an_interval_holds_the_mean_and_narrows_with_the_questions(shares, n):
    found = over_seeds(shares, n)
    assert found.low - 0.5 / n <= found.mean <= found.high + 0.5 / n and found.seeds == len(shares)


def test_seeds_that_differ_widen_an_interval_more_than_questions_do():
    alike, apart = over_seeds([0.6, 0.6, 0.6], 1000), over_seeds([0.4, 0.6, 0.8], 1000)
    assert apart.high - apart.low > 3 * (alike.high - alike.low)
    assert gap_over_seeds([0.5, 0.7], [0.4, 0.6], 10_000).low > 0, "seeds are drawn together"


def test_questions_that_all_seeds_share_are_resampled_with_the_seeds():
    same, apart = crossed([[1, 0] * 50] * 3), crossed([[1] * 100, [1, 0] * 50, [0] * 100])
    assert same.mean == apart.mean == 0.5 and apart.high - apart.low > 2 * (same.high - same.low)
    assert crossed([[0.0, 0.0], [0.0, 0.0]]).low == 0 and (same.seeds, same.n) == (3, 100)
    for values in ([], [[]], [[1.0], [1.0, 2.0]]):
        with pytest.raises(BadInput, match="every seed needs the same"):
            crossed(values)


def test_gains_of_seeds_keep_their_own_intervals():
    narrow, wide = gains_over_seeds([(0.1, 0.09, 0.11)] * 3, 100), gains_over_seeds([(0.1, 0.0, 0.2)] * 3, 100)
    assert narrow.mean == pytest.approx(0.1) and wide.low < narrow.low < 0.1 < narrow.high < wide.high
    assert 0.04 < wide.high - 0.1 < 0.07, "0.1 over the root of three seeds"
    with pytest.raises(BadInput, match="in order"):
        gains_over_seeds([(0.3, 0.1, 0.2)], 100)


@pytest.mark.parametrize("call", [lambda: over_seeds([], 5), lambda: over_seeds([1.2], 5), lambda: over_seeds([1], 0)])
def test_what_is_no_share_is_refused(call):
    with pytest.raises(BadInput, match="from 0 to 1"):
        call()
    with pytest.raises(BadInput, match="1 and 2 seeds"):
        gap_over_seeds([0.1], [0.1, 0.2], 5)


def test_without_results_nothing_is_drawn(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    assert figures.by_setting() is None is figures.by_preparation()
    assert figures.MISSING.count("\n") == 0


@pytest.mark.parametrize(
    ("full", "reuse", "words"), [(0.85, 0.6, "so methods can be ranked"), (0.99, 0.95, "outside the range")]
)
def test_sizes_and_seeds_are_read_and_ranked(folder, full, reuse, words):
    for size in ("lab-hard-large", "lab-hard-small"):
        for seed in (1, 2):
            write(folder, size, seed, full, reuse)
    assert lab_hard_results.sizes(lab_hard_results.scores()) == ["lab-hard-small", "lab-hard-large"]
    fig = figures.by_setting()
    assert texts(fig).count(words) == 2 and [tuple(trace.x) for trace in fig.data][1] == (full, reuse)


def test_models_that_are_not_scored_yet_are_left_out(folder):
    write(folder, "lab-hard-large", 1, 0.85, 0.6)
    write(folder, "lab-hard-small", 1, 0.85, 0.6)
    write(folder, "lab-hard-small", 3, 0.85, 0.6)
    (folder / "lab-hard-small-2.json").write_text(json.dumps({"model": "x", "samples": 1000}))
    (folder / "lab-hard-large-1-kept-behind_document.json").unlink()
    assert "lab-hard-small 2 and lab-hard-large 1" in texts(figures.by_setting())
    words = texts(figures.by_preparation())
    assert "lab-hard-small, titles kept" in words and "lab-hard-large, titles kept" not in words

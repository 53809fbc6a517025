"""Ratios of two times: of few runs the ends are the range, never percentiles."""

import pytest

from workbench.metrics.latency import ENOUGH, ratio

FAST = {"ms": 2.0, "p5": 1.9, "p95": 2.2, "least": 1.0, "most": 4.0}
SLOW = {"ms": 6.0, "p5": 5.7, "p95": 6.6, "least": 5.0, "most": 8.0}


@pytest.mark.parametrize(
    ("runs", "ends"), [(ENOUGH, (5.7 / 2.2, 6.6 / 1.9)), (ENOUGH - 1, (5.0 / 4.0, 8.0 / 1.0)), (2, (5.0 / 4.0, 8.0))]
)
def test_the_ends_are_percentiles_only_of_enough_runs(runs, ends):
    assert ratio({**SLOW, "runs": runs}, {**FAST, "runs": runs}) == pytest.approx((3.0, *ends))


def test_each_side_has_the_ends_of_its_own_runs():
    mixed = ratio({**SLOW, "runs": 3}, {**FAST, "runs": 200})
    assert mixed == pytest.approx((3.0, 5.0 / 2.2, 8.0 / 1.9))


def test_a_record_of_an_earlier_version_has_its_percentiles():
    old = {name: value for name, value in SLOW.items() if name not in ("least", "most")}
    assert ratio({**old, "runs": 4}, {**FAST, "runs": 20}) == pytest.approx((3.0, 5.7 / 2.2, 6.6 / 1.9))

"""Curves of scale: every axis can be measured, slopes are those of lines, and the sentence follows the numbers."""

import pytest

pytest.importorskip("triton", reason="Triton is not available on this platform")

from tests.test_bench_models import TINY
from workbench.experiments import scale
from workbench.experiments.bench.whole_model import LLAMA, Scene, build
from workbench.plots.scale import _ticks


@pytest.fixture(scope="module")
def rows():
    scene = Scene(build(LLAMA | TINY), [], unit=16)
    axes = [scale.Axis("context", (1, 2)), scale.Axis("question", (1, 3)), scale.Axis("blocks", (8, 32))]
    return list(scale.curves(scene, [*axes, scale.Axis("batch", (1, 2))], runs=2))


def test_every_axis_is_measured(rows):
    assert [(row["axis"], row["x"]) for row in rows[:3]] == [("context", 1), ("context", 2), ("question", 1)]
    assert all(row["ms"] > 0 and row["pool_gb"] > 0 for row in rows)
    assert {row["block"] for row in rows if row["axis"] == "blocks"} == {64, 16}
    assert all(row["tokens_per_s"] > 0 for row in rows if row["axis"] == "batch")


def test_the_slope_of_a_line_is_found_and_needs_two_points():
    line = [{"axis": "context", "x": x, "ms": 3 + 0.5 * x} for x in (1, 8, 16, 128)]
    assert scale.slope(line, "context") == pytest.approx(0.5)
    assert scale.slope(line, "context", least=100) is None and scale.slope(line, "batch") is None


def test_ticks_are_measured_values_that_have_room():
    assert _ticks([1, 16, 50, 128, 256, 512, 1024])["tickvals"] == [1024, 256, 50, 1]
    assert _ticks([7])["ticktext"] == ["7"]

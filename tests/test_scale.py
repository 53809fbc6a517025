"""Curves of scale: every axis can be measured."""

import pytest

pytest.importorskip("triton", reason="Triton is not available on this platform")

from tests.test_bench_models import TINY
from workbench.experiments.bench.models.whole_model import LLAMA, Scene, build
from workbench.experiments.latency import scale


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

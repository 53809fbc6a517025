"""Curves of scale: every axis can be measured."""

import pytest

pytest.importorskip("triton", reason="Triton is not available on this platform")

import scale

from tests.test_bench_models import TINY
from workbench.experiments.bench.models.whole_model import LLAMA, Scene, build


@pytest.fixture(scope="module")
def rows():
    scene = Scene(build(LLAMA | TINY), [], unit=16)
    axes = {"context": (1, 2), "question": (1, 3), "blocks": (8, 32), "batch": (1, 2)}
    return list(scale.curves(scene, axes, runs=2))


def test_every_axis_is_measured(rows):
    assert [(row["axis"], row["x"]) for row in rows[:3]] == [("context", 1), ("context", 2), ("question", 1)]
    assert all(row["ms"] > 0 and row["pool_gb"] > 0 for row in rows)
    assert {row["block"] for row in rows if row["axis"] == "blocks"} == {64, 16}
    assert all(row["tokens_per_s"] > 0 for row in rows if row["axis"] == "batch")

"""Reports of `workbench bench`: written as rows of tables and read back as they were."""

import made_up
import pytest
import torch

from tests.refusals import refused
from workbench.experiments import bench_reports
from workbench.results import read


@pytest.fixture
def found(tmp_path):
    for name in made_up.WORKS:
        bench_reports.write(tmp_path, made_up.report(name))
    return read(tmp_path)


def test_a_report_is_read_back_as_it_was_written(found):
    for name, report in bench_reports.reports(found).items():
        given = made_up.report(name)
        assert report["card"] == made_up.CARD and report["copy_tbps"] == made_up.COPY
        for work, same in zip(given["workloads"], report["workloads"], strict=True):
            assert {key: same[key] for key in ("name", "shape", "flops", "bytes", "floor_ms")} == {
                key: work[key] for key in ("name", "shape", "flops", "bytes", "floor_ms")
            }
            for one, other in zip(work["contestants"], same["contestants"], strict=True):
                assert other == pytest.approx(one) if "ms" in one else other == one


def test_a_workload_that_is_measured_again_of_the_same_gpu_replaces_its_rows(found, tmp_path):
    assert bench_reports.before(tmp_path, "question", "another GPU") == []
    (work,) = bench_reports.before(tmp_path, "question", made_up.CARD)
    bench_reports.write(tmp_path, {**made_up.report("question"), "workloads": [{**work, "name": "renamed"}]})
    timed = read(tmp_path).timings("bench")
    assert "renamed" in set(timed.workload) and work["name"] not in set(timed.workload)


def test_a_kernel_is_measured_here_only_where_it_can_be(found):
    refused("no_such", bench_reports.with_measured, found, ["no_such"], [])
    if not torch.cuda.is_available():
        pytest.importorskip("triton")
        refused("GPU", bench_reports.with_measured, found, ["tile_attention"], ["flash"])

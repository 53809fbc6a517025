"""Reports of `workbench bench` as tables: what is read, what is missing, what is said of baselines."""

import json

import made_up
import pytest
import torch

from workbench.core.errors import BadInput
from workbench.experiments import bench, bench_reports


@pytest.fixture
def found(tmp_path):
    return bench_reports.reports(made_up.write(tmp_path))


def test_other_json_files_are_passed_over_and_missing_reports_named(tmp_path):
    made_up.write(tmp_path, ["page_list_attention"])
    (tmp_path / "other.json").write_text('{"rows": []}')
    (tmp_path / "list.json").write_text("[]")
    found = bench_reports.reports(tmp_path)
    assert set(found) == {"page_list_attention"} and bench_reports.gpus(found) == [made_up.CARD]
    assert set(bench_reports.missing(found)) == {*bench.names(), *bench_reports.MODELS} - {"page_list_attention"}


def test_the_shipped_folder_can_be_read():
    table = bench_reports.table(bench_reports.reports())
    assert {"report", "who", "ms", "shape"} <= set(table.columns)


def test_a_folder_that_is_none_and_a_torn_file_are_refused(tmp_path):
    with pytest.raises(BadInput, match="no folder of reports"):
        bench_reports.reports(tmp_path / "gone")
    (tmp_path / "torn.json").write_text('{"card": ')
    with pytest.raises(BadInput, match="no whole JSON"):
        bench_reports.reports(tmp_path)


def test_kernels_come_before_models_and_launches_that_were_tried_are_left_out(found):
    table = bench_reports.table(found)
    assert list(dict.fromkeys(table.report))[-1] == "question"
    assert "ours, 8 splits" not in set(table.who) and "ours, 8 splits" in set(
        bench_reports.table(found, tried=True).who
    )
    assert (table.intensity == table.flops / table.bytes).all()
    assert bench_reports.ceilings(found, made_up.CARD) == (made_up.COPY * 1e12, made_up.PRODUCT * 1e12)


def test_where_time_goes_is_read_where_it_was_measured(tmp_path):
    assert bench_reports.split(tmp_path) == {}
    assert bench_reports.split(made_up.stages(tmp_path))["rows"][0]["way"] == "full attention"
    assert bench_reports.reports(tmp_path) == {}, "no report of workbench bench"
    (tmp_path / "stages.json").write_text("{")
    with pytest.raises(BadInput, match="no whole JSON"):
        bench_reports.split(tmp_path)


def test_lines_over_a_shape(found):
    table = bench_reports.table(found)
    lines = bench_reports.against(table, "q_sparse_attention", "share", ("ours",))
    assert [r["at"] for r in lines] == [0.05, 0.15] and all(r["low"] < r["mean"] < r["high"] for r in lines)
    dense = [r for r in bench_reports.by_density(table, 32768) if r["name"] == "ours"]
    assert [r["at"] for r in dense] == [0.15, 1.0]
    assert bench_reports.by_density(table[:0], 32768) == [] == bench_reports.against(table, "gone", "share")


def test_whole_models_by_length_with_the_methods_of_ttft(found):
    records = bench_reports.by_context(bench_reports.table(found))
    assert [r["way"] for r in records] == ["block", "stock prefix", "stock full"]
    assert all(r["length"] == 32768 + 50 for r in records)


def recomputed(shape, **ms):
    """A report on recomputed rows with these times."""
    head = {"kernel": "recompute", "card": made_up.CARD, "copy_tbps": 4.0, "product_tflops": 600.0}
    work = {"name": "15% of 27K", "shape": {"rows": 4197, "context": 27648} | shape, "flops": 1.0, "bytes": 1.0}
    rows = [{"who": who, "ms": time} if time else {"who": who, "problem": "no memory"} for who, time in ms.items()]
    return bench_reports.table({"recompute": head | {"workloads": [work | {"floor_ms": 1.0, "contestants": rows}]}})


def test_workloads_stand_by_their_context_whatever_the_order_of_the_file():
    table = bench_reports.table(bench_reports.reports())
    contexts = [shape["context"] for shape in table[table.report == "question"]["shape"]]
    assert contexts == sorted(contexts) and len(set(contexts)) >= 5


def test_baselines_are_compared_with_ours(found):
    records = bench_reports.baselines(bench_reports.table(found))
    assert {r["who"] for r in records} == {"flex", "flash, dense", "torch", *made_up.WHO["question"]}
    assert {round(r["ratio"], 6) for r in records} == {2, 3} and all(r["low"] < r["ratio"] < r["high"] for r in records)


def test_a_workload_is_named_with_its_report():
    both = "choice and attention, 32K"
    assert bench_reports.workload_name("choose_bfla", both) == "choose_bfla + attention: 32K"
    assert bench_reports.workload_name("decode", "a token") == "decode: a token"


def test_the_table_counts_the_fastest_of_a_baseline_and_says_who_refused(found):
    lines, headings = bench_reports.listed(
        bench_reports.table(found), {"FA2": ["flash"], "cuDNN": ["cudnn"], "stock": ["torch", "transformers"]}
    )
    assert lines[headings[0]][0] == f"choose_bfla ({made_up.CARD})" and len(headings) == len(made_up.WORKS)
    tiles = next(line for line in lines if line[0] == "dense, 32K")
    assert tiles[4:] == ["80%", "3.00×", "refused", ""]
    question = next(line for line in lines if line[0].startswith("50-token"))
    assert question[5:] == ["", "refused", "2.00×"]
    assert all(len(line) == 8 for line in lines)


def test_a_kernel_that_did_not_run_is_said_so(tmp_path):
    report = made_up.report("page_list_attention")
    report["workloads"][0]["contestants"][0] = {"who": "ours", "problem": "out of memory"}
    (tmp_path / "page_list_attention.json").write_text(json.dumps(report))
    table = bench_reports.table(bench_reports.reports(tmp_path))
    lines, _ = bench_reports.listed(table, {"FA2": ["flash"]})
    assert lines[1][1] == "did not run" and len(lines[1]) == 6
    assert bench_reports.baselines(table) == []


def test_the_table_that_is_kept_names_what_is_missing(found):
    kept = bench_reports.with_missing(bench_reports.table(found), ["decode"])
    assert "shape" not in kept and kept[kept.report == "decode"].problem.tolist() == ["not measured yet"]
    assert len(bench_reports.with_missing(bench_reports.table({}), ["decode"])) == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_measuring_here_needs_a_gpu_and_a_name_that_exists():
    with pytest.raises(BadInput, match="no_such"):
        bench_reports.here(["no_such"], [])
    pytest.importorskip("triton", reason="Triton is not available on this platform")
    with pytest.raises(BadInput, match="GPU"):
        bench_reports.here(["tile_attention"], ["flash"])

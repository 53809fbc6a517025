"""`workbench bench`: what it refuses, how it checks, and that every workload can be carried out."""

import json
import os
import subprocess
import sys
from inspect import signature
from itertools import islice
from types import SimpleNamespace

import pytest
import torch
from typer.testing import CliRunner

pytest.importorskip("triton", reason="Triton is not available on this platform")

from tests.refusals import refused
from workbench import results
from workbench.app.cli import app
from workbench.app.commands import bench as command
from workbench.experiments import bench, bench_reports
from workbench.experiments.bench import baselines, timing
from workbench.experiments.bench.kernels import page_workloads, workloads
from workbench.experiments.bench.kernels.check import check, redraw_inputs, spread_last_head
from workbench.experiments.bench.kernels.workloads import KernelWorkload, variants
from workbench.experiments.bench.run import driver, entry

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"


def invoke(*words):
    before = os.environ.get("TRITON_INTERPRET")
    try:
        return CliRunner().invoke(app, ["bench", *words])
    finally:
        if before is not None:
            os.environ["TRITON_INTERPRET"] = before


@pytest.mark.skipif(GPU, reason="there is a GPU")
def test_times_are_refused_without_a_gpu(tmp_path):
    done = invoke("tile_attention", "--out", str(tmp_path))
    assert done.exit_code == 2
    assert done.stderr.strip().count("\n") == 0 and "GPU" in done.stderr
    assert not list(tmp_path.iterdir())


def test_an_unknown_kernel_or_baseline_is_named():
    done = invoke("no_such", "--check")
    assert done.exit_code == 2 and "no_such" in done.stderr and "tile_attention" in done.stderr
    refused("no_such", baselines.select_names, "flash,no_such")
    assert baselines.select_names("all") == list(baselines.NAMES)


def test_workloads_are_not_chosen_for_a_check_which_goes_through_all_cases():
    done = invoke("rotate_keys", "--check", "--only", "no such workload")
    assert done.exit_code == 2 and "--check goes through every case" in done.stderr


def test_a_process_of_its_own_checks_every_case_of_a_kernel_without_a_gpu():
    """Triton reads its environment when it is first imported, which the command must not have done before."""
    if torch.cuda.is_available():
        pytest.skip("kernels run on the GPU")
    command = [sys.executable, "-m", "workbench", "bench", "silu_and_mul", "--check", "--json"]  # the quickest
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    verdicts = [json.loads(line) for line in done.stdout.splitlines()]  # nothing else is on stdout
    assert len(verdicts) >= len(list(bench.workload_module("silu_and_mul").cases()))
    assert all(verdict["right"] for verdict in verdicts)


class Broken:
    """A kernel that is wrong in one way."""

    __name__ = "workbench.kernels.broken"

    def __init__(self, launch):
        self.launch = launch

    def reference(self, x):
        return x * 2

    def cases(self, device, dtype):
        yield (torch.randn(2, 3, 64, device=device, dtype=dtype),)


def test_check_finds_a_result_that_is_wrong_or_not_written_or_changes():
    def unwritten(x):
        out = torch.empty_like(x)
        out[:, 1:] = x[:, 1:] * 2
        return out

    def shifted(x):
        return x * 2 + torch.rand_like(x) * 1e-7

    found = {
        launch: next(check(Broken(launch), DEVICE, [torch.float32]))
        for launch in (lambda x: x * 2, lambda x: x * 2.001, unwritten, shifted)
    }
    right, wrong, empty, race = found.values()
    assert right.right and not wrong.right and wrong.error > wrong.allowed
    assert "not written" in empty.problem and "run to run" in race.problem


def test_a_choice_may_differ_in_few_places_only():
    def choosing(share):
        def launch(x):
            out = x > 0
            out.view(-1)[: int(share * out.numel())] ^= True
            return out

        kernel = Broken(launch)
        kernel.reference = lambda x: x > 0
        return next(check(kernel, DEVICE, [torch.float32]))

    assert choosing(0).right and not choosing(0.1).right
    assert choosing(0.1).error == pytest.approx(0.1, abs=0.01)


def test_stretched_and_fresh_cases_are_the_same_cases():
    case = next(iter(bench.workload_module("tile_attention").cases()))
    again = redraw_inputs(case, 0)
    assert again[1].stride() == case[1].stride() and not torch.equal(again[1], case[1])
    assert again[3] is case[3]  # rows stay
    q = torch.randn(1, 2, 3, 8)
    meta = [torch.empty(1, 2, 3, 8, device="meta") for _ in range(2)]
    wide = spread_last_head((q, *meta))
    assert wide[1].shape == (1, 2, 3, 8) and wide[1].stride(1) >= 1 << 31


WORKLOADS = page_workloads.WORKLOADS
# Workloads of a kind once: the interpreter takes seconds over the others.
KINDS = {
    "question_attention": (0, 1),
    "tile_attention": (0, 2),
    "q_sparse_attention": (0,),
    "page_list_attention": (0,),
}


@pytest.mark.parametrize("kernel", sorted(WORKLOADS))
def test_workloads_can_be_carried_out(kernel, monkeypatch):
    for name, value in {"HEADS": (2, 1), "WIDTH": 32, "CHUNK": (1, 2, 1), "sets": lambda moved: range(1)}.items():
        monkeypatch.setattr(workloads, name, value)
    works = enumerate(WORKLOADS[kernel]([], [], unit=16))
    for number, work in islice(works, 3):
        if kernel in KINDS and number not in KINDS[kernel]:
            continue
        assert work.flops > 0 and work.bytes > 0
        out = work.candidates["ours"][0]()
        assert not out.isnan().any(), work.name
        json.dumps(work.shape)


def test_every_variant_is_taken_by_its_kernel():
    for kernel in WORKLOADS:
        for variant in variants(kernel):
            assert set(variant) <= set(signature(bench.workload_module(kernel).launch).parameters), (kernel, variant)


def test_a_baseline_that_cannot_run_is_reported_and_the_others_are_timed(monkeypatch):
    taken = {
        "ours": timing.summarise_ms([1.0, 2.0, 3.0]),
        "flash": timing.summarise_ms([4.0] * 20),
        "cudnn": "RuntimeError: no",
    }
    monkeypatch.setattr(
        "workbench.experiments.bench.run.measure", lambda candidates: {name: taken[name] for name in candidates}
    )
    work = KernelWorkload("a", {}, 8e9, 1e6)
    for who in taken:
        work.enter(who, lambda: None)
    found = entry(work, timing.Roof(copy=1e12, product=8e12))
    ours, flash, cudnn = found["contestants"]
    assert found["floor_ms"] == pytest.approx(1.0)
    assert ours["ms"] == 2.0 and ours["share"] == pytest.approx(0.5) and ours["ratio"] == 1.0
    assert flash["ratio"] == 2.0 and flash["tflops"] == pytest.approx(2.0)
    assert "RuntimeError" in cudnn["problem"]


def test_candidates_run_interleaved_each_on_its_sets_of_inputs_in_order(monkeypatch):
    class Event:
        def __init__(self, enable_timing):
            pass

        def record(self):
            self.at = len(ran)

        def elapsed_time(self, last):
            return float(last.at - self.at)

    def refuse():
        raise ValueError("no such\nshape")

    ran = []
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(timing, "RUNS", (3, 3))
    sets = [lambda: ran.append("a"), lambda: ran.append("A")]
    times = timing.measure({"ours": sets, "gone": [refuse], "flash": [lambda: ran.append("b")]})
    assert "".join(ran) == "aA" + "aaa" + "b" + "bbb" + "ab" + "Ab" + "ab", (
        "each once, a guess of three, then interleaved"
    )
    assert times["ours"] == timing.Time(1.0, 1.0, 1.0, 3, 1.0, 1.0) and times["gone"] == "ValueError: no such shape"


def faked(monkeypatch, card, *works):
    """`workbench bench` on a GPU that is not there."""
    head = {
        "kernel": "page_list_attention",
        "card": card,
        "versions": {"torch": "2"},
        "copy_tbps": 4.0,
        "product_tflops": 600.0,
    }
    parts = [
        {"name": name, "floor_ms": 1, "flops": 1.0, "bytes": 1.0, "contestants": [{"who": who, "ms": 2.0, "runs": 3}]}
        for name, who in works
    ]
    monkeypatch.setattr("workbench.experiments.bench.run.run", lambda *_: iter([head, *parts]))


def test_a_report_of_one_workload_leaves_the_others_of_its_gpu(monkeypatch, tmp_path):
    def measured(against="flash", only=""):
        command._time(["page_list_attention"], against, False, only, 0, tmp_path, True, [])
        return results.read(tmp_path).timings("bench").set_index("workload")

    faked(monkeypatch, "H200", ("a", "flash"), ("b", "flash"))
    first = measured()
    assert list(first.index) == ["a", "b"]
    faked(monkeypatch, "H200", ("b", "cudnn"), ("c", "cudnn"))
    second = measured("cudnn", only="b")
    assert second.loc["a"].equals(first.loc["a"]), "with the command, the versions and the time of its own run"
    assert dict(second.candidate) == {"a": "flash", "b": "cudnn", "c": "cudnn"} and list(second.index) == [
        "a",
        "b",
        "c",
    ]
    assert second.command["a"] == "workbench bench page_list_attention --against flash"
    assert set(second.command[["b", "c"]]) == {"workbench bench page_list_attention --against cudnn --only b"}
    assert json.loads(second.versions["a"]) == {"torch": "2"}
    faked(monkeypatch, "H200", ("c", "flash"))
    assert list(measured().index) == ["c"], "all there are were measured again"
    faked(monkeypatch, "H100", ("a", "flash"))
    assert list(measured().index) == ["a"], "another GPU"


def test_a_row_of_an_earlier_run_is_kept_with_the_dense_time_of_that_run(tmp_path):
    head = {"kernel": "chunked", "card": "H200", "copy_tbps": 4.0, "product_tflops": 600.0}

    def row(who, ms, **more):
        return {"who": who, "ms": ms, "runs": 2, **more}

    def written(*rows):
        work = {"name": "a", "shape": {}, "flops": 1.0, "bytes": 1.0, "floor_ms": 1.0, "contestants": rows}
        earlier = bench_reports.earlier_workloads(tmp_path, "chunked", "H200").get("a", ((), ()))
        bench_reports.write(tmp_path, head, {"a": bench_reports.merge_measured(work, head, earlier)})
        found = results.expand_settings(results.read(tmp_path).table("timings", "bench"), "own")
        return {one["candidate"]: one for one in found.to_dict("records")}

    bench_reports.write(tmp_path, head, {})
    written(row("ours, dense", 8.0), row("quoka", 4.0), row("ours", 2.0), {"who": "flex", "problem": "no such shape"})
    for ours in (3.0, 2.5):
        dense = {"who": "ours, dense", "ms": 9.0}
        rows = written(row("ours, dense", 9.0, dense=dense), row("ours", ours, dense=dense))
        assert list(rows) == ["ours, dense", "ours", "quoka"] and rows["ours"]["ms"] == ours
        assert rows["quoka"]["own"]["dense"] == {"who": "ours, dense", "ms": 8.0, "runs": 2}, "not the later run's"
    assert "no such shape" in results.read(tmp_path).counts("bench").setting.str.cat()
    assert len(written(row("ours", 1.0))) == 1, "of one run where rows do not stand for themselves"


def test_the_driver_is_read_from_the_system(tmp_path):
    path = tmp_path / "version"
    assert driver(path) is None
    path.write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\nGCC version: 12.2"
    )
    assert driver(path) == "580.95.05"


@pytest.mark.parametrize(("dtype", "wider"), [(torch.float32, torch.float64), (torch.float16, torch.float32)])
def test_a_kernel_is_held_to_a_reference_of_more_digits_than_its_own(dtype, wider):
    asked = []

    def reference(x):
        asked.append(x.dtype)
        return x * 2

    module = SimpleNamespace(
        __name__="double",
        reference=reference,
        launch=lambda x: x * 2,
        cases=lambda device, dtype: iter([(torch.ones(2, 2, 2, device=device, dtype=dtype),)]),
    )
    (verdict,) = check(module, "cpu", [dtype])
    assert verdict.right and asked == [wider, dtype]

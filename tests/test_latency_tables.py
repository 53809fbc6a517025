"""Records, figures and sentences of the latency notebook, on made-up times and reports."""

import made_up
import pytest

from workbench.experiments import bench_reports, ttft, ttft_costs
from workbench.experiments.bench.timing import Roof
from workbench.experiments.ttft import METHODS
from workbench.metrics.latency import STAGES, Stages
from workbench.plots import kernel_reports, latency, latency_by_share, latency_stages
from workbench.plots.cost import lines_by_mode
from workbench.plots.styles import BASELINES
from workbench.plots.theme import TEMPLATE

HERE = {"model": "a model", "device": "a CPU"}
SLOWER = {"full": 1.0, "block": 0.05, "recompute": 0.25, "stock full": 0.9, "stock prefix": 0.06}  # seconds at 1,024


def time(seconds: float) -> dict[str, float]:
    return {"p5": 0.9 * seconds, "p50": seconds, "p95": 1.2 * seconds, "n": 20}


def cost(length: int) -> dict[str, float]:
    return {"flops": 1e9 * length, "bytes": 1e7}


TIMED = [
    {"length": length, "way": name, **time(SLOWER[name] * length / 1024), **cost(length)}
    for length in (512, 1024)
    for name in METHODS
]
FULL = next(r for r in TIMED if (r["length"], r["way"]) == (1024, "full"))
DENSE = Stages({"place": 0.0, "choose": 0.0, "attend": 0.6, "rest": 0.9}, 1.0)
FEW = Stages({"place": 0.0, "choose": 0.1, "attend": 0.2, "rest": 0.9}, 0.25)


@pytest.fixture
def reports(tmp_path):
    return bench_reports.of_first_gpu(bench_reports.reports(made_up.write(tmp_path)))


@pytest.fixture
def none():
    return bench_reports.of_first_gpu({})


def check(figure) -> None:
    """What every figure keeps: the template, title, notice and caption, and JSON without 16-bit floats."""
    title, notice, caption = (note.text for note in figure.layout.annotations[-3:])
    assert figure.layout.template == TEMPLATE and figure.data
    assert title.startswith("<b>") and notice and caption and '"f2"' not in figure.to_json()


def said(figure, which: int = -2) -> str:
    """What to notice; -1: how it was measured."""
    return " ".join(figure.layout.annotations[which].text.split("<br>"))


def test_reports_of_the_gpu_that_was_measured_first(reports, none):
    assert reports.gpu == made_up.CARD and reports.short == "Test" and set(reports.rows.card) == {made_up.CARD}
    assert reports.roof() == Roof(made_up.COPY * 1e12, made_up.PRODUCT * 1e12)
    assert "shared_attention" in reports.missing and not set(reports.missing) & set(made_up.WORKS)
    assert (none.gpu, none.short, len(none.rows)) == ("", "", 0) and len(none.missing) > len(reports.missing)


def test_the_last_length_counts():
    assert ttft.last_length(TIMED) == (1024, {name: 1e3 * seconds for name, seconds in SLOWER.items()})
    records = ttft_costs.by_shape({"own": [{**TIMED[0], "linear": 1.0}], "large": [TIMED[1]]})
    assert records[0] == {"shape": "own", "length": 512, "way": "full", "flops": 512e9, "bytes": 1e7}
    assert [r["shape"] for r in records] == ["own", "large"]


def test_lines_of_methods_have_bands_where_there_are_percentiles():
    (full, recompute) = latency.method_lines(TIMED, "p50", 1e3, methods=("full", "recompute"), ratio=0.15)
    assert list(full.x) == [512, 1024] and list(full.y) == [500, 1000] and list(full.high) == pytest.approx([600, 1200])
    assert (full.name, recompute.name) == ("full attention", "blocks, 15% recomputed")
    (printed,) = lines_by_mode([{"length": 9, "mode": "block", "ms": 2}], "ms", modes=["block"], band=True)
    assert list(printed.y) == [2] and not len(printed.low)


def test_the_floor_is_that_of_the_gpu_or_of_this_device(reports, none):
    records = [{"length": n, "way": name, **cost(n)} for n in (512, 1024) for name in latency.COMPUTED]
    large = [{**r, "flops": 1e3 * r["flops"]} for r in records]
    given = (records, large, ttft_costs.published())
    check(figure := latency.operations_by_length(*given, reports, Roof(1e10, 1e11), model="a model", ratio=0.15))
    assert "on NVIDIA Test: 600 TFLOP/s, 4.00 TB/s." in said(figure, -1)
    floor = next(trace.y for trace in figure.data if trace.xaxis == "x3")
    assert list(floor) == pytest.approx([length * 1e12 / (made_up.PRODUCT * 1e12) * 1e3 for length in (512, 1024)])
    check(figure := latency.operations_by_length(*given, none, Roof(1e10, 1e11), model="a model", ratio=0.15))
    assert "Ceilings measured here: 100 GFLOP/s, 10 GB/s." in said(figure, -1)


def test_density_stands_from_few_pairs_to_all(reports, none):
    given = {"spec": "window", "repeats": 3, **HERE}
    check(figure := latency_by_share.density(DENSE, {0.5: FEW}, FULL, reports, **given))
    assert "at 25% density, choosing takes 100 ms and attention 200 ms, where dense attention takes 600" in said(figure)
    together = next(trace for trace in figure.data if trace.name == "all together")
    assert list(together.x) == [0.25, 1.0] and list(together.y) == pytest.approx([1200, 1500])
    assert "window, threshold 0.5, and dense" in said(figure, -1) and "drawn for every head" in said(figure, -1)
    check(figure := latency_by_share.density(DENSE, {0.5: FEW}, FULL, none, **given))
    assert said(figure, -1).endswith("No report on tile_attention yet.")


def test_stages_of_methods_and_thresholds_are_bars(tmp_path):
    bars = latency_stages.stage_seconds({"cached blocks": DENSE}, {0.5: FEW})
    assert bars == {"cached blocks": DENSE.seconds, "sparse at 0.5, 25% kept": FEW.seconds}
    given = {"tokens": 1024, "question": 50, "repeats": 3, **HERE}
    check(figure := latency_stages.stages_here(bars, **given))
    assert said(figure).startswith(f"Over cached blocks: {STAGES['rest']} 60%, attention 40%")
    assert "The host waits" not in said(figure, -1)
    assert "The host waits" in said(latency_stages.stages_here(bars, waits=True, **given), -1)
    check(figure := latency_stages.stages_on_gpu(bench_reports.split(made_up.stages(tmp_path))))
    assert said(figure).startswith("a model, 32,768 tokens. Full attention: ")
    assert list(figure.data[0].y) == ["full attention", "bfla at 0.5, 20% kept"]
    assert latency_stages.stages_on_gpu({}) is None


def test_kernels_stand_beside_their_baselines(reports, none):
    check(figure := kernel_reports.kernels_table(reports))
    rows = list(zip(*figure.data[0].cells["values"], strict=True))
    assert rows[0][0] == "choose_bfla" and said(figure, -1).startswith(f"{made_up.CARD}. ")
    assert any(row[0].replace("<br>", " ") == "shared_attention: no report" for row in rows)
    assert said(figure).startswith("Closest to the roof: ") and "Not measured yet: " in said(figure)
    whole = bench_reports.GpuReports(reports.reports, reports.gpu, reports.rows, [])
    assert said(kernel_reports.kernels_table(whole)).endswith("Every kernel and whole-model benchmark is measured.")
    check(figure := kernel_reports.ratios(reports))
    assert "Ours is faster everywhere." in said(figure) and said(figure).startswith("The closest baseline: ")
    behind = reports.rows.assign(ms=reports.rows.ms.where(reports.rows.who != "flex", 1e-9))
    figure = kernel_reports.ratios(bench_reports.GpuReports(reports.reports, reports.gpu, behind, []))
    assert "A baseline is faster on: " in said(figure) and "tile_attention: dense, 32K" in said(figure)
    assert kernel_reports.ratios(none) is None


def test_every_baseline_of_the_reports_has_a_look_of_its_own():
    drawn = {row["who"] for row in bench_reports.baselines(bench_reports.of_first_gpu(bench_reports.reports()).rows)}
    assert {who for who in drawn if not BASELINES.start_of(who)} == set()

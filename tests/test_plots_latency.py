"""Figures of latency, on made-up numbers."""

import made_up
import pytest

from tests.random_models import model_of
from tests.test_plots import SAID, check
from workbench import data, models
from workbench.app.explore.live_latency import latency_explorer
from workbench.experiments import bench_reports
from workbench.experiments.ttft import METHODS
from workbench.metrics.latency import STAGES
from workbench.plots import roofline
from workbench.plots.bars import breakdown, listed, spoken
from workbench.plots.cost import against_length, cost_panel, cost_series
from workbench.plots.intervals import baseline_ratios
from workbench.plots.styles import BASELINES, MODES, SYMBOLS
from workbench.plots.theme import log_ticks

BARS = {
    "full attention": {"place": 0.0, "choose": 0.0, "attend": 0.6, "rest": 0.9},
    "cached blocks": {"place": 0.01, "choose": 0.0, "attend": 0.02, "rest": 0.03},
}


@pytest.fixture
def rows(tmp_path):
    return bench_reports.table(bench_reports.reports(made_up.write(tmp_path)))


def test_every_way_has_a_look_of_its_own():
    assert set(METHODS) <= set(MODES)
    assert len({look.colour for look in MODES.values()}) == len(MODES) == len({look.symbol for look in MODES.values()})


def test_baselines_are_named_by_who_made_them():
    names = {"ours": "ours", "flash, dense": "SDPA flash, dense", "flashinfer": "FlashInfer", "another": "another"}
    assert {who: BASELINES.name_of(who) for who in names} == names
    assert BASELINES.maker("transformers, full prefill (cudnn)") == "transformers"
    assert BASELINES.maker("question_attention") == "ours"
    assert BASELINES.colour_of("ours, written in place") != BASELINES.colour_of("ours")
    assert len(set(BASELINES.colours().values())) == len(BASELINES)
    assert len(set(SYMBOLS)) == len(SYMBOLS) >= 20


def test_a_breakdown_stacks_stages_and_says_their_sum():
    check(fig := breakdown(BARS, STAGES, title="Where", **SAID))
    assert [bar.name for bar in fig.data] == list(STAGES.values())
    assert sum(bar.x[0] for bar in fig.data) == pytest.approx(1500)
    texts = " ".join(note.text for note in fig.layout.annotations)
    assert "1,500 ms" in texts and "60 ms" in texts
    assert listed(STAGES, BARS["cached blocks"]).startswith("projections, MLPs, head 50%, attention 33%")
    assert spoken(7.866) == "7.87 ms" and spoken(1430.2) == "1,430 ms"


def test_ratios_to_baselines_stand_right_of_one_where_ours_is_faster(rows):
    check(fig := baseline_ratios(bench_reports.baselines(rows), title="Baselines", **SAID))
    by_name = {trace.name: trace for trace in fig.data}
    assert set(by_name) == {"FlexAttention", "SDPA flash", "torch", "transformers"}
    assert all(ratio > 1 for trace in fig.data for ratio in trace.x)
    assert set(by_name["SDPA flash"].marker.symbol) == {"circle-open"}, "computes the whole prompt"
    assert "1×" in fig.layout.xaxis.ticktext


def test_nothing_stands_over_the_roof(rows):
    points = roofline.of_reports(rows)
    copy, product = made_up.COPY * 1e12, made_up.PRODUCT * 1e12
    assert all(point["flops"] <= 1.001 * min(product, copy * point["intensity"]) for point in points)
    panel = roofline.Roofs("Test", copy, product, points)
    check(fig := roofline.roofline([panel, panel], BASELINES.colours(), title="Roof", **SAID))
    roof = fig.data[0]
    assert roof.y[1] == roof.y[2] == product and roof.y[0] == roof.x[0] * copy
    named = {trace.name for trace in fig.data if trace.showlegend is not False}
    assert {"ours", "transformers", "tile_attention", "question"} <= named


def test_requests_become_points_by_the_work_they_cannot_do_without():
    records = [
        {"way": way, "length": 2048, "flops": 1e10, "bytes": 1e8, "p50": 0.5} for way in ("full", "stock full", "block")
    ]
    full, stock, block = roofline.of_requests(records, 1e10, 1e11)
    assert full["kind"] == stock["kind"] != block["kind"] and (full["name"], stock["name"]) == ("ours", "transformers")
    assert full["share"] == pytest.approx(0.2) and full["flops"] == 2e10 and full["intensity"] == 100
    assert roofline.si(4.3e12) == "4.3 T" and roofline.si(90.8e9) == "90.8 G"


def test_few_lengths_are_all_named_and_many_are_thinned():
    one = cost_series("block", [27698, 32818], [200.0, 8.0])
    many = cost_series("full", [2**p for p in range(5, 16)], [1.0] * 11)
    fig = against_length([cost_panel(str(n), [many], "ms") for n in range(3)], title="Time", **SAID)
    assert 4 <= len(fig.layout.xaxis.ticktext) <= 7
    fig = against_length([cost_panel("two", [one], "ms")], title="Time", lines=2, **SAID)
    assert list(fig.layout.xaxis.ticktext) == ["27K", "32K"]


def test_a_logarithmic_axis_of_few_decades_has_steps_between():
    few, many = log_ticks([3, 28]), log_ticks([1e9, 1e14])
    assert few["tickvals"] == [1, 2, 5, 10, 20, 50, 100, 200, 500] and many == {"dtick": 1, "exponentformat": "power"}
    assert log_ticks([0.0])["ticktext"][0] == "1", "nothing to show"


def test_the_explorer_measures_what_it_shows():
    model, samples = model_of("llama", vocab_size=2000), data.load("lab", 2)
    box = latency_explorer(models.load("lab-full")._replace(model=model), samples, question=20, repeats=1)
    (tokens, cached, again), shown = box.children[0].children, box.children[-1]

    def choosing():
        return shown.data[list(STAGES).index("choose")].x

    assert again.value == 0 == choosing()[2], "nothing is chosen at first"
    again.value = 50
    assert choosing()[2] > 0 == choosing()[1] and "50% recomputed" in shown.data[0].y[2]
    cached.value = 0
    assert "0% cached" in shown.data[0].y[1]
    tokens.value = 128
    assert "128 tokens" in shown.layout.annotations[-3].text

"""Functions that shape records into tables and figures: times, trials, block fine-tuning."""

from types import SimpleNamespace

import pytest

from tests.figure_views import rows, texts
from workbench.data.sample import Sample
from workbench.experiments import results
from workbench.plots import (
    block_finetuning,
    cost,
    intervals,
    token_sources,
)

TIMED = [
    {"length": length, "mode": mode, "p5": ms / 2e3, "p50": ms / 1e3, "p95": ms / 500, "n": 20}
    for length, times in ((128, (20, 5)), (512, (80, 6)))
    for mode, ms in zip(("full", "block"), times, strict=True)
]
STORED = {"full": 0, "block": 2**19}  # bytes
COUNTED = [
    {"length": length, "mode": mode, "flops": 1e9, "bytes": 2**20, "kv_loaded": stored, "convention": 2e9}
    for length in (128, 512)
    for mode, stored in STORED.items()
]


def test_lines_hold_one_mode_each_with_its_band():
    full, block = cost.lines_by_mode(TIMED, "p50", 1e3, band=True)
    assert list(full.y) == [20, 80] and list(block.y) == pytest.approx([5, 6])
    assert list(full.low) == [10, 40] and list(full.high) == [40, 160]
    (alone,) = cost.lines_by_mode(TIMED, "p50", modes=["block"])
    assert list(alone.x) == [128, 512] and not len(alone.low)
    few = [{**r, "n": 19} for r in TIMED]
    assert not len(cost.lines_by_mode(few, "p50", band=True)[0].low), "percentiles of fewer than 20 runs are not drawn"
    ranged = [{**r, "least": 0.001, "most": 1.0} for r in few]
    assert list(cost.lines_by_mode(ranged, "p50", band=True)[0].high) == [1.0, 1.0]


def test_times_are_quoted_at_the_longest_context():
    assert cost.longest_ttft(TIMED) == (512, {"full": 80, "block": 6})
    paper = [{"length": 512, "mode": mode, "ttft_ms": 50, "flops": 1e12} for mode in ("full", "block")]
    fig = cost.ttft_by_length(TIMED, paper, model="tiny", question=50, device="CPU")
    assert "At 512 tokens reuse takes 6 ms where full attention takes 80 ms" in texts(fig)
    assert "20 runs" in texts(fig)
    assert "tiny, computed" in texts(cost.flops_by_length(COUNTED, COUNTED, paper, model="tiny", question=50))
    fig = cost.bytes_by_length(COUNTED, COUNTED, model="tiny", dtype="float32")
    assert "tiny, computed (float32)" in texts(fig)
    stored = [trace for trace in fig.data if trace.name == "of it, read from the store"]
    assert [list(trace.y) for trace in stored] == [[0.5, 0.5], [2**-11, 2**-11]]


def test_the_papers_table_leaves_cells_empty_where_a_length_was_not_measured():
    paper = [
        {"length": length, "mode": mode, "ttft_ms": 1000, "flops": 1e12}
        for length in (128, 4096)
        for mode in ("full", "block")
    ]
    fig = cost.paper_table(paper, COUNTED, TIMED, COUNTED, model="tiny", question=20, device="CPU")
    table = {row[0]: row[1:] for row in rows(fig)}
    assert list(fig.data[0].header["values"])[1:] == ["128", "4K"]
    assert table["TTFT, full (ms)"] == ("20", ""), "the last one of that name: measured here"
    assert table["FLOPs as the paper counts, block"] == ("2.0e+09", "")
    assert table["Published: 8B"] == ("", "")


def trial(mode: str, em: float, computed: float, reused: float, hit_rate: float) -> SimpleNamespace:
    score = {"n": 4, "em": em, "em_low": em / 2, "em_high": 1.0, "f1": em, "f1_low": em / 2, "f1_high": 1.0}
    return SimpleNamespace(
        **score,
        rows_computed=computed,
        rows_reused=reused,
        hit_rate=hit_rate,
        prompt_tokens=100.0,
        device="CPU",
        trial={"mode": mode},
        ttft_s=SimpleNamespace(p50=0.0125),
        by_kind={"order": SimpleNamespace(em=em, n=4)},
        rows=lambda: [{"mode": mode, "kind": "all", **score}],
    )


TRIALS = {"full": trial("full", 0.75, 100, 0, 0), "block": trial("block", 0.5, 20, 80, 0.25)}


def test_tokens_of_trials_come_from_the_store_or_are_computed():
    full, block = token_sources.token_sources(TRIALS)
    assert (full["reused"], full["encoded"], full["question"], full["hit_rate"]) == (0, 320, 80, None)
    assert (block["reused"], block["encoded"], block["question"], block["hit_rate"]) == (320, 0, 80, 0.25)
    assert "computes 20 of 100 tokens" in texts(token_sources.trial_reuse(TRIALS, about="tiny"))
    scores = intervals.reuse_quality({**TRIALS, "naive": TRIALS["block"]}, about="tiny")
    assert "answer 50% where full attention answers 75%" in texts(scores)
    assert "They lose most on order: 25 points (n = 4)" in texts(scores)
    turned = {"full": TRIALS["block"], "block": TRIALS["full"], "naive": TRIALS["full"]}
    assert "No kind of question answers less" in texts(intervals.reuse_quality(turned, about="tiny"))


MEASURED = results.read("block-attention")


def test_the_comparison_quotes_differences_of_the_results_file():
    fig = block_finetuning.comparison(MEASURED)
    methods = MEASURED["methods"]
    gap, (low, high) = results.difference(methods["block fine-tuned"], methods["full attention"])
    assert gap < 0 and f"{-gap * 100:.1f} points below the model before it" in texts(fig)
    assert f"({-high * 100:.1f} to {-low * 100:.1f})" in texts(fig)
    assert set(methods) <= set(block_finetuning.COLOURS)


def test_scores_by_kind_stand_in_the_order_of_the_methods():
    fig = block_finetuning.by_kind(MEASURED)
    by_kind = MEASURED["methods"]["block fine-tuned"]["record"]["by_kind"]
    for kind, count, _full, _reused, tuned, _tuned_full in rows(fig):
        assert count == f"{by_kind[kind]['n']:,}" and tuned.startswith(f"{by_kind[kind]['em']:.1%} (")
    assert len(rows(fig)) == len([kind for kind in by_kind if kind])


def test_published_accuracy_has_a_dash_where_nothing_is_ours():
    ours = {"full attention": {"record": {"em": 0.5}}}
    fig = block_finetuning.paper_accuracy({"methods": ours, "samples": 10})
    cells = {row[0]: row[1] for row in rows(fig)}
    assert cells["full attention"] == "50.0" and cells["PromptCache"] == "–"


def test_trials_here_stand_with_tokens_and_milliseconds():
    fig = block_finetuning.measured_here({"full attention": TRIALS["full"]}, about="tiny")
    assert rows(fig) == [("full attention", "75%", "38% to 100%", "100", "12.5")]


def test_answers_of_both_modes_stand_question_by_question():
    def answer(text, *tokens):
        return SimpleNamespace(text=text, tokens=tokens)

    samples = [Sample("s0", "Where?", ("Wilby",), (), kind="single-hop")]
    full, block, before = [answer(" Wilby", 1)], [answer(" Wilby", 1)], [answer(" Tamton", 2)]
    assert block_finetuning.equal_in_both_modes(full, block) == 1
    assert block_finetuning.equal_in_both_modes(full, before) == 0
    fig = block_finetuning.question_by_question(samples, before, block, full, model="a", tuned="b", about="lab")
    assert rows(fig) == [("Where?", "single-hop", "Wilby", "✗ Tamton", "✓ Wilby", "✓ Wilby")]

"""Functions that shape records into tables and figures: times, trials, block fine-tuning."""

from types import SimpleNamespace

import pytest

from tests.figure_views import rows, texts
from workbench.plots import (
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

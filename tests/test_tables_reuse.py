"""Functions that shape records into tables and figures: times, trials, block fine-tuning."""

import pytest

from tests.figure_views import rows, texts
from workbench.plots import (
    cost,
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

"""Time to the first token by length, with the operations behind it: see notebooks/11_latency.ipynb."""

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from workbench.experiments.bench.timing import Roof
from workbench.experiments.bench_reports import (
    GpuReports,
    by_context,
)
from workbench.experiments.ttft import METHODS, last_length
from workbench.metrics.latency import spread_words
from workbench.plots import latency_findings as findings
from workbench.plots.bars import spoken
from workbench.plots.cost import against_length, cost_panel, hardware, lines_by_mode
from workbench.plots.lines import Series
from workbench.plots.styles import MODE_NAMES

Row = Mapping[str, Any]
Records = Sequence[Row]
NO_MODEL = "No report on a whole model on a GPU yet."
COMPUTED = ("full", "block", "recompute")  # methods whose cost is computed
FULL, OURS = "full attention", "ours"
TTFT, OPERATIONS, FLOOR = "time to first token (ms)", "operations (FLOPs)", "floor of the time (ms)"


def method_lines(
    records: Records, field: str, scale: float = 1.0, *, methods: Sequence[str] = METHODS, ratio: float
) -> list[Series]:
    """Return `lines_by_mode` of `methods` with their bands; `ratio` is the recomputed share, for the legend."""
    lines: list[Series] = []
    for method in methods:
        name = f"blocks, {ratio:.0%} recomputed" if method == "recompute" else ""
        lines += lines_by_mode(records, field, scale, modes=[method], band=True, key="way", name=name)
    return lines


def ttft_by_method(
    timed: Records, reports: GpuReports, paper: Records, *, ratio: float, question: int, model: str, device: str
) -> go.Figure:
    """Draw times to the first token against length: measured here (`ttft.by_length`), on a GPU, and published.

    `ratio`: share of the document tokens that is recomputed; `question`: number of its tokens.
    """
    on_gpu = by_context(reports.rows)
    panels = [cost_panel("here", method_lines(timed, "p50", 1e3, ratio=ratio), TTFT)]
    if on_gpu:
        lines = method_lines(on_gpu, "p50", methods=list(dict.fromkeys(r["way"] for r in on_gpu)), ratio=ratio)
        panels.append(cost_panel(f"Llama-3.1-8B shape on {reports.short}", lines, TTFT))
    length, ms = last_length(timed)
    longest = max((r["length"] for r in on_gpu if r["way"] == "block"), default=0)
    times = ", ".join(f"{MODE_NAMES[r['way']]} {spoken(r['p50'])}" for r in on_gpu if r["length"] == longest)
    there = f"On {reports.short}, at {longest:,} tokens: {times}." if times else NO_MODEL
    return against_length(
        [*panels, cost_panel("8B, published", lines_by_mode(paper, "ttft_ms"), TTFT)],
        title="Time to the first token (Block-Attention, table 3; FusionRAG, figure 19)",
        notice=f"Here, at {length:,} tokens: blocks {spoken(ms['block'])}, full attention {spoken(ms['full'])} "
        f"({findings.times(ms['full'] / ms['block'], 'as long', 'as short')}), {ratio:.0%} recomputed "
        f"{spoken(ms['recompute'])}, transformers over a ready prefix {spoken(ms['stock prefix'])}. {there}",
        caption=f"Here: {model} on {device}; median and {spread_words(timed[0]['n'])} of {timed[0]['n']} runs, one "
        f"request at a time, question of {question} tokens, blocks in memory and re-encoded within the time, choosing "
        f"included. Published: Block-Attention, table 3. {hardware()}",
        lines=2,
    )


def operations_by_length(
    own: Records, large: Records, paper: Records, reports: GpuReports, here: Roof, *, model: str, ratio: float
) -> go.Figure:
    """Draw operations against length, and the floor of the time that a device sets (`ttft_costs.computed`).

    The floor is that of `large`, the shape of the paper, on the GPU of the reports; without reports, that of `own` on
    this device, which reaches `here`.
    """
    if reports.gpu:
        roof, records, name = reports.roof(), large, f"Llama-3-8B shape on {reports.short}"
        measured = f"on {reports.gpu}: {roof.product / 1e12:.0f} TFLOP/s, {roof.copy / 1e12:.2f} TB/s"
    else:
        roof, records, name = here, own, f"{model}, here"
        measured = f"here: {roof.product / 1e9:.0f} GFLOP/s, {roof.copy / 1e9:.0f} GB/s"
    floors = [{**r, "floor": roof.seconds(r["flops"], r["bytes"]) * 1e3} for r in records]
    counted: dict[str, Any] = {"methods": COMPUTED, "ratio": ratio}
    rings = lines_by_mode(paper, "flops", dots=True, name="published")
    return against_length(
        [
            cost_panel(model, method_lines(own, "flops", **counted), OPERATIONS),
            cost_panel("Llama-3-8B shape", [*method_lines(large, "flops", **counted), *rings], OPERATIONS),
            cost_panel(name, method_lines(floors, "floor", **counted), FLOOR),
        ],
        title="Operations to the first token, and the floor they set",
        notice="Reuse pays for the question and for what is recomputed; full attention pays for every token. "
        f"{findings.floor_rises(floors)}",
        caption="Linear layers, output head on one row, scores and weighted values; a multiply-add is two operations; "
        f"the choice of what is recomputed left out. Rings: Block-Attention, table 3. Ceilings measured {measured}.",
    )

"""Reports on kernels and whole models beside their baselines, and under the roof of the device."""

import plotly.graph_objects as go

from workbench.experiments.bench.timing import Roof
from workbench.experiments.bench_reports import (
    FEEDS,
    GpuReports,
    baselines,
    listed,
)
from workbench.metrics.latency import ENOUGH
from workbench.plots.intervals import baseline_ratios
from workbench.plots.latency import OURS, Records
from workbench.plots.roofline import Roofs, of_reports, of_requests, roofline
from workbench.plots.styles import BASELINES
from workbench.plots.table import table

COLUMNS = {  # heading → how the names of baselines begin
    "flash": ["flash"],
    "cuDNN": ["cudnn"],
    "Flex": ["flex"],
    "FlashInfer": ["flashinfer"],
    "stock": ["torch", "transformers"],
    "feeds": [FEEDS],
}


def kernels_table(reports: GpuReports) -> go.Figure:
    """Tabulate every kernel and whole model of the reports beside its baselines, and name those without a report."""
    lines, headings = listed(reports.rows, COLUMNS)
    lines = [[line[0].removesuffix(f" ({reports.gpu})"), *line[1:]] for line in lines]  # the caption names the GPU
    absent = [[f"{name}: no report", *[""] * (4 + len(COLUMNS))] for name in reports.missing]
    ours = reports.rows[reports.rows.who == OURS].dropna(subset=["ms"]).sort_values("share", ascending=False)
    roofs = ", ".join(f"{r.work} {r.share:.0%}" for r in ours.head(2).itertuples())
    measured = "Every kernel and whole-model benchmark is measured."
    return table(
        ["work", "ours, ms (spread)", "TF/s", "TB/s", "roof", *COLUMNS],
        [*lines, *absent],
        groups=[*headings, *range(len(lines), len(lines) + len(absent))],
        widths=[3.4, 2.25, 0.65, 0.65, 0.65, 0.9, 0.9, 0.8, 1.2, 0.85, 0.85],
        title="Kernels and whole models beside their baselines",
        notice=(f"Closest to the roof: {roofs}. " if roofs else "")
        + (f"Not measured yet: {', '.join(reports.missing)}." if reports.missing else measured),
        caption=(f"{reports.gpu}. " if reports.gpu else "")
        + "Columns on the right: how many times as fast ours is as the baseline's fastest entry (below 1: the "
        "baseline is faster); stock: torch or transformers; feeds: the attention over what a choice keeps. Baselines "
        f"that cannot skip compute everything. Spread: 5 to 95% of {ENOUGH} runs or more, else the range where it was "
        "kept. TF/s and TB/s count what the work cannot do without; roof: the floor that the ceilings of the GPU set, "
        "over the median.",
    )


def ratios(reports: GpuReports) -> go.Figure | None:
    """Draw how many times as fast kernels are as their baselines; None without a report."""
    records = baselines(reports.rows)
    if not records:
        return None
    closest = min(records, key=lambda r: r["ratio"])
    behind = "; ".join(sorted({r["work"] for r in records if r["ratio"] < 1}))
    return baseline_ratios(
        records,
        title="How many times as fast as its baselines",
        notice=f"The closest baseline: {BASELINES.name_of(closest['who'])}, {closest['ratio']:.2f}× on "
        f"{closest['work']}. {f'A baseline is faster on: {behind}.' if behind else 'Ours is faster everywhere.'}",
        caption=f"{reports.gpu}, one run each; bars: the baseline's 5 to 95% over our median, where it ran {ENOUGH} "
        "times or more. Rings: baselines that compute the whole prompt.",
    )


def under_the_roof(
    timed: Records, here: Roof, reports: GpuReports, *, model: str, dtype: str, device: str
) -> go.Figure:
    """Draw requests on this device (`ttft.by_length`) and kernels on the GPU of the reports under their ceilings."""
    local, there = of_requests(timed, here.copy, here.product), of_reports(reports.rows)
    panels = [Roofs(f"here: {model}, {dtype}", here.copy, here.product, local)]
    on_gpu = "No report of a GPU yet."
    if there:
        roof, top = reports.roof(), max(there, key=lambda r: r["share"])
        panels.insert(0, Roofs(f"{reports.gpu}, bfloat16", roof.copy, roof.product, there))
        on_gpu = f"On {reports.short} the highest share of the roof: {top['name']} on {top['kind']}, {top['work']}: "
        on_gpu += f"{top['share']:.0%}."
    nearest = max(local, key=lambda r: r["share"])
    return roofline(
        panels,
        BASELINES.colours(),
        title="Under the roof",
        notice=f"{on_gpu} Here: {nearest['kind']} of {nearest['work']}, {nearest['share']:.0%}.",
        caption="Operations and bytes are what the work cannot do without, so a baseline that computes more shows "
        f"less. Left of the dotted line bytes are the limit, right of it operations. Here: {device}; ceilings measured "
        "in this run: a copy of 128 MiB, a product of 1,024 × 1,024 matrices (larger on a GPU).",
    )

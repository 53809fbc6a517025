"""Time to the first token, and kernels beside their baselines, from records to figures and what they show; see
notebooks/11_latency.ipynb."""

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from workbench.experiments.bench.timing import Roof
from workbench.experiments.bench_reports import (
    FEEDS,
    GpuReports,
    against,
    baselines,
    by_context,
    by_density,
    listed,
    recomputation,
)
from workbench.experiments.ttft import METHODS, last_length
from workbench.metrics.latency import ENOUGH, STAGES, Stages, spread, spread_words
from workbench.plots import latency_findings as findings
from workbench.plots.bars import breakdown, spoken
from workbench.plots.bars import listed as by_time
from workbench.plots.cost import against_length, cost_panel, hardware, lines_by_mode
from workbench.plots.intervals import baseline_ratios
from workbench.plots.lines import Panel, Series, profile, profiles
from workbench.plots.looks import BASELINES, MODE_NAMES, STAGE_COLOURS
from workbench.plots.roofline import Roofs, of_reports, of_requests, roofline
from workbench.plots.table import table
from workbench.plots.theme import BLUE, INK

Row = Mapping[str, Any]
Records = Sequence[Row]
ByValue = Mapping[float, Stages]  # value of the threshold of a sparse method → stages
Seconds = Mapping[str, Mapping[str, float]]  # method → stage → seconds
NO_MODEL = "No report on a whole model on a GPU yet."
COMPUTED = ("full", "block", "recompute")  # methods whose cost is computed
FULL, OURS = "full attention", "ours"
TTFT, OPERATIONS, FLOOR = "time to first token (ms)", "operations (FLOPs)", "floor of the time (ms)"
COLUMNS = {  # heading → how the names of baselines begin
    "flash": ["flash"],
    "cuDNN": ["cudnn"],
    "Flex": ["flex"],
    "FlashInfer": ["flashinfer"],
    "stock": ["torch", "transformers"],
    "feeds": [FEEDS],
}


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
    """Draw operations against length, and the floor of the time that a device sets (`ttft.computed`).

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


def _beside_full(records: Records, by: str, full: Row) -> list[dict[str, Any]]:
    """Return milliseconds of records {<by>, p50 (seconds), and what `spread` takes} with bands, and full attention as a
    level line."""
    level = [{**full, by: at} for at in (0, 1)]
    return [
        {"name": name, "at": r[by], "mean": r["p50"] * 1e3, "low": low * 1e3, "high": high * 1e3}
        for name, rows in ((OURS, records), (FULL, level))
        for r in rows
        for low, high in [spread(r) or (r["p50"], r["p50"])]
    ]


def cached_share(records: Records, full: Row, *, model: str, device: str) -> go.Figure:
    """Draw `ttft.by_cached_share` and the record of full attention on the same prompt, in time and in operations."""
    shares = sorted(records, key=lambda r: r["share"])
    cold, warm = shares[0], shares[-1]
    work = [{"name": OURS, "at": r["share"], "mean": r["flops"] / 1e9} for r in records]
    work += [{"name": FULL, "at": at, "mean": full["flops"] / 1e9} for at in (0, 1)]
    times = _beside_full(records, "share", full)
    across = "share of the context in the store"
    return profiles(
        [profile(TTFT, times, across, percent_x=True), profile("operations (GFLOP)", work, across, percent_x=True)],
        title="Cached share",
        notice=f"With {cold['share']:.0%} of {full['length']:,} tokens cached the first token takes "
        f"{cold['p50'] * 1e3:.0f} ms, with {warm['share']:.0%} {warm['p50'] * 1e3:.0f} ms; full attention "
        f"{full['p50'] * 1e3:.0f} ms. {findings.work_when_cold(cold, full)}",
        caption=f"Here: {model} on {device}; median and {spread_words(full['n'])} of {full['n']} runs; the first "
        "blocks of the prompt are cached.",
        colours={OURS: BLUE, FULL: INK},
    )


def recomputed_share(
    records: Records, full: Row, reports: GpuReports, *, ratio: float, model: str, device: str
) -> go.Figure:
    """Draw time against the recomputed share (`ttft.by_ratio`), and on a GPU that of the attention operator.

    `full`: the record of full attention on the same prompt; the share nearest to `ratio` is named.
    """
    operator = against(reports.rows, "q_sparse_attention", "share")
    here = f"here, {full['length']:,} tokens: {TTFT}"
    across = "share of document tokens recomputed"
    panels = [profile(here, _beside_full(records, "ratio", full), across, percent_x=True)]
    if len({r["at"] for r in operator}) > 1:
        panels.append(_one_layer(reports.short, operator, "share of rows recomputed"))
    near = min(records, key=lambda r: abs(r["ratio"] - ratio))
    at_ratio = {r["name"]: r["mean"] for r in operator if r["at"] == near["ratio"]}
    others = {name: ms for name, ms in at_ratio.items() if OURS in at_ratio and not name.startswith(OURS)}
    faster = ", ".join(f"{ms / at_ratio[OURS]:.1f}× over {BASELINES.name_of(name)}" for name, ms in others.items())
    on_gpu = f". The attention operator on {reports.short}: {faster}." if faster else ""
    whole = recomputation(reports.rows)
    on_gpu += f" Llama-3.1-8B's shape there, {whole}." if on_gpu and whole else ""
    return profiles(
        panels,
        title="Recomputed share (FusionRAG, figure 14)",
        notice=f"Here {near['ratio']:.0%} recomputed take {near['p50'] * 1e3:.0f} ms, "
        f"{findings.beside_full(full['p50'] / near['p50'])}, choosing included"
        f"{on_gpu or '; no report on q_sparse_attention yet.'}",
        caption=f"Here: {model} on {device}; median and {spread_words(full['n'])} of {full['n']} runs, query-guided "
        f"choice, blocks in memory. {findings.fusion_rag_times()}",
        colours={OURS: BLUE, FULL: INK, **_colours(operator)},
        lines=len(panels),
    )


def _one_layer(gpu: str, records: Records, across: str) -> Panel:
    """A panel of reports on an attention kernel at 32K tokens."""
    named = [{**r, "name": BASELINES.name_of(r["name"])} for r in records]
    return profile(f"{gpu}, 32K: attention of one layer (ms)", named, across, log=True, percent_x=True)


def _colours(records: Records) -> dict[str, str]:
    return {BASELINES.name_of(r["name"]): BASELINES.colour_of(r["name"]) for r in records}


def density(
    dense: Stages, sparse: ByValue, full: Row, reports: GpuReports, *, spec: str, repeats: int, model: str, device: str
) -> go.Figure:
    """Draw time against the share of the pairs that is attended to; on a GPU that of the attention operator.

    `sparse` is of the method `spec`; `full`: the record of full attention.
    """
    steps = sorted([*sparse.values(), dense], key=lambda stages: stages.density)
    parts = {"choosing": ["choose"], "attention": ["attend"], "all together": list(STAGES)}
    records = [
        {"name": name, "at": step.density, "mean": sum(step.seconds[stage] for stage in stages) * 1e3}
        for step in steps
        for name, stages in parts.items()
    ]
    tiled = by_density(reports.rows, 32 * 1024)
    here = f"here, {full['length']:,} tokens: {TTFT}"
    panels = [profile(here, records, "share of causal pairs attended to", percent_x=True)]
    panels += [_one_layer(reports.short, tiled, "share of causal tiles kept")] if tiled else []
    shades = {"choosing": STAGE_COLOURS["choose"], "attention": STAGE_COLOURS["attend"], "all together": INK}
    drawn = f"{reports.short}: dense, and 15% of the tiles, drawn for every head; choice not included."
    few = steps[0]
    return profiles(
        panels,
        title="Density",
        notice=f"Here, at {few.density:.0%} density, choosing takes {few.seconds['choose'] * 1e3:.0f} ms and attention "
        f"{few.seconds['attend'] * 1e3:.0f} ms, where dense attention takes {dense.seconds['attend'] * 1e3:.0f} ms. "
        f"{findings.saved_by_dropping(dense.seconds, few.seconds, few.density)}",
        caption=f"Here: {model} on {device}, {spec}, threshold {', '.join(map(str, sparse))}, and dense; medians of "
        f"{repeats}. {drawn if tiled else 'No report on tile_attention yet.'}",
        colours=shades | _colours(tiled),
        lines=len(panels),
    )


def stage_seconds(split: Mapping[str, Stages], sparse: ByValue) -> dict[str, dict[str, float]]:
    """Return the seconds of every stage by method."""
    thresholds = {f"sparse at {value:g}, {stages.density:.0%} kept": stages for value, stages in sparse.items()}
    return {name: stages.seconds for name, stages in {**split, **thresholds}.items()}


def stages_here(
    bars: Seconds, *, tokens: int, question: int, repeats: int, model: str, device: str, waits: bool = False
) -> go.Figure:
    """Draw where the time goes on this device: `stage_seconds` of a prompt of `tokens`, a `question` among them.

    `waits`: the host waited at the border of every stage, as it does for a GPU.
    """
    waited = " The host waits at every border, so sums are over the time to first token." if waits else ""
    return breakdown(
        bars,
        STAGES,
        title="Where the time to the first token goes",
        notice=f"Over cached blocks: {by_time(STAGES, bars['cached blocks'])}. What a selector computes to choose its "
        "tokens counts as choosing.",
        caption=f"Here: {model} on {device}, {tokens:,} tokens, question of {question}; medians of {repeats} after one "
        f"to warm up.{waited}",
    )


def stages_on_gpu(measured: Row) -> go.Figure | None:
    """Draw where the time goes on a GPU: `bench_reports.split`; None where it was not measured."""
    if not measured:
        return None
    bars = {
        r["way"] + (f", {r['density']:.0%} kept" if r["sparse"] else ""): {stage: r[stage] for stage in STAGES}
        for r in measured["rows"]
    }
    totals = {name: sum(seconds.values()) for name, seconds in bars.items()}
    slowest = max(totals, key=totals.__getitem__)
    return breakdown(
        bars,
        STAGES,
        title=f"The same on {measured['device']}",
        notice=f"{measured['model']}, {measured['length']:,} tokens. {slowest.capitalize()}: "
        f"{by_time(STAGES, bars[slowest])}.",
        caption=f"Medians of {measured['repeats']}; question of {measured['question']} tokens; without CUDA graphs. "
        "The host waits at every border, so sums are over the time to first token. data/benchmarks/stages.py.",
    )


def kernels_table(reports: GpuReports) -> go.Figure:
    """Tabulate every kernel and whole model of the reports beside its baselines, and name those without a report."""
    lines, headings = listed(reports.rows, COLUMNS)
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
        caption="Columns on the right: how many times as fast ours is as the baseline's fastest entry (below 1: the "
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

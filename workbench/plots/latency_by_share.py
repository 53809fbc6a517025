"""Time to the first token by share: of blocks that are cached, of tokens recomputed, of pairs attended to."""

from collections.abc import Mapping
from typing import Any

import plotly.graph_objects as go

from workbench.experiments.bench_reports import (
    GpuReports,
    against,
    by_density,
    recomputation,
)
from workbench.metrics.latency import STAGES, Stages, spread, spread_words
from workbench.plots import latency_findings as findings
from workbench.plots.latency import FULL, OURS, TTFT, Records, Row
from workbench.plots.lines import Panel, profile, profiles
from workbench.plots.styles import BASELINES, STAGE_COLOURS
from workbench.plots.theme import BLUE, INK

DASHES = {"diamond": "dash", "square": "dot", "x": "dashdot"}  # mark → dash, of one kernel launched in other ways
ByValue = Mapping[float, Stages]  # value of the threshold of a sparse method → stages


def _beside_full(records: Records, by: str, full: Row) -> list[dict[str, Any]]:
    """Return milliseconds of records with bands, and full attention as a level line.

    Records are {<by>, p50 (seconds), and what `spread` takes}.
    """
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
    other = dict.fromkeys(BASELINES.name_of(r["name"]) for r in operator if r["name"].startswith(f"{OURS},"))
    launches = dict(zip(other, DASHES, strict=False))  # one colour: told apart by mark and dash
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
        symbols=launches,
        dashes={name: DASHES[symbol] for name, symbol in launches.items()},
        lines=len(panels),
    )


def _one_layer(gpu: str, records: Records, across: str) -> Panel:
    """Return a panel of reports on an attention kernel at 32K tokens."""
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

"""Where the time to the first token goes: placing, choosing, attention, the rest."""

from collections.abc import Mapping

import plotly.graph_objects as go

from workbench.metrics.latency import STAGES, Stages
from workbench.plots.bars import breakdown
from workbench.plots.bars import listed as by_time
from workbench.plots.latency import Row
from workbench.plots.latency_by_share import ByValue

Seconds = Mapping[str, Mapping[str, float]]  # method → stage → seconds


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
        notice=f"{measured['model']}, {measured['length']:,} tokens. {slowest[:1].upper()}{slowest[1:]}: "
        f"{by_time(STAGES, bars[slowest])}.",
        caption=f"Medians of {measured['repeats']}; question of {measured['question']} tokens; without CUDA graphs. "
        "The host waits at every border, so sums are over the time to first token. data/benchmarks/stages.py.",
    )

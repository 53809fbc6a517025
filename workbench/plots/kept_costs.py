"""Costs that scripts of data/benchmarks measured once, from their files to figures.

Requests on a CPU, the memory of a training step, and the choice of a sparse method alone.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from workbench.metrics.latency import spread_words
from workbench.plots.cost import against_length, cost_panel, lines_by_mode
from workbench.plots.findings import joined
from workbench.plots.line_styles import line_looks
from workbench.plots.lines import profile, profiles
from workbench.plots.styles import MODE_NAMES, SPARSE_METHODS
from workbench.plots.table import table

Records = Sequence[Mapping[str, Any]]


def requests_on_cpu(kept: Sequence[Mapping[str, Any]]) -> go.Figure:
    """Draw what `data/benchmarks/ttft.py` kept of requests on a CPU, a panel a model."""
    panels, seconds = [], "time to first token (ms)"
    for of_model in kept:
        rows = of_model["rows"]
        ways = list(dict.fromkeys(r["way"] for r in rows))
        lines = lines_by_mode(rows, "p50", 1e3, modes=ways, band=True, key="way")
        panels.append(cost_panel(f"{of_model['model']}, {of_model['device']}", lines, seconds))
    first = kept[0]
    return against_length(
        panels,
        title="The same, kept from a run on a CPU",
        notice=" ".join(cpu_words(of_model) for of_model in kept),
        caption=f"{joined([of_model['model'] for of_model in kept])}; median and {spread_words(first['rows'][0]['n'])} "
        f"of {first['rows'][0]['n']} runs, question of {first['question']} tokens, {first['ratio']:.0%} recomputed, "
        "methods taking turns. data/benchmarks/ttft.py.",
        lines=2,
    )


def cpu_words(kept: Mapping[str, Any]) -> str:
    """Say of one model how long a question takes by every method at the longest prompt, and what longer ones cost."""
    rows = kept["rows"]
    length = max(r["length"] for r in rows)
    at = {r["way"]: r["p50"] * 1e3 for r in rows if r["length"] == length}
    beside = [
        f"{MODE_NAMES[way]} {ms:,.0f} ms ({ms / at['block']:.2g} times)" for way, ms in at.items() if way != "block"
    ]
    words = f"{kept['model']}: at {length:,} tokens blocks take {at['block']:,.0f} ms; {'; '.join(beside)}."
    slopes = {way: slope for way in ("block", "stock prefix") if (slope := cpu_slope(rows, way)) is not None}
    if slopes:
        each = [f"{MODE_NAMES[way]} {ms:,.1f} ms" for way, ms in slopes.items()]
        words += f" A thousand tokens more cost {joined(each)}."
    return words


def cpu_slope(rows: Records, way: str) -> float | None:
    """Return the milliseconds that a thousand tokens more cost by a method, by least squares; None of one length."""
    thousands, ms = (
        [r[name] * scale for r in rows if r["way"] == way] for name, scale in (("length", 1e-3), ("p50", 1e3))
    )
    return float(np.polyfit(thousands, ms, 1)[0]) if len(set(thousands)) > 1 else None


def training_memory(kept: Mapping[str, Mapping[str, Any]]) -> go.Figure:
    """Tabulate what `data/benchmarks/tune_memory.py` kept, by device."""
    masks = {"tiles": "BlockMask", "parts": "part by part", "dense": "dense"}
    rows: list[list[str]] = []
    groups: list[int] = []
    ratios: list[tuple[float, str]] = []
    for device, of_device in kept.items():
        groups.append(len(rows))
        rows.append([device, "", "", ""])
        sizes: dict[tuple[str, int], dict[str, float]] = {}
        for r in of_device["rows"]:
            peak = f"{r['peak_gib']:.2f}" if isinstance(r["peak_gib"], float) else r["peak_gib"] or "not trained"
            name = f"{r['shape']}, {r['tokens']:,} tokens"
            rows.append([name, masks.get(r["mask"], r["mask"]), f"{r['mask_mib']:,.3f}", peak])
            if isinstance(r["peak_gib"], float):
                sizes.setdefault((r["shape"], r["tokens"]), {})[r["mask"]] = r["peak_gib"]
        for (shape, tokens), peaks in sizes.items():
            least = next((name for name in ("tiles", "parts") if name in peaks), None)
            if least and "dense" in peaks:
                ratios.append((peaks["dense"] / peaks[least], f"{shape}, {tokens:,} tokens"))
    low, high = min(ratios), max(ratios)
    return table(
        ["training step", "mask", "mask, MiB", "peak, GiB"],
        rows,
        groups=groups,
        widths=[3, 1.4, 1.2, 1.2],
        words=2,
        title="Memory of a training step, by how blocks are hidden",
        notice=f"A dense mask takes {low[0]:.2f} ({low[1]}) to {high[0]:.2f} ({high[1]}) times the memory of one in "
        "tiles or parts.",
        caption="One sample of passages of 128 tokens in block mode, AdamW, the second step. On a GPU what torch "
        "allocated, on a CPU the process with its libraries. data/benchmarks/tune_memory.py.",
    )


def choice_alone(kept: Mapping[str, Any]) -> go.Figure:
    """Draw time and memory of the choice of every sparse method over lengths: `data/benchmarks/sparse_choice.py`."""
    records = kept["records"]
    drawn = [{**r, "name": SPARSE_METHODS.name_of(r["method"]), "at": r["length"]} for r in records]
    specs = list(dict.fromkeys(r["method"] for r in records))
    heads = sorted({r["heads"] for r in records})
    return profiles(
        [
            profile("time of one choice (s)", [{**r, "mean": r["seconds"]} for r in drawn], "tokens", log=True),
            profile(
                "largest tensor, of all pairs",
                [{**r, "mean": r["largest"] / r["pairs"]} for r in drawn],
                "tokens",
                percent=True,
            ),
        ],
        title="The choice alone, over longer prompts",
        notice=growth(records),
        caption=f"Random states of width 128, {joined([str(n) for n in heads])} query heads over half as many KV "
        f"heads, whole prompt at once, torch {kept['torch']}, each in a process of its own, one run. "
        "data/benchmarks/sparse_choice.py.",
        lines=2,
        **line_looks([SPARSE_METHODS.of(spec) for spec in specs]),
    )


def growth(records: Records) -> str:
    """Say how the largest tensor of a choice grows beside the pairs of tokens: records of `choice_alone`."""
    spans = []
    for method in dict.fromkeys(r["method"] for r in records):
        ends = sorted((r for r in records if r["method"] == method), key=lambda r: r["length"])
        spans.append((ends[-1]["largest"] / ends[0]["largest"], ends[-1]["largest"] / ends[-1]["pairs"], method))
    shortest, longest = (pick(r["length"] for r in records) for pick in (min, max))
    pairs = (longest / shortest) ** 2
    grown, _, name = max(spans)
    most = max(spans, key=lambda span: span[1])
    return (
        f"From {shortest:,} to {longest:,} tokens the pairs grow {pairs:.0f} times; the largest tensor that a choice "
        f"makes grows up to {grown:.0f} times ({SPARSE_METHODS.name_of(name)}) and holds at most {most[1]:.1%} of as "
        f"many elements ({SPARSE_METHODS.name_of(most[2])})."
    )

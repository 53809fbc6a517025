"""Serving from tiers of blocks as measured: under load, by tier and context, request by request."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from workbench.experiments import store_results
from workbench.metrics.published_numbers import FUSION_RAG
from workbench.plots.findings import joined, times
from workbench.plots.lines import Panel, Series, line_chart
from workbench.plots.serving import MODES
from workbench.plots.styles import Look
from workbench.plots.table import table
from workbench.plots.theme import BLUE, GREEN, INK, MUTED, ORANGE, log_ticks

MEASURED = MODES | {"at once": "by request, ready ones do not wait"}
TOLD = (store_results.gathered, store_results.against_baselines, store_results.from_disk)


def by_rate(kept: Mapping[str, Any]) -> go.Figure:
    """Draw time to the first token and finished requests against the rate of requests (FusionRAG, figure 15)."""
    looks = {"sync": Look(MUTED, "square"), "request": Look(BLUE), "layer": Look(GREEN, "diamond")}
    looks["full prefill"] = Look(INK, "x", "dot")
    panels = []
    for field, name, log in (
        ("ttft_ms", "time to the first token (ms)", True),
        ("per_second", "answers a second", False),
        ("idle", "engine idle", False),
    ):
        lines = []
        for way, look in looks.items():
            at, mean, low, high = _over_seeds(kept["rows"], way, field)
            hover = f"%{{x}} requests a second: %{{y:{'.0%' if field == 'idle' else ',.1f'}}}"
            lines.append(Series(MODES.get(way, way), at, mean, low, high, hover, look=look))
        y = {"type": "log", "dtick": 1, "exponentformat": "power"} if log else {"rangemode": "tozero"}
        y |= {"tickformat": ".0%"} if field == "idle" else {}
        panels.append(Panel(name, lines, {"title_text": "requests a second"}, y))
    machine, passages = kept["machine"], kept["passages"]
    budgets = ", ".join(f"{name} {size / 1e9:g} GB" for name, size in machine["budgets"].items())
    return line_chart(
        panels,
        height=300,
        lines=2,
        spacing=0.08,
        title="Modes of the scheduler under load",
        notice=rate_said(kept),
        caption=f"Simulated clock; {passages} passages of {machine['passage']} tokens a request from {kept['pool']:,} "
        f"(Zipf {kept['zipf']:g}), {machine['ratio']:.0%} recomputed, {budgets}; {kept['requests']} requests, bands: "
        f"95% over {kept['seeds']} draws. Full prefill: the same engine computes every token. Passes take the times "
        "fitted to a GPU's reports, Llama-3.1-8B shape.",
    )


def _over_seeds(rows: Sequence[Mapping[str, Any]], way: str, field: str) -> tuple[list[float], ...]:
    """Return rates, means, and both ends of their 95% intervals."""
    grouped: dict[float, list[float]] = defaultdict(list)
    for row in rows:
        if row["way"] == way:
            grouped[row["rate"]].append(row[field])
    at = sorted(grouped)
    means = [float(np.mean(grouped[x])) for x in at]
    half = [1.96 * float(np.std(grouped[x], ddof=1)) / len(grouped[x]) ** 0.5 if len(grouped[x]) > 1 else 0 for x in at]
    ends = [[mean + sign * h for mean, h in zip(means, half, strict=True)] for sign in (-1, 1)]
    return at, means, ends[0], ends[1]


def rate_said(kept: Mapping[str, Any]) -> str:
    """Say what overlap takes off the time to the first token, and how many answers come at the highest rate."""
    parts = []
    for way in ("request", "layer"):
        at, ours, *_ = _over_seeds(kept["rows"], way, "ttft_ms")
        _, sync, *_ = _over_seeds(kept["rows"], "sync", "ttft_ms")
        changes = [f"{one / other - 1:+.0%} at {x:g}" for x, one, other in zip(at, ours, sync, strict=True)]
        parts.append(f"{MODES[way]} {', '.join(changes)}")
    at, ours, *_ = _over_seeds(kept["rows"], "request", "per_second")
    _, full, *_ = _over_seeds(kept["rows"], "full prefill", "per_second")
    more = (
        f"At {at[-1]:g} requests a second {times(ours[-1] / full[-1], 'as many', 'fewer')} answers as by full prefill."
    )
    changed = f"Time to the first token against synchronous loading, by requests a second: {'; '.join(parts)}."
    return f"{changed} {store_results.overlap_printed()} {more}"


def by_tier(rows: Sequence[Mapping[str, Any]], *, model: str, device: str, here: bool = True) -> go.Figure:
    """Draw the time to the first token against the context, by where blocks lie (FusionRAG, figure 19)."""
    names = list(dict.fromkeys((row["tier"], row["method"]) for row in rows))
    colours = {"": INK, "memory": BLUE, "disk": ORANGE}
    lines = []
    for tier, method in names:
        taken = [row for row in rows if (row["tier"], row["method"]) == (tier, method)]
        at, middle, low, high = ([row[key] for row in taken] for key in ("length", "p50", "p5", "p95"))
        look = Look(colours[tier], "diamond" if "recomputed" in method else "circle")
        look = Look(look.colour, look.symbol, "dash" if "recomputed" in method else "solid")
        name = f"{method}, from {tier}" if tier else method
        lines.append(Series(name, at, middle, low, high, "%{x:,} tokens: %{y:.1f} ms", look=look))
    y = {"title_text": "milliseconds", "type": "log", **log_ticks(row["p50"] for row in rows)}
    panel = Panel("", lines, {"title_text": "tokens of the prompt"}, y)
    when = "Measured now" if here else "Measured by data/benchmarks/tier_ttft.py"
    return line_chart(
        [panel],
        lines=2,
        title="Time to the first token by tier and context",
        notice=tier_said(rows),
        caption=f"{when}: {model}, {device}; all ways take turns, bands from the 5th to the 95th percentile of "
        f"{rows[0]['n']} requests. From disk: a folder is read and every checksum verified, within the time; the "
        "system's cache of files is warm.",
    )


def tier_said(rows: Sequence[Mapping[str, Any]]) -> str:
    """Say how full attention compares with reuse from every tier at the shortest and the longest context."""
    parts = []
    lengths = sorted({row["length"] for row in rows})
    middle = {(row["length"], row["tier"], row["method"]): row["p50"] for row in rows}
    full = {length: middle[length, "", "full attention"] for length in lengths}
    for tier, method in dict.fromkeys((row["tier"], row["method"]) for row in rows if row["tier"]):
        ratios = [f"{full[n] / middle[n, tier, method]:.1f}×" for n in dict.fromkeys((lengths[0], lengths[-1]))]
        parts.append(f"{method} from {tier} {' and '.join(ratios)}")
    ends = joined([f"{n:,}" for n in dict.fromkeys((lengths[0], lengths[-1]))])
    least, most = FUSION_RAG["over_full"]
    printed = (
        f"FusionRAG prints {least} to {most} times with 15% recomputed, at 10K to 27K tokens on a GPU (figure 19)."
    )
    return f"Full attention takes, at {ends} tokens, as many times as long as {'; '.join(parts)}. {printed}"


def receipts_table(rows: Sequence[Mapping[str, Any]], *, model: str, device: str) -> go.Figure:
    """List what every request of `experiments.served_here` reused, moved, computed and missed."""
    cells, groups, last = list[list[str]](), list[int](), None
    for row in rows:
        if row["round"] != last:
            last = row["round"]
            groups.append(len(cells))
            cells.append([str(last), *[""] * 8])
        paid = row["receipt"]
        read = ", ".join(f"{size / 1e6:.1f} {tier}" for tier, size in paid.bytes.items()) or "–"
        missed = ", ".join(f"{count} {reason}" for reason, count in paid.misses.items()) or "–"
        counts = paid.count("reused"), paid.shifted, paid.recomputed, paid.count("encoded")
        cells.append([f"  {row['question']}", row["answer"], read, missed, *map(str, counts), f"{row['ttft_ms']:.0f}"])
    equal = sum(row["equal"] for row in rows)
    head = ["question", "answer", "MB read", "misses", "blocks reused", "moved", "tokens recomputed"]
    return table(
        [*head, "blocks encoded", "ms"],
        cells,
        groups=groups,
        widths=[2.9, 1.2, 1.8, 1.4, 0.8, 0.8, 1.2, 0.9, 0.6],
        words=4,
        title="Receipts",
        notice=f"{equal} of {len(rows)} answers have the tokens that each question alone gets, without scheduler and "
        f"tiers. {_rounds_said(rows)}",
        caption=f"Measured now: {model}, {device}. Passages are cached behind the system prompt; all questions of a "
        "round are submitted at once; ms: to the first token.",
    )


def _rounds_said(rows: Sequence[Mapping[str, Any]]) -> str:
    """Say which share of the blocks of every round was found."""
    parts = []
    for name in dict.fromkeys(row["round"] for row in rows):
        paid = [row["receipt"] for row in rows if row["round"] == name]
        total = sum(len(receipt.blocks) for receipt in paid)
        found = sum(receipt.count("reused") for receipt in paid)
        parts.append(f"{name}: {found / total:.0%}")
    return f"Blocks found, by round: {'; '.join(parts)}."


def measured_table(rows: Sequence[Mapping[str, Any]]) -> go.Figure:
    """List the runs of data/benchmarks/store_serving.py on a device: many questions at once, by state and mode."""
    cells = []
    for row in rows:
        name = row["run"] + (f", {row['ratio']:.0%} recomputed" if row["ratio"] else "")
        times_ = [f"{1e3 * row['ttft'][end]:,.0f}" for end in ("mean", "p95")]
        numbers = f"{row['questions']:,}", *times_, f"{row['per_second']:.2f}", f"{row['idle']:.0%}"
        cells.append(
            [name, row["state"] or "–", MEASURED.get(row["mode"], row["mode"]), *numbers, f"{row['reused']:.0%}"]
        )
    said = [
        store_results.overlap([dict(row) for row in rows], state)
        for state in dict.fromkeys(r["state"] for r in rows if r["state"])
    ]
    return table(
        ["run", "blocks lie", "mode", "questions", "TTFT, mean ms", "p95 ms", "answers a second", "idle", "reused"],
        cells,
        widths=[2.4, 0.9, 2.6, 0.9, 1, 0.9, 1, 0.7, 0.8],
        words=3,
        title="Many questions at once",
        notice=" ".join(
            [
                *said,
                store_results.overlap_printed(),
                *[tell(list(map(dict, rows))) for tell in TOLD],
            ]
        ),
        caption=f"{rows[0]['device']}; data/benchmarks/store_serving.py. Cold: on disk; warm: in the host's memory; "
        "hot: where the model reads them. Baselines are asked fewer questions, as listed.",
    )

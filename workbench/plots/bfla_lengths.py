"""BFLA's tables 1 and 2: prefill under BFLA against dense by length, from a report of `workbench bench prefill`."""

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from workbench.experiments import chunk_reports
from workbench.metrics.published_numbers import BFLA_TABLE_1, BFLA_TABLE_2
from workbench.plots.chunk_findings import thousands
from workbench.plots.chunks import FASTER, length_axis
from workbench.plots.findings import joined
from workbench.plots.lines import Panel, Series, line_chart
from workbench.plots.styles import SYMBOLS, Look
from workbench.plots.theme import BLUE, MUTED

Rows = Sequence[Mapping[str, Any]]


def bfla_by_length() -> go.Figure | None:
    """Draw prefill under BFLA against dense by length beside tables 1 and 2; None where it was not measured."""
    rows = chunk_reports.one_pass()
    if not rows:
        return None
    at, mean, low, high = ([row[key] for row in rows] for key in ("at", "mean", "low", "high"))
    kept = [f"{thousands(row['at'])}, {_density(row)}" for row in rows]
    lines = [Series("ours: Llama-3.1-8B's shape", at, mean, low, high, "%{customdata}: %{y:.2f}", kept, Look(BLUE))]
    for symbol, (label, printed) in zip(
        SYMBOLS[:2], {"Gemma 4-E4B": BFLA_TABLE_1, "Qwen 3.6-27B": BFLA_TABLE_2}.items(), strict=True
    ):
        look, values = Look(MUTED, f"{symbol}-open", "dot"), printed["speedup"]
        name = f"published: {label}, A100"
        lines.append(Series(name, printed["length"], values, hover="%{x:,} tokens: %{y}", look=look, size=10))
    axis = length_axis([*rows, *({"at": x} for x in BFLA_TABLE_1["length"])])
    return line_chart(
        [Panel("", lines, axis, {"title_text": FASTER, "rangemode": "tozero"}, 1.0)],
        title="Prefill under BFLA by length (BFLA, tables 1 and 2)",
        notice=said_of_lengths(rows),
        caption=f"{chunk_reports.gpu('prefill')}, whole prompts in one pass, the same engine with and without BFLA, "
        "layers fused; the mass is set for 15% of the causal tiles, or the least that band and sinks leave. Dotted: "
        f"{BFLA_TABLE_1['source']}; {BFLA_TABLE_2['source']}.",
        above=22,
    )


def _density(row: Mapping[str, Any]) -> str:
    return f"{row['density']:.0%} of the tiles" if row["density"] is not None else "density not kept"


def said_of_lengths(rows: Rows) -> str:
    """Say at which lengths BFLA is slower than dense attention and at which faster, beside the tables."""
    slower = [thousands(row["at"]) for row in rows if row["high"] < 1]
    faster = [thousands(row["at"]) for row in rows if row["low"] > 1]
    printed = [
        thousands(length)
        for length, ratio in zip(BFLA_TABLE_1["length"], BFLA_TABLE_1["speedup"], strict=True)
        if ratio < 1
    ]
    open_ = [thousands(row["at"]) for row in rows if row["low"] <= 1 <= row["high"]]
    said = f"BFLA is slower than dense attention at {joined(slower)}" if slower else "BFLA is slower nowhere"
    said += f" (published: at {joined(printed)}), and " + (
        f"faster at {joined(faster)}." if faster else "faster nowhere."
    )
    said += f" Within the spread of the runs: {joined(open_)}." if open_ else ""
    absent_ = [thousands(x) for x in BFLA_TABLE_1["length"] if x not in {row["at"] for row in rows}]
    return said + (f" Not measured: {', '.join(absent_)}." if absent_ else "")

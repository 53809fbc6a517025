"""CompactAttention's figures 1 and 5, from reports of `workbench bench` on a GPU."""

from collections.abc import Callable
from typing import Any

import plotly.graph_objects as go

from workbench.experiments import chunk_reports
from workbench.metrics.latency import spread_words
from workbench.metrics.published_numbers import COMPACT_TEXT
from workbench.plots.chunk_findings import (
    IDEAL,
    Rows,
    absent,
    flat_words,
    name_of,
    not_timed,
    said_of_growth,
    said_of_searches,
    said_of_sparsity,
    thousands,
)
from workbench.plots.findings import joined
from workbench.plots.lines import Panel, Series, line_chart
from workbench.plots.styles import SPARSE_METHODS, Look
from workbench.plots.theme import BLUE, FAINT, INK, ORANGE, RED, finish, log_ticks

FASTER = "times as fast as dense"


def equal_sparsity() -> go.Figure | None:
    """Draw what the same sparsity gives in one pass and in a chunk (figure 1b); None where it was not measured."""
    rows = chunk_reports.equal_sparsity()
    if not rows:
        return None
    labels = [f"{row['of']}<br>{'tiles' if row['name'] == 'ours' else 'pages of a union'}" for row in rows]
    colours = [BLUE if row["whole"] else ORANGE if row["name"] == "ours" else RED for row in rows]
    fig = go.Figure()
    fig.add_bar(
        x=labels,
        y=[row["mean"] for row in rows],
        error_y={
            "array": [row["high"] - row["mean"] for row in rows],
            "arrayminus": [row["mean"] - row["low"] for row in rows],
        },
        marker_color=colours,
        width=0.5,
        customdata=[[row["density"], row["against"], row["runs"]] for row in rows],
        hovertemplate="%{y:.2f} times as fast as %{customdata[1]}<br>%{customdata[0]:.1%} of the pairs, "
        "%{customdata[2]} runs<extra></extra>",
        showlegend=False,
    )
    fig.add_hline(IDEAL, line={"color": INK, "width": 1, "dash": "dot"})
    fig.update_yaxes(title_text=FASTER, rangemode="tozero", gridcolor=FAINT)
    return finish(
        fig,
        title="The same sparsity in one pass and in a chunk (CompactAttention, figure 1b)",
        notice=said_of_sparsity(rows),
        caption=f"{chunk_reports.gpu('chunk_kernels')}, {thousands(rows[0]['keys'])} keys, "
        f"{COMPACT_TEXT['kernel_sparsity']:.0%} of the tiles left out at random, choice not included; over the fastest "
        f"dense baseline ({joined(sorted({row['against'] for row in rows}))}); bars of error: "
        f"{spread_words(min(row['runs'] for row in rows))}. Dotted: the ideal, {IDEAL:.0f} times.",
        height=300,
    )


def _look(spec: str) -> Look:
    kept, over = spec.endswith(chunk_reports.KEPT), spec.startswith("compact(")
    inner = spec.split("over=")[1].split(")")[0] if over else spec
    colour = SPARSE_METHODS.colour_of(inner)
    return Look(colour, "hourglass" if over else "circle", "dot" if kept else "solid" if over else "dash")


def _lines(rows: Rows, value: str, ends: tuple[str, str], look: Callable[[str], Look], form: str) -> list[Series]:
    lines = []
    for name in dict.fromkeys(row["name"] for row in rows):
        own = [row for row in rows if row["name"] == name]
        at, values, low, high = ([row[key] for row in own] for key in ("at", value, *ends))
        hover = f"%{{customdata}} tokens: %{{y:{form}}}"
        lines.append(Series(name_of(name), at, values, low, high, hover, [thousands(x) for x in at], look(name)))
    return lines


def length_axis(rows: Rows) -> dict[str, Any]:
    """Return an axis of the lengths that rows {at} have."""
    at = sorted({row["at"] for row in rows})
    return {"title_text": "tokens", "type": "log", "tickvals": at, "ticktext": [thousands(x) for x in at]}


def summed_choices() -> go.Figure | None:
    """Draw what choosing costs in one pass and summed over the chunks (figure 1c); None where it was not measured."""
    rows = chunk_reports.searches()
    if not rows:
        return None
    panels = []
    for way, title in (("one pass", "one pass over the prompt"), ("in chunks", "summed over chunks of 1,024")):
        own = [row for row in rows if row["way"].startswith(way)]
        named = [{**row, "name": row["name"] + chunk_reports.KEPT} if "means" in row["way"] else row for row in own]
        lines = _lines(named, "ms", ("low", "high"), _search_look, ".2f")
        scale = {"type": "log", **log_ticks(row["ms"] for row in rows), "title_text": "choosing (ms)"}
        panels.append(Panel(title, lines, length_axis(rows), scale))
    return line_chart(
        panels,
        title="What choosing costs under chunked prefill (CompactAttention, figure 1c)",
        notice=said_of_searches(rows),
        caption=f"{chunk_reports.gpu('chunk_choices')}, one layer of 32 query and 8 KV heads, random queries and keys, "
        "thresholds set for the same density in one pass; QUOKA by its torch code, SeerAttention's gate without its "
        "rotations and with pooled keys kept. In chunks every call is launched by the host, which is within the time.",
        lines=2,
        share=True,
    )


def _search_look(name: str) -> Look:
    spec, kept, _ = name.partition(chunk_reports.KEPT)
    return Look(SPARSE_METHODS.colour_of(spec), "circle", "dot" if kept else "solid")


def speedups() -> go.Figure | None:
    """Draw attention and whole prefill in chunks against dense by length (figure 5); None where neither is measured."""
    parts = {"attention of the last chunk, choice included": chunk_reports.attention()}
    parts["the whole prompt in chunks"] = chunk_reports.whole_prefill()
    printed = dict(zip(parts, (COMPACT_TEXT["attention_speedup"], COMPACT_TEXT["end_to_end_speedup"]), strict=True))
    if not any(parts.values()):
        return None
    panels = []
    for title, rows in parts.items():
        if rows:
            lines = _lines(rows, "mean", ("low", "high"), _look, ".2f")
            ring = Look(INK, "circle-open")
            lines.append(
                Series(
                    "published, 128K",
                    [chunk_reports.PRINTED_AT],
                    [printed[title]],
                    look=ring,
                    size=11,
                    mode="markers",
                    hover="%{y}",
                )
            )
            panels.append(Panel(title, lines, length_axis(rows), {"title_text": FASTER, "rangemode": "tozero"}, 1.0))
    said = [said_of_growth(title, rows, printed[title]) for title, rows in parts.items() if rows]
    return line_chart(
        panels,
        title="Chunked prefill under every method (CompactAttention, figure 5)",
        notice=" ".join([*said, flat_words(), not_timed(), absent("chunk_attention", "chunked")]).strip(),
        caption=f"{chunk_reports.gpu('chunk_attention') or chunk_reports.gpu('chunked')}, random numbers and weights, "
        "Llama-3.1-8B's shape, chunks of 1,024. Attention: batch 8, 16 query and 4 KV heads, over the fastest dense "
        "baseline. Whole prompt: batch 1, over the same engine, dense, of the same run. Tiles at 15% density; unions "
        "and QUOKA read 25% of the past; SeerAttention's gate is drawn at random and does not rotate, so its time is "
        "the least. "
        f"The ring: {COMPACT_TEXT['source']}.",
        lines=3,
    )

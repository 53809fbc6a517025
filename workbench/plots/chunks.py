"""CompactAttention's figures 1 and 5, from reports of `workbench bench` on a GPU."""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import plotly.graph_objects as go

from workbench.experiments import chunk_reports
from workbench.metrics.latency import spread_words
from workbench.metrics.published_numbers import COMPACT_TEXT
from workbench.plots.findings import joined
from workbench.plots.lines import Panel, Series, line_chart
from workbench.plots.looks import SPARSE_METHODS, Look
from workbench.plots.theme import BLUE, FAINT, INK, ORANGE, RED, finish, log_ticks

Rows = Sequence[Mapping[str, Any]]
IDEAL = 1 / (1 - COMPACT_TEXT["kernel_sparsity"])
FASTER = "times as fast as dense"
UNION = "ours, pages of a union"


def absent(*reports: str) -> str:
    """Say in one line which reports of a figure are not committed, and what makes them; "" where all are."""
    names = chunk_reports.missing(reports)
    commands = ", ".join(f"workbench bench {name}" for name in names)
    return f"Not measured on a GPU yet: {joined(names)} ({commands})." if names else ""


def thousands(tokens: float) -> str:
    """Name a length: 65536 → 64K."""
    return f"{tokens / chunk_reports.UNIT:g}K"


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


def said_of_sparsity(rows: Rows) -> str:
    """Say how near the ideal each comes, and whether a chunk gets less, as the paper has it."""
    whole = next((row for row in rows if row["whole"]), None)
    chunk = next((row for row in rows if not row["whole"] and row["name"] == "ours"), None)
    if not whole or not chunk:
        return "Only one of the two is measured."
    less = chunk["high"] < whole["low"]
    said = f"Block-sparse attention is {whole['mean']:.1f} times as fast as dense in one pass and {chunk['mean']:.1f} "
    said += f"times in a chunk, of {IDEAL:.0f} at best: "
    said += "a chunk gets less, as the paper prints." if less else "a chunk gets no less here, against the paper."
    union = next((row for row in rows if row["name"] == UNION), None)
    return said + (f" Pages of a union of the same size: {union['mean']:.1f} times." if union else "")


def _look(spec: str) -> Look:
    kept, over = spec.endswith(chunk_reports.KEPT), spec.startswith("compact(")
    inner = spec.split("over=")[1].split(")")[0] if over else spec
    colour = SPARSE_METHODS.colour_of(inner)
    return Look(colour, "hourglass" if over else "circle", "dot" if kept else "solid" if over else "dash")


def name_of(spec: str) -> str:
    """Name a method of a report: "CompactAttention over FlashPrefill"."""
    inner = spec.split("over=")[1].split(")")[0] if "over=" in spec else spec.removesuffix(chunk_reports.KEPT)
    said = SPARSE_METHODS.name_of(inner) + (chunk_reports.KEPT if spec.endswith(chunk_reports.KEPT) else "")
    return f"CompactAttention over {said}" if "over=" in spec else said


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


def grown(rows: Rows) -> list[dict[str, Any]]:
    """Return {name, at, mean, low, high, runs} of every method at the longest prompt.

    Its choices summed over chunks over its choice in one pass.
    """
    longest, found = max(row["at"] for row in rows), []
    of = {(row["name"], row["way"]): row for row in rows if row["at"] == longest}
    for (name, way), chunks in of.items():
        if way == "in chunks" and (name, "one pass") in of:
            found.append({"name": name, "at": longest, **chunk_reports.ratio(chunks, of[name, "one pass"])})
    return found


def said_of_searches(rows: Rows) -> str:
    """Say by how much chunks multiply the cost of each choice, and which of them is the cheapest."""
    times = grown(rows)
    if not times:
        return "No method was measured both ways."
    more = [f"{SPARSE_METHODS.name_of(row['name'])} {row['mean']:.1f}" for row in times]
    at = [row for row in rows if row["at"] == times[0]["at"] and row["way"].startswith("in chunks")]
    least = min(at, key=lambda row: row["ms"])
    dearer = all(row["low"] > 1 for row in times)
    judged = "chunks cost more everywhere, as the paper prints" if dearer else "not everywhere more, against the paper"
    return (
        f"At {thousands(times[0]['at'])} the choices of all chunks take {joined(more)} times as long as one pass: "
        f"{judged}. Least of all takes {SPARSE_METHODS.name_of(least['name'])}, {least['ms']:,.1f} ms a layer."
    )


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


def flat_words() -> str:
    """Say whose time a chunk does not grow with what lies before it: their kernels wait for the host."""
    names = [name_of(name) for name in chunk_reports.flat()]
    return f"A chunk takes as long at any length under {joined(names)}: launching binds, not the GPU." if names else ""


def not_timed() -> str:
    """Say whose attention alone is timed, and not the whole prompt."""
    names = [name_of(name) for name in chunk_reports.untimed()]
    return f"Over the whole prompt not timed: {joined(names)}." if names else ""


def said_of_growth(title: str, rows: Rows, printed: float) -> str:
    """Say how a union over FlashPrefill grows from the shortest to the longest prompt, beside what is printed."""
    own = [row for row in rows if row["name"] == "compact(over=flash_prefill)"]
    if not own:
        return ""
    rises = all(b["mean"] > a["mean"] for a, b in pairwise(own))
    ends = f"{own[0]['mean']:.2f} at {thousands(own[0]['at'])}, {own[-1]['mean']:.2f} at {thousands(own[-1]['at'])}"
    beside = "above" if own[-1]["mean"] > printed else "below"
    word = "rises with the length" if rises else "does not rise throughout"
    printed_at = thousands(chunk_reports.PRINTED_AT)
    if own[-1]["at"] < chunk_reports.PRINTED_AT:
        beside = f"{printed_at} not timed, of which {printed} is printed"
    else:
        beside += f" the printed {printed}"
    said = f"{title.capitalize()}: the union {word}, {ends} times, {beside}."
    return f"{said} {beside_dense(own)} {beside_tiles(rows)}".rstrip()


def beside_dense(own: Rows) -> str:
    """Say at which lengths a method is slower than dense attention, at which faster, and where neither shows."""
    at: dict[str, list[str]] = {"slower than": [], "level with": [], "faster than": []}
    for row in own:
        word = "slower than" if row["high"] < 1 else "faster than" if row["low"] > 1 else "level with"
        at[word].append(thousands(row["at"]))
    parts = [f"{word} dense at {joined(lengths)}" for word, lengths in at.items() if lengths]
    return f"It is {joined(parts)}."


def beside_tiles(rows: Rows) -> str:
    """Say whether pages of a union are faster than the tiles that they unite, at the longest prompt."""
    longest = max(row["at"] for row in rows)
    of = {row["name"]: row for row in rows if row["at"] == longest}
    said = []
    for name in ("flash_prefill", "seer_attention"):
        tiles, union = of.get(name), of.get(f"compact(over={name})")
        if tiles and union:
            low, high = union["low"] > tiles["high"], union["high"] < tiles["low"]
            word = "faster than" if low else "slower than" if high else "level with"
            said.append(f"over {SPARSE_METHODS.name_of(name)} {word} its tiles at 15% ({tiles['mean']:.2f})")
    return f"There the union is {joined(said)}; the paper prints it as the faster of the two." if said else ""

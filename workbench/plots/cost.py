"""Cost against context length: measured, computed and published, a line a mode."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Unpack

import plotly.graph_objects as go

from workbench.metrics.latency import spread, spread_words
from workbench.metrics.published_numbers import QUESTION, TABLE_3_GPUS
from workbench.plots.lines import Panel, Series, line_chart
from workbench.plots.styles import MODES
from workbench.plots.table import table
from workbench.plots.theme import Texts, log_ticks

Records = Sequence[Mapping[str, Any]]
FLOPS = "operations to first token (FLOPs)"


def cost_series(
    mode: str,
    length: Sequence[float],
    value: Sequence[float],
    low: Sequence[float] = (),
    high: Sequence[float] = (),
    name: str = "",
    dots: bool = False,
    thick: float = 2,
) -> Series:
    """Make a line with the look of `mode`.

    `low` and `high` are the ends of the spread, `dots` draws rings only (published numbers), `thick` is the width of
    the line in px.
    """
    look = MODES[mode]
    form: dict[str, Any] = {"size": 5 + thick / 2, "edge": 0, "look": look}
    if dots:
        form = {"size": 9, "edge": 2, "look": replace(look, symbol=f"{look.symbol}-open"), "mode": "markers"}
    if len(low):
        form["hover"] = "<br>spread: %{customdata[0]:.3s} to %{customdata[1]:.3s}"
        form["data"] = list(zip(low, high, strict=True))
    return Series(name or look.name, length, value, low, high, width=thick, **form)


def cost_panel(label: str, series: Sequence[Series], unit: str) -> Panel:
    """Make a log-log panel of `cost_series`.

    `label` says measured, computed or published, `unit` is an axis title that ends in the unit in brackets.
    """
    short = unit.split("(")[-1].rstrip(")")
    lines = [replace(line, hover=f"%{{x:,}} tokens: %{{y:.3s}} {short}{line.hover}") for line in series]
    values = [v for line in series for v in (*line.y, *line.low)]
    axis = {"title_text": unit, "type": "log", **log_ticks(values)}
    return Panel(label, lines, {"title_text": "context length (tokens)"}, axis)


def against_length(panels: Sequence[Panel], *, lines: int = 1, **texts: Unpack[Texts]) -> go.Figure:
    """Draw panels of `cost_panel` side by side, each with its own axes. `lines` that the legend takes."""
    drawn = []
    for panel in panels:
        lengths = sorted({int(n) for series in panel.series for n in series.x})
        ticks = [2**p for p in range(4, 18) if lengths[0] <= 2**p <= lengths[-1]]
        ticks = ticks[:: -(-len(ticks) * len(panels) // 20)] if len(ticks) > 1 else lengths
        names = [f"{tick / 1024:.0f}K" if tick >= 1024 else str(tick) for tick in ticks]
        drawn.append(replace(panel, x={**panel.x, "type": "log", "tickvals": ticks, "ticktext": names}))
    return line_chart(drawn, height=320, lines=lines, left=80, **texts)


def lines_by_mode(
    records: Records,
    field: str,
    scale: float = 1.0,
    *,
    modes: Sequence[str] = ("full", "block"),
    band: bool = False,
    key: str = "mode",
    **look: Any,
) -> list[Series]:
    """Return one line per mode of `records` {length, <key>, <field>}, with values multiplied by `scale`.

    `band` adds `metrics.latency.spread`, where all records have one; `look` are further arguments of `cost_series`.
    """
    lines = []
    for mode in modes:
        points = [r for r in records if r[key] == mode]
        ends = [spread(r) for r in points] if band else []
        known = [end for end in ends if end is not None]
        low, high = ([end[side] * scale for end in known] if len(known) == len(points) else [] for side in (0, 1))
        values = [r[field] * scale for r in points]
        lines.append(cost_series(mode, [r["length"] for r in points], values, low, high, **look))
    return lines


def longest_ttft(timed: Records) -> tuple[int, dict[str, float]]:
    """Return the longest context of `timed` (tokens), and the median time to the first token there by mode (ms)."""
    length = max(r["length"] for r in timed)
    return length, {r["mode"]: r["p50"] * 1e3 for r in timed if r["length"] == length}


def ttft_by_length(timed: Records, paper: Records, *, model: str, question: int, device: str) -> go.Figure:
    """Draw measured times (`lengths.measured`) beside those of the paper; `question` tokens stand behind the blocks."""
    longest, ms = longest_ttft(timed)
    unit = "time to first token (ms)"
    return against_length(
        [
            cost_panel(f"{model}, measured here", lines_by_mode(timed, "p50", 1e3, band=True), unit),
            cost_panel("8B model, published (Table 3)", lines_by_mode(paper, "ttft_ms"), unit),
        ],
        title="Time to the first token",
        notice=f"At {longest:,} tokens reuse takes {ms['block']:.0f} ms where full attention takes {ms['full']:.0f} "
        "ms. Full attention computes the whole context before the first token. Reuse computes the question, and "
        "re-encodes and reads the cached keys.",
        caption=f"Left: median and {spread_words(timed[0]['n'])} of {timed[0]['n']} runs after a warm-up, one request "
        f"at a time, question of {question} tokens, all other blocks in memory and re-encoded within the time; "
        f"{device}. Right: Block-Attention, Table 3 (8B, {QUESTION} tokens). {hardware()}",
    )


def hardware() -> str:
    """Say on what the published times were measured: the same row stands in both versions of the paper."""
    first, second = TABLE_3_GPUS.values()
    return f"The times stand unchanged in both versions of that paper, whose GPUs are {first} (v1) and {second} (v2)."


def flops_by_length(own: Records, large: Records, paper: Records, *, model: str, question: int) -> go.Figure:
    """Draw operations counted for `model` (`own`) and for the paper's shape (`large`), with published ones as rings."""
    shape = [*lines_by_mode(large, "flops"), *lines_by_mode(paper, "flops", dots=True, name="published")]
    return against_length(
        [
            cost_panel(f"{model}, computed", lines_by_mode(own, "flops"), FLOPS),
            cost_panel("Llama-3-8B shape, computed; open: published", shape, FLOPS),
        ],
        title="Operations to the first token",
        notice="Full attention pays for every token of the context, reuse for the question. "
        f"{beyond_paper(large, paper)}",
        caption="Linear layers, output head on one row, scores and weighted values; a multiply-add is two operations. "
        f"Open marks: Block-Attention, Table 3, 2 · parameters · computed tokens. Question of {question} (left) and "
        f"{QUESTION} (right) tokens.",
    )


def bytes_by_length(own: Records, large: Records, *, model: str, dtype: str) -> go.Figure:
    """Draw the traffic counted for `model`, whose values are `dtype`, and for the paper's shape in bfloat16."""
    unit = "traffic to first token"
    return against_length(
        [
            cost_panel(f"{model}, computed ({dtype})", _traffic(own, 2**-20), f"{unit} (MiB)"),
            cost_panel("Llama-3-8B shape, computed (bfloat16)", _traffic(large, 2**-30), f"{unit} (GiB)"),
        ],
        title="Bytes to the first token",
        notice="Keys and values that reuse does not compute are read instead. "
        f"{traffic(own, model)} {traffic(large, 'The large shape')}",
        caption="Weights once, keys and values written and read; squares: keys and values of cached blocks that come "
        "from the store. Activations are left out.",
    )


def beyond_paper(large: Records, paper: Records) -> str:
    """Say how our count, attention's own products included, stands to the paper's at the longest context of both."""
    ours, theirs = ({r["length"]: r["flops"] for r in records if r["mode"] == "full"} for records in (large, paper))
    length = max(ours.keys() & theirs.keys())
    return f"At {length:,} tokens our count is {ours[length] / theirs[length]:.2f} times what the paper prints."


def traffic(records: Records, name: str) -> str:
    """Say how the bytes of reuse stand to those of full attention at the longest context, and its operations."""
    length = max(r["length"] for r in records)
    full, block = (next(r for r in records if (r["length"], r["mode"]) == (length, mode)) for mode in ("full", "block"))
    moved, computed = block["bytes"] / full["bytes"], full["flops"] / block["flops"]
    same = "as many bytes" if abs(moved - 1) < 0.005 else f"{moved:.2f} times the bytes"
    return f"{name} moves {same} at {length:,} tokens, with {1 / computed:.1%} of the operations."


def _traffic(records: Records, scale: float) -> list[Series]:
    """Return the bytes of both modes, which lie on each other, and those of them that come from the store."""
    stored = [r for r in records if r["kv_loaded"]]
    return [
        *lines_by_mode(records, "bytes", scale, modes=["full"], thick=6),
        *lines_by_mode(records, "bytes", scale, modes=["block"]),
        *lines_by_mode(stored, "kv_loaded", scale, modes=["block"], dots=True, name="of it, read from the store"),
    ]


def paper_table(
    paper: Records, large: Records, timed: Records, own: Records, *, model: str, question: int, device: str
) -> go.Figure:
    """Draw the paper's Table 3 beside the same numbers computed for its shape, and measured on `model`."""
    lengths = [r["length"] for r in paper if r["mode"] == "full"]
    counted = [("FLOPs as the paper counts, {}", large, "convention"), ("FLOPs with attention, {}", large, "flops")]
    parts = {
        "Published: 8B": [("TTFT, {} (ms)", paper, "ttft_ms"), ("FLOPs, {}", paper, "flops")],
        "Computed: Llama-3-8B shape": counted,
        f"Measured here: {model}": [("TTFT, {} (ms)", timed, "p50"), ("FLOPs, {} (computed)", own, "flops")],
    }
    rows: list[list[str]] = []
    groups = []
    for name, quantities in parts.items():
        groups.append(len(rows))
        rows.append([name, *[""] * len(lengths)])
        for label, records, field in quantities:
            form = {"ttft_ms": "{:,}".format, "p50": _milliseconds}.get(field, "{:.1e}".format)
            for mode in ("full", "block"):
                values = {r["length"]: form(r[field]) for r in records if r["mode"] == mode}
                rows.append([label.format(mode), *(values.get(length, "") for length in lengths)])
    return table(
        ["context length (tokens)", *(f"{n // 1024}K" if n >= 1024 else str(n) for n in lengths)],
        rows,
        groups=groups,
        title="The paper's Table 3 beside ours",
        notice="Published, computed and measured numbers side by side. Cells are empty where a length was not "
        "measured.",
        caption=f"Published: Block-Attention, Table 3. {hardware()} Measured: median of {timed[0]['n']} runs on "
        f"{device}. {QUESTION} tokens of user input (ours: {question}).",
    )


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:,.0f}" if seconds >= 0.01 else f"{seconds * 1e3:.1f}"

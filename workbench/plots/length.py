"""Cost against context length: one panel per place it was taken from, one line per way to answer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from workbench.metrics.published_numbers import QUESTION
from workbench.plots.table import table
from workbench.plots.theme import MODE_NAMES, MODE_SYMBOLS, MODES, clear, finish, legend_over, log_ticks, panel_titles


@dataclass(frozen=True)
class Series:
    """One line. `mode` gives name and colour; `low` and `high` a band; `dots` draws markers only (published numbers);
    `thick` is the width of the line, px."""

    mode: str
    length: Sequence[float]
    value: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    name: str = ""
    dots: bool = False
    thick: float = 2


@dataclass(frozen=True)
class Panel:
    """One plot; `label` says measured, computed or published."""

    label: str
    series: Sequence[Series]
    unit: str


def against_length(panels: Sequence[Panel], *, title: str, caption: str, notice: str, lines: int = 1) -> go.Figure:
    """Log-log plots side by side, each with its own axes; lengths in tokens. `lines` that the legend takes."""
    fig = make_subplots(1, len(panels), horizontal_spacing=0.1, subplot_titles=[panel.label for panel in panels])
    listed: set[str] = set()
    for col, panel in enumerate(panels, 1):
        for series in panel.series:
            if len(series.low):
                fig.add_trace(_band(series), row=1, col=col)
        for series in panel.series:
            fig.add_trace(_line(series, panel.unit, listed), row=1, col=col)
        lengths = sorted({n for series in panel.series for n in series.length})
        ticks = [2**p for p in range(4, 18) if lengths[0] <= 2**p <= lengths[-1]]
        ticks = ticks[:: -(-len(ticks) * len(panels) // 20)] if len(ticks) > 1 else lengths
        texts = [f"{t / 1024:.0f}K" if t >= 1024 else str(t) for t in ticks]
        fig.update_xaxes(
            title_text="context length (tokens)", type="log", tickvals=ticks, ticktext=texts, row=1, col=col
        )
        values = [v for series in panel.series for v in (*series.value, *series.low)]
        fig.update_yaxes(title_text=panel.unit, type="log", **log_ticks(values), row=1, col=col)
    fig.update_layout(legend=legend_over(320, 26))
    panel_titles(fig)
    return finish(
        fig, title=title, notice=notice, caption=caption, height=320, above=46 + 20 * lines, below=58, left=80
    )


def _band(series: Series) -> go.Scatter:
    around = [*series.high, *reversed(series.low)]
    return go.Scatter(
        x=[*series.length, *reversed(series.length)],
        y=around,
        fill="toself",
        fillcolor=clear(MODES[series.mode], 0.16),
        line={"width": 0},
        hoverinfo="skip",
        showlegend=False,
        mode="lines",
    )


def _line(series: Series, unit: str, listed: set[str]) -> go.Scatter:
    colour, name = MODES[series.mode], series.name or MODE_NAMES[series.mode]
    between = "<br>5 to 95%: %{customdata[0]:.3s} to %{customdata[1]:.3s}" if len(series.low) else ""
    ring = series.dots
    trace = go.Scatter(
        x=series.length,
        y=series.value,
        name=name,
        legendgroup=name,
        showlegend=name not in listed,
        mode="markers" if ring else "lines+markers",
        line={"color": colour, "width": series.thick},
        marker={
            "color": colour,
            "size": 9 if ring else 5 + series.thick / 2,
            "line": {"width": 2 if ring else 0},
            "symbol": MODE_SYMBOLS[series.mode] + ("-open" if ring else ""),
        },
        customdata=list(zip(series.low, series.high, strict=True)) if len(series.low) else None,
        hovertemplate="%{x:,} tokens: %{y:.3s} "
        + unit.split("(")[-1].rstrip(")")
        + between
        + "<extra>"
        + name
        + "</extra>",
    )
    listed.add(name)
    return trace


def lines_by_mode(
    records: Sequence[Mapping[str, Any]],
    field: str,
    scale: float = 1.0,
    *,
    modes: Sequence[str] = ("full", "block"),
    band: bool = False,
    **look: Any,
) -> list[Series]:
    """Return one line per mode of `records` {length, mode, <field>}, with values multiplied by `scale`.

    `band` adds the fields p5 and p95 around it; `look` are further fields of `Series`.
    """
    lines = []
    for mode in modes:
        points = [r for r in records if r["mode"] == mode]
        edges = {"low": [r["p5"] * scale for r in points], "high": [r["p95"] * scale for r in points]} if band else {}
        lines.append(Series(mode, [r["length"] for r in points], [r[field] * scale for r in points], **edges, **look))
    return lines


def longest_ttft(timed: Sequence[Mapping[str, Any]]) -> tuple[int, dict[str, float]]:
    """Return the longest context of `timed` (tokens), and the median time to the first token there by mode (ms)."""
    length = max(r["length"] for r in timed)
    return length, {r["mode"]: r["p50"] * 1e3 for r in timed if r["length"] == length}


def ttft_by_length(
    timed: Sequence[Mapping[str, Any]], paper: Sequence[Mapping[str, Any]], *, model: str, question: int, device: str
) -> go.Figure:
    """Draw measured times (`lengths.measured`) beside those of the paper; `question` tokens stand behind the blocks."""
    longest, ms = longest_ttft(timed)
    unit = "time to first token (ms)"
    return against_length(
        [
            Panel(f"{model}, measured here", lines_by_mode(timed, "p50", 1e3, band=True), unit),
            Panel("8B model, published (Table 3)", lines_by_mode(paper, "ttft_ms"), unit),
        ],
        title="Time to the first token",
        notice=f"At {longest:,} tokens reuse takes {ms['block']:.0f} ms where full attention takes {ms['full']:.0f} "
        "ms. Full attention computes the whole context before the first token. Reuse computes the question, and "
        "re-encodes and reads the cached keys.",
        caption=f"Left: median and 5 to 95% of {timed[0]['n']} runs after a warm-up, one request at a time, question "
        f"of {question} tokens, all other blocks in memory and re-encoded within the time; {device}. Right: "
        f"Block-Attention, Table 3 (8B, H20 GPUs, {QUESTION} tokens).",
    )


def flops_by_length(
    own: Sequence[Mapping[str, Any]],
    large: Sequence[Mapping[str, Any]],
    paper: Sequence[Mapping[str, Any]],
    *,
    model: str,
    question: int,
) -> go.Figure:
    """Draw operations counted for `model` (`own`) and for the paper's shape (`large`), with published ones as rings."""
    unit = "operations to first token (FLOPs)"
    published = lines_by_mode(paper, "flops", dots=True, name="published")
    return against_length(
        [
            Panel(f"{model}, computed", lines_by_mode(own, "flops"), unit),
            Panel("Llama-3-8B shape, computed; rings: published", [*lines_by_mode(large, "flops"), *published], unit),
        ],
        title="Operations to the first token",
        notice="Full attention pays for every token of the context. Towards 32K tokens attention's own products grow "
        "past what the paper counts: the line bends away from the rings. Reuse pays for the question.",
        caption="Linear layers, output head on one row, scores and weighted values; a multiply-add is two operations. "
        f"Rings: Block-Attention, Table 3, 2 · parameters · computed tokens. Question of {question} (left) and "
        f"{QUESTION} (right) tokens.",
    )


def bytes_by_length(
    own: Sequence[Mapping[str, Any]], large: Sequence[Mapping[str, Any]], *, model: str, dtype: str
) -> go.Figure:
    """Draw the traffic counted for `model`, whose values are `dtype`, and for the paper's shape in bfloat16."""
    return against_length(
        [
            Panel(f"{model}, computed ({dtype})", _traffic(own, 2**-20), "traffic to first token (MiB)"),
            Panel("Llama-3-8B shape, computed (bfloat16)", _traffic(large, 2**-30), "traffic to first token (GiB)"),
        ],
        title="Bytes to the first token",
        notice="Reuse saves operations, not traffic: the keys and values that are no longer computed must be read "
        "instead. Both modes move the same bytes (the lines lie on each other), so reuse pays where computing is what "
        "takes the time.",
        caption="Weights once, keys and values written and read; squares: keys and values of cached blocks that come "
        "from the store. Activations are left out.",
    )


def _traffic(records: Sequence[Mapping[str, Any]], scale: float) -> list[Series]:
    """Return the bytes of both modes, which lie on each other, and those of them that come from the store."""
    stored = [r for r in records if r["kv_loaded"]]
    return [
        *lines_by_mode(records, "bytes", scale, modes=["full"], thick=6),
        *lines_by_mode(records, "bytes", scale, modes=["block"]),
        *lines_by_mode(stored, "kv_loaded", scale, modes=["block"], dots=True, name="of it, read from the store"),
    ]


def paper_table(
    paper: Sequence[Mapping[str, Any]],
    large: Sequence[Mapping[str, Any]],
    timed: Sequence[Mapping[str, Any]],
    own: Sequence[Mapping[str, Any]],
    *,
    model: str,
    question: int,
    device: str,
) -> go.Figure:
    """Draw the paper's Table 3 beside the same numbers computed for its shape, and measured on `model`."""
    lengths = [r["length"] for r in paper if r["mode"] == "full"]
    parts = {
        "Published: 8B on H20 GPUs": [
            ("TTFT, {} (ms)", paper, "ttft_ms", "{:,}".format),
            ("FLOPs, {}", paper, "flops", "{:.1e}".format),
        ],
        "Computed: Llama-3-8B shape": [
            ("FLOPs as the paper counts, {}", large, "convention", "{:.1e}".format),
            ("FLOPs with attention, {}", large, "flops", "{:.1e}".format),
        ],
        f"Measured here: {model}": [
            ("TTFT, {} (ms)", timed, "p50", _milliseconds),
            ("FLOPs, {} (computed)", own, "flops", "{:.1e}".format),
        ],
    }
    rows: list[list[str]] = []
    groups = []
    for name, quantities in parts.items():
        groups.append(len(rows))
        rows.append([name, *[""] * len(lengths)])
        for label, records, field, form in quantities:
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
        caption=f"Published: Block-Attention, Table 3. Measured: median of {timed[0]['n']} runs on {device}. "
        f"{QUESTION} tokens of user input (ours: {question}).",
    )


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:,.0f}" if seconds >= 0.01 else f"{seconds * 1e3:.1f}"

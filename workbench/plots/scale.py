"""How time to first token, decoding and memory grow, from `data/benchmarks/scale.py`, with the bandwidth of slopes."""

from collections.abc import Mapping, Sequence
from math import log
from typing import Any

import plotly.graph_objects as go

from workbench.experiments import results
from workbench.experiments.scale import CONTEXT, slope
from workbench.plots.lines import Panel, Series, line_chart
from workbench.plots.styles import Look
from workbench.plots.theme import BLUE, GREEN, ORANGE

Rows = Sequence[Mapping[str, Any]]
UNIT = 1024  # tokens of a unit of context
TITLES = {
    "context": "thousands of cached tokens",
    "question": f"tokens of the question, over {CONTEXT}K",
    "blocks": f"blocks that {CONTEXT}K are made of",
    "batch": f"requests that decode over {CONTEXT}K",
}
ROOM = 0.19  # of an axis that a number takes
FAR = 8  # units of context from which on the slope is fitted: below, weights are all that is read


def scale_curves(kept: Mapping[str, Any] | None = None) -> go.Figure | None:
    """Draw milliseconds against each axis that was measured; None where none was."""
    if kept is None:
        if "scale" not in results.names():
            return None
        kept = results.read("scale")
    rows = kept["rows"]
    panels: list[Panel] = []
    for axis, title in TITLES.items():
        mine = [row for row in rows if row["axis"] == axis]
        if not mine:
            continue
        label = "one decoding step" if axis == "batch" else "time to the first token"
        lines = [_series(label, mine, "ms", ORANGE if axis == "batch" else BLUE)]
        lines += [_series("the captured step alone", mine, "replay_ms", GREEN)]
        x = {"title_text": title, "type": "log"} | _ticks([row["x"] for row in mine])
        panels.append(Panel(axis, lines, x, {"title_text": "ms" if not panels else "", "rangemode": "tozero"}))
    return line_chart(
        panels,
        height=330,
        spacing=0.06,
        title="How time grows with context, question, blocks and batch",
        notice=growth(kept),
        caption=f"{kept['device']}, {kept['shape']}'s shape, random weights, bf16; blocks are rerotated. Medians, from "
        "an idle GPU to the token on the host. data/benchmarks/scale.py.",
    )


def _ticks(values: Sequence[int]) -> dict[str, Any]:
    """Return ticks at measured values, the last one and those before it that have room for their numbers."""
    ticks: list[int] = []
    width = log(max(values) / min(values)) or 1.0
    for value in sorted(values, reverse=True):
        if not ticks or log(ticks[-1] / value) / width >= ROOM:
            ticks.append(value)
    return {"tickvals": ticks, "ticktext": [f"{value:,}" for value in ticks], "tickangle": 0}


def _series(name: str, rows: Rows, value: str, colour: str) -> Series:
    there = [row for row in rows if row.get(value) is not None]
    x, y = [row["x"] for row in there], [row[value] for row in there]
    low, high = ([row[key] for row in there] if value == "ms" else [] for key in ("p5", "p95"))
    return Series(name, x, y, low, high, "%{x:,}: %{y:.2f} ms", look=Look(colour))


def growth(kept: Mapping[str, Any]) -> str:
    """Say what a token of context, a row of the question, a block and a request more cost, and the bandwidth."""
    rows, said = kept["rows"], []
    each = slope(rows, "context", least=FAR)
    if each is not None and each > 0:
        rate = UNIT * kept["token_bytes"] / each * 1e3
        said.append(f"A thousand cached tokens more cost {each * 1e3:.0f} µs, as if they were read at {_rate(rate)}")
        copy = kept.get("copy_bytes_per_s")
        said[-1] += f" ({rate / copy:.0%} of a copy)." if copy else "."
    parts = {"question": "a row of the question", "blocks": "a block", "batch": "a request that decodes"}
    costs = [f"{name} {cost * 1e3:.1f} µs" for axis, name in parts.items() if (cost := slope(rows, axis)) is not None]
    if costs:
        said.append(f"Fitted likewise: {', '.join(costs)}.")
    batch = [row for row in rows if row["axis"] == "batch"]
    if len(batch) > 1:
        first, last = batch[0], batch[-1]
        times = last["tokens_per_s"] / first["tokens_per_s"]
        said.append(f"{last['x']} at once decode {times:.1f} times as many tokens a second as {first['x']}.")
    held = [row for row in rows if row["axis"] == "context" and row.get("peak_gb")]
    if len(held) > 1:
        said.append(f"Memory grows from {held[0]['peak_gb']:.1f} GB at {held[0]['x']}K to {held[-1]['peak_gb']:.1f} GB "
                    f"at {held[-1]['x']}K.")  # fmt: skip
    return " ".join(said) or "Nothing was measured."


def _rate(rate: float) -> str:
    return f"{rate / 1e12:.2f} TB/s" if rate >= 1e11 else f"{rate / 1e9:.1f} GB/s"

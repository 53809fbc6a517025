"""FusionRAG's figure 14a: the first token at several recomputed shares, its choice and its load included."""

from typing import Any

import plotly.graph_objects as go

from workbench.experiments import recompute_reports
from workbench.metrics.answers import Records
from workbench.metrics.published_numbers import FUSION_RAG
from workbench.plots.findings import joined, judged
from workbench.plots.lines import Panel, Series, line_chart
from workbench.plots.styles import Look
from workbench.plots.theme import BLUE, GREEN, INK, SKY, log_ticks

LOOKS = {
    "ours": Look(BLUE, "circle"),
    "ours, loaded from host memory": Look(GREEN, "diamond", "dash"),
    "ours, random rows, no choice": Look(SKY, "square", "dot"),
}
PRINTED = {0.0: FUSION_RAG["reuse_faster_than_full"], FUSION_RAG["ratio"]: FUSION_RAG["faster_than_full"]}


def by_share() -> go.Figure | None:
    """Draw how many times as fast as stock full prefill every share is; None where none was measured."""
    rows = recompute_reports.by_share()
    if not rows:
        return None
    lines = []
    for way in dict.fromkeys(row["way"] for row in rows):
        own = [row for row in rows if row["way"] == way]
        at, mean, low, high = ([row[key] for row in own] for key in ("at", "mean", "low", "high"))
        data = [f"{row['ms']:,.0f} ms" for row in own]
        lines.append(Series(own[0]["name"], at, mean, low, high, "%{x:.0%}: %{y:.2f}, %{customdata}", data, LOOKS[way]))
    for at, (least, most) in PRINTED.items():
        ring = Look(INK, "circle-open", "dot")
        lines.append(Series("published, its range", [at, at], [least, most], hover="%{y}", look=ring, size=11))
    return line_chart(
        [
            Panel(
                "", lines, {"title_text": "share of the context recomputed", "tickformat": ".0%"}, _vertical(rows), 1.0
            )
        ],
        title="The first token by recomputed share (FusionRAG, figure 14a)",
        notice=said(rows),
        caption=f"{recompute_reports.report()['card']}, Llama-3.1-8B's shape, a context of 27 units of 1,024 tokens in "
        "shifted blocks and a question, over stock transformers' full prefill of the same prompt in the same run. "
        f"Loaded: all pages copied from pinned host memory first, not overlapped. Rings: {FUSION_RAG['source']}.",
        above=22,
        lines=2,
    )


def _vertical(rows: Records) -> dict[str, Any]:
    """Return a logarithmic axis that holds what is measured and what is printed."""
    ticks = log_ticks([1.0, *(row["mean"] for row in rows), *(end for ends in PRINTED.values() for end in ends)])
    return {"title_text": "times as fast as full prefill", "type": "log", **ticks}


def said(rows: Records) -> str:
    """Say what 15% gives with its choice, and loaded, beside the printed range, and what is not measured yet."""
    at_ratio = {row["way"]: row for row in rows if row["at"] == FUSION_RAG["ratio"]}
    least, most = FUSION_RAG["faster_than_full"]
    parts = [f"{row['name']} {row['mean']:.2f}" for row in at_ratio.values()]
    texts = [f"At {FUSION_RAG['ratio']:.0%}, times as fast as full prefill: {joined(parts)}."] if parts else []
    if own := at_ratio.get("ours"):
        claim = f"the first token comes {least} to {most} times sooner"
        texts.append(judged("FusionRAG", claim, True if own["low"] > least else False if own["high"] < least else None))
    if absent := recompute_reports.missing():
        shares = joined([f"{share:.0%}" for share in absent])
        texts.append(f"Not measured yet with the choice: {shares} (workbench bench recompute).")
    return " ".join(texts)

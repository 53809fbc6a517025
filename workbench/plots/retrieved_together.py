"""FusionRAG's figure 7a: how often passages that are alike are retrieved for one question, on real questions."""

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from workbench.experiments import results
from workbench.metrics.published_numbers import FUSION_RAG
from workbench.plots.findings import joined, judged, sentence
from workbench.plots.lines import Panel, Series, line_chart
from workbench.plots.styles import Look
from workbench.plots.theme import BLUE, GREEN, INK

Rows = Sequence[Mapping[str, Any]]
LOOKS = {"tfidf": Look(BLUE, "circle"), "minilm": Look(GREEN, "diamond")}
NAMES = {"tfidf": "TF-IDF", "minilm": "MiniLM"}
PRINTED = FUSION_RAG["retrieved_together"]
NO_FILE = "Not measured yet: python data/benchmarks/together.py"


def kept() -> list[dict[str, Any]]:
    """Read the measured rows {data, embedder, at, mean, low, high, n, passages}; none where there is no file."""
    return list(results.read("together")["rows"]) if "together" in results.names() else []


def together() -> go.Figure | None:
    """Draw the share over the number of neighbours, a panel a data set; None where it was not measured."""
    rows = kept()
    if not rows:
        return None
    panels = []
    for name in dict.fromkeys(row["data"] for row in rows):
        lines = [
            _line([row for row in rows if row["data"] == name and row["embedder"] == embedder], embedder)
            for embedder in dict.fromkeys(row["embedder"] for row in rows)
        ]
        rings = Look(INK, "circle-open")
        lines.append(
            Series(
                "published: more than",
                list(PRINTED),
                list(PRINTED.values()),
                look=rings,
                size=11,
                mode="markers",
                hover="%{x}: more than %{y:.0%}",
            )
        )
        axis = {"tickformat": ".0%", "range": [0, 1.03], "title_text": "passages with another of their question"}
        panels.append(Panel(name, lines, {"title_text": "most similar passages that are looked at"}, axis))
    return line_chart(
        panels,
        title="Passages that are alike are retrieved together (FusionRAG, figure 7a)",
        notice=said(rows),
        caption=f"{rows[0]['n']} questions of {joined(sorted({row['data'] for row in rows}))} with "
        f"{rows[0]['passages']:.0f} retrieved passages each; similar passages come from those of all questions, a "
        "smaller knowledge base than the paper's, in which fewer others are alike. Bands: 95% over questions. Rings: "
        f"{FUSION_RAG['source']}, by BGE-M3.",
        above=22,
    )


def _line(rows: Rows, embedder: str) -> Series:
    at, mean, low, high = ([row[key] for row in rows] for key in ("at", "mean", "low", "high"))
    return Series(
        NAMES.get(embedder, embedder), at, mean, low, high, "%{x}: %{y:.1%}", look=LOOKS.get(embedder, Look())
    )


def said(rows: Rows) -> str:
    """Say the share at the printed numbers of neighbours, and whether it stands above what is printed."""
    parts, holds = [], []
    for number, bar in PRINTED.items():
        of = [row for row in rows if row["at"] == number]
        named = [f"{NAMES.get(row['embedder'], row['embedder'])} {row['mean']:.0%}" for row in of]
        parts.append(f"at {number} neighbours {joined(named)} (printed: above {bar:.0%})")
        holds += [True if row["low"] > bar else False if row["high"] < bar else None for row in of]
    verdict = False if False in holds else True if holds and all(holds) else None
    return f"{sentence('; '.join(parts))} {judged('FusionRAG', 'they are retrieved together', verdict)}"

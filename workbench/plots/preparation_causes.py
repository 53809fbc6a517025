"""Which intervention makes preparation lift reuse: titles, the true antecedent, another embedder; and what follows.

Of the results of data/benchmarks/preparations.py, on the plain lab without hints and on the harder lab.
"""

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

import plotly.graph_objects as go

from workbench.experiments.preparation_results import Kept
from workbench.metrics.answers import Records
from workbench.plots import preparation_lift as lift
from workbench.plots.dots import Column, dots
from workbench.plots.findings import joined, sign_of
from workbench.plots.styles import Look
from workbench.plots.theme import BLUE, GREEN, INK, ORANGE, RED, SKY

FAMILIES = {  # a corpus whose continued passages bear titles of their own, and the same with the document's title
    "lab": ("lab(hints=0)", "lab(hints=0, titles=kept)"),
    "lab-hard": ("lab-hard(titles=continued)", "lab-hard"),
}
PLAIN = "preparation as it is"  # as FusionRAG has it, without any of these
SIMILAR, MEANING = "10 neighbours by TF-IDF", "10 neighbours by MiniLM"
INTERVENTIONS = {  # name → (titles kept, preparation)
    PLAIN: (False, SIMILAR),
    "document titles": (True, SIMILAR),
    "MiniLM for TF-IDF": (False, MEANING),
    "both": (True, MEANING),
    "the true antecedent": (False, "its own document"),
    "the true antecedent, and titles": (True, "its own document"),
}
ANTECEDENT = ("the true antecedent", "the true antecedent, and titles")
COLOURS = (BLUE, ORANGE, GREEN, RED, SKY, INK)
SYMBOLS = ("circle", "square", "diamond", "cross", "x", "star")
MISSING = "Not measured yet: data/benchmarks/preparations.py"


def rows(one: Kept, kind: str = "all") -> Records:
    """Return what every intervention adds to exact match, {family, name, gain, gain_low, gain_high, found, n}.

    PLAIN is preparation behind ten similar passages as FusionRAG has it; the others change what it is made of.
    """
    of = {(row["data"], row["name"]): row for row in lift.gains(one) if row["kind"] == kind}
    listed = []
    for family, corpora in FAMILIES.items():
        for name, (kept, preparation) in INTERVENTIONS.items():
            if row := of.get((corpora[kept], preparation)):
                listed.append({**row, "family": family, "name": name})
    return listed


def interventions(models: Sequence[Kept] | None = None) -> go.Figure | None:
    """Draw what every intervention gives, a panel a family of corpora, a mark a model; None where none is measured."""
    models = lift.kept() if models is None else models
    measured = {str(one["model"]): rows(one) for one in models if rows(one)}
    if not measured:
        return None
    columns = []
    for family in FAMILIES:
        own = [
            {
                "name": row["name"],
                "series": model,
                "mean": row["gain"],
                "low": row["gain_low"],
                "high": row["gain_high"],
            }
            for model, of in measured.items()
            for row in of
            if row["family"] == family
        ]
        columns += [Column(family, "exact match added", own, percent=True, level=0)] if own else []
    marks = zip(measured, cycle(COLOURS), cycle(SYMBOLS), strict=False)
    looks = {model: Look(colour, symbol, name=model) for model, colour, symbol in marks}
    by_name = {str(one["model"]): one for one in models}
    counts = joined([f"{model} {_seeds(by_name[model])}n = {by_name[model]['samples']:,}" for model in measured])
    return dots(
        columns,
        looks,
        spread=True,
        title="What preparation gives, and why",
        notice=said(measured),
        caption="Exact match over blocks that saw the system prompt alone, nothing recomputed, 95% intervals; "
        f"{counts} questions. \u201cPreparation as it is\u201d: behind ten similar passages, by TF-IDF. "
        "data/benchmarks/preparations.py.",
    )


def _seeds(one: Kept) -> str:
    seeds = one.get("training_seeds", 1)
    return f"over {seeds} training seeds, " if seeds > 1 else ""


def said(measured: Mapping[str, Records]) -> str:
    """Say of every model and family which interventions lift, and why the lab contradicts the paper or does not."""
    texts = []
    for model, of in measured.items():
        for family in FAMILIES:
            own = [row for row in of if row["family"] == family]
            texts += [f"{model} on {family}: {which(own)} {why(own)}"] if own else []
    return " ".join(texts)


def which(own: Sequence[Mapping[str, Any]]) -> str:
    """Name what lifts and what lowers, each with its gain, what leaves it open, and what is not measured."""
    words = {1: "lifting", -1: "lowering", 0: "open"}
    parts = []
    for sign, word in words.items():
        names = [row["name"] + (f" {_points(row)}" if sign else "") for row in own if _sign(row) == sign]
        parts += [f"{word}: {joined(names)}"] if names else []
    absent = [name for name in INTERVENTIONS if name not in {row["name"] for row in own}]
    parts += [f"not measured: {joined(absent)}"] if absent else []
    return "; ".join(parts) + "."


def why(own: Sequence[Mapping[str, Any]]) -> str:
    """Say what follows for FusionRAG's claim that preparation behind similar passages lifts reuse."""
    lifting = [row["name"] for row in own if _sign(row) > 0]
    if PLAIN in lifting:
        return "Preparation lifts as FusionRAG says."
    similar = [name for name in lifting if name not in ANTECEDENT]
    if similar:
        return f"It lifts only with {joined(similar)}: what the paper's passages have, these lack."
    if any(name in lifting for name in ANTECEDENT):
        return (
            "The lab contradicts the paper because what a passage lacks is one particular passage, which similarity "
            f"finds for {_most(own):.0%} of them at most: forced in, it lifts."
        )
    if any(row["name"] in ANTECEDENT for row in own):
        return (
            "Where the lab contradicts the paper, that is not for want of the right passage: the true antecedent shows "
            "no lift either, so what reuse loses here lies elsewhere."
        )
    return "The true antecedent is not measured."


def _most(own: Sequence[Mapping[str, Any]]) -> float:
    shares = [row["found"][0] / max(1, row["found"][1]) for row in own if row["name"] not in ANTECEDENT]
    return float(max(shares, default=0.0))


def _sign(row: Mapping[str, Any]) -> int:
    return sign_of((row["gain_low"], row["gain_high"]))


def _points(row: Mapping[str, Any]) -> str:
    low, high = (100 * row[key] for key in ("gain_low", "gain_high"))
    return f"{100 * row['gain']:+z.1f} [{low:+z.1f}, {high:+z.1f}]"

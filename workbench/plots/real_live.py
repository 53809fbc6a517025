"""A few questions asked here and now: every method beside full attention, and what each of them answers."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from workbench import models
from workbench.core.errors import BadInput
from workbench.data import Sample
from workbench.data.layouts import Layout
from workbench.data.retrieval_corpus import Corpus
from workbench.experiments import compare
from workbench.methods import Method
from workbench.methods.config import MethodConfig
from workbench.models import adapters, checkpoints, fetched, note_of
from workbench.plots.real_findings import SYSTEM, name_of, said
from workbench.plots.table import table

Records = Sequence[Mapping[str, Any]]
FULL = "full attention"


def absent(model: str) -> str:
    """Return what to say of a model that can be fetched and is not there yet; "" for any other."""
    if model not in fetched.CATALOGUE:
        return ""
    try:
        fetched.folder(model)
    except BadInput as problem:
        return f"{str(problem)[0].upper()}{str(problem)[1:]}. Until then this notebook shows committed results alone."
    return ""


def is_tuned(tuned: str, model: str) -> bool:
    """Return whether `tuned` is a shipped adapter of `model`."""
    path = models.folder(tuned) if tuned in models.names() else None
    return path is not None and adapters.is_adapter(path) and checkpoints.adapter_of(path).base == model


def methods(
    corpus: Corpus, layout: Layout, neighbours: int, selectors: Sequence[str], ratio: float
) -> dict[str, Method]:
    """Return full attention, three preparations, every selector over Full Reuse and the last over neighbours."""
    similar = f"with_neighbours(n={min(neighbours, len(corpus) - 1)})"
    configs = [MethodConfig()]
    configs += [MethodConfig(mode="block", prepare=prepare) for prepare in ("independent", SYSTEM, similar)]
    configs += [MethodConfig(mode="block", prepare=SYSTEM, select=select, ratio=ratio) for select in selectors]
    configs += [MethodConfig(mode="block", prepare=similar, select=select, ratio=ratio) for select in selectors[-1:]]
    return {name_of(asdict(config)): config.method(corpus, system=bool(layout.system)) for config in configs}


def about_of(model: str, data: str, samples: int, passages: int, seed: int, device: str) -> str:
    """Say what was asked of which model, for captions; with what the model says of itself."""
    asked = f"{Path(model).name} on {data}, n = {samples}, {passages} passages, seed {seed}, {device}"
    return f"{note_of(model)} {asked}".strip()


def measured_here(rows: Records, *, about: str) -> go.Figure:
    """Draw KL, likelihood lost, agreement and rows of every method, from rows of `fidelity.measure`."""
    scored = [row for row in compare.table(compare.by("method", rows)) if row["method"] != FULL]
    cells = [
        [
            row["method"],
            _within(row, "kl"),
            _within(row, "nll_extra"),
            f"{row['agree']:.0%}",
            f"{row['rows']:.0f}",
        ]
        for row in scored
    ]
    return table(
        ["method", "KL", "likelihood lost", "tokens that agree", "rows computed"],
        cells,
        widths=[2.8, 1.6, 1.7, 1.1, 1],
        title="The same here and now",
        notice=here_sentence(scored),
        caption=f"{about}. Nats a token over full attention's own answer (KL, agreement) and over the gold answer; "
        "bootstrap 95% intervals, wide for so few questions.",
    )


def _within(row: Mapping[str, Any], measure: str) -> str:
    if row[measure] is None:
        return "–"
    return f"{said(row[measure])} [{said(row[f'{measure}_low'])}, {said(row[f'{measure}_high'])}]"


def here_sentence(scored: Records) -> str:
    """Name the method with the least KL, and the one with the most."""
    ordered = sorted(scored, key=lambda row: row["kl"])
    least, most = ordered[0], ordered[-1]
    return (
        f"Nearest to full attention: {least['method']}, KL {said(least['kl'])}; farthest: {most['method']}, "
        f"{said(most['kl'])}. {least['n']} questions show how it works, not the order; that is measured above."
    )


def answers(rows: Records, samples: Sequence[Sample], *, about: str) -> go.Figure:
    """Draw what every method answers, question by question; = marks an answer that is full attention's."""
    by_method = {name: {row["id"]: row for row in own} for name, own in compare.by("method", rows).items()}
    cells: list[list[str]] = []
    groups = []
    for sample in samples:
        groups.append(len(cells))
        cells.append(["question", "", sample.question])
        for name, own in by_method.items():
            row, full = own[sample.id], by_method[FULL][sample.id]
            same = "=" if name != FULL and row["answer"] == full["answer"] else ""
            cells.append([name, same, " ".join(str(row["answer"]).split())])
        cells.append(["expected", "", ", ".join(sample.answers) or "unknown"])
    return table(
        ["method", "", "answer"],
        cells,
        groups=groups,
        widths=[3, 0.3, 6.7],
        words=3,
        title="What each method answers",
        notice=same_sentence(by_method),
        caption=f"{about}. Greedy decoding; = is full attention's answer, word for word.",
    )


def same_sentence(by_method: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    """Say which methods answer as full attention does, and how often."""
    full = by_method[FULL]
    same = {
        name: sum(own[key]["answer"] == full[key]["answer"] for key in full)
        for name, own in by_method.items()
        if name != FULL
    }
    listed = ", ".join(f"{name} {count}" for name, count in same.items() if count)
    return f"Answers that are full attention's, word for word, of {len(full)}: {listed or 'none'}."


def tuned_here(before: Records, after: Records, *, tuned: str, about: str) -> go.Figure:
    """Draw KL from each model's own full attention before and after fine-tuning, and the gold answer's likelihood."""
    ours, theirs = (
        {row["method"]: row for row in compare.table(compare.by("method", rows))} for rows in (before, after)
    )
    names = [name for name in ours if name in theirs]
    cells = [
        [
            name,
            *("–" if name == FULL else _within(side[name], "kl") for side in (ours, theirs)),
            *(_within(side[name], "nll") for side in (ours, theirs)),
        ]
        for name in names
    ]
    return table(
        ["method", "KL", f"KL, {tuned}", "gold answer, nats", f"gold answer, {tuned}"],
        cells,
        widths=[2.4, 1.5, 1.5, 1.5, 1.5],
        title="Fine-tuned against not",
        notice=tuned_sentence(ours, theirs),
        caption=f"{about}. KL is from the same model's own full attention. Bootstrap 95% intervals.",
    )


def tuned_sentence(before: Mapping[str, Mapping[str, Any]], after: Mapping[str, Mapping[str, Any]]) -> str:
    """Say what fine-tuning does to the KL of reuse without recomputation, and to full attention."""
    name = "independent blocks"
    was, now = before[name]["kl"], after[name]["kl"]
    told = "lowers" if now < was else "does not lower"
    words = f"Fine-tuning {told} the KL of {name}: {said(was)} before, {said(now)} after."
    if before[FULL]["nll"] is None:
        return words
    cost = after[FULL]["nll"] - before[FULL]["nll"]
    return f"{words} Full attention itself {'loses' if cost > 0 else 'gains'} {said(abs(cost))} nats a token."

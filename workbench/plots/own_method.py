"""A selector of one's own beside those that are there: how far predictions move under each."""

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from workbench.experiments import compare
from workbench.metrics.answers import bootstrap
from workbench.plots.findings import sign_of
from workbench.plots.table import table

Records = Sequence[Mapping[str, Any]]


def beside_others(rows: Records, name: str, baseline: str, *, about: str) -> go.Figure:
    """Draw a table of every method of `rows` (`experiments.fidelity.measure`), and say how `name` did.

    Raises BadInput where a method is not among the rows.
    """
    scored = compare.table(compare.by("method", rows))
    cells = [
        [row["method"], f"{row['kl']:.3f} [{row['kl_low']:.3f}, {row['kl_high']:.3f}]", f"{row['agree']:.0%}",
         f"{row['rows']:.0f}"]
        for row in sorted(scored, key=lambda row: row["kl"])
    ]  # fmt: skip
    return table(
        ["method", "KL from full attention, nats", "tokens that agree", "rows computed"],
        cells,
        widths=[2.4, 2.2, 1.3, 1.2],
        title="How far predictions move",
        notice=compared_sentence(rows, name, baseline),
        caption=f"{about}. Nats a token over full attention's own answer; bootstrap 95% intervals.",
    )


def compared_sentence(rows: Records, name: str, baseline: str) -> str:
    """Say whether `name` moves predictions less than `baseline`, question by question."""
    kl = {method: {row["id"]: row["kl"] for row in rows if row["method"] == method} for method in (name, baseline)}
    gaps = [kl[name][one] - kl[baseline][one] for one in kl[name]]
    gap, ends = sum(gaps) / len(gaps), bootstrap(gaps, 0)
    said = {-1: "moves predictions less than", 1: "moves predictions more than", 0: "is not told apart from"}
    return (
        f"{name} {said[sign_of(ends)]} {baseline}: {gap:+.3f} nats ({ends[0]:+.3f} to {ends[1]:+.3f}, "
        f"{len(gaps)} questions)."
    )

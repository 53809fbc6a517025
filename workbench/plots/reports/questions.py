"""Answers question by question: what was asked, what is expected, and what each method answered."""

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from workbench.data import Sample
from workbench.methods.answered import Generation
from workbench.metrics.answers import exact_match
from workbench.plots.marks.table import table


def answered(samples: Sequence[Sample], columns: Mapping[str, Sequence[Generation]], *, about: str) -> go.Figure:
    """Tabulate the answers of several methods, a column each; ✓ marks exact matches."""
    rows = []
    for sample, *answers in zip(samples, *columns.values(), strict=True):
        marks = ["✓" if exact_match(one.text, sample.answers) else "✗" for one in answers]
        said = [f"{mark} {one.text.strip()}" for mark, one in zip(marks, answers, strict=True)]
        rows.append([sample.question, sample.kind, sample.answers[0], *said])
    widths = [3.5, 1.25, 1.5, *[1.7] * len(columns)]
    head = ["question", "kind", "expected", *columns]
    return table(head, rows, widths=widths, words=len(head), title="Question by question", caption=f"{about}.")


def equal(one: Sequence[Generation], other: Sequence[Generation]) -> int:
    """Return how many answers of two methods have the same tokens."""
    return sum(a.tokens == b.tokens for a, b in zip(one, other, strict=True))

"""A selector of one's own beside those that are there: how far predictions move under each."""

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

import plotly.graph_objects as go

from workbench.core.errors import not_allowed
from workbench.data import Sample
from workbench.experiments.trials import compare
from workbench.methods.answered import Generation
from workbench.metrics.answers import exact_match
from workbench.plots.marks.table import table

Records = Sequence[Mapping[str, Any]]


def beside_others(rows: Records, baseline: str, *, about: str) -> go.Figure:
    """Draw a table of every method of `rows` (of `fidelity.measure`), and its difference from `baseline`.

    Differences are paired by question. Raises BadInput where the baseline is not among the rows.
    """
    methods = compare.by("method", rows)
    if baseline not in methods:
        raise not_allowed("baseline", baseline, methods)
    cells = []
    for row in sorted(compare.table(methods), key=itemgetter("kl")):
        gap = compare.paired(methods[row["method"]], methods[baseline], "kl")
        kl = f"{row['kl']:.3f} [{row['kl_low']:.3f}, {row['kl_high']:.3f}]"
        apart = f"{gap['difference']:+.3f} [{gap['low']:+.3f}, {gap['high']:+.3f}]"
        named = "–" if row["method"] == baseline else apart
        cells.append([row["method"], kl, named, f"{row['agree']:.0%}", f"{row['rows']:.0f}"])
    return table(
        ["method", "KL from full attention, nats", f"beside {baseline}", "tokens that agree", "rows computed"],
        cells,
        widths=[2.2, 2.2, 2.2, 1.2, 1.1],
        title="How far predictions move",
        caption=f"{about}. Nats a token over full attention's own answer; bootstrap 95% intervals.",
    )


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

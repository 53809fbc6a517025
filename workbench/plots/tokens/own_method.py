"""A selector of one's own beside those that are there: how far predictions move under each."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from workbench import results
from workbench.core.errors import not_allowed
from workbench.data import Sample
from workbench.methods.answered import Generation
from workbench.metrics.answers import exact_match
from workbench.plots.marks.table import table

Records = Sequence[Mapping[str, Any]]


def beside_others(rows: Records, baseline: str, *, about: str) -> go.Figure:
    """Draw a table of every method of `rows` (of `fidelity.measure`), and its difference from `baseline`.

    Differences are paired by question. Raises BadInput where the baseline is not among the rows.
    """
    answers = pd.DataFrame(rows).rename(columns={"id": "question"})
    if baseline not in set(answers.method):
        raise not_allowed("baseline", baseline, list(answers.method.unique()))
    scored = results.means(answers, ["kl", "agree", "rows"], ["method"]).pivot(index="method", columns="measure")
    gaps = results.paired(answers, lambda each: each.method == baseline, "kl").set_index("method")
    cells = []
    for name in scored.sort_values(("value", "kl")).index:
        value, low, high = (scored.loc[name, end] for end in ("value", "low", "high"))
        gap = gaps.loc[name]
        kl = f"{value.kl:.3f} [{low.kl:.3f}, {high.kl:.3f}]"
        apart = f"{gap.value:+.3f} [{gap.low:+.3f}, {gap.high:+.3f}]"
        named = "–" if name == baseline else apart
        cells.append([name, kl, named, f"{value.agree:.0%}", f"{value['rows']:.0f}"])
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

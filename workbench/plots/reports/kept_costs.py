"""The choice of a sparse method alone, over longer prompts."""

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from workbench.plots.marks.line_styles import line_looks
from workbench.plots.marks.lines import profile, profiles
from workbench.plots.marks.styles import SPARSE_METHODS
from workbench.plots.reports.findings import joined

Records = Sequence[Mapping[str, Any]]


def choice_alone(kept: Mapping[str, Any]) -> go.Figure:
    """Draw time and memory of the choice of every sparse method over lengths: `data/benchmarks/sparse_choice.py`."""
    records = kept["records"]
    drawn = [{**r, "name": SPARSE_METHODS.name_of(r["method"]), "at": r["length"]} for r in records]
    specs = list(dict.fromkeys(r["method"] for r in records))
    heads = sorted({r["heads"] for r in records})
    return profiles(
        [
            profile("time of one choice (s)", [{**r, "mean": r["seconds"]} for r in drawn], "tokens", log=True),
            profile(
                "largest tensor, of all pairs",
                [{**r, "mean": r["largest"] / r["pairs"]} for r in drawn],
                "tokens",
                percent=True,
            ),
        ],
        title="The choice alone, over longer prompts",
        notice=growth(records),
        caption=f"Random states of width 128, {joined([str(n) for n in heads])} query heads over half as many KV "
        f"heads, whole prompt at once, torch {kept['torch']}, each in a process of its own, one run. "
        "data/benchmarks/sparse_choice.py.",
        lines=2,
        **line_looks([SPARSE_METHODS.of(spec) for spec in specs]),
    )


def growth(records: Records) -> str:
    """Say how the largest tensor of a choice grows beside the pairs of tokens: records of `choice_alone`."""
    spans = []
    for method in dict.fromkeys(r["method"] for r in records):
        ends = sorted((r for r in records if r["method"] == method), key=lambda r: r["length"])
        spans.append((ends[-1]["largest"] / ends[0]["largest"], ends[-1]["largest"] / ends[-1]["pairs"], method))
    shortest, longest = (pick(r["length"] for r in records) for pick in (min, max))
    pairs = (longest / shortest) ** 2
    grown, _, name = max(spans)
    most = max(spans, key=lambda span: span[1])
    return (
        f"From {shortest:,} to {longest:,} tokens the pairs grow {pairs:.0f} times; the largest tensor that a choice "
        f"makes grows up to {grown:.0f} times ({SPARSE_METHODS.name_of(name)}) and holds at most {most[1]:.1%} of as "
        f"many elements ({SPARSE_METHODS.name_of(most[2])})."
    )

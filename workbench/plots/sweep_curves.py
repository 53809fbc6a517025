"""Curves and paired differences out of the table of a sweep: scores against ratio, cost or number of neighbours."""

from collections.abc import Sequence
from typing import Any

import pandas as pd

from workbench.core import renamed
from workbench.core.errors import BadInput
from workbench.experiments.results import today
from workbench.methods import registry
from workbench.metrics.answers import bootstrap, normalised
from workbench.plots.looks import SELECTORS

Rows = list[dict[str, Any]]


def levels(swept: pd.DataFrame) -> dict[tuple[str, str], float]:
    """Exact match of full attention ("full") and Full Reuse ("none") by kind of question."""
    swept = today(swept)
    full = swept[swept["mode"] == "full"]
    reuse = swept[(swept["mode"] == "block") & (swept.prepare == "after_system") & (swept["select"] == "none")]
    return {(name, row.kind): row.em for name, part in (("full", full), ("none", reuse)) for row in part.itertuples()}


def curves(
    swept: pd.DataFrame,
    selectors: Sequence[str],
    prepare: str = "after_system",
    kind: str = "all",
    x: str = "ratio",
    only: float | None = None,
) -> Rows:
    """A point {name, at, mean, low, high} for every ratio of every selector, ratio 0 (Full Reuse) first.

    Against the ratio a selector that was not tried at 1 ends at `all`: it would choose every token.

    x      what `at` is: the ratio, or a column of the table, as `flops`
    only   this ratio alone
    Raises BadInput where the table has no such trial.
    """
    prepare = renamed.spec(prepare)
    swept = today(swept)
    block = swept[(swept["mode"] == "block") & (swept.prepare == prepare) & (swept.kind == kind)]
    reuse, found = block[block["select"] == "none"].assign(ratio=0.0), []
    everything = block[block["select"] == "all"].assign(ratio=1.0) if x == "ratio" else block[:0]
    for spec in selectors:
        part = block[(block["select"] == spec) & (block["select"] != "none")].sort_values("ratio")
        if only is None:
            part = pd.concat([reuse, part, everything] if len(part) and part.ratio.max() < 1 else [reuse, part])
        else:
            part = reuse if spec == "none" else part[part.ratio == only]
        if not len(part):
            raise BadInput(f"the table has no trial of {spec!r} on passages cached {prepare!r}, kind {kind!r}")
        found += [
            {"name": SELECTORS.name_of(spec), "at": getattr(r, x), "mean": r.em, "low": r.em_low, "high": r.em_high}
            for r in part.itertuples()
        ]
    return found


def against(swept: pd.DataFrame, answers: pd.DataFrame, other: str, prepare: str, ratio: float) -> Rows:
    """Every selector at `ratio` beside selector `other` on the same questions, the best first.

    {select, em, normalised F1 with its interval, difference in exact match to `other` with its interval}; `answers` has
    a row a question and columns "em TRIAL" and "f1 TRIAL".
    """
    of_kind = today(swept)[swept.kind == "all"]
    block = of_kind[(of_kind["mode"] == "block") & (of_kind.prepare == renamed.spec(prepare))]
    at = block[(block.ratio == ratio) & (block["select"] != "none")].set_index("select")
    full = of_kind[of_kind["mode"] == "full"].trial.iloc[0]
    reuse = block[block["select"] == "none"].trial.iloc[0]
    found = []
    for spec, row in at.iterrows():
        gap = answers[f"em {row.trial}"].astype(float) - answers[f"em {at.trial[other]}"].astype(float)
        low, high = bootstrap(gap.tolist())
        mean, *interval = normalised(*(answers[f"f1 {trial}"] for trial in (row.trial, reuse, full)))
        found.append(
            {"select": spec, "em": row.em, "normalised": mean, "normalised_low": interval[0],
             "normalised_high": interval[1], "difference": float(gap.mean()), "difference_low": low,
             "difference_high": high}
        )  # fmt: skip
    return sorted(found, key=lambda r: -r["em"])


def by_preparation(
    swept: pd.DataFrame, answers: pd.DataFrame, selectors: Sequence[str], one: str, other: str, ratio: float
) -> Rows:
    """Every selector at `ratio` on passages prepared by `one` and by `other`: {select, em and interval of each, gain
    with its interval, taken question by question}."""
    block = today(swept)[(swept["mode"] == "block") & (swept.kind == "all")]
    found = []
    for spec in selectors:
        part = block[(block["select"] == spec) & ((block.ratio == ratio) | (spec == "none"))].set_index("prepare")
        before, after = part.loc[renamed.spec(one)], part.loc[renamed.spec(other)]
        gap = answers[f"em {after.trial}"].astype(float) - answers[f"em {before.trial}"].astype(float)
        low, high = bootstrap(gap.tolist())
        row = {"select": spec, "gain": float(gap.mean()), "gain_low": low, "gain_high": high}
        for name, side in (("one", before), ("other", after)):
            row |= {name: side.em, f"{name}_low": side.em_low, f"{name}_high": side.em_high}
        found.append(row)
    return found


def by_neighbours(swept: pd.DataFrame, selectors: Sequence[str], ratio: float = 0.15) -> Rows:
    """A point {name, at, mean, low, high} for every number of neighbours of `with_neighbours`; 0: `after_system`."""
    block = today(swept)[(swept["mode"] == "block") & (swept.kind == "all")]
    numbers = {"after_system": 0}
    for spec in block.prepare.unique():
        name, options = registry.parse(spec)
        if name == "with_neighbours":
            numbers[spec] = int(options.get("n", 10))
    found = []
    for selector in selectors:
        part = block[(block["select"] == selector) & ((block.ratio == ratio) | (selector == "none"))]
        part = (
            part[part.prepare.isin(list(numbers))].assign(at=lambda rows: rows.prepare.map(numbers)).sort_values("at")
        )
        found += [
            {"name": SELECTORS.name_of(selector), "at": int(r.at), "mean": r.em, "low": r.em_low, "high": r.em_high}
            for r in part.itertuples()
        ]
    return found

"""Scores of a sweep as records: points of a curve, and paired differences between its trials.

A table of a sweep (`swept`) has a row a trial and kind of question; `answers` has a row a question.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from workbench.core.errors import BadInput
from workbench.methods import registry
from workbench.metrics.answers import bootstrap, normalised
from workbench.plots.measures import Measure, measure_of, points
from workbench.plots.styles import SELECTORS

Rows = list[dict[str, Any]]
Records = Sequence[Mapping[str, Any]]
PREPARE = "after_system"  # how passages were cached, where no preparation is said
RATIO = 0.15  # of the tokens that are recomputed, where no ratio is said
NOTHING, EVERYTHING = "none", "all"  # selectors


def levels(swept: pd.DataFrame, metric: str = "em") -> dict[tuple[str, str], float]:
    """Return the score of full attention ("full") and Full Reuse ("none") by kind of question."""
    full = swept[swept["mode"] == "full"]
    reuse = swept[(swept["mode"] == "block") & (swept.prepare == "after_system") & (swept["select"] == "none")]
    sides = {"full": full, "none": reuse}
    return {(name, r["kind"]): r[metric] for name, rows in sides.items() for r in rows.to_dict("records")}


def own_shares(block: pd.DataFrame) -> pd.DataFrame:
    """Return trials of one preparation and kind, with the share of the tokens that a selector recomputes by itself.

    Of Cache-Craft and others without a ratio it stands as `ratio`, and `own` marks them. The trials hold one that
    computes nothing again, and one that computes everything.
    """
    own = block.ratio.isna() & ~block["select"].isin([NOTHING, EVERYTHING])
    ends = [block.loc[block["select"] == name] for name in (NOTHING, EVERYTHING)]
    if not own.any() or not all(map(len, ends)):
        return block.assign(own=False)
    least, most = (float(rows.rows_computed.iloc[0]) for rows in ends)
    shares = (block.rows_computed - least) / (most - least)
    return block.assign(ratio=block.ratio.where(~own, shares), own=own)


def points_of(trials: pd.DataFrame, selector: str, x: str, measure: Measure) -> Rows:
    """Return a point of every trial of a selector, with `x` of the table as `at`."""
    return [{"name": SELECTORS.name_of(selector), **point} for point in points(trials, x, measure)]


def _gap(answers: pd.DataFrame, trial: str, other: str) -> tuple[float, float, float]:
    """Return how much more often a trial is right than another on the same questions, with its 95% interval."""
    gap = answers[f"em {trial}"].astype(float) - answers[f"em {other}"].astype(float)
    return float(gap.mean()), *bootstrap(gap.tolist())


def curves(
    swept: pd.DataFrame,
    selectors: Sequence[str],
    prepare: str = "after_system",
    kind: str = "all",
    x: str = "ratio",
    only: float | None = None,
    metric: str = "em",
) -> Rows:
    """Return a point {name, at, mean, low, high} for every ratio of every selector, ratio 0 (nothing recomputed) first.

    A selector without a ratio is one point, at the share that it recomputes by itself.

    Against the ratio a selector that was not tried at 1 ends at `all`: it would choose every token.

    x        what `at` is: the ratio, or a column of the table, as `flops`
    only     this ratio alone
    metric   the score, of `plots.measures`
    Raises BadInput where the table has no such trial or no such score.
    """
    measure = measure_of(metric, swept)
    block = swept[(swept["mode"] == "block") & (swept.prepare == prepare) & (swept.kind == kind)]
    block = own_shares(block)
    reuse = block[block["select"] == "none"].assign(ratio=0.0)
    found: Rows = []
    everything = block[block["select"] == "all"].assign(ratio=1.0) if x == "ratio" else block[:0]
    for spec in selectors:
        trials = block[(block["select"] == spec) & (block["select"] != "none")].sort_values("ratio")
        if only is None:
            ends = len(trials) and trials.ratio.max() < 1 and not trials.own.any()
            alone = len(trials) and trials.own.all()
            trials = trials if alone else pd.concat([reuse, trials, everything] if ends else [reuse, trials])
        else:
            trials = reuse if spec == "none" else trials[trials.ratio == only]
        if not len(trials):
            raise BadInput(f"the table has no trial of {spec!r} on passages cached {prepare!r}, kind {kind!r}")
        found += points_of(trials, spec, x, measure)
    return found


def against(swept: pd.DataFrame, answers: pd.DataFrame, other: str, prepare: str, ratio: float) -> Rows:
    """Compare every selector at `ratio` with selector `other` on the same questions, the best first.

    {select, em, share recomputed, own (whether the selector sets the share by itself), normalised F1 with its interval,
    difference in exact match to `other` with its interval}; `answers` has a row a question and columns "em TRIAL" and
    "f1 TRIAL".
    """
    of_kind = swept[swept.kind == "all"]
    block = own_shares(of_kind[(of_kind["mode"] == "block") & (of_kind.prepare == prepare)])
    at = block[((block.ratio == ratio) | block.own) & (block["select"] != "none")].set_index("select")
    full = of_kind[of_kind["mode"] == "full"].trial.iloc[0]
    reuse = block[block["select"] == "none"].trial.iloc[0]
    records = []
    for spec, row in at.iterrows():
        record = {"select": spec, "em": row.em, "share": row.ratio, "own": bool(row.own)}
        scores = normalised(*(answers[f"f1 {trial}"] for trial in (row.trial, reuse, full)))
        gap = _gap(answers, row.trial, at.trial[other])
        for name, values in (("normalised", scores), ("difference", gap)):
            record |= dict(zip((name, f"{name}_low", f"{name}_high"), values, strict=True))
        records.append(record)
    return sorted(records, key=lambda r: -r["em"])


def by_preparation(
    swept: pd.DataFrame, answers: pd.DataFrame, selectors: Sequence[str], one: str, other: str, ratio: float
) -> Rows:
    """Compare every selector at `ratio` on passages prepared by `one` and by `other`.

    {select, em and interval of each, gain with its interval, taken question by question}.
    """
    block = swept[(swept["mode"] == "block") & (swept.kind == "all")]
    records = []
    for spec in selectors:
        trials = block[(block["select"] == spec) & ((block.ratio == ratio) | (spec == "none"))].set_index("prepare")
        before, after = trials.loc[one], trials.loc[other]
        gap = _gap(answers, after.trial, before.trial)
        record = {"select": spec, **dict(zip(("gain", "gain_low", "gain_high"), gap, strict=True))}
        for name, side in (("one", before), ("other", after)):
            record |= {name: side.em, f"{name}_low": side.em_low, f"{name}_high": side.em_high}
        records.append(record)
    return records


def by_neighbours(swept: pd.DataFrame, selectors: Sequence[str], ratio: float = 0.15, metric: str = "em") -> Rows:
    """Return a point {name, at, mean, low, high} for every number of neighbours; number 0 is `after_system`."""
    block = swept[(swept["mode"] == "block") & (swept.kind == "all")]
    numbers = {"after_system": 0}
    for spec in block.prepare.unique():
        name, options = registry.parse(spec)
        if name == "with_neighbours":
            numbers[spec] = int(options.get("n", 10))
    counted = block[block.prepare.isin(list(numbers))]
    counted = counted.assign(at=counted.prepare.map(numbers)).sort_values("at")
    measure = measure_of(metric, swept)
    found: Rows = []
    for selector in selectors:
        of_ratio = (counted.ratio == ratio) | (selector == "none")
        found += points_of(counted[(counted["select"] == selector) & of_ratio], selector, "at", measure)
    return found

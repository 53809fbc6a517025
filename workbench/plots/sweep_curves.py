"""Scores of a sweep against ratio, preparation, operations and time, and paired differences between its trials.

A table of a sweep (`swept`) has a row a trial and kind of question; `answers` has a row a question.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from workbench.plots import sweep_findings
from workbench.plots.findings import joined, sentence
from workbench.plots.line_styles import selector_looks
from workbench.plots.lines import profile, profiles
from workbench.plots.measures import measure_of
from workbench.plots.sweep_records import (
    PREPARE,
    RATIO,
    against,
    by_neighbours,
    by_preparation,
    curves,
    levels,
    points_of,
)

__all__ = ["PREPARE", "RATIO", "against", "by_neighbours", "by_preparation", "curves", "levels"]

Records = Sequence[Mapping[str, Any]]
QUOTED = ("query_guided", "kv_deviation", "inter_attention", "answer_guided")


def asked(swept: pd.DataFrame) -> str:
    """Return how many questions a sweep asked, and their seed, for captions."""
    return f"n = {int(swept.n.max()):,}, seed {int(swept.seed.iloc[0]):,}"


def told(swept: pd.DataFrame) -> str:
    """Return which model answered which data, for captions."""
    models, sources = (", ".join(Path(name).name for name in swept[column].unique()) for column in ("model", "data"))
    return f"{models} on {'the lab corpus' if sources == 'lab' else sources}"


def quality_by_ratio(
    swept: pd.DataFrame, selectors: Sequence[str], kinds: Sequence[str], metric: str = "em"
) -> go.Figure:
    """Draw a score against the ratio, a line a selector, a panel a kind of question; "all" is the first kind."""
    measure = measure_of(metric, swept)
    level = levels(swept, metric)
    across = "share of document tokens recomputed"
    panels = []
    for kind in kinds:
        count = int(swept[swept.kind == kind].n.max())
        title = f"{kind}, n = {count:,} (full attention {measure.say(level['full', kind], 0)})"
        drawn = curves(swept, selectors, PREPARE, kind, metric=metric)
        up = measure.axis if kind == "all" else ""
        panels.append(profile(title, drawn, across, up, percent=measure.percent, percent_x=True))
    tried = [spec for spec in QUOTED if ((swept["select"] == spec) & (swept.ratio == RATIO)).any()]
    quoted = [curves(swept, [spec], PREPARE, only=RATIO, metric=metric)[0] for spec in tried]
    scores = {point["name"].split(" (")[0]: measure.say(point["mean"]) for point in quoted}
    return profiles(
        panels,
        title="What a ratio buys",
        notice=f"At {RATIO:.0%}: {', '.join(f'{name} {score}' for name, score in scores.items())}; Full Reuse "
        f"{measure.say(level['none', 'all'])}, full attention {measure.say(level['full', 'all'])}.",
        caption=f"{told(swept)}, passages cached behind the system prompt, {asked(swept)}; bands: 95% intervals "
        f"({measure.interval}).",
        lines=2,
        share=True,
        zero=False,
        **selector_looks(selectors),
    )


def number_of_neighbours(swept: pd.DataFrame, selectors: Sequence[str], metric: str = "em") -> go.Figure:
    """Draw a score against the number of neighbours that passages are prepared with, a line a selector."""
    measure = measure_of(metric, swept)
    drawn = by_neighbours(swept, selectors, RATIO, metric)
    shares: dict[str, list[str]] = {}
    for r in drawn:
        shares.setdefault(r["name"], []).append(f"{measure.say(r['mean'])} at {r['at']}")
    by_selector = sentence("; ".join(f"{name} {joined(at)}" for name, at in shares.items()))
    across = "neighbours a passage is prepared with (n)"
    return profiles(
        [profile(f"{measure.words}, all kinds", drawn, across, measure.axis, percent=measure.percent)],
        title="Number of neighbours (figure 17)",
        notice=f"n = 0 is preparation behind nothing but the system prompt. {by_selector}",
        caption=f"{told(swept)}, ratio {RATIO:.0%} where tokens are recomputed, {asked(swept)}; 95% intervals.",
        **selector_looks(selectors),
    )


def quality_by_operations(swept: pd.DataFrame, selectors: Sequence[str], metric: str = "em") -> go.Figure:
    """Draw a score against operations to the first token, a line a selector."""
    measure = measure_of(metric, swept)
    full = float(swept[swept["mode"] == "full"].flops.iloc[0])
    drawn = [{**r, "at": r["at"] / full} for r in curves(swept, selectors, PREPARE, x="flops", metric=metric)]
    across = "operations to the first token, as a share of full attention"
    return profiles(
        [profile("all kinds", drawn, across, measure.axis, percent=measure.percent, percent_x=True)],
        title="Quality against operations",
        notice=f"Full attention takes {full:.1e} operations. {sweep_findings.first_costs(drawn)}",
        caption=f"{told(swept)}, passages cached behind the system prompt, {asked(swept)}; operations counted from the "
        f"rows of every pass, selection included, blocks in the store. 95% intervals ({measure.interval}).",
        lines=2,
        zero=False,
        **selector_looks(selectors),
    )


def quality_by_time(
    partly: pd.DataFrame, full: pd.DataFrame, *, ratios: Sequence[float], name: str, about: str, metric: str = "em"
) -> go.Figure:
    """Draw a score against time to the first token of a sweep over selectors (`partly`) and of full attention."""
    measure = measure_of(metric, partly)
    trials = partly[partly.kind == "all"].sort_values("rows_computed")
    (whole,) = (full := full[full.kind == "all"].assign(select="all")).itertuples()
    timed = pd.concat([trials, full])
    timed = timed.assign(ms=timed.ttft_p50 * 1e3)
    drawn = [
        point for _, row in timed.iterrows() for point in points_of(row.to_frame().T, row["select"], "ms", measure)
    ]
    return profiles(
        [profile(name, drawn, "time to first token (ms)", measure.axis, percent=measure.percent)],
        title="Quality against time, measured here",
        notice=f"Full attention: {measure.say(getattr(whole, metric), 0)} in {whole.ttft_p50 * 1e3:.0f} ms. "
        "Points of a line are ratios "
        f"{', '.join(f'{ratio:.0%}' for ratio in ratios)}.",
        caption=f"{about}; 95% intervals ({measure.interval}); time is a median, one request at a time, blocks in "
        "memory, selection included.",
        **selector_looks([*dict.fromkeys(trials["select"]), "all"]),
    )

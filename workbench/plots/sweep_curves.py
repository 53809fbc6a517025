"""Scores of a sweep against ratio, preparation, operations and time, and paired differences between its trials.

A table of a sweep (`swept`) has a row a trial and kind of question; `answers` has a row a question.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from workbench.core import renamed
from workbench.core.errors import BadInput
from workbench.experiments.results import today
from workbench.methods import registry
from workbench.metrics.answers import bootstrap, normalised
from workbench.plots.lines import profile, profiles
from workbench.plots.looks import SELECTORS, selector_looks
from workbench.plots.measures import Measure, measure_of, points
from workbench.plots.table import scored, table

Rows = list[dict[str, Any]]
Records = Sequence[Mapping[str, Any]]
PREPARE = "after_system"  # how passages were cached, where no preparation is said
QUOTED = ("query_guided", "kv_deviation", "inter_attention", "answer_guided")
RATIO = 0.15  # of the tokens that are recomputed, where no ratio is said


def levels(swept: pd.DataFrame, metric: str = "em") -> dict[tuple[str, str], float]:
    """Return the score of full attention ("full") and Full Reuse ("none") by kind of question."""
    swept = today(swept)
    full = swept[swept["mode"] == "full"]
    reuse = swept[(swept["mode"] == "block") & (swept.prepare == "after_system") & (swept["select"] == "none")]
    sides = {"full": full, "none": reuse}
    return {(name, r["kind"]): r[metric] for name, rows in sides.items() for r in rows.to_dict("records")}


def _points(trials: pd.DataFrame, selector: str, x: str, measure: Measure) -> Rows:
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

    Against the ratio a selector that was not tried at 1 ends at `all`: it would choose every token.

    x        what `at` is: the ratio, or a column of the table, as `flops`
    only     this ratio alone
    metric   the score, of `plots.measures`
    Raises BadInput where the table has no such trial or no such score.
    """
    measure = measure_of(metric, swept)
    prepare = renamed.spec(prepare)
    swept = today(swept)
    block = swept[(swept["mode"] == "block") & (swept.prepare == prepare) & (swept.kind == kind)]
    reuse = block[block["select"] == "none"].assign(ratio=0.0)
    found: Rows = []
    everything = block[block["select"] == "all"].assign(ratio=1.0) if x == "ratio" else block[:0]
    for spec in selectors:
        trials = block[(block["select"] == spec) & (block["select"] != "none")].sort_values("ratio")
        if only is None:
            ends = len(trials) and trials.ratio.max() < 1
            trials = pd.concat([reuse, trials, everything] if ends else [reuse, trials])
        else:
            trials = reuse if spec == "none" else trials[trials.ratio == only]
        if not len(trials):
            raise BadInput(f"the table has no trial of {spec!r} on passages cached {prepare!r}, kind {kind!r}")
        found += _points(trials, spec, x, measure)
    return found


def against(swept: pd.DataFrame, answers: pd.DataFrame, other: str, prepare: str, ratio: float) -> Rows:
    """Compare every selector at `ratio` with selector `other` on the same questions, the best first.

    {select, em, normalised F1 with its interval, difference in exact match to `other` with its interval}; `answers` has
    a row a question and columns "em TRIAL" and "f1 TRIAL".
    """
    of_kind = today(swept)[swept.kind == "all"]
    block = of_kind[(of_kind["mode"] == "block") & (of_kind.prepare == renamed.spec(prepare))]
    at = block[(block.ratio == ratio) & (block["select"] != "none")].set_index("select")
    full = of_kind[of_kind["mode"] == "full"].trial.iloc[0]
    reuse = block[block["select"] == "none"].trial.iloc[0]
    records = []
    for spec, row in at.iterrows():
        record = {"select": spec, "em": row.em}
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
    block = today(swept)[(swept["mode"] == "block") & (swept.kind == "all")]
    records = []
    for spec in selectors:
        trials = block[(block["select"] == spec) & ((block.ratio == ratio) | (spec == "none"))].set_index("prepare")
        before, after = trials.loc[renamed.spec(one)], trials.loc[renamed.spec(other)]
        gap = _gap(answers, after.trial, before.trial)
        record = {"select": spec, **dict(zip(("gain", "gain_low", "gain_high"), gap, strict=True))}
        for name, side in (("one", before), ("other", after)):
            record |= {name: side.em, f"{name}_low": side.em_low, f"{name}_high": side.em_high}
        records.append(record)
    return records


def by_neighbours(swept: pd.DataFrame, selectors: Sequence[str], ratio: float = 0.15, metric: str = "em") -> Rows:
    """Return a point {name, at, mean, low, high} for every number of neighbours; number 0 is `after_system`."""
    block = today(swept)[(swept["mode"] == "block") & (swept.kind == "all")]
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
        found += _points(counted[(counted["select"] == selector) & of_ratio], selector, "at", measure)
    return found


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
        title = f"{kind} (full attention {measure.say(level['full', kind], 0)})"
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


def _gained(r: Mapping[str, Any], name: str) -> list[str]:
    """Return a difference in points and its interval, as cells of a table."""
    return [f"{r[name] * 100:+.1f} points", f"{r[f'{name}_low'] * 100:+.1f} to {r[f'{name}_high'] * 100:+.1f}"]


def selectors_at(swept: pd.DataFrame, rows: Records) -> go.Figure:
    """Draw all selectors at one ratio beside FusionRAG's: `rows` as of `sweep_curves.against`, the best first."""
    best = rows[0]
    cells = []
    for r in rows:
        scores = [f"{r['normalised']:.2f}", f"{r['normalised_low']:.2f} to {r['normalised_high']:.2f}"]
        cells.append([SELECTORS.name_of(r["select"]), f"{r['em']:.1%}", *scores, *_gained(r, "difference")])
    return table(
        ["selector", "exact match", "normalised F1", "95% interval", "to FusionRAG's", "95% interval"],
        cells,
        widths=[2.9, 1, 1.1, 1.2, 1.2, 1.3],
        title=f"Selectors at a ratio of {RATIO:.0%}",
        notice=f"{SELECTORS.name_of(best['select'])} recovers {best['normalised']:.0%} of what reuse loses. Normalised "
        "F1 is 0 for Full Reuse and 1 for full attention (FusionRAG, section 5).",
        caption=f"lab-full, passages cached behind the system prompt, {asked(swept)}; bootstrap by question, 2,000 "
        "resamples.",
    )


def kinds_at(swept: pd.DataFrame, selectors: Sequence[str]) -> go.Figure:
    """Draw exact match by kind of question: full attention, Full Reuse, and all `selectors` at one ratio."""
    swept = today(swept)
    block = swept[(swept["mode"] == "block") & (swept.prepare == PREPARE)]
    trials = {"full attention": swept[swept["mode"] == "full"], "Full Reuse": block[block["select"] == "none"]}
    for spec in selectors:
        trials[SELECTORS.name_of(spec)] = block[(block["select"] == spec) & (block.ratio == RATIO)]
    kinds = [kind for kind in dict.fromkeys(swept.kind) if kind != "all"]
    rows = []
    for name, trial in trials.items():
        scores = trial.drop_duplicates("kind").set_index("kind").loc[kinds]
        rows.append([name, *(scored(s, form=".0%") for s in scores.to_dict("records"))])
    return table(
        [f"at {RATIO:.0%}", *kinds],
        rows,
        widths=[2.4, *[1.6] * len(kinds)],
        title="By kind of question",
        notice="Single-hop questions lose nothing by reuse and gain nothing by recomputing. A continuation is repaired "
        "by recomputing its passage with the one before in sight. For order, what counts is where a passage stands.",
        caption=f"Exact match, 95% intervals (Wilson), passages cached behind the system prompt, {asked(swept)}.",
    )


def preparations(swept: pd.DataFrame, pairs: Records, neighbours: int) -> go.Figure:
    """Draw every selector on passages of two preparations: `pairs` as of `sweep_curves.by_preparation`."""
    gain = {r["select"]: r["gain"] * 100 for r in pairs}
    rows = []
    for r in pairs:
        scores = (scored(r, side) for side in ("one", "other"))
        rows.append([SELECTORS.name_of(r["select"]), *scores, *_gained(r, "gain")])
    return table(
        [f"selector at {RATIO:.0%}", PREPARE, f"with_neighbours, n = {neighbours}", "difference", "95% interval"],
        rows,
        widths=[2.6, 1.6, 1.9, 1.1, 1.2],
        title="Preparation and selection (figure 16)",
        notice=f"Preparation changes reuse without recomputation by {gain['none']:+.1f} points and question-guided "
        f"recomputation by {gain['query_guided']:+.1f}. The paper finds a gain for every selector; the next "
        "figure says why not here.",
        caption=f"Exact match over all kinds, {asked(swept)}; 95% intervals: Wilson, differences by paired bootstrap. "
        "Neighbours by TF-IDF from all passages of all worlds.",
    )


def number_of_neighbours(swept: pd.DataFrame, selectors: Sequence[str], metric: str = "em") -> go.Figure:
    """Draw a score against the number of neighbours that passages are prepared with, a line a selector."""
    measure = measure_of(metric, swept)
    drawn = by_neighbours(swept, selectors, RATIO, metric)
    shares: dict[str, list[str]] = {}
    for r in drawn:
        shares.setdefault(r["name"], []).append(f"{measure.say(r['mean'])} at {r['at']}")
    by_selector = "; ".join(f"{name}: {', '.join(at)}" for name, at in shares.items())
    across = "neighbours a passage is prepared with (n)"
    return profiles(
        [profile(f"{measure.words}, all kinds", drawn, across, measure.axis, percent=measure.percent)],
        title="Number of neighbours (figure 17)",
        notice=f"n = 0 is preparation behind nothing but the system prompt. {by_selector}",
        caption=f"{told(swept)}, ratio {RATIO:.0%} where tokens are recomputed, {asked(swept)}; 95% intervals.",
        **selector_looks(selectors),
    )


def antecedents_table(found: Mapping[int, tuple[int, int]], *, passages: int, seed: int) -> go.Figure:
    """Draw how often similarity finds an antecedent: `found` neighbours → (found, all) of `selection.antecedents`."""
    return table(
        ["neighbours (n)", "continued passages", "with their antecedent among the neighbours"],
        [[str(count), str(every), f"{hits} ({hits / every:.0%})"] for count, (hits, every) in found.items()],
        widths=[1, 1.2, 2],
        words=0,
        title="Does similarity find what is missing?",
        notice="A passage that says “She …” is most like other passages that say “She …”. In the paper's data sets, "
        "alike passages are about the same thing; here they are about somebody else.",
        caption=f"TF-IDF over {passages:,} passages of lab worlds, seed {seed:,}; each continued passage counted once.",
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
        notice=f"Full attention takes {full:.1e} operations. Selectors that look at the whole context first begin far "
        "to the right.",
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
    drawn = [point for _, row in timed.iterrows() for point in _points(row.to_frame().T, row["select"], "ms", measure)]
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


def components(trials: pd.DataFrame, similar: str, *, about: str) -> go.Figure:
    """Draw what preparation by `similar` and question-guided recomputation cost and bring, each and together."""
    names = {
        (PREPARE, "none"): "Full Reuse",
        (similar, "none"): "+ similarity-guided preparation",
        (PREPARE, "query_guided"): f"+ question-guided recomputation, {RATIO:.0%}",
        (similar, "query_guided"): "+ both (FusionRAG)",
    }
    by_component = {(r.prepare, r.select): r for r in trials[trials.kind == "all"].itertuples()}
    rows = []
    for component, name in names.items():
        r = by_component[component]
        interval, ms = f"{r.em_low:.0%} to {r.em_high:.0%}", f"{r.ttft_p50 * 1e3:.1f}"
        rows.append([name, f"{r.em:.0%}", interval, f"{r.rows_computed:.0f}", ms])
    return table(
        ["component", "exact match", "95% interval", "tokens computed", "time to first token (ms)"],
        rows,
        widths=[2.6, 1, 1.3, 1.3, 1.7],
        title="What each component costs and brings (figure 18)",
        notice="Preparation is paid offline and costs nothing at request time; recomputation is paid in every request.",
        caption=f"{about}, {similar}; time is a median, blocks in memory.",
    )

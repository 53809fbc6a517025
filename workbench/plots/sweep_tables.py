"""Tables of a sweep: selectors at one ratio, kinds of question, preparations, and what each component costs.

`swept` has a row a trial and kind of question; `answers` has a row a question.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from workbench.plots import sweep_findings
from workbench.plots.reuse_findings import by_kind, lost, multi_hop
from workbench.plots.styles import SELECTORS
from workbench.plots.sweep_curves import Records, asked
from workbench.plots.sweep_records import (
    PREPARE,
    RATIO,
)
from workbench.plots.table import scored, table


def _gained(r: Mapping[str, Any], name: str) -> list[str]:
    """Return a difference in points and its interval, as cells of a table."""
    return [f"{r[name] * 100:+z.1f} points", f"{r[f'{name}_low'] * 100:+z.1f} to {r[f'{name}_high'] * 100:+z.1f}"]


def selectors_at(swept: pd.DataFrame, rows: Records) -> go.Figure:
    """Draw all selectors at one ratio beside FusionRAG's: `rows` as of `sweep_curves.against`, the best first."""
    best = rows[0]
    cells = []
    for r in rows:
        scores = [f"{r['normalised']:.2f}", f"{r['normalised_low']:.2f} to {r['normalised_high']:.2f}"]
        own = f", its own {r['share']:.0%}" if r.get("own") else ""
        cells.append([SELECTORS.name_of(r["select"]) + own, f"{r['em']:.1%}", *scores, *_gained(r, "difference")])
    return table(
        ["selector", "exact match", "normalised F1", "95% interval", "to FusionRAG's", "95% interval"],
        cells,
        widths=[2.9, 1, 1.1, 1.2, 1.2, 1.3],
        title=f"Selectors at a ratio of {RATIO:.0%}",
        notice=f"{SELECTORS.name_of(best['select'])} recovers {best['normalised']:.0%} of what reuse loses (normalised "
        f"F1: 0 for Full Reuse, 1 for full attention). {sweep_findings.by_position(rows)}",
        caption=f"lab-full, passages cached behind the system prompt, {asked(swept)}; bootstrap by question, 2,000 "
        "resamples.",
    )


def kinds_at(
    swept: pd.DataFrame, selectors: Sequence[str], answers: pd.DataFrame | None = None, asked_kinds: Sequence[str] = ()
) -> go.Figure:
    """Draw exact match by kind of question: full attention, Full Reuse, and all `selectors` at one ratio.

    `answers` has a row a question, whose kinds are `asked_kinds`: with both, the notice compares question by question.
    """
    block = swept[(swept["mode"] == "block") & (swept.prepare == PREPARE)]
    trials = {"full attention": swept[swept["mode"] == "full"], "Full Reuse": block[block["select"] == "none"]}
    for spec in selectors:
        own = block.ratio.isna() & (spec == "cache_craft")
        trials[SELECTORS.name_of(spec)] = block[(block["select"] == spec) & ((block.ratio == RATIO) | own)]
    kinds = [kind for kind in dict.fromkeys(swept.kind) if kind != "all"]
    rows = []
    for name, trial in trials.items():
        scores = trial.drop_duplicates("kind").set_index("kind").loc[kinds]
        rows.append([name, *(scored(s, form=".0%") for s in scores.to_dict("records"))])
    counts = swept.groupby("kind").n.max()
    return table(
        [f"at {RATIO:.0%}", *(f"{kind} (n = {int(counts[kind]):,})" for kind in kinds)],
        rows,
        widths=[2.4, *[1.6] * len(kinds)],
        title="By kind of question",
        notice=_lost_by_kind(trials, answers, asked_kinds),
        caption=f"Exact match, 95% intervals (Wilson), passages cached behind the system prompt, {asked(swept)}.",
    )


def _lost_by_kind(trials: Mapping[str, pd.DataFrame], answers: pd.DataFrame | None, asked_kinds: Sequence[str]) -> str:
    """Return what Full Reuse loses by kind of question, paired where `answers` are known."""
    if answers is None or not len(asked_kinds):
        return "By kind of question, at one ratio; the first two rows recompute everything and nothing."
    right = {name: answers[f"em {trials[name].trial.iloc[0]}"] for name in ("Full Reuse", "full attention")}
    gaps = by_kind(right["Full Reuse"], right["full attention"], asked_kinds)
    return f"{lost(gaps, 'Full Reuse')} {multi_hop(gaps, 'Full Reuse')}"


def preparations(swept: pd.DataFrame, pairs: Records, neighbours: int) -> go.Figure:
    """Draw every selector on passages of two preparations: `pairs` as of `sweep_curves.by_preparation`."""
    rows = []
    for r in pairs:
        scores = (scored(r, side) for side in ("one", "other"))
        rows.append([SELECTORS.name_of(r["select"]), *scores, *_gained(r, "gain")])
    return table(
        [f"selector at {RATIO:.0%}", PREPARE, f"with_neighbours, n = {neighbours}", "difference", "95% interval"],
        rows,
        widths=[2.6, 1.6, 1.9, 1.1, 1.2],
        title="Preparation and selection (figure 16)",
        notice=sweep_findings.preparation(pairs),
        caption=f"Exact match over all kinds, {asked(swept)}; 95% intervals: Wilson, differences by paired bootstrap. "
        "Neighbours by TF-IDF from all passages of all worlds.",
    )


def antecedents_table(found: Mapping[int, tuple[int, int]], *, passages: int, seed: int) -> go.Figure:
    """Draw how often similarity finds an antecedent: `found` neighbours → (found, all) of `selection.antecedents`."""
    return table(
        ["neighbours (n)", "continued passages", "with their antecedent among the neighbours"],
        [[str(count), str(every), f"{hits} ({hits / every:.0%})"] for count, (hits, every) in found.items()],
        widths=[1, 1.2, 2],
        words=0,
        title="Does similarity find what is missing?",
        notice=sweep_findings.found_antecedents(found),
        caption=f"TF-IDF over {passages:,} passages of lab worlds, seed {seed:,}; each continued passage counted once.",
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
    paid = {
        key: {"em": by_component[component].em, "rows": by_component[component].rows_computed}
        for key, component in zip(("none", "prepared", "again", "both"), names, strict=True)
    }
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
        notice=sweep_findings.component_rows(paid),
        caption=f"{about}, {similar}; time is a median, blocks in memory.",
    )

"""Ratios of a real pretrained model's selectors over both preparations, by kind of question, and another embedder.

Papers and the lab model are asked at every ratio whether one method is better than another.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from workbench.methods import registry
from workbench.metrics.paired import Difference
from workbench.plots.findings import joined
from workbench.plots.line_styles import selector_looks
from workbench.plots.lines import profile, profiles
from workbench.plots.real_beside_lab import Choice, Lab
from workbench.plots.real_choices import tried
from workbench.plots.real_findings import SYSTEM, said, spread, verdict
from workbench.plots.real_model import LOSSES, SHORT, TEN
from workbench.plots.real_results import Real
from workbench.plots.styles import SELECTORS
from workbench.plots.sweep_curves import curves
from workbench.plots.table import table
from workbench.plots.theme import BLUE, GREEN, MUTED, ORANGE

BLEND, GUIDED, FUSION = (SYSTEM, "kv_deviation"), (SYSTEM, "query_guided"), (TEN, "query_guided")
LINES = {  # name → preparation and selector, colour, symbol
    "random": ((SYSTEM, "random"), MUTED, "circle-open"),
    "CacheBlend": (BLEND, ORANGE, "square"),
    "question-guided": (GUIDED, BLUE, "diamond-open"),
    "answer-guided": ((SYSTEM, "answer_guided"), GREEN, "star-open"),
    "10 neighbours + question-guided (FusionRAG)": (FUSION, BLUE, "diamond"),
    "10 neighbours + answer-guided": ((TEN, "answer_guided"), GREEN, "star"),
}
SHOWN = ("random", "first_k", "kv_deviation", "query_guided", "answer_guided", "inter_attention")  # by kind
ASKED = (  # one method over another, and who says so
    ("FusionRAG over CacheBlend", FUSION, BLEND, "FusionRAG's figure 13"),
    ("question-guided over CacheBlend, neither prepared", GUIDED, BLEND, "FusionRAG's section 3.2"),
    ("CacheBlend over random", BLEND, (SYSTEM, "random"), "CacheBlend"),
    ("preparation lifts question-guided", FUSION, GUIDED, "FusionRAG's figure 16"),
)


def prepared_by_ratio(real: Real, lab: Lab) -> go.Figure:
    """Draw both losses against the ratio, over passages behind the system prompt and behind ten neighbours."""
    rows = real.rows()
    pairs = set(zip(rows.prepare, rows["select"], strict=True))
    drawn = {name: look for name, look in LINES.items() if look[0] in pairs}
    panels = []
    for measure in LOSSES:
        points: list[dict[str, Any]] = []
        for name, ((prepare, select), *_) in drawn.items():
            points += [point | {"name": name} for point in curves(rows, [select], prepare, metric=measure)]
        panels.append(profile(SHORT[measure], points, "share of tokens recomputed", "nats a token", percent_x=True))
    return profiles(
        panels,
        title="Preparation and selection by ratio (FusionRAG, figures 13 and 16)",
        notice=" ".join(claim_sentence(real, lab, *claim) for claim in ASKED),
        caption=f"{real.about()}. Open marks: passages behind the system prompt; ratio 0: nothing recomputed. Bands: "
        f"bootstrap 95% intervals. {lab.about()}.",
        lines=3,
        zero=False,
        colours={name: colour for name, (_, colour, _) in drawn.items()},
        symbols={name: symbol for name, (*_, symbol) in drawn.items()},
    )


def gaps(real: Real, better: Choice, worse: Choice, measure: str = "kl") -> dict[float, Difference]:
    """Return by how much a method's loss is above another's, at every ratio that both were measured at."""
    trials = [real.by_ratio(*choice) for choice in (better, worse)]
    return {at: real.gap(trials[0][at], trials[1][at], measure) for at in sorted(trials[0].keys() & trials[1].keys())}


def claim_sentence(real: Real, lab: Lab, words: str, better: Choice, worse: Choice, source: str) -> str:
    """Say at which ratios a method is better than another on both models, and whether its source is borne out."""
    ours = {at: verdict(gap) for at, gap in gaps(real, better, worse).items()}
    if not ours:
        return ""
    yes, no = ([at for at, told in ours.items() if told == side] for side in ("better", "worse"))
    told = f"{words[0].upper()}{words[1:]} by KL at {len(yes)} of {len(ours)} ratios"
    if no:
        told += f", the other way at {_listed(no)}"
    agrees = "as {} has it" if len(yes) == len(ours) else "which contradicts {}" if no else "in part as {} has it"
    theirs = {at: verdict(gap) for at, gap in lab.gaps(better, worse).items() if at in ours}
    also = sum(side == "better" for side in theirs.values())
    beside = f" (lab model: at {also} of {len(theirs)})" if theirs else ""
    return f"{told}{beside}, {agrees.format(source)}."


def _listed(ratios: Sequence[float]) -> str:
    return joined([f"{ratio:.0%}" for ratio in ratios])


def by_ratio_and_kind(real: Real) -> go.Figure:
    """Draw KL against the ratio, a line a selector, a panel a kind of question."""
    selectors = [select for select in tried(real) if select in SHOWN]
    panels = []
    for kind in real.kinds:
        rows = real.rows(kind)
        title = f"{kind}, n = {rows.n.iloc[0]:,}"
        points = curves(rows, selectors, SYSTEM, kind, metric="kl")
        panels.append(profile(title, points, "share of tokens recomputed", "KL, nats a token", percent_x=True))
    return profiles(
        panels,
        title=f"What a ratio buys by kind of question, {real.data}",
        notice=kinds_by_ratio_sentence(real, selectors),
        caption=f"{real.about()}. Passages behind the system prompt. Bands: bootstrap 95% intervals.",
        lines=2,
        share=True,
        zero=False,
        **selector_looks(selectors),
    )


def kinds_by_ratio_sentence(real: Real, selectors: Sequence[str]) -> str:
    """Name the selector with the least KL at every ratio, by kind of question."""
    words = []
    for kind in real.kinds:
        rows = real.rows(kind)
        chosen = rows[(rows.prepare == SYSTEM) & rows["select"].isin(list(selectors)) & rows.ratio.notna()]
        least = chosen.loc[chosen.groupby("ratio").kl.idxmin()]
        names = least["select"].map(SELECTORS.name_of)
        counted = [f"{name} at {_listed(least.ratio[names == name])}" for name in dict.fromkeys(names)]
        words.append(f"{kind}: {', '.join(counted)}")
    return f"Least KL. {'. '.join(words)}."


def with_embedders(sets: Sequence[Real]) -> list[Real]:
    """Return the data sets on which neighbours by MiniLM were measured."""
    return [real for real in sets if embedded(real)]


def embedded(real: Real) -> dict[int, tuple[str, str]]:
    """Return the methods behind neighbours by MiniLM and by TF-IDF, by the number of neighbours."""
    plain = real.rows()
    plain = plain[(plain["mode"] == "block") & (plain["select"] == "none") & plain.prepare.str.contains("neighbours")]
    sides: dict[bool, dict[int, str]] = {True: {}, False: {}}
    for prepare, trial in zip(plain.prepare, plain.trial, strict=True):
        options = registry.parse(prepare)[1]
        sides[options.get("embedder") == "minilm"][int(options.get("n", 10))] = trial
    return {n: (trial, sides[False][n]) for n, trial in sorted(sides[True].items()) if n in sides[False]}


def embedders_table(sets: Sequence[Real]) -> go.Figure:
    """Draw preparation by MiniLM's neighbours beside TF-IDF's: both losses and their differences."""
    rows = []
    for real in sets:
        for n, (minilm, tfidf) in embedded(real).items():
            cells = [f"{real.data}, n = {real.rows().n.max():,}", str(n)]
            for measure in LOSSES:
                cells += [said(real.score(trial, measure)["mean"]) for trial in (tfidf, minilm)]
                cells.append(spread(real.gap(minilm, tfidf, measure)))
            rows.append(cells)
    return table(
        ["data", "neighbours", "KL, TF-IDF", "MiniLM", "difference", "likelihood lost, TF-IDF", "MiniLM", "difference"],
        rows,
        widths=[1.5, 1, 0.8, 0.8, 1.8, 1.2, 0.8, 1.8],
        title="Neighbours by meaning and by words",
        notice=embedders_sentence(sets),
        caption=f"{sets[0].about()}. Nothing recomputed. Differences: MiniLM less TF-IDF, with paired bootstrap 95% "
        "intervals.",
    )


def embedders_sentence(sets: Sequence[Real]) -> str:
    """Count where neighbours by MiniLM are better than by TF-IDF, worse, or not told apart."""
    words = []
    for measure, called in (("kl", "KL"), ("nll_extra", "likelihood lost")):
        told = [verdict(real.gap(*pair, measure)) for real in sets for pair in embedded(real).values()]
        counts: Mapping[str, int] = {side: told.count(side) for side in ("better", "worse", "not told apart")}
        listed = ", ".join(f"{side} in {count}" for side, count in counts.items() if count)
        words.append(f"by {called} {listed} of {len(told)}")
    return f"Neighbours by MiniLM beside TF-IDF's: {'; '.join(words)}."

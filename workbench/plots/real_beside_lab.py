"""The lab model beside a real one: the same methods, their order on each, and what papers claim of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd
import plotly.graph_objects as go
from scipy.stats import spearmanr

from workbench.experiments import results
from workbench.metrics.paired import Difference, difference
from workbench.plots.dots import Column, dots
from workbench.plots.real_findings import SYSTEM, name_of, spread, verdict
from workbench.plots.real_model import FAMILIES, SHORT, TEN, family
from workbench.plots.real_results import RATIO, Real
from workbench.plots.table import table

Choice = tuple[str, str]  # preparation, selector
REUSED, INDEPENDENT = (SYSTEM, "none"), ("independent", "none")
MARKS = {"better": "yes", "worse": "no", "not told apart": "open"}


@dataclass(frozen=True)
class Claim:
    """`better` is better than `worse`; `source` is the paper that says so, "" where none does."""

    words: str
    better: Choice
    worse: Choice
    source: str = ""


CLAIMS = (
    Claim("preparation lifts reuse", (TEN, "none"), (SYSTEM, "none"), "FusionRAG 18"),
    Claim("preparation lifts CacheBlend", (TEN, "kv_deviation"), (SYSTEM, "kv_deviation"), "FusionRAG 16"),
    Claim("preparation lifts question-guided", (TEN, "query_guided"), (SYSTEM, "query_guided"), "FusionRAG 18"),
    Claim("preparation lifts answer-guided", (TEN, "answer_guided"), (SYSTEM, "answer_guided")),
    Claim("prepared: question-guided over CacheBlend", (TEN, "query_guided"), (TEN, "kv_deviation"), "FusionRAG 16"),
    Claim("FusionRAG over CacheBlend", (TEN, "query_guided"), (SYSTEM, "kv_deviation"), "FusionRAG 13"),
    Claim("question-guided over CacheBlend", (SYSTEM, "query_guided"), (SYSTEM, "kv_deviation"), "FusionRAG 3.2"),
    Claim("question-guided: all layers over the last", (SYSTEM, "query_guided(layers=all)"), (SYSTEM, "query_guided")),
    Claim("answer-guided over question-guided", (SYSTEM, "answer_guided"), (SYSTEM, "query_guided")),
    Claim("CacheBlend over random", (SYSTEM, "kv_deviation"), (SYSTEM, "random"), "CacheBlend"),
    Claim("first tokens over random", (SYSTEM, "first_k"), (SYSTEM, "random")),
    Claim("behind the system prompt over blocks alone", REUSED, INDEPENDENT),
)


@dataclass(frozen=True, eq=False)
class Lab:
    """The lab model's sweep (`fusion`) and the scores of its questions."""

    swept: pd.DataFrame
    answers: pd.DataFrame

    @classmethod
    def read(cls) -> "Lab":
        """Read what ships."""
        return cls(results.table("fusion"), results.table("fusion-answers"))

    @cached_property
    def block(self) -> pd.DataFrame:
        """Its methods of reuse on all kinds of question, a row each."""
        return self.swept[(self.swept["mode"] == "block") & (self.swept.kind == "all")]

    def row(self, prepare: str, select: str) -> pd.Series | None:
        """Return the row of both choices; None where they were not tried together."""
        found = self.block[(self.block.prepare == prepare) & (self.block["select"] == select)]
        found = found[(select == "none") | (found.ratio == RATIO)]
        return found.iloc[0] if len(found) else None

    def gap(self, one: Choice, other: Choice) -> Difference | None:
        """Return by how much less often `one` is right, a loss as the real model's are; None where one lacks."""
        pair = [self.row(*choice) for choice in (one, other)]
        if any(row is None for row in pair):
            return None
        one_trial, other_trial = (row.trial for row in pair if row is not None)
        return self._gap(one_trial, other_trial)

    def gaps(self, one: Choice, other: Choice) -> dict[float, Difference]:
        """Return `gap` at every ratio at which both were tried."""
        trials = [self._by_ratio(*choice) for choice in (one, other)]
        shared = sorted(trials[0].keys() & trials[1].keys())
        return {at: self._gap(trials[0][at], trials[1][at]) for at in shared}

    def _by_ratio(self, prepare: str, select: str) -> dict[float, str]:
        found = self.block[(self.block.prepare == prepare) & (self.block["select"] == select)]
        return dict(zip(found.ratio, found.trial, strict=True))

    def _gap(self, one: str, other: str) -> Difference:
        first, second = (self.answers[f"em {trial}"].to_numpy(float) for trial in (one, other))
        return difference(1 - first, 1 - second)

    def about(self) -> str:
        """Say how it was measured, for captions."""
        row = self.block.iloc[0]
        return f"{row.model} on the lab corpus: exact match, n = {row.n:,}, seed {row.seed:,}, {row.passages} passages"


@dataclass(frozen=True)
class Held:
    """A claim with what both models say: differences of losses, below 0 where the claim holds."""

    claim: Claim
    lab: Difference
    kl: Difference
    likelihood: Difference


def held(real: Real, lab: Lab, claims: Sequence[Claim] = CLAIMS) -> list[Held]:
    """Return the claims that both models can be asked about."""
    answered = []
    for claim in claims:
        pair = [real.trial(*choice) for choice in (claim.better, claim.worse)]
        ours = lab.gap(claim.better, claim.worse)
        if ours is not None and pair[0] and pair[1]:
            one, other = pair[0], pair[1]
            answered.append(Held(claim, ours, real.gap(one, other), real.gap(one, other, "nll_extra")))
    return answered


def records(answered: Sequence[Held]) -> list[dict[str, Any]]:
    """Return the claims with both models' differences, for files; a loss of the lab is a share of wrong answers."""
    return [
        {"claim": each.claim.words, "source": each.claim.source}
        | {
            f"{name}{end}": getattr(gap, end.strip("_") or "mean")
            for name, gap in (("lab", each.lab), ("kl", each.kl), ("likelihood", each.likelihood))
            for end in ("", "_low", "_high")
        }
        for each in answered
    ]


def claims_table(real: Real, lab: Lab) -> go.Figure:
    """Draw what each model says of every claim, as differences question by question."""
    answered = held(real, lab)
    rows = []
    for each in answered:
        gaps = [_points(each.lab), spread(each.kl), spread(each.likelihood)]
        told = [MARKS[verdict(gap)] for gap in (each.lab, each.kl, each.likelihood)]
        cells = [f"{gap} {mark}" for gap, mark in zip(gaps, told, strict=True)]
        rows.append([each.claim.words, each.claim.source or "–", *cells])
    return table(
        ["claim", "paper", "lab: exact match, points", f"{real.model}: KL", f"{real.model}: likelihood lost"],
        rows,
        widths=[2.8, 1.05, 1.7, 1.75, 1.75],
        words=2,
        title="What holds on the lab model, and what on a real one",
        notice=claims_sentence(answered, real.model),
        caption=f"{lab.about()}. {real.about()}. Differences with paired bootstrap 95% intervals; yes: the interval "
        f"is on the claim's side, no: on the other, open: it holds 0. Numbers behind FusionRAG are figures and "
        f"sections; {RATIO:.0%} recomputed, 10 neighbours.",
    )


def _points(gap: Difference) -> str:
    """Write a difference in exact match in points: "+1.2 [0.3, 2.1]", above 0 where the first is right more often."""
    return f"{-gap.mean * 100:+z.1f} [{-gap.high * 100:.1f}, {-gap.low * 100:.1f}]"


def claims_sentence(answered: Sequence[Held], model: str) -> str:
    """Count the claims on which both models agree, and name those they differ on and papers that are contradicted."""
    told = [(each.claim, verdict(each.lab), verdict(each.kl)) for each in answered]
    alike = sum(lab == real for _, lab, real in told)
    words = [f"By KL, {model} says the same as the lab model of {alike} of {len(told)} claims."]
    differ = [f"{claim.words} (lab {MARKS[lab]}, real {MARKS[real]})" for claim, lab, real in told if lab != real]
    if differ:
        words.append(f"They differ on: {'; '.join(differ)}.")
    against = [f"{claim.words} ({claim.source})" for claim, _, real in told if claim.source and real == "worse"]
    if against:
        words.append(f"Against its paper on {model}: {'; '.join(against)}.")
    return " ".join(words)


def order(real: Real, lab: Lab) -> go.Figure:
    """Draw the same methods on the lab model, by exact match, and on the real one, by KL."""
    rows = real.rows()
    full = float(rows["rows"][rows["mode"] == "full"].iloc[0])
    block = rows[(rows["mode"] == "block") & (rows.positions != "naive")].sort_values("kl")
    ours, theirs = [], []
    for r in block.to_dict("records"):
        row = lab.row(r["prepare"], r["select"])
        if row is None or (r["select"] != "none" and r["ratio"] != RATIO and r["ratio"] == r["ratio"]):
            continue
        shared = {"name": name_of(r), "series": family(r, full)}
        ours.append(shared | {"mean": row.em, "low": row.em_low, "high": row.em_high})
        theirs.append(shared | {"mean": r["kl"], "low": r["kl_low"], "high": r["kl_high"]})
    whole = lab.swept[(lab.swept["mode"] == "full") & (lab.swept.kind == "all")].em.iloc[0]
    return dots(
        [
            Column(f"{real.model}: {SHORT['kl']}", "nats a token, lower is better", theirs, log=True),
            Column("lab-full: exact match", "share, higher is better", ours, percent=True, level=float(whole)),
        ],
        FAMILIES,
        lines=2,
        title="The same methods on both models",
        notice=order_sentence([r["mean"] for r in theirs], [1 - r["mean"] for r in ours]),
        caption=f"{real.about()}. {lab.about()}. Dotted: full attention. Bars: 95% intervals (bootstrap; Wilson's "
        "for exact match).",
    )


def order_sentence(real: Sequence[float], lab: Sequence[float]) -> str:
    """Say how alike the order of the methods is, from their losses on both models."""
    rank = float(spearmanr(real, lab).statistic)
    alike = "much alike" if rank > 0.7 else "alike in part" if rank > 0.3 else "not alike"
    return (
        f"The order of {len(real)} methods is {alike}: rank correlation {rank:.2f} (1: the same order, -1: reversed)."
    )

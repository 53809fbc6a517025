"""Block fine-tuning of a real model without labels: what it changes on questions it has not seen.

KL is from each model's own full attention; likelihood lost is that of the gold answer beside full attention of the
model before fine-tuning, so that both models are held to the same. Differences are taken question by question.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import mean

import pandas as pd
import plotly.graph_objects as go

from workbench.experiments import results
from workbench.metrics.paired import Difference, Explained, bits_explained, difference
from workbench.plots.dots import Column, dots
from workbench.plots.findings import joined
from workbench.plots.real_findings import name_of, said, spread
from workbench.plots.real_results import Real
from workbench.plots.styles import Look
from workbench.plots.table import table
from workbench.plots.theme import BLUE, MUTED

FULL, BLOCK, NAIVE = "full", "independent", "naive positions"
HEALED = "independent, answer_guided 15%"
KL_FALLS, GAP_CLOSES, FULL_LOSES = 1 / 2, 2 / 3, 0.02  # what block fine-tuning is asked for; nats a token
SIDES = {"before": Look(MUTED, "circle-open", name="before"), "after": Look(BLUE, "diamond", name="fine-tuned")}


@dataclass(frozen=True, eq=False)
class Pair:
    """One data set on which a model was measured before and after fine-tuning."""

    before: Real
    after: Real

    @cached_property
    def ids(self) -> pd.Index:
        """Questions that both models were asked."""
        return self.before.losses(FULL).index.intersection(self.after.losses(FULL).index)

    @cached_property
    def shared(self) -> list[str]:
        """Methods of both models, in the order of the table."""
        return [trial for trial in self.after.rows().trial if trial in set(self.before.rows().trial)]

    def losses(self, side: Real, trial: str, loss: str) -> list[float]:
        """Return the losses of a method of one model on the shared questions."""
        return side.losses(trial, loss).loc[self.ids].astype(float).tolist()

    def lost(self, side: Real, trial: str) -> Difference:
        """Return the likelihood of the gold answer that a method loses to full attention before fine-tuning."""
        return difference(self.losses(side, trial, "nll"), self.losses(self.before, FULL, "nll"))

    def kl(self, side: Real, trial: str) -> Difference:
        """Return the mean KL of a method with its interval."""
        losses = self.losses(side, trial, "kl")
        return difference(losses, [0.0] * len(losses))

    def kl_falls(self, trial: str = BLOCK) -> Explained:
        """Return the share of a method's KL that fine-tuning takes away."""
        after, before = (self.losses(side, trial, "kl") for side in (self.after, self.before))
        return bits_explained(after, before)

    def gap_closes(self, trial: str = BLOCK) -> Explained:
        """Return the share of a method's likelihood lost that fine-tuning wins back; above 1 it gains."""
        sides = ((self.after, trial), (self.before, trial), (self.before, FULL))
        after, before, full = (self.losses(side, name, "nll") for side, name in sides)
        return bits_explained(after, before, full)


def read(before: Real, tuned: str) -> list[Pair]:
    """Return the pairs of what ships; none where the model `tuned` was not measured."""
    return pairs(before, Real.read(tuned)) if tuned in set(results.table("real").model) else []


def pairs(before: Real, after: Real) -> list[Pair]:
    """Return every data set that both models were measured on, that of `before` first."""
    names = [before.data, *(name for name in before.data_sets if name != before.data)]
    return [Pair(before.on(name), after.on(name)) for name in names if name in after.data_sets]


def bar(low: float, mean: float, high: float, least: float) -> str:
    """Say whether a number is `least` at least: "held", "missed", or which way its mean lies where that is open."""
    if low >= least:
        return "held"
    if high < least:
        return "missed"
    return "held, interval beyond" if mean >= least else "missed, interval beyond"


def share_bar(share: Explained, least: float) -> str:
    """Say of a share whether it is `least` at least; "no gap" where there was nothing to close."""
    if share.share is None or share.low is None or share.high is None:
        return "no gap"
    return bar(share.low, share.share, share.high, least)


def full_bar(cost: Difference) -> str:
    """Say whether full attention loses `FULL_LOSES` at most."""
    return bar(-cost.high, -cost.mean, -cost.low, -FULL_LOSES)


def told_bars(pair: Pair) -> list[str]:
    """Return what is said of the three bars on one data set."""
    cost = pair.lost(pair.after, FULL)
    return [share_bar(pair.kl_falls(), KL_FALLS), share_bar(pair.gap_closes(), GAP_CLOSES), full_bar(cost)]


def bars_sentence(told: Mapping[str, Sequence[str]]) -> str:
    """Say of each bar on how many data sets it is held, and name the others; `told` data set → `told_bars`."""
    names = (
        f"block mode's KL falls by {KL_FALLS:.0%} at least",
        f"its likelihood lost by {GAP_CLOSES:.0%}",
        f"full attention loses {said(FULL_LOSES)} nats at most",
    )
    words = []
    for number, name in enumerate(names):
        others = [f"{data}: {each[number]}" for data, each in told.items() if each[number] != "held"]
        rest = f" ({'; '.join(others)})" if others else ""
        words.append(f"{name} on {len(told) - len(others)} of {len(told)} files{rest}")
    return f"Asked of it: {'; '.join(words)}."


def bars_table(measured: Sequence[Pair]) -> go.Figure:
    """Draw what fine-tuning changes of block mode and of full attention on every data set, beside what was asked."""
    rows, told = [], {}
    for pair in measured:
        told[pair.before.data] = verdicts = told_bars(pair)
        before, after = (said(pair.kl(side, BLOCK).mean) for side in (pair.before, pair.after))
        gaps = [said(pair.lost(side, BLOCK).mean) for side in (pair.before, pair.after)]
        shares = [_share(pair.kl_falls()), _share(pair.gap_closes())]
        cells = [f"{before} → {after}", f"−{shares[0]}", f"{gaps[0]} → {gaps[1]}", f"−{shares[1]}"]
        cells.append(spread(pair.lost(pair.after, FULL)))
        rows.append([f"{pair.before.data}, n = {len(pair.ids):,}", *cells])
        rows.append(["", "", verdicts[0], "", verdicts[1], verdicts[2]])
    head = ["data", "KL, block mode", "falls by", "likelihood lost, block", "falls by", "lost by full attention"]
    return table(
        head,
        rows,
        widths=[1.4, 1.2, 1.7, 1.5, 1.9, 1.9],
        title="What block fine-tuning without labels changes",
        notice=bars_sentence(told),
        caption=f"{_about(measured[0])} 95% intervals in brackets (bootstrap, paired by question). Over 100%: the gold "
        "answer is likelier in block mode than under full attention before.",
    )


def _share(share: Explained) -> str:
    if share.share is None or share.low is None or share.high is None:
        return "–"
    return f"{share.share:.0%} [{share.low * 100:.0f}, {share.high * 100:.0f}]"


def _about(pair: Pair) -> str:
    row = pair.after.rows().iloc[0]
    return (
        f"{pair.before.rows().note.iloc[0]} {pair.before.model} and {pair.after.model}, seed {row.seed:,}, "
        f"{row.passages} passages; {row.device}. KL is from each model's own full attention, likelihood lost beside "
        f"that of {pair.before.model}."
    )


def methods_before_and_after(pair: Pair) -> go.Figure:
    """Draw both losses of every method before and after fine-tuning."""
    rows = {row["trial"]: row for row in pair.after.rows().to_dict("records")}
    listed = sorted((t for t in pair.shared if t != FULL), key=lambda trial: pair.kl(pair.after, trial).mean)
    columns = []
    for title, gap, names in (
        ("KL from full attention", pair.kl, listed),
        ("likelihood lost", pair.lost, [*listed, FULL]),
    ):
        records = [
            {
                "name": name_of(rows[trial]),
                "series": series,
                "mean": gap_of.mean,
                "low": gap_of.low,
                "high": gap_of.high,
            }
            for trial in names
            for series, side in (("before", pair.before), ("after", pair.after))
            for gap_of in [gap(side, trial)]
        ]
        columns.append(Column(title, "nats a token, lower is better", records, level=0))
    return dots(
        columns,
        SIDES,
        spread=True,
        title=f"{len(listed)} methods before and after block fine-tuning",
        notice=together_sentence(pair),
        caption=f"{pair.before.data}, n = {len(pair.ids):,}. {_about(pair)} Bars: bootstrap 95% intervals.",
    )


def together_sentence(pair: Pair) -> str:
    """Say what fine-tuning with answer-guided recomputation gives beside either alone."""
    if HEALED not in pair.shared:
        return ""
    ours = pair.losses(pair.after, HEALED, "kl")
    beside = {
        "fine-tuning alone": pair.losses(pair.after, BLOCK, "kl"),
        "recomputation alone": pair.losses(pair.before, HEALED, "kl"),
    }
    gaps = {name: difference(ours, theirs) for name, theirs in beside.items()}
    words = [f"{said(mean(beside[name]))} of {name} ({spread(gap)})" for name, gap in gaps.items()]
    better = [name for name, gap in gaps.items() if gap.high < 0]
    end = {2: "either", 1: f"{''.join(better)} only"}.get(len(better), "neither")
    return (
        f"Fine-tuned and 15% recomputed by answer-guided choice: KL {said(mean(ours))}, beside {joined(words)}; "
        f"together they are better than {end}."
    )

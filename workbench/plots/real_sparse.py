"""Sparse prefill of real text: what every method keeps and what it loses, and BFLA's choice beside random tiles."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from workbench.methods import registry
from workbench.metrics.paired import Difference, difference
from workbench.plots.findings import judged
from workbench.plots.lines import plane, planes
from workbench.plots.measures import MEASURES
from workbench.plots.real_findings import said, spread, verdict
from workbench.plots.real_results import Real
from workbench.plots.styles import Look, looks_of
from workbench.plots.table import table
from workbench.plots.theme import Texts

NEAR = 0.05  # densities that far apart count as equal
DASHES = ("solid", "dash", "dot", "dashdot")
KEPT = {  # column → title of its panel
    "kept_mass": "attention mass kept",
    "kept_recall": "recall of the largest tiles",
    "kept_error": "error of the output (relative L2)",
}
LOST = {"kl": "KL, nats a token", "agree": "tokens that agree"}
DENSITY = "share of causal pairs kept"


def settings(real: Real) -> pd.DataFrame:
    """Return the sparse settings of which it is known what they keep, with `density` and `line`, by density.

    The density of CompactAttention is its union's, which it reads; of others that of their own choice.
    """
    rows = real.sparse
    rows = rows[rows.kept_density.notna()] if "kept_density" in rows else rows.iloc[:0].assign(kept_density=0.0)
    union = rows.get("kept_union", rows.kept_density)
    own = rows["sparse"].str.startswith("compact(")
    named = rows.assign(density=rows.kept_density.where(~own, union), line=rows.trial.map(line_of))
    return named.sort_values("density")


def line_of(trial: str) -> str:
    """Name the line of a setting: its method, with block and chunk where it is run with several."""
    spec, _, chunk = trial.partition(" in chunks of ")
    name, options = registry.parse(spec)
    words = looks_of([spec]).popitem()[0]
    words += f", blocks of {options['block']}" if name == "bfla" and "block" in options else ""
    return words + (f", chunks of {chunk}" if chunk else "")


def line_looks_of(rows: pd.DataFrame) -> dict[str, Look]:
    """Return the look of every line: a family has one colour, and its lines dashes of their own."""
    looks: dict[str, Look] = {}
    for line, spec in zip(rows.line, rows["sparse"], strict=True):
        if line not in looks:
            base = looks_of([spec]).popitem()[1]
            alike = sum(look.colour == base.colour and look.symbol == base.symbol for look in looks.values())
            looks[line] = replace(base, name=line, dash=DASHES[alike % len(DASHES)])
    return looks


def _plane(rows: pd.DataFrame, y: str, title: str, **more: Any) -> Any:
    ends = {end: rows[f"{y}_{end}"] if f"{y}_{end}" in rows else rows[y] for end in ("low", "high")}
    columns = {"name": rows.line, "x": rows.density, "y": rows[y], **ends, "label": rows.trial}
    return plane(title, pd.DataFrame(columns).to_dict("records"), DENSITY, **more)


def what_is_kept(real: Real) -> go.Figure | None:
    """Draw mass, recall and error against density; None where no sparse prefill was measured on real text."""
    rows = settings(real)
    there = [name for name in KEPT if name in rows and rows[name].notna().any()]
    if not len(rows) or not there:
        return None
    heads = f"means over layers and heads of {int(rows.kept_prompts.max())} prompts; " if "kept_prompts" in rows else ""
    return planes(
        [_plane(rows, name, KEPT[name], percent=name != "kept_error") for name in there],
        line_looks_of(rows),
        height=280,
        lines=4,
        **_texts(rows, "What sparse prefill of real text keeps", kept_sentence(rows), heads),
    )


def what_is_lost(real: Real) -> go.Figure | None:
    """Draw KL and agreement with full attention against density; None where no sparse prefill was measured."""
    rows = settings(real)
    if not len(rows):
        return None
    there = [name for name in LOST if name in rows and rows[name].notna().any()]
    log = bool((rows.kl > 0).all())
    return planes(
        [_plane(rows, y, LOST[y], percent=MEASURES[y].percent, log=log and y == "kl") for y in there],
        line_looks_of(rows),
        lines=4,
        **_texts(rows, "What sparse prefill of real text loses", lost_sentence(rows), "bars: 95% over questions; "),
    )


def _texts(rows: pd.DataFrame, title: str, notice: str, how: str) -> Texts:
    row = rows.iloc[0]
    caption = f"{row.note} {row.data}: n = {row.n:,}, seed {row.seed:,}, {row.passages} passages; {how}{row.device}. "
    return {"title": title, "notice": notice, "caption": f"{caption}The density of CompactAttention is its union's."}


def kept_sentence(rows: pd.DataFrame) -> str:
    """Name the settings that keep most mass for what they read: the sparsest that keeps 95% and 80% of it."""
    words = []
    for share in (0.95, 0.8):
        enough = rows[(rows.kept_mass >= share) & (rows["sparse"].str.split("(").str[0] != "oracle")]
        if len(enough):
            least = enough.iloc[0]
            words.append(f"{share:.0%} of the mass takes {least.density:.0%} of the pairs ({least.line})")
        else:
            words.append(f"no method but the oracle keeps {share:.0%} of the mass")
    return f"{'; '.join(words)}."[:1].upper() + f"{'; '.join(words)}."[1:]


def lost_sentence(rows: pd.DataFrame) -> str:
    """Name the setting of least KL among those that keep at most half of the pairs, and its agreement."""
    half = rows[(rows.density <= 0.5) & (rows["sparse"].str.split("(").str[0] != "oracle")]
    if not len(half):
        return "No method but the oracle keeps less than half of the pairs."
    best, worst = half.loc[half.kl.idxmin()], half.loc[half.kl.idxmax()]
    agree = f", {best.agree:.0%} of the tokens agree" if "agree" in half else ""
    return (
        f"Of settings that keep at most half of the pairs, {best.trial} loses least at {best.density:.0%} (KL "
        f"{said(best.kl)}{agree}), {worst.trial} most at {worst.density:.0%} ({said(worst.kl)})."
    )


@dataclass(frozen=True)
class Beside:
    """A BFLA setting and the random tiles nearest to it in density; `gap`: KL of BFLA minus theirs, by question."""

    ours: Mapping[str, Any]
    theirs: Mapping[str, Any]
    gap: Difference

    @property
    def near(self) -> bool:
        """Whether both keep about as many pairs."""
        return abs(self.ours["density"] - self.theirs["density"]) <= NEAR

    @property
    def told(self) -> str:
        """Return "better", "worse" or "not told apart"; better with more pairs, or worse with fewer, tells nothing."""
        found, more = verdict(self.gap), self.ours["density"] - self.theirs["density"]
        helped = (found == "better" and more > NEAR) or (found == "worse" and more < -NEAR)
        return "not told apart" if helped else found


def beside_random(real: Real) -> list[Beside]:
    """Set every BFLA setting beside the random tiles that are nearest in density, question by question."""
    rows = settings(real)
    names = rows["sparse"].str.split("(").str[0]
    bfla, drawn = (rows[names == name].to_dict("records") for name in ("bfla", "random"))
    if not bfla or not drawn:
        return []
    row = rows.iloc[0]
    own = real.questions[(real.questions.data == row.data) & (real.questions.passages == row.passages)]
    losses = {str(trial): of.set_index("id").kl for trial, of in own.groupby("trial", observed=True)}
    pairs = []
    for ours in bfla:
        theirs = min(drawn, key=lambda one: abs(one["density"] - ours["density"]))
        both = pd.concat([losses[ours["trial"]], losses[theirs["trial"]]], axis=1).dropna().to_numpy(float)
        pairs.append(Beside(ours, theirs, difference(both[:, 0], both[:, 1])))
    return pairs


def bfla_table(real: Real) -> go.Figure | None:
    """Tabulate BFLA beside random tiles of about its density; None where they were not both measured."""
    if not (pairs := beside_random(real)):
        return None
    rows = [
        [
            pair.ours["trial"],
            f"{pair.ours['density']:.0%}",
            f"{pair.theirs['density']:.0%}",
            said(pair.ours["kl"]),
            said(pair.theirs["kl"]),
            f"{spread(pair.gap)} {pair.told}",
        ]
        for pair in pairs
    ]
    row = settings(real).iloc[0]
    return table(
        ["BFLA", "density", "random", "KL", "random's KL", "difference"],
        rows,
        widths=[3.6, 0.75, 0.75, 0.65, 0.9, 2.2],
        words=1,
        title="Does BFLA's choice pay? Beside random tiles on real text",
        notice=bfla_sentence(pairs),
        caption=f"{row.data}: n = {pairs[0].gap.n:,}, {row.passages} passages. Random tiles of the density nearest to "
        "BFLA's; both keep bands and the first tiles. Difference of KL with its paired bootstrap 95% interval; where "
        f"one loses less with more pairs (over {NEAR * 100:.0f} points), neither is named.",
    )


def bfla_sentence(pairs: Sequence[Beside]) -> str:
    """Answer whether BFLA's choice by content pays against tiles drawn at random."""
    told = [pair.told for pair in pairs]
    better, worse = told.count("better"), told.count("worse")
    claim = "the choice by content keeps what matters"
    words = f"BFLA loses less than random tiles in {better} of {len(pairs)} settings, more in {worse}."
    holds = True if better == len(pairs) else False if worse else None
    pays = "It pays" if holds else "It does not pay everywhere" if worse else "That it pays is not shown everywhere"
    near = sum(pair.near for pair in pairs)
    return f"{words} {pays}; {near} pairs have about equal density. {judged('BFLA', claim, holds)}"

"""What the measured settings of sparse methods say of the papers' claims: one sentence each, from the numbers."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from workbench.metrics.answers import Interval
from workbench.metrics.paired import difference
from workbench.metrics.published_numbers import BFLA_TABLE_5
from workbench.plots.findings import compared, joined, judged, sign_of
from workbench.plots.styles import SPARSE_METHODS

NEAR = 0.05  # densities that far apart count as equal
SLACK = 0.02  # what "close to dense" may lose: twice what BFLA's recommended row loses (0.8 of 40.2 points)
Row = Mapping[str, Any]


def published_loss(density: float = 0.15) -> tuple[float, float]:
    """Return (density, score lost in points) of the row of BFLA's table 5 that scores most at up to `density`."""
    at = {name: i for i, name in enumerate(BFLA_TABLE_5["columns"])}
    rows = [row for row in BFLA_TABLE_5["rows"] if row[at["density"]] <= density]
    best = max(rows, key=lambda row: row[at["score"]])
    return best[at["density"]], BFLA_TABLE_5["dense"] - best[at["score"]]


def bfla_beside_dense(settings: pd.DataFrame, dense: Row) -> str:
    """Say how BFLA answers at the density of the paper's recommended row, scaled, beside dense attention."""
    like_paper = settings[settings.spec.map(_recommended)]
    ours = like_paper.iloc[0] if len(like_paper) else settings.sort_values("density").iloc[0]
    density, lost = published_loss()
    said = f"BFLA loses {lost:.1f} of {BFLA_TABLE_5['dense']:.1f} points at {density:.0%} density"
    holds = bool(dense["em"] - ours.em <= SLACK)
    return (
        f"BFLA answers {ours.em:.0%} at {ours.density:.0%} density, dense attention {dense['em']:.0%} "
        f"(n = {dense['n']:,}). {judged('Table 5', said, holds)}"
    )


def _recommended(spec: str) -> bool:
    """Return whether a spec is the row that the paper recommends, with blocks and groups a quarter of its size."""
    return spec == "bfla(block=64, flat=16, local=2, mass=0.99)"


def random_beside(curve: pd.DataFrame, answers: pd.DataFrame, method: str = "bfla", name: str = "BFLA") -> str:
    """Say how tiles drawn at random answer beside a method at equal density, question by question."""
    drawn, chosen = (curve[curve.method == of].sort_values("density") for of in ("random", method))
    parts, signs = [], []
    for r in drawn.itertuples():
        near = chosen.iloc[(chosen.density - r.density).abs().argsort(kind="stable")].iloc[0]
        if abs(near.density - r.density) <= NEAR:
            gap = difference(answers[f"em {r.spec}"].astype(float), answers[f"em {near.spec}"].astype(float))
            ends = (gap.low, gap.high)
            at = f"at {near.density:.0%} and {r.density:.0%} density"
            parts.append(f"{at} {compared('random tiles', name, gap.mean, ends)}")
            signs.append(sign_of(ends))
    if not parts:
        return ""
    below = all(sign < 0 for sign in signs)
    lead = "The choice by content pays at every density" if below else "The choice by content does not pay everywhere"
    return f"{lead}: {'; '.join(parts)}."


def of_last_rows(gaps: Sequence[tuple[float, Interval]], apart: float) -> str:
    """Say what the rule of full last rows is worth beside the choice among methods without it.

    `gaps`: without the rule minus with it, and its interval, a method each; `apart`: the distance between the best and
    the last of the methods without the rule, at about that density. Both are shares.
    """
    least = min(-gap for gap, _ in gaps)
    if any(sign_of(ends) >= 0 for _, ends in gaps):
        return "The rule does not pay with every method."
    said = f"The rule is worth at least {least * 100:.0f} points, the choice among methods without it {apart * 100:.0f}"
    return f"{said}: {'the rule' if least > apart else 'the choice'} weighs more."


def without_rule_lacking(specs: Iterable[str], without: Iterable[str]) -> str:
    """Name the methods of `specs` under the rule of full last rows that were not measured without it (`without`)."""
    ruled = dict.fromkeys(SPARSE_METHODS.name_of(spec) for spec in specs if "tail=1" in spec)
    lacking = [name for name in ruled if name not in {SPARSE_METHODS.name_of(spec) for spec in without}]
    return f" Without it {joined(lacking)} is not measured yet, as it ships." if lacking else ""


def mass_and_answers(curve: pd.DataFrame) -> str:
    """Say how far settings that keep more mass answer more: the rank correlation of both over all settings."""
    rank = float(curve["mass"].corr(curve.em, method="spearman"))
    lowest = curve.loc[curve[curve.em >= curve.em.max() - SLACK]["mass"].idxmin()]
    return (
        f"Over {len(curve)} settings mass and exact match rank alike with ρ = {rank:.2f}; {lowest.spec} answers "
        f"{lowest.em:.0%} with {lowest['mass']:.0%} of the mass."
    )


def densities_apart(densities: Mapping[str, np.ndarray]) -> str:
    """Say of which method the heads differ most in density: method → [L, Hq]."""
    spans = {name: float(np.nanmax(z) - np.nanmin(z)) for name, z in densities.items()}
    widest = max(spans, key=spans.__getitem__)
    z = densities[widest]
    return f"Heads differ most in density under {widest}: {np.nanmin(z):.0%} to {np.nanmax(z):.0%}."


def which_pays_first(records: Sequence[Row], model: str, large: str) -> str:
    """Say which of two models needs more tokens until sparse attention pays: records {own, <large>: tokens or None}."""
    later = [r for r in records if _later(r[large], r["own"])]
    earlier = [r for r in records if _later(r["own"], r[large])]
    counts = f"with {len(later)} of {len(records)} methods, fewer with {len(earlier)}"
    return f"{large} needs more tokens than {model} {counts}."


def _later(one: float | None, other: float | None) -> bool:
    """Return whether `one` comes after `other`; None comes last."""
    return (one or np.inf) > (other or np.inf)

"""What a sweep over selectors and preparations says of FusionRAG's claims: sentences from paired differences."""

from collections.abc import Mapping, Sequence
from typing import Any

from workbench.plots.findings import compared, joined, judged, sign_of
from workbench.plots.styles import SELECTORS

Records = Sequence[Mapping[str, Any]]
BY_POSITION = "first_k"  # EPIC


def _ends(r: Mapping[str, Any], name: str) -> tuple[float, float]:
    return r[f"{name}_low"], r[f"{name}_high"]


def by_position(rows: Records, other: str = "query_guided") -> str:
    """Say how the choice by position (EPIC) stands to the choice by content: `rows` of `sweep_records.against`."""
    found = [r for r in rows if r["select"] == BY_POSITION]
    if not found:
        return ""
    gap, ends = found[0]["difference"], _ends(found[0], "difference")
    said = compared(SELECTORS.name_of(BY_POSITION), SELECTORS.name_of(other), gap, ends)
    holds = {-1: True, 0: None, 1: False}[sign_of(ends)]
    claim = "tokens should be chosen by content rather than by position"
    return f"{said[0].upper()}{said[1:]}. {judged('FusionRAG (insight 2)', claim, holds)}"


def preparation(pairs: Records) -> str:
    """Say what preparation gains, selector by selector: `pairs` of `sweep_records.by_preparation`."""
    signs = [sign_of(_ends(r, "gain")) for r in pairs]
    gains = [f"{SELECTORS.name_of(r['select'])} {r['gain'] * 100:+z.1f}" for r in pairs]
    holds = True if all(s > 0 for s in signs) else False if any(s < 0 for s in signs) else None
    claim = "preparation benefits every selection (section 5.3.1)"
    return f"Gain in points: {joined(gains)}. {judged('FusionRAG', claim, holds)}"


def found_antecedents(found: Mapping[int, tuple[int, int]]) -> str:
    """Say how often similarity brings the passage that a continued one lacks: neighbours → (found, all)."""
    most = max(found)
    hits, every = found[most]
    often = "most" if hits * 2 > every else "fewer than half" if hits else "none"
    return (
        f"Among {most} neighbours {often} of the continued passages ({hits / every:.0%}) have their antecedent; "
        "preparation can give what a passage lacks to no other."
    )


def first_costs(drawn: Records) -> str:
    """Say where curves over cost begin.

    `drawn` {name, at (share of full attention), mean}: a selector's points in order, reuse alone first.
    """
    reuse = min(r["at"] for r in drawn)
    starts: dict[str, float] = {}
    for r in drawn:
        if r["at"] > reuse and r["name"] not in starts:
            starts[r["name"]] = r["at"]
    if not starts:
        return ""
    ordered = sorted(starts, key=starts.__getitem__)
    low, high = ordered[0], ordered[-1]
    return (
        f"Reuse alone takes {reuse:.0%} of full attention's; the first point of {low} {starts[low]:.0%}, that of "
        f"{high} {starts[high]:.0%}."
    )


def component_rows(rows: Mapping[str, Mapping[str, float]]) -> str:
    """Say what preparation and recomputation add to a request: component → {em, rows (tokens computed)}."""
    base, prepared, again, both = (rows[name] for name in ("none", "prepared", "again", "both"))
    added = prepared["rows"] - base["rows"]
    paid = f"adds {added:+,.0f} tokens to a request" if abs(added) >= 0.5 else "adds no token to a request"
    return (
        f"Preparation is paid offline and {paid}; recomputation adds {again['rows'] - base['rows']:,.0f}. Exact match "
        f"changes by {(prepared['em'] - base['em']) * 100:+.0f} points with the first, "
        f"{(again['em'] - base['em']) * 100:+.0f} with the second, {(both['em'] - base['em']) * 100:+.0f} with both."
    )

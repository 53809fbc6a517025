"""What reuse loses by kind of question, and what papers claim of it: sentences from paired answers."""

from collections.abc import Mapping, Sequence

import numpy as np

from workbench.core.errors import BadInput
from workbench.metrics.paired import Difference, Values, difference
from workbench.metrics.published_numbers import TABLE_2
from workbench.plots.findings import compared, joined, judged, sign_of

ByKind = Mapping[str, Difference]
MULTI_HOP = "two-hop"  # the lab's kind of question with evidence in two passages, one after the other
MULTI_HOP_SETS = ("2WikiMultiHopQA", "HotpotQA")


def by_kind(one: Values, other: Values, kinds: Sequence[str]) -> dict[str, Difference]:
    """Compare two methods on the questions of every kind: right (1) or wrong (0) of each, in one order."""
    if len(kinds) != len(one):
        raise BadInput(f"{len(kinds)} kinds for {len(one)} questions: each question has one")
    of, first, second = np.array(kinds), np.array(one, dtype=float), np.array(other, dtype=float)
    return {kind: difference(first[of == kind], second[of == kind]) for kind in dict.fromkeys(kinds)}


def lost(gaps: ByKind, name: str) -> str:
    """Say which kinds of question a method loses beside full attention, and which show no difference."""
    signs = {kind: sign_of((gap.low, gap.high)) for kind, gap in gaps.items()}
    said = {-1: "loses", 1: "gains"}
    parts = [
        f"{said[sign]} "
        + joined([f"{abs(gaps[kind].mean) * 100:.1f} points ({kind})" for kind in gaps if signs[kind] == sign])
        for sign in (-1, 1)
        if sign in signs.values()
    ]
    same = [kind for kind, sign in signs.items() if not sign]
    parts += [f"shows no difference for {joined(same)}"] if same else []
    return f"Beside full attention {name} {joined(parts)}."


def multi_hop(gaps: ByKind, name: str) -> str:
    """Say what a method loses on two-hop questions, beside what Block-Attention prints for its multi-hop sets."""
    if MULTI_HOP not in gaps:
        return ""
    gap = gaps[MULTI_HOP]
    at = [TABLE_2["data"].index(name) for name in MULTI_HOP_SETS]
    full, alone = (TABLE_2["accuracy"][name] for name in ("full attention", "block, not fine-tuned"))
    points = " and ".join(f"{full[i] - alone[i]:.1f}" for i in at)
    claim = f"reuse without fine-tuning loses {points} points on {' and '.join(MULTI_HOP_SETS)}"
    holds = {-1: True, 0: False, 1: False}[sign_of((gap.low, gap.high))]
    here = compared(name, "full attention", gap.mean, (gap.low, gap.high))
    return f"Two-hop questions (n = {gap.n:,}): {here}. {judged('Block-Attention, Table 2', claim, holds)}"

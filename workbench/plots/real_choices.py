"""Preparation, selection, number of neighbours and ratio on a real pretrained model (FusionRAG, figures 13, 16, 17)."""

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from workbench.plots import real_findings as findings
from workbench.plots.dots import Column, dots
from workbench.plots.line_styles import selector_looks
from workbench.plots.lines import profile, profiles
from workbench.plots.real_findings import SYSTEM, neighbours_of, said
from workbench.plots.real_model import BELOW, LOSSES, SHORT, TEN
from workbench.plots.real_results import RATIO, Real
from workbench.plots.styles import BROWN, SELECTORS, Look
from workbench.plots.sweep_curves import curves
from workbench.plots.theme import BLUE, MUTED, ORANGE

PREPARED = {
    "independent": Look(MUTED, "circle-open", name="independent blocks"),
    SYSTEM: Look(BLUE, "square", name="behind the system prompt"),
    "with_neighbours(n=4, search=exact)": Look(BROWN, "triangle-up", name="behind 4 neighbours"),
    "with_neighbours(n=10, search=exact)": Look(ORANGE, "diamond", name="behind 10 neighbours"),
}


def preparation_and_selection(real: Real) -> go.Figure:
    """Draw every selector on passages of several preparations (FusionRAG, figure 16)."""
    rows = real.rows()
    block = rows[(rows["mode"] == "block") & (rows.positions != "naive") & rows.prepare.isin(list(PREPARED))]
    of_ratio = block[(block["select"] == "none") | (block.ratio == RATIO)]
    several = of_ratio.groupby("select", sort=False).prepare.nunique()
    selectors = [select for select, count in several.items() if count > 1]
    drawn = of_ratio[of_ratio["select"].isin(selectors)]
    columns = [
        Column(
            SHORT[measure],
            "nats a token, lower is better",
            [
                {
                    "name": SELECTORS.name_of(r["select"]),
                    "series": r["prepare"],
                    "mean": r[measure],
                    "low": r[f"{measure}_low"],
                    "high": r[f"{measure}_high"],
                }
                for r in drawn.to_dict("records")
            ],
            level=0,
        )
        for measure in LOSSES
    ]
    return dots(
        columns,
        PREPARED,
        spread=True,
        title=f"Preparation and selection at {RATIO:.0%} (FusionRAG, figure 16)",
        notice=findings.preparation_sentence(real, TEN, selectors),
        caption=f"{real.about()}. Neighbours by TF-IDF from all {rows.corpus.iloc[0]:,} passages of the file. Bars: "
        f"bootstrap 95% intervals; differences are paired by question. Likelihood is that of the gold answer. "
        f"{BELOW}",
    )


def neighbours(real: Real, selectors: Sequence[str] = ("none", "answer_guided")) -> go.Figure:
    """Draw both losses against the number of neighbours that passages are prepared with (FusionRAG, figure 17)."""
    rows = real.rows()
    block = rows[(rows["mode"] == "block") & (rows.positions != "naive")]
    counted = block.assign(at=[neighbours_of(prepare) for prepare in block.prepare])
    counted = counted[counted["at"].notna() & ((counted["select"] == "none") | (counted.ratio == RATIO))]
    panels, words = [], []
    for measure in LOSSES:
        points: list[dict[str, Any]] = []
        for select in selectors:
            own = counted[counted["select"] == select].sort_values("at").to_dict("records")
            points += [_point(r, measure) for r in own]
        panels.append(profile(SHORT[measure], points, "neighbours a passage is prepared with (n)", "nats a token"))
        plain = counted[counted["select"] == "none"].sort_values("at")
        most, best = plain.trial.iloc[-1], plain.trial[plain[measure].idxmin()]
        gap = None if most == best else real.gap(most, best, measure)
        listed = [{"at": int(r["at"]), "mean": r[measure]} for r in plain.to_dict("records")]
        words.append(findings.neighbours_sentence(listed, measure, gap))
    return profiles(
        panels,
        title="Number of neighbours (FusionRAG, figure 17)",
        notice=f"Nothing recomputed: {' '.join(words)}",
        caption=f"{real.about()}. n = 0 is preparation behind the system prompt alone; {RATIO:.0%} where tokens are "
        f"recomputed. Bands: bootstrap 95% intervals. Likelihood is that of the gold answer. "
        f"{BELOW}",
        zero=False,
        **selector_looks(selectors),
    )


def _point(row: Mapping[str, Any], measure: str) -> dict[str, Any]:
    ends = {"low": row[f"{measure}_low"], "high": row[f"{measure}_high"]}
    return {"name": SELECTORS.name_of(row["select"]), "at": int(row["at"]), "mean": row[measure], **ends}


def has_ratios(real: Real) -> bool:
    """Return whether selectors were measured at other ratios than `RATIO`."""
    return len(tried(real)) > 0


def tried(real: Real) -> list[str]:
    """Return the selectors that were measured at more ratios than one over Full Reuse."""
    rows = real.rows()
    chosen = rows[(rows.prepare == SYSTEM) & (rows["select"] != "none") & rows.ratio.notna()]
    counts = chosen.groupby("select", sort=False).ratio.nunique()
    return [select for select, count in counts.items() if count > 1]


def by_ratio(real: Real) -> go.Figure:
    """Draw both losses against the ratio, a line a selector (FusionRAG, figure 13)."""
    selectors, rows = tried(real), real.rows()
    panels = [
        profile(
            SHORT[measure],
            curves(rows, selectors, SYSTEM, metric=measure),
            "share of document tokens recomputed",
            "nats a token",
            percent_x=True,
        )
        for measure in LOSSES
    ]
    return profiles(
        panels,
        title="What a ratio buys (FusionRAG, figures 9 and 13)",
        notice=ratio_sentence(real, selectors),
        caption=f"{real.about()}. Passages cached behind the system prompt. Bands: bootstrap 95% "
        f"intervals. Likelihood is that of the gold answer. {BELOW}",
        lines=3,
        zero=False,
        **selector_looks(selectors),
    )


def ratio_sentence(real: Real, selectors: Sequence[str]) -> str:
    """Name the selector with the least KL at every ratio."""
    rows = real.rows()
    chosen = rows[(rows.prepare == SYSTEM) & rows["select"].isin(list(selectors))]
    words = []
    for ratio, at in chosen.groupby("ratio"):
        row = at.loc[at.kl.idxmin()]
        words.append(f"{ratio:.0%} {SELECTORS.name_of(row['select'])} ({said(row.kl)})")
    return f"Least KL at {', '.join(words)}."

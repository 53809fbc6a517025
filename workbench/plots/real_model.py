"""Methods of reuse on a real pretrained model: their order, on every question file and by kind of question."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import plotly.graph_objects as go
from scipy.stats import spearmanr

from workbench.plots import real_findings as findings
from workbench.plots.dots import Column, dots
from workbench.plots.real_findings import SYSTEM, name_of, said
from workbench.plots.real_results import RATIO, Real
from workbench.plots.styles import Look
from workbench.plots.table import table
from workbench.plots.theme import BLUE, GREEN, MUTED, ORANGE, PINK

LOSSES = ("kl", "nll_extra")
FAMILIES = {
    "reuse": Look(MUTED, "circle-open", name="reuse, nothing else"),
    "prepare": Look(ORANGE, "square", name="preparation behind neighbours"),
    "select": Look(BLUE, "diamond", name="some tokens recomputed"),
    "both": Look(GREEN, "star", name="both"),
    "whole": Look(PINK, "x", name="chosen by reading the whole context first"),
}
TEN = "with_neighbours(n=10, search=exact)"
RARELY = 0.05  # share of questions, below which exact match cannot tell methods apart
BELOW = "Below 0 in likelihood lost, a method finds the gold answer likelier than full attention does."
FEW = (  # preparation and selector, of small tables
    ("independent", "none"),
    (SYSTEM, "none"),
    (TEN, "none"),
    (SYSTEM, "first_k"),
    (SYSTEM, "kv_deviation"),
    (SYSTEM, "query_guided"),
    (SYSTEM, "answer_guided"),
    (TEN, "query_guided"),
    (TEN, "answer_guided"),
)


def family(row: Mapping[str, Any], full: float) -> str:
    """Return the family of a method, from a row of the table and the rows that full attention computes."""
    if row["rows"] >= full:
        return "whole"
    prepared = row["prepare"] not in (SYSTEM, "independent")
    if row["select"] == "none":
        return "prepare" if prepared else "reuse"
    return "both" if prepared else "select"


def methods(real: Real) -> go.Figure:
    """Draw every method by KL from full attention, likelihood of the gold answer lost, and rows computed."""
    rows = real.rows()
    full = float(rows[rows["mode"] == "full"]["rows"].iloc[0])
    listed = rows[(rows["mode"] == "block") & rows.ratio.fillna(RATIO).eq(RATIO)].sort_values("kl")
    columns = []
    for measure in LOSSES:
        records = _records(listed, measure, full)
        columns.append(Column(SHORT[measure], "nats a token, lower is better", records, level=0, log=measure == "kl"))
    shares = listed.assign(share=listed["rows"] / full)
    records = [
        {"name": name_of(r), "series": family(r, full), "mean": r["share"], "low": r["share"], "high": r["share"]}
        for r in shares.to_dict("records")
    ]
    columns.append(Column("rows computed", "share of full attention's", records, percent=True, level=1))
    return dots(
        columns,
        FAMILIES,
        lines=2,
        title=f"{len(listed)} methods on a real model",
        notice=f"{findings.best_sentence(real)} {findings.selectors_sentence(real)}",
        caption=f"{real.about()}. Bars: bootstrap 95% intervals. Likelihood is "
        f"that of the gold answer. {BELOW} Rows count every pass, the selector's "
        f"included. {_own_answers(real)}",
    )


SHORT = {"kl": "KL from full attention", "nll_extra": "likelihood lost"}


def _records(rows: pd.DataFrame, measure: str, full: float) -> list[dict[str, Any]]:
    return [
        {
            "name": name_of(r),
            "series": family(r, full),
            "mean": r[measure],
            "low": r[f"{measure}_low"],
            "high": r[f"{measure}_high"],
        }
        for r in rows.to_dict("records")
    ]


def _own_answers(real: Real) -> str:
    """Say how often full attention itself is right: why exact match cannot tell methods apart here."""
    row = real.rows().iloc[0]
    if row.full_em != row.full_em:
        return "The questions have no gold answers."
    apart = ", so exact match tells nothing apart here" if row.full_em < RARELY else ""
    return f"Full attention itself answers {row.full_em:.1%} exactly (F1 {row.full_f1:.2f}){apart}."


def by_data(real: Real) -> go.Figure:
    """Draw KL of some methods on every data set, and how alike the order of all methods is."""
    sets = [real.on(name) for name in real.data_sets]
    by_set = {each.data: each.rows().set_index("trial") for each in sets}
    rows = []
    for prepare, select in FEW:
        if trial := real.trial(prepare, select):
            cells = [_cell(by_set[each.data].loc[trial]) if trial in by_set[each.data].index else "–" for each in sets]
            rows.append([name_of(by_set[real.data].loc[trial]), *cells])
    return table(
        ["KL from full attention", *(f"{each.data}, n = {by_set[each.data].n.iloc[0]:,}" for each in sets)],
        rows,
        widths=[2.6, *[1.5] * len(sets)],
        title="The same on every question file",
        notice=order_sentence(sets),
        caption=f"{real.rows().note.iloc[0]} Nats a token of full attention's own answer, 95% intervals (bootstrap), "
        f"seed {real.rows().seed.iloc[0]:,}; recomputed: {RATIO:.0%}.",
    )


def _cell(row: pd.Series, measure: str = "kl") -> str:
    return f"{said(row[measure])} [{said(row[f'{measure}_low'])}, {said(row[f'{measure}_high'])}]"


def order_sentence(sets: Sequence[Real]) -> str:
    """Say how alike the order of methods by KL is on every other data set than the first."""
    first, *others = sets
    ours = first.rows().query("mode == 'block'").set_index("trial").kl
    words = []
    for other in others:
        theirs = other.rows().query("mode == 'block'").set_index("trial").kl
        both = sorted(set(ours.index) & set(theirs.index))
        if len(both) > 2:
            words.append(f"{spearmanr(ours[both], theirs[both]).statistic:.2f} on {other.data} ({len(both)} methods)")
    if not words:
        return f"There are results on {first.data} alone."
    return f"Rank correlation of the methods' KL with their KL on {first.data}: {', '.join(words)}."


def by_kind(real: Real) -> go.Figure:
    """Draw KL of some methods by kind of question, a panel a kind."""
    full = float(real.rows()["rows"].max())
    columns = []
    for kind in real.kinds:
        rows = real.rows(kind)
        trials = [real.trial(*choice) for choice in FEW]
        own = rows[rows.trial.isin([trial for trial in trials if trial])]
        title = f"{kind}<br>n = {own.n.iloc[0]:,}"
        columns.append(Column(title, "nats a token", _records(own, "kl", full), level=0))
    return dots(
        columns,
        FAMILIES,
        lines=2,
        title=f"KL from full attention by kind of question, {real.data}",
        notice=kinds_sentence(real),
        caption=f"{real.about()}. Bars: bootstrap 95% intervals.",
    )


def kinds_sentence(real: Real) -> str:
    """Say at which kind of question Full Reuse loses most, and what both choices together leave of it."""
    reuse, both = real.trial(SYSTEM), real.trial(TEN, "answer_guided")
    scores = {kind: real.rows(kind).set_index("trial") for kind in real.kinds}
    if reuse is None or not scores:
        return ""
    lost = {kind: rows.kl[reuse] for kind, rows in scores.items()}
    most, least = max(lost, key=lost.__getitem__), min(lost, key=lost.__getitem__)
    apart = scores[most].kl_low[reuse] > scores[least].kl_high[reuse]
    words = f"Full Reuse loses most on {most} ({_cell(scores[most].loc[reuse])}), least on {least} "
    words += f"({_cell(scores[least].loc[reuse])}), " + ("intervals apart." if apart else "intervals overlap.")
    if both is None:
        return words
    left = ", ".join(f"{kind} {said(rows.kl[both])}" for kind, rows in scores.items())
    return f"{words} Preparation by 10 neighbours with answer-guided selection leaves: {left}."

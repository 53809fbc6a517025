"""Rows of trials for the pages on reuse and recomputation: which of them form a curve, and their names."""

import pandas as pd

from workbench.results import beside, scores

MOST = 6  # models with their data in one figure
QUESTIONS = ["source", "model", "data", "seed", "passages"]  # trials of these were asked the same questions
NOTHING = ("", "none")


def trials(counts: pd.DataFrame) -> pd.DataFrame:
    """Return a row a trial and kind of question, without sparse methods; `where` names model and data.

    `charged_share` (`metrics.cost`) is nan where a trial does not hold it.
    """
    table = scores(counts)
    table = table[table["sparse"].isin(NOTHING)]
    table = table if "charged_share" in table else table.assign(charged_share=float("nan"))
    trial = [*QUESTIONS, "method", "mode", "prepare", "select", "ratio"]
    table = table.assign(charged_share=table.groupby(trial, dropna=False).charged_share.transform("max"))
    return table.assign(where=table.model + " on " + table.data)


def charged(rows: pd.DataFrame, counts: pd.DataFrame) -> pd.DataFrame:
    """Add `charged_share` to rows of `counts`: tokens charged over those of full attention on the same questions.

    Rows without either are dropped; full attention computes every token of a prompt.
    """
    asked = ["source", "model", "data", "passages"]
    known = counts[(counts.measure == "rows_charged") & counts.kind.isin(["", "all"])]
    full = known[(known["mode"] == "full") & known["sparse"].isin(NOTHING)]
    whole = full.groupby(asked, dropna=False, as_index=False).value.mean().rename(columns={"value": "whole"})
    found = beside(pd.concat([rows, known], ignore_index=True), "rows_charged").merge(whole, on=asked)
    found = found[found.measure.isin(rows.measure)]
    return found.assign(charged_share=found.rows_charged / found.whole).drop(columns="whole")


def of_page(table: pd.DataFrame, model: str, data: str) -> pd.DataFrame:
    """Return the trials of a page's model and data where there are any, else of the MOST that have most trials."""
    own = table[(table.model == model) & (table.data == data)]
    return own if len(own) else table[table["where"].isin(table["where"].value_counts().index[:MOST])]


def selector_curves(table: pd.DataFrame, prepare: str, least: int = 2) -> pd.DataFrame:
    """Return the points of a curve a selector: reuse at ratio 0, its ratios, and full attention at 1.

    `prepare` is how passages were cached. Questions on which fewer than `least` ratios were measured are left out.
    """
    reuse = table[(table["mode"] == "block") & (table.prepare == prepare)]
    swept = reuse[~reuse["select"].isin((*NOTHING, "all")) & reuse.ratio.notna()]
    if swept.empty:
        return swept
    ends = [reuse[reuse["select"].isin(NOTHING)].assign(ratio=0.0), table[table["mode"] == "full"].assign(ratio=1.0)]
    parts = [swept]
    for end in ends:
        names = swept[[*QUESTIONS, "kind", "select"]].drop_duplicates()
        own = end.drop(columns="select").drop_duplicates([*QUESTIONS, "kind"])
        parts.append(names.merge(own, on=[*QUESTIONS, "kind"]))
    curves = pd.concat(parts, ignore_index=True).drop_duplicates([*QUESTIONS, "kind", "select", "ratio"])
    return curves[curves.groupby([*QUESTIONS, "kind", "select"], dropna=False).ratio.transform("nunique") >= least]


def at_ratio(table: pd.DataFrame, ratio: float) -> pd.DataFrame:
    """Return full attention, plain reuse and what was recomputed at (nearly) a ratio; selectors without one, too."""
    plain = table["select"].isin(NOTHING) | (table["mode"] != "block") | table.ratio.isna()
    return table[plain | ((table.ratio - ratio).abs() < 0.005)]


def named(table: pd.DataFrame) -> pd.DataFrame:
    """Add `name`: full attention, the mode, or what a reusing method recomputes."""
    words = table["select"].where(~table["select"].isin(NOTHING), "nothing recomputed")
    words += table["positions"].map({"naive": ", naive positions"}).fillna("")
    known = {"full": "full attention"}
    return table.assign(
        name=words.where(table["mode"] == "block", table["mode"].map(lambda mode: known.get(mode, mode)))
    )


def plain_reuse(counts: pd.DataFrame) -> pd.DataFrame:
    """Return the counts of full attention and of independently cached blocks, with `name` and `where`."""
    alike = counts["select"].isin(NOTHING) & counts["sparse"].isin(NOTHING) & counts.prepare.isin(("", "independent"))
    rows = counts[alike & counts["mode"].isin(("full", "block"))]
    return named(rows.assign(where=rows.model + " on " + rows.data))

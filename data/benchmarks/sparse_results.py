"""Measurements of sparse methods become the committed tables: a row a setting, and a row a layer and head."""

from typing import Any

import pandas as pd

from workbench.core.errors import BadInput
from workbench.metrics import answers
from workbench.metrics.sparsity import MEASURES

NUMBERS = (*MEASURES, "kl", "agree")


def replaced(
    before: dict[str, pd.DataFrame], made: dict[str, pd.DataFrame], only: list[str]
) -> dict[str, pd.DataFrame]:
    """Return the tables of before, with the rows of the methods `only` replaced; the new ones come last.

    BadInput where other questions were asked.
    """
    old = before["sparse"]
    dropped = set(old[old.method.isin(only)].spec)
    tables = {
        name: pd.concat([before[name][~before[name].spec.isin(dropped)], table], ignore_index=True)
        for name, table in made.items()
        if name != "sparse-answers"
    }
    answered, fresh = before["sparse-answers"], made["sparse-answers"].set_index(["data", "id"])
    keys = pd.MultiIndex.from_frame(answered[["data", "id"]])
    if set(keys) != set(fresh.index):
        raise BadInput(f"{len(fresh)} questions were asked, sparse-answers.parquet has {len(keys)}: ask the same")
    gone = {f"{score} {spec}" for score in ("em", "f1") for spec in dropped}
    kept = answered[[name for name in answered if name not in gone]]
    added = fresh.drop(columns="kind").loc[keys].reset_index(drop=True)
    return tables | {"sparse-answers": pd.concat([kept, added], axis=1)}


def by_head(heads: pd.DataFrame) -> pd.DataFrame:
    """Return a row a setting, layer and head: means over prompts with bootstrap intervals, least mass of any row."""
    keys = ["spec", "layer", "head"]
    table = heads.groupby(keys, sort=False).agg(lowest=("lowest", "min"), prompts=("id", "nunique"))
    for name in MEASURES:
        wide = heads.pivot(index="id", columns=keys, values=name)
        low, high = answers.bootstrap_columns(wide.to_numpy())
        ends = pd.DataFrame({name: wide.mean(), f"{name}_low": low, f"{name}_high": high}, index=wide.columns)
        table = table.join(ends)
    return table.reset_index().astype(dict.fromkeys(table.columns.drop("prompts"), "float32"))


def scores(rows: pd.DataFrame) -> dict[str, Any]:
    """Return n, exact match (Wilson) and F1 (bootstrap) with their intervals."""
    n, right = len(rows), rows.em.sum()
    (low, high), (f1_low, f1_high) = answers.wilson(right, n), answers.bootstrap(rows.f1.tolist())
    scored = {"n": n, "em": right / n, "f1": rows.f1.mean(), "em_low": low, "em_high": high}
    return scored | {"f1_low": f1_low, "f1_high": f1_high}


def measures(rows: pd.DataFrame) -> dict[str, Any]:
    """Return means over prompts with bootstrap intervals; seconds to choose: the median and the quartiles."""
    measured: dict[str, Any] = {"prompts": int(rows.measured.sum()), "first": rows["first"].mean()}
    measured |= dict(zip(("first_low", "first_high"), answers.wilson(rows["first"].sum(), len(rows)), strict=True))
    for name in NUMBERS:
        values = rows[name].dropna() if name in rows else pd.Series(dtype=float)
        if len(values):
            low, high = answers.bootstrap(values.tolist())
            measured |= {name: values.mean(), f"{name}_low": low, f"{name}_high": high}
    if measured["prompts"]:
        low, middle, high = rows.seconds.dropna().quantile([0.25, 0.5, 0.75])
        measured |= {"lowest": rows.lowest.min(), "seconds": middle, "seconds_low": low, "seconds_high": high}
    return measured

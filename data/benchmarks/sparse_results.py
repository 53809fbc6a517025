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
    """Return the tables of before, with the rows of the methods `only` replaced where they stood.

    BadInput where other questions were asked.
    """
    old, new = before["sparse"], made["sparse"]
    dropped = set(old[old.method.isin(only)].spec)
    answers_before, fresh = before["sparse-answers"], made["sparse-answers"].set_index(["data", "id"])
    keys = pd.MultiIndex.from_frame(answers_before[["data", "id"]])
    if set(keys) != set(fresh.index):
        raise BadInput(f"{len(fresh)} questions were asked, sparse-answers.parquet has {len(keys)}: ask the same")
    gone = [f"{what} {spec}" for what in ("em", "f1") for spec in dropped]
    kept = answers_before.drop(columns=[name for name in gone if name in answers_before])
    added = fresh.drop(columns="kind").loc[keys].reset_index(drop=True)
    columns = sorted([*kept.columns[3:], *added.columns], key=lambda name: name.startswith("f1 "))
    tables = {"sparse-answers": pd.concat([kept, added], axis=1)[[*kept.columns[:3], *columns]]}
    order = {spec: at for at, spec in enumerate(dict.fromkeys([*old.spec, *new.spec]))}
    order |= {spec: order[first] for spec, first in _places(old, new, only).items()}
    for name in made.keys() - {"sparse-answers"}:
        table = pd.concat([before[name][~before[name].spec.isin(dropped)], made[name]], ignore_index=True)
        by = {"data": table["data"].map({"lab": 0, "needles": 1})} if "data" in table else {}
        places = pd.DataFrame(by | {"at": table.spec.map(order)}, index=table.index)
        tables[name] = table.loc[places.sort_values([*by, "at"], kind="stable").index].reset_index(drop=True)
    return {name: tables[name] for name in made}


def _places(old: pd.DataFrame, new: pd.DataFrame, only: list[str]) -> dict[str, str]:
    """Return for every new spec of a method the first spec that the method had before, if it had one."""
    first = {name: old[old.method == name].spec.iloc[0] for name in only if (old.method == name).any()}
    found = new[new.method.isin(list(first))]
    return {spec: first[name] for spec, name in zip(found.spec, found.method, strict=True)}


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

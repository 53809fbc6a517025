"""Aggregate scores of answers with intervals, as in the record of a trial; no model is run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.metrics.answers import Score, bootstrap_columns

OWN = ("kl", "kl_first", "agree", "agree_first")  # over full attention's own answer


@dataclass(frozen=True, kw_only=True)
class Quality(Score):
    """`Score`, and fidelity to full attention in nats with bootstrap 95% intervals; None where it was not measured.

    compared   questions that were compared with full attention
    nll        per token of the gold answer; None if no question has one
    nll_extra  nll minus that of full attention
    kl, agree  over full attention's own answer; kl_first, agree_first of its first token
    """

    compared: int | None = None
    nll: float | None = None
    nll_low: float | None = None
    nll_high: float | None = None
    nll_extra: float | None = None
    nll_extra_low: float | None = None
    nll_extra_high: float | None = None
    kl: float | None = None
    kl_low: float | None = None
    kl_high: float | None = None
    kl_first: float | None = None
    kl_first_low: float | None = None
    kl_first_high: float | None = None
    agree: float | None = None
    agree_low: float | None = None
    agree_high: float | None = None
    agree_first: float | None = None
    agree_first_low: float | None = None
    agree_first_high: float | None = None


def summary(rows: Sequence[Mapping[str, Any]], seed: int = 0) -> dict[str, Any]:
    """Return the fields that `Quality` adds to `Score`, from the rows of `fidelity.compare`."""
    gold = [[row["nll"], row["nll"] - row["nll_full"]] for row in rows if row["nll"] is not None]
    own = [[row[name] for name in OWN] for row in rows]
    return {"compared": len(rows), **_intervals(("nll", "nll_extra"), gold, seed), **_intervals(OWN, own, seed)}


def of_answered(rows: Sequence[Mapping[str, Any]], seed: int = 0) -> dict[str, Any] | None:
    """Return `summary` of the rows whose question full attention answers (`full_em`); None without gold answers."""
    known = [row for row in rows if row.get("full_em") is not None]
    return summary([row for row in known if row["full_em"]], seed) if known else None


def _intervals(names: Sequence[str], values: list[list[float]], seed: int) -> dict[str, float | None]:
    """Return the mean of each column of `values` [n, C] with its bootstrap interval; None without rows."""
    if not values:
        return {f"{name}{end}": None for name in names for end in ("", "_low", "_high")}
    table = np.array(values)
    low, high = bootstrap_columns(table, seed)
    ends = {"": table.mean(0), "_low": low, "_high": high}
    return {f"{name}{end}": float(column[i]) for i, name in enumerate(names) for end, column in ends.items()}

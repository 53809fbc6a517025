"""Measurements of sparse methods become rows of result tables: scores, what is kept, and the same by layer and head."""

from collections.abc import Iterator
from typing import Any

import pandas as pd

from workbench.metrics import answers
from workbench.metrics.tiles.sparsity import MEASURES

NUMBERS = {**dict(zip(MEASURES, MEASURES, strict=True)), "kl": "prefill_kl", "agree": "prefill_agree"}
BY_HEAD = ("density", "mass", "recall", "error")
Counts = list[dict[str, Any]]


def scores(rows: pd.DataFrame) -> Counts:
    """Return exact match (Wilson) and F1 (bootstrap) with their intervals."""
    ends = {"em": answers.wilson(rows.em.sum(), len(rows)), "f1": answers.bootstrap(rows.f1.tolist())}
    return [_count(name, rows[name].mean(), *ends[name], len(rows)) for name in ends]


def measures(rows: pd.DataFrame) -> Counts:
    """Return means over prompts with bootstrap intervals; seconds to choose: the median and the quartiles."""
    first = _count("first", rows["first"].mean(), *answers.wilson(rows["first"].sum(), len(rows)), len(rows))
    found = [first, {"measure": "prompt_tokens", "value": rows.tokens.mean(), "n": len(rows)}]
    for name, measure in NUMBERS.items():
        values = rows[name].dropna() if name in rows else pd.Series(dtype=float)
        if len(values):
            found.append(_count(measure, values.mean(), *answers.bootstrap(values.tolist()), len(values)))
    if n := int(rows.measured.sum()):
        low, middle, high = rows.seconds.dropna().quantile([0.25, 0.5, 0.75])
        found.append(_count("prefill_seconds", middle, low, high, n))
        found.append({"measure": "lowest", "value": rows.lowest.min(), "n": n})
    return found


def by_head(heads: pd.DataFrame) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the setting and the count of every measure, layer and head: means over prompts."""
    for (spec, layer, head), group in heads.groupby(["spec", "layer", "head"], sort=False):
        for name in BY_HEAD:
            kind = f"layer {layer} head {head}"
            yield str(spec), {"kind": kind, "measure": name, "value": float(group[name].mean()), "n": len(group)}


def _count(measure: str, value: float, low: float, high: float, n: int) -> dict[str, Any]:
    return {"measure": measure, "value": value, "low": low, "high": high, "n": n}

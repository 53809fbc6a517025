"""Readers of committed results of sparse prefill on lab questions: sparse.parquet, needles.json, sparse-seeds.json."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from workbench.experiments import results, sparse_seeds
from workbench.experiments.papers.evidence import has, over_seeds, table
from workbench.experiments.papers.verdicts import Findings, Side
from workbench.metrics.seeds import crossed


def sparse_right(name: str, data: str = "lab", kind: str = "") -> Sequence[float]:
    """Return 1 a question that a sparse method, by its spec, answers right; `kind`: of that task of the needles."""
    rows = table("sparse-answers")
    chosen = rows[(rows.data == data) & rows.id.str.startswith(kind)]
    return list(chosen[f"em {name}"].astype(float))


def needles_right(name: str, task: str) -> Sequence[float]:
    """Return 1 a question of a needle task that a sparse method answers right.

    Of data/benchmarks/needles.py, which asks more of them, where it measured the method.
    """
    by_spec = results.read("needles")["tasks"].get(task, {}) if has("needles", "json") else {}
    return [float(digit) for digit in by_spec[name]] if name in by_spec else sparse_right(name, "needles", task)


def sparse_specs(beginning: str) -> pd.DataFrame:
    """Return the settings on the lab questions whose spec begins so, by their density."""
    rows = table("sparse")
    chosen = rows[(rows.data == "lab") & (rows.kind == "all") & rows.spec.str.startswith(beginning)]
    return chosen.sort_values("density")


def chosen_and_read(chosen: float, read: float) -> str:
    """Say which share of the pairs a setting chooses, and which it attends to where a union adds some."""
    return f"{chosen:.0%} of the pairs" + (f" chosen, {read:.0%} attended to" if read > chosen else "")


def sparse_over_seeds(what: str, beginning: str, most: float, side: Side, bar: float) -> Findings:
    """Compare the best setting of a method that keeps at most a share with dense attention, over training seeds."""
    content = sparse_seeds.kept() if has("sparse-seeds", "json") else {}
    best = sparse_seeds.best(content, beginning, most) if content else ""
    if not best:
        return []
    chosen, read = (share(content, best) for share in (sparse_seeds.density, sparse_seeds.attended))
    kept = f"{chosen_and_read(chosen, read)}, {content['model']}"
    return [over_seeds(f"{what}, {kept}", sparse_seeds.gap(content, best), side, bar)]


def needles_over_seeds(what: str, task: str, spec: str, side: Side, bar: float) -> Findings:
    """Compare a method with dense attention on a needle task over training seeds; none where it was not measured.

    Where dense attention answers all of them the task ranks nothing: the comparison is shown and decides nothing.
    """
    if not has("needles-seeds", "json"):
        return []
    content = results.read("needles-seeds")
    by_spec = content["tasks"].get(task, {})
    if not {spec, sparse_seeds.DENSE} <= set(by_spec):
        return []
    ours, dense = (sparse_seeds.rights(by_spec[name]) for name in (spec, sparse_seeds.DENSE))
    got = crossed(np.subtract(ours, dense).tolist())
    found = over_seeds(f"{what} ({content['model']})", got, side, bar)
    return [replace(found, decides=bool(np.min(dense) < 1))]

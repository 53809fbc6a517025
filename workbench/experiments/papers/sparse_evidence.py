"""Readers of committed results of sparse prefill on lab questions, of the shipped result tables."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from workbench.experiments.papers.evidence import over_seeds, shipped
from workbench.experiments.papers.verdicts import Findings, Side
from workbench.metrics.seeds import crossed
from workbench.results import scores

LAB, PASSAGES = "lab-full", 40  # the model and the passages of a prompt
DENSE = "dense(block=64)"


def sparse_right(name: str, data: str = "lab", kind: str = "") -> Sequence[float]:
    """Return 1 a question that a sparse method, by its spec, answers right; `kind`: of that task of the needles."""
    rows = shipped("answers")
    own = rows[(rows.model == LAB) & (rows.data == data) & (rows["sparse"] == name) & rows.training_seed.isna()]
    return list(own[own.question.str.startswith(kind)].em)


def needles_right(name: str, task: str) -> Sequence[float]:
    """Return 1 a question of a needle task that a sparse method answers right.

    Of data/benchmarks/needles.py, which asks more of them, where it measured the method.
    """
    return sparse_right(name, f"needles-{task}") or sparse_right(name, "needles", task)


def sparse_specs(beginning: str) -> pd.DataFrame:
    """Return the settings on the lab questions whose spec begins so, by their density."""
    rows = shipped("counts")
    own = (rows.model == LAB) & (rows.data == "lab") & (rows.kind == "all") & rows["sparse"].str.startswith(beginning)
    chosen = scores(rows[own & (rows.passages == PASSAGES) & rows.training_seed.isna()])
    return chosen.assign(spec=chosen["sparse"], tokens=chosen.get("prompt_tokens")).sort_values("density")


def grid(data: str, spec: str) -> list[list[float]]:
    """Return 1 a training seed and question that a setting answers right; none where it was not measured."""
    rows = shipped("answers")
    own = rows[(rows.data == data) & (rows["sparse"] == spec) & rows.training_seed.notna()]
    return [group.em.tolist() for _, group in own.groupby("training_seed")]


def chosen_and_read(chosen: float, read: float) -> str:
    """Say which share of the pairs a setting chooses, and which it attends to where a union adds some."""
    return f"{chosen:.0%} of the pairs" + (f" chosen, {read:.0%} attended to" if read > chosen else "")


def sparse_over_seeds(what: str, beginning: str, most: float, side: Side, bar: float) -> Findings:
    """Compare the best setting of a method that keeps at most a share with dense attention, over training seeds."""
    rows = shipped("counts")
    own = rows[(rows.data == "lab-hard") & rows.training_seed.notna() & rows["sparse"].str.startswith(beginning)]
    means = own.pivot_table(index=["model", "sparse"], columns="measure", values="value").reset_index()
    if means.empty:
        return []
    few = means[means.density <= most].sort_values("density")
    if few.empty:
        return []
    best = few.loc[few.em.idxmax()]
    read = best["union"] if best["sparse"].startswith("compact(") else best.density
    kept = f"{chosen_and_read(best.density, read)}, {best.model}"
    got = crossed(np.subtract(grid("lab-hard", best["sparse"]), grid("lab-hard", DENSE)).tolist())
    return [over_seeds(f"{what}, {kept}", got, side, bar)]


def needles_over_seeds(what: str, task: str, spec: str, side: Side, bar: float) -> Findings:
    """Compare a method with dense attention on a needle task over training seeds; none where it was not measured.

    Where dense attention answers all of them the task ranks nothing: the comparison is shown and decides nothing.
    """
    data = f"needles-{task}"
    ours, dense = grid(data, spec), grid(data, DENSE)
    if not ours or not dense:
        return []
    rows = shipped("answers")
    model = rows[(rows.data == data) & rows.training_seed.notna()].model.iloc[0]
    found = over_seeds(f"{what} ({model})", crossed(np.subtract(ours, dense).tolist()), side, bar)
    return [replace(found, decides=bool(np.min(dense) < 1))]

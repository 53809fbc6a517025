"""Readers of committed results (data/benchmarks, cards of models) that give findings."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pandas as pd

from workbench import results as tables
from workbench.data.assets import ROOT
from workbench.experiments import deviation_results, results
from workbench.experiments.papers.verdicts import Finding, Findings, Side
from workbench.metrics.answers import normalised
from workbench.metrics.latency import ratio
from workbench.metrics.paired import bits_explained, difference
from workbench.metrics.seeds import OverSeeds, crossed

Method = tuple[str, str, float | None]  # preparation, selector, ratio of a trial of `fusion`
FULL: Method = ("full", "", None)
LEAST = 100  # questions of a real data set that decide; results on fewer are shown


@cache
def _table(name: str, folder: str) -> pd.DataFrame:
    return results.table(name)


def table(name: str) -> pd.DataFrame:
    """Read a committed table once."""
    return _table(name, str(results.FOLDER))


def has(name: str, kind: str = "parquet") -> bool:
    """Return whether results of that name are committed."""
    return name in results.names(kind)


def card(model: str, name: str) -> Any:
    """Read a JSON file of a shipped model, `tuning` say."""
    return json.loads((ROOT / "models" / model / f"{name}.json").read_text(encoding="utf-8"))


def gap(what: str, one: Sequence[float], other: Sequence[float], side: Side, bar: float, label: str) -> Finding:
    """Compare two methods question by question, as a difference of points."""
    found = difference(one, other)
    low, high = _unlike(found.low, found.high, found.n)
    return Finding(what, found.mean, low, high, found.n, label, side, bar, "points")


def over_seeds(what: str, got: OverSeeds, side: Side, bar: float) -> Finding:
    """Return a difference over training seeds as a finding."""
    seeds = f"{got.seeds} training {'seed' if got.seeds == 1 else 'seeds'}"
    low, high = _unlike(got.low, got.high, got.n)
    return Finding(f"{what}, {seeds}", got.mean, low, high, got.n, "lab", side, bar, "points")


def _unlike(low: float, high: float, n: int) -> tuple[float, float]:
    """Return the interval of a difference; 3 / n to each side where every answer was alike.

    Resampling what is all alike gives no width, yet up to 3 in n others may differ (the rule of three, 95%).
    """
    return (low - 3 / n, high + 3 / n) if low == high else (low, high)


# Lab questions in the modes of Block-Attention, over training seeds


@cache
def by_training(method: str) -> dict[int, list[float]]:
    """Return {training seed: exact match of every question}; -1 is a model before fine-tuning."""
    rows = tables.read().answers("trial")
    own = rows[(rows.method == method) & rows.command.str.contains("block_attention.py")]
    runs = own.assign(run=own.training_seed.fillna(-1).astype(int)).groupby("run")
    return {int(run): list(of_run.em) for run, of_run in runs}


def block_gap(what: str, one: str, other: str, side: Side, bar: float) -> Finding:
    """Compare two methods of Block-Attention's table on the lab questions, over the training runs that both have."""
    runs = [by_training(name) for name in (one, other)]
    tuned = [set(each) for each in runs if set(each) != {-1}]
    shared = sorted(set.intersection(*tuned)) if tuned else [-1]
    pairs = [[each.get(run) or each[-1] for each in runs] for run in shared]
    found = over_seeds(what, crossed([np.subtract(*pair).tolist() for pair in pairs]), side, bar)
    return found if tuned else replace(found, what=what)


def scored_gap(
    what: str, one: Mapping[str, float], other: Mapping[str, float], side: Side, bar: float, label: str = "lab"
) -> Finding:
    """Compare two scores {em, em_low, em_high, n}; the interval is Newcombe's (1998, method 10), unpaired."""
    middle = one["em"] - other["em"]
    below = np.hypot(one["em"] - one["em_low"], other["em_high"] - other["em"])
    above = np.hypot(one["em_high"] - one["em"], other["em"] - other["em_low"])
    low, high, n = float(middle - below), float(middle + above), int(min(one["n"], other["n"]))
    return Finding(what, middle, low, high, n, label, side, bar, "points")


# Lab questions under every preparation and selector

SWEPT = {"model": "lab-full", "data": "lab", "seed": 30_000}  # the questions of data/benchmarks/fusion.py


@cache
def _swept(table: str) -> pd.DataFrame:
    rows = tables.read().table(table, "trial")
    for name, value in SWEPT.items():
        rows = rows[rows[name] == value]
    return rows[rows.command.str.contains("fusion.py")]


def of_method(rows: pd.DataFrame, method: Method) -> pd.DataFrame:
    """Return the rows of a method."""
    prepare, select, ratio = method
    if method == FULL:
        return rows[rows["mode"] == "full"]
    mine = (rows["mode"] == "block") & (rows.prepare == prepare) & (rows["select"] == select)
    return rows[mine & np.isclose(rows.ratio, ratio)] if ratio is not None and select != "none" else rows[mine]


def trial(method: Method) -> pd.Series:
    """Return what a trial measured over all kinds of question: {measure: value}, and n."""
    own = of_method(_swept("counts"), method).query("kind == 'all'").set_index("measure")
    return pd.concat([own.value, pd.Series({"n": own.n.max()})])


def answers(method: Method, score: str = "em") -> Sequence[float]:
    """Return the scores of a trial, one a question."""
    return list(of_method(_swept("answers"), method)[score])


def fusion_gap(what: str, one: Method, other: Method, side: Side = "above", bar: float = 0.0) -> Finding:
    """Compare two trials on the lab questions: exact match."""
    return gap(what, answers(one), answers(other), side, bar, "lab")


def recovered(what: str, method: Method, reuse: Method, side: Side, bar: float) -> Finding:
    """Return FusionRAG's normalised F1 of a trial: 0 is Full Reuse, 1 full attention."""
    scores, plain, full = (answers(each, "f1") for each in (method, reuse, FULL))
    ours = normalised(scores, plain, full)
    return Finding(what, *ours, len(answers(FULL)), "lab", side, bar, ".0%")


# A real model on real questions: answers of the shipped result tables


@cache
def shipped(kind: str, experiment: str = "trial") -> pd.DataFrame:
    """Read the rows of an experiment in the shipped result tables once; `kind`: answers or counts."""
    return tables.read().table(kind, experiment)


@cache
def real_questions() -> pd.DataFrame:
    """Return the scores of every question on models of real text, with `trial`, the method by its choices."""
    rows = shipped("answers")
    rows = rows[rows.kl.notna() & (rows["sparse"] == "none")]
    fields = rows[["mode", "positions", "prepare", "select", "ratio"]]
    names = [_trial_name(*each) for each in fields.itertuples(index=False, name=None)]
    return rows.assign(trial=names, id=rows.question)


def _trial_name(mode: str, positions: str, prepare: str, select: str, ratio: float) -> str:
    if mode == "full":
        return "full"
    if positions == "naive":
        return "naive positions"
    prepared = prepare.replace("search=exact, embedder", "embedder")
    return prepared + ("" if select == "none" else f", {select}" + ("" if ratio != ratio else f" {ratio:.0%}"))


def real_pairs(one: str, other: str, score: str) -> Iterator[tuple[str, list[float], list[float]]]:
    """Yield where two methods were measured, "smollm2 on nq", and their scores, a question each."""
    rows = real_questions()
    for (model, data), of_data in rows[rows.trial.isin([one, other])].groupby(["model", "data"], sort=True):
        pairs = of_data.pivot_table(index="id", columns="trial", values=score, observed=True).dropna()
        if {one, other} <= set(pairs.columns) and len(pairs):
            yield f"{model} on {data}", list(pairs[one]), list(pairs[other])


def tuned_for_blocks(where: str) -> bool:
    """Return whether a model ("smollm2-block on nq") is an adapter, fine-tuned for block mode.

    Papers on models as they are claim nothing of it, so its results are shown beside those that decide.
    """
    return (ROOT / "models" / where.split(" on ")[0] / "adapter_config.json").is_file()


def real_gap(
    what: str, one: str, other: str, side: Side = "below", bar: float = 0.0, loss: tuple[str, str] = ("kl", "KL")
) -> Findings:
    """Compare two methods by a loss, KL from full attention, on every data set of the real model."""
    found = []
    for where, ours, theirs in real_pairs(one, other, loss[0]):
        got = difference(ours, theirs)
        numbers = got.mean, got.low, got.high, got.n
        decides = got.n >= LEAST and not tuned_for_blocks(where)
        found.append(Finding(f"{what} ({loss[1]}, {where})", *numbers, "real", side, bar, "+.3f", decides))
    return found


def real_recovered(what: str, method: str, reuse: str, bar: float) -> Findings:
    """Return the share of the KL of plain reuse that a method wins back on every data set of the real model."""
    found = []
    for where, ours, plain in real_pairs(method, reuse, "kl"):
        got = bits_explained(ours, plain)
        if got.share is not None and got.low is not None and got.high is not None:
            numbers = got.share, got.low, got.high, got.n
            decides = got.n >= LEAST and not tuned_for_blocks(where)
            found.append(Finding(f"{what} ({where})", *numbers, "real", "above", bar, ".0%", decides))
    return found


# Times on a GPU: reports of `workbench bench`


def times(report: str, begins: str = "", **shape: Any) -> dict[str, Mapping[str, Any]]:
    """Return the timed candidates of the first workload of that shape, whose name begins so, by their names.

    Empty where it was not measured.
    """
    if not has(report, "json"):
        return {}
    for work in results.read(report)["workloads"]:
        fits = all(work["shape"].get(name) == value for name, value in shape.items())
        if fits and work["name"].startswith(begins):
            return {one["who"]: one for one in work["contestants"] if one.get("ms")}
    return {}


def chooser(report: str) -> str:
    """Return whose choice of rows is in the times of a report; "" where they are drawn without a choice."""
    works = results.read(report)["workloads"] if has(report, "json") else []
    return next((str(work["shape"]["choice"]) for work in works if work["shape"].get("choice")), "")


def faster(
    what: str, timed: Mapping[str, Mapping[str, Any]], than: str, bar: float, side: Side = "above", ours: str = "ours"
) -> Findings:
    """Say how many times as fast `ours` is as the fastest candidate whose name begins with `than`."""
    others = [one for name, one in timed.items() if name.startswith(than)]
    if ours not in timed or not others:
        return []
    own, other = timed[ours], min(others, key=lambda one: one["ms"])
    return [Finding(what, *ratio(other, own), int(min(own["runs"], other["runs"])), "shape", side, bar, "x")]


def measured(what: str, name: str, side: Side, bar: float, form: str = ".0%", real: bool = True) -> Findings:
    """Return a number of deviation, behind the same of real text where it was measured, which then decides.

    real  False: of the lab model alone
    """
    found = []
    for each, got in deviation_results.by_name(deviation_results.kept(), name):
        if each.is_real and not real:
            continue
        numbers = got["value"], got["low"], got["high"], int(got["n"])
        decides = each.is_real and got["n"] >= LEAST and not tuned_for_blocks(each.where)
        words, label = (f"{what} ({each.where})", "real") if each.is_real else (what, "lab")
        found.append(Finding(words, *numbers, label, side, bar, form, decides))
    told = any(finding.decides for finding in found)
    found = [replace(one, decides=one.decides or (one.label == "lab" and not told)) for one in found]
    return sorted(found, key=lambda one: one.label == "lab")


def counted(what: str, value: float, n: int, bar: float, side: Side = "equals", form: str = ",.0f") -> Finding:
    """Return a number that is counted and has no interval."""
    return Finding(what, value, value, value, n, "computed", side, bar, form)

"""Explorers of results: quality against cost of trials, and stores of cached blocks."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import plotly.graph_objects as go
from ipywidgets import VBox

from workbench.app.explore.live import explorer, menu
from workbench.core.errors import BadInput
from workbench.core.utils.files import is_url
from workbench.experiments.trials import runs as reading
from workbench.experiments.trials.record import Record
from workbench.experiments.trials.runs import Run, distinct, of_record
from workbench.metrics.measures import MEASURES
from workbench.plots.reports.trial_costs import COSTS, quality_by_cost, requests_of, store_contents
from workbench.store.files import scrub

METHOD = ("model", "mode", "prepare", "select")  # columns that identify a trial
Records = Any  # str | Path | pd.DataFrame | Record | Mapping[str, Any] | Sequence of these; `runs_of` checks them


def tradeoff(records: Records) -> VBox:
    """Explore quality against cost: one mark per trial, one line per method whose ratio was varied.

    `records` is a sweep's folder or table, a file of records, a `Record` or its JSON, or a list of these. Raises
    BadInput if it holds no readable record.
    """
    table = table_of(records)
    scores = [name for name in MEASURES if name in table and table[name].notna().any()]
    costs = {words: name for name, words in COSTS.items() if name in table and table[name].notna().any()}
    if not scores or not costs:
        raise BadInput("the records contain no score together with a cost: nothing to plot")
    kinds = list(dict.fromkeys(table["kind"]))

    def draw(score: str, cost: str, kind: str) -> go.Figure:
        return quality_by_cost(table[table["kind"] == kind], score, cost)

    words = {MEASURES[name].words: name for name in scores}
    return explorer([menu(words, "score"), menu(costs, "cost"), menu(kinds, "questions")], draw)


def table_of(records: Records) -> pd.DataFrame:
    """Return one row per trial and kind of question, of anything that `tradeoff` takes."""
    if isinstance(records, pd.DataFrame):
        if lacking := [name for name in METHOD if name not in records]:
            raise BadInput(f"the table has no column {', '.join(lacking)}: one of `sweep` is needed")
        return records.assign(kind=records.get("kind", "all"))
    runs = distinct(runs_of(records))
    rows = []
    for run in runs:
        if run.record is not None:
            each = {"run": run.name, **run.parameters, **run.scores}
            rows += [each | row | {"mode": run.record.trial["mode"]} for row in run.record.rows()]
    if not rows:
        raise BadInput("these are no records of trials")
    return pd.DataFrame(rows)


def runs_of(records: Records) -> list[Run]:
    """Return the runs of records other than tables. Raises BadInput for unreadable ones."""
    match records:
        case str() | Path():
            return reading.read_runs(records)
        case Record():
            return [of_record(records)]
        case Mapping():
            return [of_record(Record.from_json(dict(records)))]
        case Sequence():
            return [run for each in records for run in runs_of(each)]
    raise BadInput(f"records are {type(records).__name__}: a folder, a file, a Record or a list of them is needed")


def store(what: Any) -> VBox:
    """Explore the contents of a store of cached blocks, by its folder or URL.

    Given records with receipts (`workbench trial --receipt --out FILE`), explore what each request reused, recomputed
    and missed. Raises BadInput for anything else.
    """
    if isinstance(what, str | Path) and _is_store(what):
        found = scrub.describe_remote(str(what)) if is_url(str(what)) else scrub.describe(Path(what))
        return explorer([], lambda: store_contents(found))
    if hasattr(what, "stats"):
        return explorer([], lambda: store_contents(_in_memory(what)))
    runs = {run.name: run for run in distinct(runs_of(what)) if run.record is not None and run.record.receipts}
    if not runs:
        raise BadInput("the records have no receipts: run the trials with --receipt, or give the folder of a store")

    def draw(name: str, unit: str) -> go.Figure:
        record = runs[name].record
        assert record is not None and record.receipts is not None
        return requests_of(record.receipts, unit, name, Counter(record.misses or {}))

    return explorer([menu(list(runs), "run"), menu(["blocks", "tokens", "bytes"], "count")], draw)


def _is_store(what: str | Path) -> bool:
    return is_url(str(what)) or (Path(what).is_dir() and not (Path(what) / "trials").is_dir())


def _in_memory(what: Any) -> dict[str, Any]:
    stats = what.stats
    about = {"hits": stats.hits, "misses": stats.misses, "hit rate": f"{stats.hit_rate:.0%}"}
    counts = {"blocks": len(what), "bytes": stats.bytes, "kind": about, "set_aside": []}
    return {"folder": "a store in memory", "files": 0, "tokens": None, "made": [], **counts}

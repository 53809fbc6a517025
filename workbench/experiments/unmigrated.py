"""Committed results that are not in tables yet, read as rows of tables, so that claims are judged alike."""

import re
from collections.abc import Iterable, Iterator
from typing import Any

import pandas as pd

from workbench.experiments import results
from workbench.results import SHIPPED, Results, schema

Row = dict[str, Any]
PREPARED, BEHIND = "with_neighbours(n=10, search=exact)", "after_system"
FIELDS = {
    "full attention": ("full", "independent", "none"),
    "Full Reuse": ("block", BEHIND, "none"),
    "CacheBlend": ("block", BEHIND, "kv_deviation"),
    "Cache-Craft": ("block", BEHIND, "inter_attention"),
    "FusionRAG": ("block", PREPARED, "query_guided"),
    "CacheBlend, prepared": ("block", PREPARED, "kv_deviation"),
    "FusionRAG, unprepared": ("block", BEHIND, "query_guided"),
    "Full Reuse, prepared": ("block", PREPARED, "none"),
}


def with_files(found: Results) -> Results:
    """Return results with the rows of committed files, where the shipped tables are read and lack them."""
    if SHIPPED not in found.sources:
        return found
    if found.timings("bench").empty:
        found = _with(found, "timings", _timings())
    trials = found.answers("trial")
    if (
        "fusion" in results.names("parquet")
        and not (trials.model == "lab-full").eq(True).where(trials["select"] == "query_guided", False).any()
    ):
        answers, counts = _fusion()
        found = _with(_with(found, "answers", answers), "counts", counts)
    if any(name.startswith("faithful-") for name in results.names()) and trials.faithful.isna().all():
        found = _with(found, "answers", _faithful())
    return found


def _with(found: Results, table: str, rows: Iterable[Row]) -> Results:
    rows = [{**row, "setting": schema.json_text(row["setting"])} if "setting" in row else row for row in rows]
    made = pd.DataFrame(rows)
    texts = [name for name, kind in schema.columns(table).items() if kind is str]
    made = schema.typed(table, made.assign(**{name: made[name].fillna("") if name in made else "" for name in texts}))
    made = made.assign(source=SHIPPED)
    return Results(found.folders, {**found.live, table: [*found.live.get(table, ()), made]})


def _timings() -> Iterator[Row]:
    for name in results.names():
        report = results.read(name)
        for work in report.get("workloads", []) if isinstance(report, dict) and "card" in report else []:
            for one in work["contestants"]:
                if one.get("ms"):
                    numbers = {key: one.get(key) for key in ("ms", "p5", "p95", "runs", "least", "most")}
                    about = {"experiment": "bench", "workload": work["name"], "candidate": one["who"]}
                    yield {**about, **numbers, "setting": {"report": name, **work["shape"]}, "device": report["card"]}


def _fusion() -> tuple[list[Row], list[Row]]:
    trials = results.table("fusion")
    needed = ["none", "kv_deviation", "inter_attention", "query_guided"]
    trials = trials[
        (trials.kind == "all")
        & trials["select"].isin(needed)
        & ((trials["select"] == "none") | (trials.ratio.astype(float) == 0.15))
    ]
    scores = results.table("fusion-answers")
    answers, counts = [], []
    for row in trials.to_dict("records"):
        about = {"experiment": "trial", "positions": "re-encoded", "sparse": "none", "passages": int(row["passages"])}
        about |= {name: row[name] for name in ("model", "data", "mode", "prepare", "select")}
        about |= {"ratio": float(row["ratio"]), "seed": int(row["seed"]), "method": row["way"]}
        about |= {"command": "python data/benchmarks/fusion.py"}
        number = {"value": float(row["rows_computed"]), "n": int(row["n"])}
        counts.append({**about, "measure": "rows_computed", "kind": "all", **number})
        em, f1 = (scores[f"{name} {row['trial']}"].astype(float) for name in ("em", "f1"))
        answers += [{**about, "question": q, "em": e, "f1": f} for q, e, f in zip(scores["id"], em, f1, strict=True)]
    return answers, counts


def _faithful() -> Iterator[Row]:
    for name in results.names():
        if not name.startswith("faithful-"):
            continue
        one = results.read(name)
        model, seed = re.fullmatch(r"(.*?)(?:-(\d+))?", one["model"]).groups()  # type: ignore[union-attr]
        for method, of in one["methods"].items():
            mode, prepare, select = FIELDS[method]
            about = {"experiment": "trial", "model": model, "data": one["data"], "passages": one["passages"]}
            about |= {"seed": one["seed"], "training_seed": int(seed) if seed else None, "method": method, "mode": mode}
            about |= {"command": "python data/benchmarks/faithful.py"}
            about |= {"prepare": prepare, "select": select, "ratio": one["ratio"]}
            about |= {"positions": "re-encoded", "sparse": "none"}
            for i, (right, faithful) in enumerate(zip(of["right"], of["faithful"], strict=True)):
                yield {**about, "question": str(i), "em": float(right), "faithful": float(faithful)}

"""Reports of `workbench bench`, to result tables and back: a row a workload and candidate."""

import json
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import pandas as pd

from workbench.core.errors import BadInput
from workbench.experiments import bench
from workbench.metrics.answers import Records
from workbench.results import Results, Writer, expanded, read

MODELS = bench.MODELS  # reports on whole models
OURS = "ours"
CEILINGS = ("copy_tbps", "product_tflops")  # that a GPU reaches
FACTS = ("processors", "memory_gib", "cuda", "driver")  # of a GPU
TIMES = ("ms", "p5", "p95", "least", "most")
FIGURES = ("ms", "p5", "p95", "runs", "least", "most", "tflops", "tbps", "share", "ratio", "problem")

Report = Mapping[str, Any]


def reports(found: Results) -> dict[str, Report]:
    """Return the reports of `workbench bench` in result tables by name.

    A report holds what `bench.run` describes; of several GPUs the one that stands first in the tables.
    """
    timed, counts = expanded(found.timings("bench"), "report", "own"), expanded(found.counts("bench"), "report")
    first = [*bench.names(), *MODELS, *bench.CHUNKS]
    names = sorted(timed.report.unique(), key=lambda name: (first.index(name) if name in first else len(first), name))
    return {str(name): _report(str(name), timed[timed.report == name], counts[counts.report == name]) for name in names}


def _report(name: str, timed: pd.DataFrame, counts: pd.DataFrame) -> Report:
    gpu = timed.device.iloc[0]
    timed, counts = timed[timed.device == gpu], counts[counts.device == gpu]
    ceilings = counts[counts.kind == "ceiling"]
    refused = counts[counts.kind == "refused"]
    works = []
    for work, own in timed.groupby("workload", sort=False):
        setting, row = json.loads(own.setting.iloc[0]), own.iloc[0]
        floor, shape = setting.pop("floor_ms"), {k: v for k, v in setting.items() if k not in ("report", "own")}
        facts = {"name": work, "shape": shape, "flops": row.flops, "bytes": row.bytes, "floor_ms": floor}
        candidates = [_candidate(one, own, floor) for one in own.to_dict("records")]
        for text in refused.setting:
            if (about := json.loads(text))["workload"] == work:
                candidates.append({"who": about["who"], "problem": about["problem"]})
        about_run = {"command": row.command, "versions": json.loads(row.versions or "{}")}
        works.append({**facts, "contestants": candidates, **about_run})
    head = {"kernel": name, "card": gpu, **dict(zip(ceilings.measure, ceilings.value, strict=True))}
    return {**head, "command": timed.command.iloc[-1], "versions": works[-1]["versions"], "workloads": works}


def _candidate(row: Mapping[str, Any], work: pd.DataFrame, floor: float) -> dict[str, Any]:
    """Return one candidate of a workload with its rates, its share of the roof and its ratio to "ours"."""
    ours = work.ms[work.candidate == OURS]
    times = {name: row[name] for name in TIMES if row[name] == row[name]}
    times |= {"runs": int(row["runs"])} if row["runs"] == row["runs"] else {}
    rates = {"tflops": row["flops"] / row["ms"] / 1e9, "tbps": row["bytes"] / row["ms"] / 1e9}
    ratio = row["ms"] / ours.iloc[0] if len(ours) else None
    return {"who": row["candidate"], **times, **rates, "share": floor / row["ms"], "ratio": ratio, **(row["own"] or {})}


def before(folder: str | Path, name: str, gpu: str) -> list[dict[str, Any]]:
    """Return the workloads of a kernel or model in a folder of results, if they are of the same GPU; else none."""
    report = reports(read(folder)).get(name, {"card": ""})
    return [dict(work) for work in report["workloads"]] if report["card"] == gpu else []


def write(folder: str | Path, report: Report) -> None:
    """Write a report into a folder of results, in place of what it holds of the same kernel or model."""
    name, gpu = report["kernel"], {fact: report[fact] for fact in FACTS if report.get(fact)}
    with Writer(folder, f"bench@{name}", time=report.get("time", ""), device=report["card"]) as out:
        ceilings = ({"measure": ceiling, "value": report[ceiling]} for ceiling in CEILINGS)
        out.counts({**one, "kind": "ceiling", "setting": {"report": name, **gpu}} for one in ceilings)
        for work in report["workloads"]:
            out.timings(timings(name, work, report))
            out.counts(refusals(name, work, report))


def timings(report: str, work: Mapping[str, Any], head: Report) -> Records:
    """Return the timed candidates of a workload as rows of `results.Timing`; what else is said of one is its `own`."""
    shared = {"workload": work["name"], "flops": work["flops"], "bytes": work["bytes"], **_run_of(work, head)}
    rows = []
    for one in work["contestants"]:
        if one.get("ms"):
            own = {name: value for name, value in one.items() if name not in (*FIGURES, "who")}
            setting = {"report": report, "floor_ms": work["floor_ms"], **work.get("shape", {})}
            times = {name: one.get(name) for name in (*TIMES, "runs")}
            rows.append(
                {**shared, **times, "candidate": one["who"], "setting": {**setting, **({"own": own} if own else {})}}
            )
    return rows


def refusals(report: str, work: Mapping[str, Any], head: Report) -> Records:
    """Return the candidates that did not run on a workload, as rows of `results.Count`."""
    about = [{"who": one["who"], "problem": one.get("problem", "")} for one in work["contestants"] if not one.get("ms")]
    rows = ({"setting": {"report": report, "workload": work["name"], **one}} for one in about)
    return [{"measure": "did_not_run", "kind": "refused", "value": 1.0, **_run_of(work, head), **row} for row in rows]


def _run_of(work: Mapping[str, Any], head: Report) -> dict[str, Any]:
    run = {"command": work.get("command", head.get("command")), "versions": work.get("versions", head.get("versions"))}
    return {name: value or "" for name, value in run.items()}


def with_measured(found: Results, names: Sequence[str], against: Sequence[str]) -> Results:
    """Measure kernels and whole-model benchmarks now, on this GPU, and return results with their rows.

    BadInput where there is none.
    """
    for name in names:
        if name not in (*bench.names(), *MODELS):
            raise BadInput(f"nothing is called {name!r}: it is one of {', '.join((*bench.names(), *MODELS))}")
        module = "operations" if name in MODELS else "run"  # both load the kernels, which need Triton
        head, *workloads = import_module(f"{bench.__name__}.{module}").run(name, list(against))
        for work in workloads:
            rows = timings(name, work, head)
            found = found.with_rows("timings", rows, experiment="bench", device=head["card"])
    return found

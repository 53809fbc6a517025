"""Convert `workbench bench` measurements to rows of result tables: one per workload and candidate."""

import json
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import pandas as pd

from workbench.core.errors import BadInput
from workbench.experiments import bench
from workbench.metrics.answers import Records
from workbench.results import Results, Writer, expand_settings, read, schema

MODELS = bench.MODELS  # reports on whole models
DENSE = "ours, dense"  # baseline of whole models: the same engine without a method
CEILINGS = ("copy_tbps", "product_tflops")  # measured ceilings of a GPU
FACTS = ("processors", "memory_gib", "cuda", "driver")  # of a GPU
TIMES = ("ms", "p5", "p95", "least", "most")
FIGURES = ("ms", "p5", "p95", "runs", "least", "most", "tflops", "tbps", "share", "ratio", "problem")

Report = Mapping[str, Any]  # name of the report and facts of the GPU, as `bench.run.run` yields them first
Work = tuple[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]]  # rows of candidates that ran, and of others


def earlier_workloads(folder: str | Path, name: str, gpu: str) -> dict[str, Work]:
    """Return earlier workloads of a kernel or model from a folder of results, if they ran on the same GPU."""
    found = read(folder)
    timed, refused = (
        expand_settings(found.timings("bench"), "report"),
        expand_settings(found.counts("bench"), "report", "workload"),
    )
    timed, refused = (rows[(rows.report == name) & (rows.device == gpu)] for rows in (timed, refused))
    columns, others = (list(schema.columns(table)) for table in ("timings", "counts"))
    return {
        str(work): (_records(own[columns]), _records(refused.loc[refused.workload == work, others]))
        for work, own in timed.groupby(timed.workload, sort=False)
    }


def _records(rows: pd.DataFrame) -> Records:
    return [row.dropna().to_dict() for _, row in rows.iterrows()]


def merge_measured(work: Mapping[str, Any], head: Report, earlier: Work = ((), ())) -> Work:
    """Return the rows of a workload that was just measured, replacing `earlier` ones.

    Rows that contain the dense time of their own run (as "dense") are self-contained: earlier rows that this run has
    not measured again are kept, each with the dense time of its run.
    """
    timed, refused = timings(head["kernel"], work, head), refusals(head["kernel"], work, head)
    again = {one["who"] for one in work["contestants"]}
    if not any("dense" in one for one in work["contestants"]):
        return timed, refused
    dense = next((dense_time({"who": DENSE, **row}) for row in earlier[0] if row["candidate"] == DENSE), None)
    for row in (row for row in earlier[0] if row["candidate"] not in again):
        setting = json.loads(row["setting"])
        if level := setting.get("own", {}).get("dense") or dense:
            timed.append({**row, "setting": {**setting, "own": {**setting.get("own", {}), "dense": level}}})
    return timed, [*refused, *(row for row in earlier[1] if json.loads(row["setting"])["who"] not in again)]


def dense_time(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row's time, for the rows of the same run to store as their baseline."""
    return {name: row[name] for name in ("who", "ms", "p5", "p95", "runs", "least", "most") if name in row}


def write(folder: str | Path, head: Report, works: Mapping[str, Work]) -> None:
    """Write the workloads of a kernel or model into a folder of results, replacing its earlier ones."""
    name, gpu = head["kernel"], {fact: head[fact] for fact in FACTS if head.get(fact)}
    with Writer(folder, f"bench@{name}", time=head.get("time", ""), device=head["card"]) as out:
        ceilings = ({"measure": ceiling, "value": head[ceiling]} for ceiling in CEILINGS)
        out.counts({**one, "kind": "ceiling", "setting": {"report": name, **gpu}} for one in ceilings)
        for timed, refused in works.values():
            out.timings(timed)
            out.counts(refused)


def timings(report: str, work: Mapping[str, Any], head: Report) -> Records:
    """Return the timed candidates of a workload as rows of `results.Timing`; their other facts go to `own`."""
    shared = {"workload": work["name"], "flops": work["flops"], "bytes": work["bytes"], **_run_of(head)}
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
    return [{"measure": "did_not_run", "kind": "refused", "value": 1.0, **_run_of(head), **row} for row in rows]


def _run_of(head: Report) -> dict[str, Any]:
    return {name: head.get(name) or "" for name in ("command", "versions")}


def with_measured(found: Results, names: Sequence[str], against: Sequence[str]) -> Results:
    """Measure kernels and whole-model benchmarks now, on this GPU, and return results with their rows.

    Raises BadInput for an unknown name, and without a GPU.
    """
    for name in names:
        if name not in (*bench.names(), *MODELS):
            raise BadInput(f"benchmark is {name!r}: allowed are {', '.join((*bench.names(), *MODELS))}")
        module = "models.operations" if name in MODELS else "run"  # imported late, as both import Triton
        head, *workloads = import_module(f"{bench.__name__}.{module}").run(name, list(against))
        for work in workloads:
            rows = timings(name, work, head)
            found = found.with_rows("timings", rows, experiment="bench", device=head["card"])
    return found

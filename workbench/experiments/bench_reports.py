"""Reports of `workbench bench`, to result tables and back: a row a workload and candidate."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pandas as pd

from workbench.core.errors import BadInput
from workbench.experiments import bench
from workbench.experiments.bench.timing import Roof
from workbench.metrics.answers import Records
from workbench.results import Results, Writer, expanded, read

MODELS = bench.MODELS  # reports on whole models
TRIED = re.compile(r"\d+x\d+, \d+ warps|\d+ splits")  # launches that were tried beside the one a kernel picks itself
FEEDS, BOTH = "the attention it feeds", "choice and attention, "  # in a report on choosing
OURS = "ours"
CEILINGS = ("copy_tbps", "product_tflops")  # that a GPU reaches
FACTS = ("processors", "memory_gib", "cuda", "driver")  # of a GPU
TIMES = ("ms", "p5", "p95", "least", "most")
FIGURES = ("ms", "p5", "p95", "runs", "least", "most", "tflops", "tbps", "share", "ratio", "problem")

Report = Mapping[str, Any]


def reports(found: Results | None = None) -> dict[str, Report]:
    """Return the reports on kernels and whole models in result tables (None: those that ship) by name."""
    return {name: report for name, report in all_reports(found).items() if name not in bench.CHUNKS}


@cache
def _shipped() -> dict[str, Report]:
    return _all(read())


def all_reports(found: Results | None = None) -> dict[str, Report]:
    """Return all reports of `workbench bench` in result tables by name.

    A report holds what `bench.run` describes; of several GPUs the one that stands first in the tables.
    """
    return _shipped() if found is None else _all(found)


def _all(found: Results) -> dict[str, Report]:
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
    report = _all(read(folder)).get(name, {"card": ""})
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


def missing(reports: Mapping[str, Report]) -> list[str]:
    """List kernels and whole-model benchmarks without a report."""
    return [name for name in (*bench.names(), *MODELS) if name not in reports]


def table(reports: Mapping[str, Report], tried: bool = False) -> pd.DataFrame:
    """Return a row a workload and candidate, workloads of a report by the length of their context.

    Columns: report, card, work, shape, flops, bytes, intensity (operations a byte), floor_ms, who, and FIGURES.
    `tried`: also launches that were tried beside the one that a kernel picks itself.
    """
    rows = []
    for name, report in reports.items():
        for work in sorted(report["workloads"], key=lambda work: work.get("shape", {}).get("context", 0)):
            facts = [name, report["card"], work["name"], work.get("shape", {}), work["flops"], work["bytes"]]
            facts += [work["flops"] / work["bytes"], work["floor_ms"]]
            for candidate in work["contestants"]:
                if tried or not TRIED.search(candidate["who"]):
                    rows.append([*facts, candidate["who"], *map(candidate.get, FIGURES)])
    columns = ["report", "card", "work", "shape", "flops", "bytes", "intensity", "floor_ms", "who", *FIGURES]
    return pd.DataFrame(rows, columns=columns)


def gpus(reports: Mapping[str, Report]) -> list[str]:
    """List the GPUs that were measured, each once."""
    return list(dict.fromkeys(report["card"] for report in reports.values()))


def ceilings(reports: Mapping[str, Report], gpu: str) -> tuple[float, float]:
    """Return medians of the reports of a GPU: bytes a second of a copy, operations a second of a product."""
    of_gpu = pd.DataFrame([report for report in reports.values() if report["card"] == gpu])
    return float(of_gpu.copy_tbps.median()) * 1e12, float(of_gpu.product_tflops.median()) * 1e12


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


@dataclass(frozen=True, eq=False)
class GpuReports:
    """The reports of the GPU that was measured first; without any report, `gpu` is "" and `rows` are empty."""

    reports: Mapping[str, Report]  # of all GPUs, by name
    gpu: str
    rows: pd.DataFrame  # `table` of this GPU
    missing: list[str]  # kernels and whole-model benchmarks without a report

    @property
    def short(self) -> str:
        """The name of the GPU without its maker."""
        return self.gpu.removeprefix("NVIDIA ")

    def roof(self) -> Roof:
        """Return what the GPU reaches: `ceilings`."""
        return Roof(*ceilings(self.reports, self.gpu))


def of_first_gpu(reports: Mapping[str, Report]) -> GpuReports:
    """Gather the reports of the GPU that was measured first."""
    gpu = next(iter(gpus(reports)), "")
    rows = table(reports)
    return GpuReports(reports, gpu, rows[rows.card == gpu], missing(reports))

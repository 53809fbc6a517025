"""Reports of `workbench bench` read back for figures and tables: one row a workload and candidate."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import pandas as pd

from workbench.core.errors import BadInput
from workbench.experiments import bench
from workbench.experiments.bench.timing import Roof
from workbench.experiments.results import FOLDER, read_json
from workbench.metrics.answers import Records
from workbench.metrics.latency import spread

MODELS = bench.MODELS  # reports on whole models
TRIED = re.compile(r"\d+x\d+, \d+ warps|\d+ splits")  # launches that were tried beside the one a kernel picks itself
FEEDS, BOTH = "the attention it feeds", "choice and attention, "  # in a report on choosing
COMPARED = ("ours, answer-guided", "ours, random rows, no choice")  # with "ours" of the report on recomputed rows
FIGURES = ("ms", "p5", "p95", "runs", "least", "most", "tflops", "tbps", "share", "ratio", "problem")

Report = Mapping[str, Any]


def reports(folder: str | Path | None = None) -> dict[str, Report]:
    """Read the reports in a folder (None: those that ship) by name.

    BadInput for no folder, and for half a JSON file.
    """
    place = Path(FOLDER if folder is None else folder)
    if not place.is_dir():
        raise BadInput(f"{place} is no folder of reports: `workbench bench OP --out FOLDER` fills one")
    paths = (
        path for path in sorted(place.glob("*.json")) if path.stem not in bench.CHUNKS
    )  # `plots.chunks` reads them
    contents = {path.stem: read_json(path) for path in paths}
    first = [*bench.names(), *MODELS]
    ordered = sorted(contents, key=lambda name: (first.index(name) if name in first else len(first), name))
    needed = {"card", "copy_tbps", "product_tflops", "workloads"}
    whole = (name for name in ordered if isinstance(contents[name], dict) and needed <= set(contents[name]))
    return {name: contents[name] for name in whole}


def split(folder: str | Path | None = None) -> dict[str, Any]:
    """Read what `data/benchmarks/stages.py` wrote: {model, device, length, rows: [{way, density, seconds by stage}]}.

    Empty where it was not run.
    """
    path = Path(FOLDER if folder is None else folder) / "stages.json"
    return dict(read_json(path)) if path.exists() else {}


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


def with_missing(rows: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """Return the table without its shapes, and with a line for every report that is not there."""
    absent = [{"report": name, "problem": "not measured yet"} for name in names]
    return pd.DataFrame([*rows.drop(columns="shape").to_dict("records"), *absent])


def gpus(reports: Mapping[str, Report]) -> list[str]:
    """List the GPUs that were measured, each once."""
    return list(dict.fromkeys(report["card"] for report in reports.values()))


def ceilings(reports: Mapping[str, Report], gpu: str) -> tuple[float, float]:
    """Return medians of the reports of a GPU: bytes a second of a copy, operations a second of a product."""
    of_gpu = pd.DataFrame([report for report in reports.values() if report["card"] == gpu])
    return float(of_gpu.copy_tbps.median()) * 1e12, float(of_gpu.product_tflops.median()) * 1e12


def against(rows: pd.DataFrame, report: str, by: str, names: Sequence[str] = ()) -> Records:
    """Return lines of one report over a number of its shapes, each candidate a line.

    {name, at, mean, low, high, work} in milliseconds; `low` and `high` as of `metrics.latency.spread`, the mean where
    it is not known. `names`: these candidates alone.
    """
    timed = rows[(rows.report == report) & rows.ms.notna()]
    lines = timed.assign(at=[shape.get(by) for shape in timed["shape"]]).dropna(subset=["at"]).sort_values("at")
    lines = lines[lines.who.isin(names)] if names else lines
    return [
        {"name": r["who"], "at": r["at"], "mean": r["ms"], "low": low, "high": high, "work": r["work"]}
        for r in lines.to_dict("records")
        for low, high in [spread(r) or (r["ms"], r["ms"])]
    ]


def by_context(rows: pd.DataFrame) -> Records:
    """Return times to the first token in the reports on whole models, by the methods of `experiments.ttft`.

    Records {length, way, p50, p5, p95, least, most (milliseconds), n, who}. Recomputed rows count where choosing them
    is in the time.
    """
    methods = {
        ("question", "ours"): "block",
        ("recompute", "ours"): "recompute",
        ("question", "transformers, ready prefix cache"): "stock prefix",
        ("question", "transformers, full prefill"): "stock full",
    }
    records = []
    for r in rows.dropna(subset=["ms"]).itertuples():
        if (method := methods.get((r.report, r.who))) and (method != "recompute" or "choice" in r.shape):
            length = r.shape["context"] + r.shape["question"]
            ends = {name: getattr(r, name) for name in ("p5", "p95", "least", "most")}
            records.append({"length": length, "way": method, "p50": r.ms, **ends, "n": r.runs, "who": r.who})
    return sorted(records, key=lambda record: (list(methods.values()).index(record["way"]), record["length"]))


def recomputation(rows: pd.DataFrame) -> str:
    """Say how long the report on recomputed rows took, by whose choice, beside stock full prefill; "" without it."""
    timed = rows[(rows.report == "recompute") & rows.ms.notna()].drop_duplicates("who").set_index("who")
    if "ours" not in timed.index:
        return ""
    shape, ours = timed.loc["ours", "shape"], float(timed.loc["ours", "ms"])
    chosen = f"{shape['choice']}, choosing included" if "choice" in shape else "drawn at random, without a choice"
    others = {name.removeprefix("ours, "): ms for name, ms in timed.ms.items() if name in COMPARED}
    beside = "".join(f", {name} {ms:,.0f} ms" for name, ms in others.items())
    stock = timed.ms[timed.index.str.startswith("transformers")]
    times = f"; stock full prefill takes {stock.min() / ours:.1f} times as long" if len(stock) else ""
    return f"{shape['rows']:,} rows over {shape['context']:,} tokens, {chosen}: {ours:,.0f} ms{beside}{times}"


def by_density(rows: pd.DataFrame, tokens: int) -> Records:
    """Return lines of tile_attention over its density at one length, as `against` does; dense attention stands at 1."""
    of_length = rows.loc[[shape.get("tokens") == tokens for shape in rows["shape"]]]
    shapes = [{**shape, "density": shape.get("density") or 1.0} for shape in of_length["shape"]]
    return against(of_length.assign(shape=shapes), "tile_attention", "density")


def baselines(rows: pd.DataFrame) -> Records:
    """Compare every baseline with ours on every workload where ours ran: {work, who, ms, ratio, low, high}.

    `ratio`, `low` and `high` are its median and the ends of its `spread` over the median of ours. Another kernel of
    ours, or the attention that a choice feeds, is no baseline.
    """
    timed = rows.dropna(subset=["ms"])
    ours = timed[timed.who == "ours"].set_index(["report", "work"]).ms
    records = []
    for r in timed.itertuples():
        own = ours.get((r.report, r.work))
        if own and not r.who.startswith(("ours", FEEDS)) and r.who not in bench.names():
            low, high = spread(r._asdict()) or (r.ms, r.ms)
            ratios = {"ratio": r.ms / own, "low": low / own, "high": high / own}
            records.append({"work": workload_name(r.report, r.work), "who": r.who, "ms": r.ms, **ratios})
    return records


def workload_name(report: str, work: str) -> str:
    """Name a workload with its report: "choose_bfla + attention: 32K, tiles of 128"."""
    return f"{report} + attention: {work.removeprefix(BOTH)}" if work.startswith(BOTH) else f"{report}: {work}"


def here(names: Sequence[str], against: Sequence[str]) -> dict[str, Report]:
    """Measure kernels and whole-model benchmarks now, on this GPU, and return their reports.

    BadInput where there is none.
    """
    measured: dict[str, Report] = {}
    for name in names:
        if name not in (*bench.names(), *MODELS):
            raise BadInput(f"nothing is called {name!r}: it is one of {', '.join((*bench.names(), *MODELS))}")
        module = "operations" if name in MODELS else "run"  # both load the kernels, which need Triton
        head, *workloads = import_module(f"{bench.__name__}.{module}").run(name, list(against))
        measured[name] = {**head, "workloads": workloads}
    return measured


def listed(rows: pd.DataFrame, baselines: Mapping[str, Sequence[str]]) -> tuple[list[list[str]], list[int]]:
    """Return the lines of a table and the indices of those that are headings.

    Every report has a heading. A line is a workload: its name, median and `spread` of ours, TF/s, TB/s, share of the
    roof, and how many times as fast ours is as each of `baselines` (heading → how their names begin). Of several
    candidates under one heading the fastest counts.
    """
    lines: list[list[str]] = []
    headings: list[int] = []
    for (report, gpu), of_report in rows.groupby(["report", "card"], sort=False):
        headings.append(len(lines))
        lines.append([f"{report} ({gpu})", *[""] * (4 + len(baselines))])
        for work, candidates in of_report.groupby("work", sort=False):
            name = work.replace(BOTH, "+ attention: ")
            own = next((r for r in candidates.itertuples() if r.who == "ours"), None)
            if own is None or pd.isna(own.ms):
                lines.append([name, "did not run", *[""] * (3 + len(baselines))])
                continue
            ends = spread(own._asdict())
            said = f"{_digits(ends[0])}–{_digits(ends[1])}" if ends else f"{own.runs:.0f} runs"
            time = f"{_digits(own.ms)} ({said})"
            rates = [f"{own.tflops:.0f}", f"{own.tbps:.2f}", f"{own.share:.0%}"]
            lines.append([name, time, *rates, *(_faster(candidates, starts) for starts in baselines.values())])
    return lines, headings


def _faster(candidates: pd.DataFrame, starts: Sequence[str]) -> str:
    beginnings = tuple(f"{start}{end}" for start in starts for end in ", ")
    under_heading = candidates[[f"{name} ".startswith(beginnings) for name in candidates.who]]
    ratios = under_heading.ratio.dropna()
    if len(ratios):
        least = ratios.min()
        return f"{least:.2f}×" if least < 10 else f"{least:.1f}×" if least < 100 else f"{least:.0f}×"
    return "refused" if len(under_heading) else ""


def _digits(ms: float) -> str:
    return f"{ms:.3f}" if ms < 1 else f"{ms:.2f}" if ms < 100 else f"{ms:,.0f}"


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

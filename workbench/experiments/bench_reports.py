"""Reports of `workbench bench` read back, for figures and tables: one row a contestant of a workload."""

import json
import re
from collections.abc import Mapping, Sequence
from importlib import import_module
from json import JSONDecodeError
from pathlib import Path
from typing import Any

import pandas as pd

from workbench.core.errors import BadInput
from workbench.experiments import bench
from workbench.experiments.results import FOLDER

MODELS = bench.MODELS  # reports on whole models
TRIED = re.compile(r"\d+x\d+, \d+ warps|\d+ splits")  # launches that were tried beside the one a kernel picks itself
FEEDS, BOTH = "the attention it feeds", "choice and attention, "  # in a report on choosing
FIGURES = ("ms", "p5", "p95", "runs", "tflops", "tbps", "share", "ratio", "problem")

Report = Mapping[str, Any]


def reports(folder: str | Path | None = None) -> dict[str, Report]:
    """The reports in a folder (None: those that ship) by name; other JSON files are passed over.

    Raises BadInput for a folder that is none, and for a file that is no whole JSON.
    """
    place = Path(FOLDER if folder is None else folder)
    if not place.is_dir():
        raise BadInput(f"{place} is no folder of reports: `workbench bench OP --out FOLDER` fills one")
    found = {path.stem: _read(path) for path in sorted(place.glob("*.json"))}
    first = [*bench.names(), *MODELS]
    ordered = sorted(found, key=lambda name: (first.index(name) if name in first else len(first), name))
    return {name: report for name in ordered if (report := found[name])}


def _read(path: Path) -> Report | None:
    try:
        report = json.loads(path.read_text())
    except JSONDecodeError as problem:
        raise BadInput(f"{path} is no whole JSON file ({problem}): make it anew") from None
    whole = isinstance(report, dict) and {"card", "copy_tbps", "product_tflops", "workloads"} <= set(report)
    return report if whole else None


def split(folder: str | Path | None = None) -> dict[str, Any]:
    """What `data/benchmarks/stages.py` wrote: {model, device, length, rows: [{way, density, and seconds by stage}]};
    empty where it was not run."""
    path = Path(FOLDER if folder is None else folder) / "stages.json"
    try:
        return dict(json.loads(path.read_text()))
    except FileNotFoundError:
        return {}
    except JSONDecodeError as problem:
        raise BadInput(f"{path} is no whole JSON file ({problem}): make it anew") from None


def missing(found: Mapping[str, Report]) -> list[str]:
    """Kernels and whole-model benchmarks without a report."""
    return [name for name in (*bench.names(), *MODELS) if name not in found]


def table(found: Mapping[str, Report], tried: bool = False) -> pd.DataFrame:
    """Columns: report, card, work, shape, flops, bytes, intensity (operations a byte), floor_ms, who, and FIGURES.

    The works of a report stand by the length of their context, where they have one.
    `tried`: also the launches that were tried beside the one that a kernel picks itself.
    """
    rows = [
        {
            "report": name, "card": report["card"], "work": work["name"], "shape": work.get("shape", {}),
            "flops": work["flops"], "bytes": work["bytes"], "intensity": work["flops"] / work["bytes"],
            "floor_ms": work["floor_ms"], "who": one["who"],
        }
        | {figure: one.get(figure) for figure in FIGURES}
        for name, report in found.items()
        for work in sorted(report["workloads"], key=lambda work: work.get("shape", {}).get("context", 0))
        for one in work["contestants"]
        if tried or not TRIED.search(one["who"])
    ]  # fmt: skip
    columns = ["report", "card", "work", "shape", "flops", "bytes", "intensity", "floor_ms", "who", *FIGURES]
    return pd.DataFrame(rows, columns=columns)


def with_missing(rows: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """The table without its shapes, and a line for every report that is not there."""
    absent = [{"report": name, "problem": "not measured yet"} for name in names]
    return pd.DataFrame([*rows.drop(columns="shape").to_dict("records"), *absent])


def cards(found: Mapping[str, Report]) -> list[str]:
    """The cards that were measured, each once."""
    return list(dict.fromkeys(report["card"] for report in found.values()))


def ceilings(found: Mapping[str, Report], card: str) -> tuple[float, float]:
    """Median of what the reports of a card measured: bytes a second of a copy, operations a second of a product."""
    of = pd.DataFrame([r for r in found.values() if r["card"] == card])
    return float(of.copy_tbps.median()) * 1e12, float(of.product_tflops.median()) * 1e12


def against(rows: pd.DataFrame, report: str, by: str, whos: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Lines of one report over a number of its shapes: {name, at, mean, low, high} in milliseconds, each contestant a
    line; `whos`: these alone."""
    part = rows[(rows.report == report) & rows.ms.notna()]
    at = [shape.get(by) for shape in part["shape"]]
    lines = part.assign(at=at).dropna(subset=["at"]).sort_values("at")
    return [
        {"name": r.who, "at": r.at, "mean": r.ms, "low": r.p5, "high": r.p95, "work": r.work}
        for r in lines.itertuples()
        if not whos or r.who in whos
    ]


def by_context(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """Times to the first token in the reports on whole models, in the ways of `experiments.ttft`: records {length,
    way, p5, p50, p95 (milliseconds), who}."""
    ways = {
        ("question", "ours"): "block", ("recompute", "ours"): "recompute",
        ("question", "transformers, ready prefix cache"): "stock prefix",
        ("question", "transformers, full prefill"): "stock full",
    }  # fmt: skip
    found = [
        {
            "length": r.shape["context"] + r.shape["question"], "way": ways[r.report, r.who],
            "p5": r.p5, "p50": r.ms, "p95": r.p95, "who": r.who,
        }
        for r in rows.dropna(subset=["ms"]).itertuples()
        if (r.report, r.who) in ways
    ]  # fmt: skip
    return sorted(found, key=lambda r: (list(ways.values()).index(r["way"]), r["length"]))


def by_density(rows: pd.DataFrame, tokens: int) -> list[dict[str, Any]]:
    """Lines of tile_attention over its density at one length, as `against` gives them; dense attention stands at 1."""
    part = rows[pd.Series([shape.get("tokens") == tokens for shape in rows["shape"]], index=rows.index, dtype=bool)]
    full = part.assign(shape=[{**shape, "density": shape.get("density") or 1.0} for shape in part["shape"]])
    return against(full, "tile_attention", "density")


def rivals(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """Every peer on every workload where ours ran: {work, who, ms, ratio, low, high}, its median, 5th and 95th
    percentile over the median of ours. Another kernel of ours, or the attention that a choice feeds, is no peer."""
    timed, own_kernels = rows.dropna(subset=["ms"]), bench.names()
    mine = timed[timed.who == "ours"].set_index(["report", "work"]).ms
    return [
        {
            "work": spoken(r.report, r.work), "who": r.who, "ms": r.ms, "ratio": r.ms / own,
            "low": r.p5 / own, "high": r.p95 / own,
        }
        for r in timed.itertuples()
        if not r.who.startswith(("ours", FEEDS)) and r.who not in own_kernels and (own := mine.get((r.report, r.work)))
    ]  # fmt: skip


def spoken(report: str, work: str) -> str:
    """A workload with the report that it is of: "choose_bfla + attention: 32K, tiles of 128"."""
    return f"{report} + attention: {work.removeprefix(BOTH)}" if work.startswith(BOTH) else f"{report}: {work}"


def here(names: Sequence[str], peers: Sequence[str]) -> dict[str, Report]:
    """Reports of kernels and whole-model benchmarks measured now, on this GPU. BadInput where there is none."""
    found: dict[str, Report] = {}
    for name in names:
        if name not in (*bench.names(), *MODELS):
            raise BadInput(f"nothing is called {name!r}: it is one of {', '.join((*bench.names(), *MODELS))}")
        # both load the kernels, which need Triton
        run = import_module(
            "workbench.experiments.bench.operations" if name in MODELS else "workbench.experiments.bench.run"
        ).run
        report: dict[str, Any] = {}
        for part in run(name, list(peers)):
            if "contestants" in part:
                report["workloads"].append(part)
            else:
                report = {**part, "workloads": []}
        found[name] = report
    return found


def listed(rows: pd.DataFrame, peers: Mapping[str, Sequence[str]]) -> tuple[list[list[str]], list[int]]:
    """Lines of a table and which of them are headings: a heading for a report, a line for a workload: its name, median
    and 5 to 95% of ours, TF/s, TB/s, share of the roof, and how many times as fast ours is as each of `peers`
    (heading → how their names begin). Of several contestants under one heading the fastest counts."""
    lines: list[list[str]] = []
    headings: list[int] = []
    for (report, card), part in rows.groupby(["report", "card"], sort=False):
        headings.append(len(lines))
        lines.append([f"{report} ({card})", *[""] * (4 + len(peers))])
        for work, whos in part.groupby("work", sort=False):
            name = work.replace(BOTH, "+ attention: ")
            own = next((r for r in whos.itertuples() if r.who == "ours"), None)
            if own is None or pd.isna(own.ms):
                lines.append([name, "did not run", *[""] * (3 + len(peers))])
                continue
            time = f"{_digits(own.ms)} ({_digits(own.p5)}–{_digits(own.p95)})"
            rates = [f"{own.tflops:.0f}", f"{own.tbps:.2f}", f"{own.share:.0%}"]
            lines.append([name, time, *rates, *(_faster(whos, starts) for starts in peers.values())])
    return lines, headings


def _faster(whos: pd.DataFrame, starts: Sequence[str]) -> str:
    part = whos[[f"{who} ".startswith(tuple(f"{start}{end}" for start in starts for end in ", ")) for who in whos.who]]
    ratios = part.ratio.dropna()
    return f"{ratios.min():.2f}×" if len(ratios) else "refused" if len(part) else ""


def _digits(ms: float) -> str:
    return f"{ms:.3f}" if ms < 1 else f"{ms:.2f}" if ms < 100 else f"{ms:,.0f}"

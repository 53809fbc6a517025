"""One benchmark: a kernel and its baselines on every workload, as one report that is JSON.

A report is {kernel, card, processors, memory_gib, cuda, driver, versions, copy_tbps, product_tflops, command,
workloads: [{name, shape, flops, bytes, floor_ms, command, versions, contestants: [{who, ms, p5, p95, runs, tflops,
tbps, share, ratio} or {who, problem}]}]}: times in milliseconds (`ms` is the median), `share` of the roof (floor /
median), `ratio`: median over that of "ours". The facts of a report are those of its last run; a workload names the
command and the versions that it was measured with.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from workbench.core.errors import BadInput
from workbench.core.utils.versions import version_of
from workbench.experiments.bench import CHUNKS, named
from workbench.experiments.bench.kernels import choices, chunk_attention, page_workloads
from workbench.experiments.bench.kernels.workloads import KernelWorkload, variants
from workbench.experiments.bench.timing import Roof, Time, measure, roof

WORKLOADS = {
    **page_workloads.WORKLOADS,
    **choices.WORKLOADS,
    **chunk_attention.COMPARISONS,
}
DENSE = "ours, dense"  # of a whole model: the same engine without a method
LIBRARIES = ("torch", "triton", "transformers", "flashinfer-python")
DRIVER = Path("/proc/driver/nvidia/version")


def run(kernel: str, against: list[str], tuning: bool = False, only: str = "") -> Iterator[dict[str, Any]]:
    """Yield the report as it grows: first the facts of the GPU, then one entry a workload (its `name` holds `only`).

    BadInput where there is no GPU, no such kernel, or nothing is measured of it.
    """
    if kernel not in CHUNKS:
        named(kernel)
    if not torch.cuda.is_available():
        raise BadInput("kernels are timed on a GPU, and there is none here: --check works on a CPU")
    if kernel not in WORKLOADS:
        raise BadInput(f"nothing is measured of {kernel!r} yet: choose one of {', '.join(WORKLOADS)}")
    torch.manual_seed(0)
    ceiling = roof()
    yield gpu_facts() | {"kernel": kernel, "copy_tbps": ceiling.copy / 1e12, "product_tflops": ceiling.product / 1e12}
    tried = variants(kernel) if tuning else ()
    with torch.inference_mode():
        for work in WORKLOADS[kernel](against, tried):
            if only in work.name:
                yield entry(work, ceiling)
            work.candidates.clear()
            torch.cuda.empty_cache()


def gpu_facts() -> dict[str, Any]:
    """Return what times depend on: the GPU and the versions of libraries."""
    gpu = torch.cuda.get_device_properties(0)
    facts = {"card": gpu.name, "processors": gpu.multi_processor_count}
    facts |= {"memory_gib": round(gpu.total_memory / 2**30, 1), "cuda": torch.version.cuda, "driver": driver()}
    return facts | {"versions": {name: version_of(name) for name in LIBRARIES}}


def driver(path: Path = DRIVER) -> str | None:
    """Read the version of the NVIDIA driver; None where the system does not say."""
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    match = re.search(r"Module.*?\s(\d+\.[\d.]+)", text)
    return match.group(1) if match else None


def entry(work: KernelWorkload, ceiling: Roof) -> dict[str, Any]:
    """Measure all candidates on one workload."""
    return result(work, measure(work.candidates), ceiling)


def result(work: KernelWorkload, times: Mapping[str, Time | str], ceiling: Roof) -> dict[str, Any]:
    """Return the entry of a workload, with the `share` of the roof and the `ratio` of each time to that of "ours"."""
    floor = ceiling.seconds(work.flops, work.bytes) * 1e3
    own = times.get("ours")
    rows = []
    for name in work.candidates:
        time = times[name]
        if not isinstance(time, Time):
            rows.append({"who": name, "problem": time})
            continue
        rates = {"tflops": work.flops / time.ms / 1e9, "tbps": work.bytes / time.ms / 1e9, "share": floor / time.ms}
        ratio = time.ms / own.ms if isinstance(own, Time) else None
        rows.append({"who": name} | time.to_json() | rates | {"ratio": ratio})
    facts = {"name": work.name, "shape": work.shape, "flops": work.flops, "bytes": work.bytes, "floor_ms": floor}
    return facts | {"contestants": rows}


def add(report: dict[str, Any], work: Mapping[str, Any]) -> None:
    """Put one workload into a report, in place of the one of its name.

    Rows that hold the dense time of their own run, as "dense", stand for themselves: those of an earlier run that this
    one has not measured are kept.
    """
    new = {**work, "command": report.get("command"), "versions": report.get("versions")}
    names = [other["name"] for other in report["workloads"]]
    at = names.index(work["name"]) if work["name"] in names else len(names)
    if at < len(names) and any("dense" in row for row in work.get("contestants", ())):
        new["contestants"] = [*work["contestants"], *_earlier(report["workloads"][at]["contestants"], work)]
    report["workloads"][at : at + 1] = [new]


def _earlier(rows: Sequence[Mapping[str, Any]], work: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield rows of an earlier run that are not measured now, each with the dense time of its run."""
    measured = {row["who"] for row in work["contestants"]}
    dense = next((dense_time(row) for row in rows if row["who"] == DENSE and "ms" in row), None)
    for row in rows:
        if row["who"] not in measured and (own := row.get("dense") or dense):
            yield {**row, "dense": own}


def dense_time(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a row says of its time, for the rows that were measured beside it."""
    return {name: row[name] for name in ("who", "ms", "p5", "p95", "runs", "least", "most") if name in row}

"""Run one benchmark: a kernel and its baselines on each workload, with a JSON report.

The first entry has the facts of the GPU: {kernel, card, processors, memory_gib, cuda, driver, versions, copy_tbps,
product_tflops}. The others are workloads: {name, shape, flops, bytes, floor_ms, contestants: [{who, ms, p5, p95, runs,
tflops, tbps, share, ratio} or {who, problem}]}. Times are in milliseconds (`ms` is the median), `share` is that of the
roof (floor / median), `ratio` is the median over that of "ours". `experiments.bench_reports` writes them into result
tables.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from workbench.core.errors import BadInput
from workbench.core.utils.versions import version_of
from workbench.experiments.bench import CHUNKS, workload_module
from workbench.experiments.bench.kernels import choices, chunk_attention, page_workloads
from workbench.experiments.bench.kernels.workloads import KernelWorkload, variants
from workbench.experiments.bench.timing import Roof, Time, measure, measure_roof

WORKLOADS = {
    **page_workloads.WORKLOADS,
    **choices.WORKLOADS,
    **chunk_attention.COMPARISONS,
}
LIBRARIES = ("torch", "triton", "transformers", "flashinfer-python")
DRIVER = Path("/proc/driver/nvidia/version")


def run(kernel: str, against: list[str], tuning: bool = False, only: str = "") -> Iterator[dict[str, Any]]:
    """Yield the report entry by entry: first the facts of the GPU, then each workload whose `name` contains `only`.

    Raises BadInput without a GPU, for an unknown kernel, and for one without workloads.
    """
    if kernel not in CHUNKS:
        workload_module(kernel)
    if not torch.cuda.is_available():
        raise BadInput("kernels are timed on a GPU, and there is none here: --check works on a CPU")
    if kernel not in WORKLOADS:
        raise BadInput(f"nothing is measured of {kernel!r} yet: choose one of {', '.join(WORKLOADS)}")
    torch.manual_seed(0)
    ceiling = measure_roof()
    yield gpu_facts() | {"kernel": kernel, "copy_tbps": ceiling.copy / 1e12, "product_tflops": ceiling.product / 1e12}
    launches = variants(kernel) if tuning else ()
    with torch.inference_mode():
        for work in WORKLOADS[kernel](against, launches):
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
    """Return the version of the NVIDIA driver; None if the system does not report it."""
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

"""One benchmark: a kernel and its peers on every workload, as one report that is JSON."""

from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from workbench.bench import named
from workbench.bench.timing import Roof, Time, measure, roof
from workbench.bench.variants import variants
from workbench.bench.workloads import WORKLOADS, Workload
from workbench.errors import BadInput

LIBRARIES = ("torch", "triton", "flashinfer-python")


def run(kernel: str, against: list[str], tuning: bool = False, only: str = "") -> Iterator[dict[str, Any]]:
    """The report as it grows: first the card, then one entry a workload (its `name` holds `only`).

    BadInput where there is no GPU, no such kernel, or nothing is measured of it.
    """
    named(kernel)
    if not torch.cuda.is_available():
        raise BadInput("kernels are timed on a GPU, and there is none here: --check works on a CPU")
    if kernel not in WORKLOADS:
        raise BadInput(f"nothing is measured of {kernel!r} yet: choose one of {', '.join(WORKLOADS)}")
    torch.manual_seed(0)
    ceiling = roof()
    yield card() | {"kernel": kernel, "copy_tbps": ceiling.copy / 1e12, "product_tflops": ceiling.product / 1e12}
    tried = variants(kernel) if tuning else []
    with torch.inference_mode():
        for work in WORKLOADS[kernel](against, tried):
            if only in work.name:
                yield entry(work, ceiling)
            work.contestants.clear()
            torch.cuda.empty_cache()


def card() -> dict[str, Any]:
    """What the figures depend on."""
    facts = torch.cuda.get_device_properties(0)
    found = {"card": facts.name, "processors": facts.multi_processor_count, "cuda": torch.version.cuda}
    return found | {"versions": {name: _version(name) for name in LIBRARIES}}


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def entry(work: Workload, ceiling: Roof) -> dict[str, Any]:
    """Times of all contestants. `share` of the roof, and `ratio`: how many times faster "ours" is."""
    taken = measure(work.contestants)
    floor = ceiling.seconds(work.flops, work.moved) * 1e3
    own = taken.get("ours")
    found = []
    for who in work.contestants:
        time = taken[who]
        if not isinstance(time, Time):
            found.append({"who": who, "problem": time})
            continue
        rates = {"tflops": work.flops / time.ms / 1e9, "tbps": work.moved / time.ms / 1e9, "share": floor / time.ms}
        ratio = time.ms / own.ms if isinstance(own, Time) else None
        found.append({"who": who} | time.to_json() | rates | {"ratio": ratio})
    facts = {"name": work.name, "shape": work.shape, "flops": work.flops, "bytes": work.moved, "floor_ms": floor}
    return facts | {"contestants": found}

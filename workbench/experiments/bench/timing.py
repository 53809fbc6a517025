"""Comparable times of short GPU work.

Each candidate cycles through several sets of inputs, together larger than the L2 cache, so that inputs are cold.
Candidates run interleaved, so that clock drift affects all of them. Before each run, the GPU spins briefly without
memory accesses, so that the host is ahead and launch time is not measured.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch

from workbench.metrics import latency
from workbench.metrics.latency import quantiles

Events = tuple[torch.cuda.Event, torch.cuda.Event]  # before and after a run

WAIT = 8_000_000  # clock cycles, about 4 ms: longer than a busy host needs to launch a selection and its attention
SECONDS = 0.4  # measuring time per candidate
RUNS = (20, 200)  # minimum and maximum


@dataclass(frozen=True)
class Time:
    """Milliseconds: median, 5th and 95th percentile, minimum and maximum of `runs` runs."""

    ms: float
    p5: float
    p95: float
    runs: int
    least: float | None = None
    most: float | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def summarise_ms(samples: Sequence[float]) -> Time:
    """Summarise the milliseconds of several runs."""
    summary = quantiles(samples)
    return Time(summary.p50, summary.p5, summary.p95, summary.n, summary.least, summary.most)


def measure(candidates: Mapping[str, Sequence[Callable[[], Any]]]) -> dict[str, Time | str]:
    """Return the time of each candidate, which has one callable per set of inputs, or why it cannot run."""
    problems: dict[str, Time | str] = {}
    ready: dict[str, tuple[Sequence[Callable[[], Any]], int]] = {}
    for name, sets in candidates.items():
        try:
            for work in sets:
                work()
            guess = _milliseconds([_start(sets[0]) for _ in range(3)])
            ready[name] = sets, max(RUNS[0], min(RUNS[1], int(SECONDS * 1e3 / max(guess[-1], 1e-3))))
        except Exception as problem:  # baselines raise errors of any type for unsupported shapes
            problems[name] = reason(problem)
    samples: dict[str, list[float]] = {name: [] for name in ready}
    for i in range(max((runs for _, runs in ready.values()), default=0)):
        events = {name: _start(sets[i % len(sets)]) for name, (sets, runs) in ready.items() if i < runs}
        for name, ms in zip(events, _milliseconds(list(events.values())), strict=True):
            samples[name].append(ms)
    return problems | {name: summarise_ms(times) for name, times in samples.items()}


def reason(problem: Exception) -> str:
    """Return in one line why a candidate cannot run."""
    return f"{type(problem).__name__}: {' '.join(str(problem).split())[:200]}"


def _start(work: Callable[[], Any]) -> Events:
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(WAIT)
    first.record()
    work()
    last.record()
    return first, last


def _milliseconds(events: Sequence[Events]) -> list[float]:
    torch.cuda.synchronize()
    return [first.elapsed_time(last) for first, last in events]


@dataclass(frozen=True)
class Roof:
    """Measured limits of a device: bytes per second of a large copy (read and written), FLOPs per second of a GEMM."""

    copy: float
    product: float

    def seconds(self, flops: float, moved: float) -> float:
        """Return a lower bound on the seconds for `flops` FLOPs and `moved` bytes."""
        return max(flops / self.product, moved / self.copy)


def measure_roof(device: torch.device | str = "cuda", dtype: torch.dtype = torch.bfloat16, repeats: int = 5) -> Roof:
    """Measure a large copy and a large GEMM in `dtype`: medians on a GPU, the fastest of `repeats` on a CPU."""
    device = torch.device(device)
    size, side = (2 << 30, 8192) if device.type == "cuda" else (1 << 27, 1024)
    source = torch.empty(size, dtype=torch.uint8, device=device).random_()
    target = torch.empty_like(source)
    a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    out = torch.empty_like(a)
    works = {"copy": partial(target.copy_, source), "product": partial(torch.matmul, a, b, out=out)}
    if device.type == "cuda":
        times = measure({name: [work] for name, work in works.items()})
        seconds = {name: time.ms / 1e3 for name, time in times.items() if isinstance(time, Time)}
    else:
        seconds = {
            name: min(latency.measure([work], device, warm_up=1).p50 for _ in range(repeats))
            for name, work in works.items()
        }
    return Roof(2 * source.nbytes / seconds["copy"], 2.0 * side**3 / seconds["product"])

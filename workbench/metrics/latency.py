"""Wall times of jobs, measured one at a time, and speedups of their medians. Does not import torch."""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch

WARM_UP = 3
WARM = 1.0  # seconds of warm-up on a CPU, about
ENOUGH = 20  # minimum number of measurements for percentiles; fewer give median and range
CLAIMED = 5  # minimum number of measurements per side for a speedup
SAME_WORK = 0.02  # share of computed tokens: below this difference, a speedup is timing noise


@dataclass(frozen=True)
class Quantiles:
    """Percentiles, minimum and maximum of `n` measurements, in seconds."""

    p5: float
    p50: float
    p95: float
    n: int
    least: float | None = None  #: None in records of earlier versions
    most: float | None = None


def quantiles(seconds: Sequence[float]) -> Quantiles:
    """Return the 5th, 50th and 95th percentile (linearly interpolated), the minimum and the maximum."""
    p5, p50, p95 = np.quantile(np.asarray(seconds, dtype=float), [0.05, 0.5, 0.95])
    return Quantiles(float(p5), float(p50), float(p95), len(seconds), float(min(seconds)), float(max(seconds)))


def spread_ends(record: Mapping[str, Any]) -> tuple[float, float] | None:
    """Return the ends of the spread of a record {p5, p95, n or runs, least, most}.

    They are percentiles from ENOUGH measurements on, below that the range; None if the range was not recorded.
    """
    count = record.get("n", record.get("runs"))
    names = ("p5", "p95") if count is not None and count >= ENOUGH else ("least", "most")
    ends = [float(end) for name in names if (end := record.get(name)) is not None and not math.isnan(end)]
    return (ends[0], ends[1]) if len(ends) == 2 else None


def ratio(slow: Mapping[str, Any], fast: Mapping[str, Any]) -> tuple[float, float, float]:
    """Return the ratio of the medians of `slow` and `fast`, records {ms, p5, p95, runs, least, most}, with its ends.

    The ends are the ratios of opposite ends of the two spreads (`spread_ends`, or percentiles without a range).
    """
    (a, b), (c, d) = (spread_ends(one) or (float(one["p5"]), float(one["p95"])) for one in (slow, fast))
    return float(slow["ms"] / fast["ms"]), a / d, b / c


def ttft_record(times: Quantiles) -> dict[str, Any]:
    """Convert times to first token to a record {ms, p5, p95, runs, least, most} in ms, for `ratio`."""
    ends = {
        name: None if (end := getattr(times, name)) is None else end * 1e3 for name in ("p5", "p95", "least", "most")
    }
    return {"ms": times.p50 * 1e3, "runs": times.n, **ends}


def spread_words(count: int) -> str:
    """Return what `spread_ends` is for `count` measurements, in words that follow "median and"."""
    return "5 to 95%" if count >= ENOUGH else "range"


def measure(
    jobs: Iterable[Callable[[], object]], device: "torch.device", warm_up: int = WARM_UP, enough: float = math.inf
) -> Quantiles:
    """Measure the wall time of each job on an idle device, until its work on the device is done.

    The first job is warmed up by `warm_up` uncounted runs (on a CPU for at most about WARM seconds). No job starts once
    the earlier ones have taken `enough` seconds.
    """
    seconds: list[float] = []
    for i, job in enumerate(jobs):
        if sum(seconds) >= enough:
            break
        warm_up_start = time.perf_counter()
        for _ in range(warm_up if i == 0 else 0):
            job()
            if device.type == "cpu" and time.perf_counter() - warm_up_start > WARM:
                break
        wait(device)
        start = time.perf_counter()
        job()
        wait(device)
        seconds.append(time.perf_counter() - start)
    return quantiles(seconds)


def wait(device: "torch.device") -> None:
    """Wait until the device is idle."""
    if device.type == "cuda":
        import torch

        torch.cuda.synchronize(device)

"""How long one thing takes, measured one at a time."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

WARM_UP = 3


@dataclass(frozen=True)
class Quantiles:
    """Seconds over `n` measurements."""

    p5: float
    p50: float
    p95: float
    n: int


def quantiles(seconds: Sequence[float]) -> Quantiles:
    """5th, 50th and 95th percentile (linear between measurements)."""
    p5, p50, p95 = np.quantile(np.asarray(seconds, dtype=float), [0.05, 0.5, 0.95])
    return Quantiles(float(p5), float(p50), float(p95), len(seconds))


def measure(jobs: Iterable[Callable[[], object]], device: torch.device, warm_up: int = WARM_UP) -> Quantiles:
    """Wall time of every job on an idle device, until its work on the device is done.

    The first job is run `warm_up` times before; these runs are not counted.
    """
    seconds: list[float] = []
    for i, job in enumerate(jobs):
        for _ in range(warm_up if i == 0 else 0):
            job()
        _finish(device)
        start = time.perf_counter()
        job()
        _finish(device)
        seconds.append(time.perf_counter() - start)
    return quantiles(seconds)


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)

"""Times of short GPU work, taken so that they can be compared.

Every contestant works on several sets of inputs in turn, together larger than the L2 cache, so each run finds its
inputs cold. Contestants take turns, so a drift of the clock meets all alike. Before each run the card waits a moment in
a loop that touches no memory, so the host is ahead and its own time is not measured.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

WAIT = 2_000_000  # clock cycles, about 1 ms: longer than the host needs for any launch
SECONDS = 0.4  # of measuring, for each contestant
RUNS = (10, 200)  # fewest and most


@dataclass(frozen=True)
class Time:
    """Milliseconds: median, 5th and 95th percentile, of `runs` runs."""

    ms: float
    p5: float
    p95: float
    runs: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def of(samples: Sequence[float]) -> Time:
    ordered = sorted(samples)

    def at(share: float) -> float:
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    return Time(at(0.5), at(0.05), at(0.95), len(ordered))


def measure(contestants: Mapping[str, Sequence[Callable[[], Any]]]) -> dict[str, Time | str]:
    """Each contestant is one callable for every set of inputs; the answer is its time, or why it cannot run."""
    found: dict[str, Time | str] = {}
    ready: dict[str, tuple[Sequence[Callable[[], Any]], int]] = {}
    for who, sets in contestants.items():
        try:
            for one in sets:
                one()
            guess = _run([sets[0]] * 3)
            ready[who] = sets, max(RUNS[0], min(RUNS[1], int(SECONDS * 1e3 / max(guess[-1], 1e-3))))
        except Exception as problem:  # a peer may refuse a shape in any way it likes
            found[who] = f"{type(problem).__name__}: {' '.join(str(problem).split())[:200]}"
    taken: dict[str, list[float]] = {who: [] for who in ready}
    for turn in range(max((runs for _, runs in ready.values()), default=0)):
        events = {who: _start(sets[turn % len(sets)]) for who, (sets, runs) in ready.items() if turn < runs}
        torch.cuda.synchronize()
        for who, (first, last) in events.items():
            taken[who].append(first.elapsed_time(last))
    return found | {who: of(samples) for who, samples in taken.items()}


def _start(work: Callable[[], Any]) -> tuple[torch.cuda.Event, torch.cuda.Event]:
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(WAIT)
    first.record()
    work()
    last.record()
    return first, last


def _run(works: Sequence[Callable[[], Any]]) -> list[float]:
    events = [_start(work) for work in works]
    torch.cuda.synchronize()
    return [first.elapsed_time(last) for first, last in events]


@dataclass(frozen=True)
class Roof:
    """What the card reaches: bytes a second of a large copy (read and written), operations a second of a matrix
    product."""

    copy: float
    product: float

    def seconds(self, flops: float, moved: float) -> float:
        """No version of the work runs much faster."""
        return max(flops / self.product, moved / self.copy)


def roof(dtype: torch.dtype = torch.bfloat16) -> Roof:
    source = torch.empty(2 << 30, dtype=torch.uint8, device="cuda").random_()
    target = torch.empty_like(source)
    a, b = (torch.randn(8192, 8192, dtype=dtype, device="cuda") for _ in range(2))
    found = measure({"copy": [lambda: target.copy_(source)], "product": [lambda: a @ b]})
    copy, product = found["copy"], found["product"]
    assert isinstance(copy, Time) and isinstance(product, Time)
    return Roof(2 * source.nbytes / copy.ms * 1e3, 2 * 8192**3 / product.ms * 1e3)

"""Prefill whole prompts in chunks of 1,024 rows under each method: CompactAttention's figure 5, end to end.

One pass over the longest prompt also gives the times of the shorter ones: the time until their end. The model has
random weights, so thresholds are set for the density of a whole prompt, in its first layers. Methods run on the
unchanged engine, one prompt at a time; QUOKA's tokens are gathered into a copy, all else is read in place. Density and
kernel times of a method are measured in separate, untimed runs. SeerAttention's gate has random weights.
"""

from collections.abc import Container, Iterator
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from workbench.core.plan import Plan
from workbench.engine.assembly import empty
from workbench.engine.chunked import ChunkedRequest, passes
from workbench.engine.forward import PrefillRequest
from workbench.experiments.bench import timing
from workbench.experiments.bench.kernels.workloads import CountingSparse, KernelWorkload
from workbench.experiments.bench.models.whole_model import GPU, Scene
from workbench.experiments.bench.run import result
from workbench.experiments.bench.timing import Roof, Time
from workbench.experiments.bench_reports import DENSE, dense_time
from workbench.methods import seer_gate
from workbench.methods.sparse import Sparse
from workbench.methods.sparse.compact import Compact
from workbench.methods.sparse.flash_prefill import FlashPrefill
from workbench.methods.sparse.quoka import Quoka
from workbench.methods.sparse.seer_attention import SeerAttention
from workbench.methods.sparse.xattention import Xattention

LENGTHS = (16, 32, 64, 128)  # units
DENSITY, SHARE = 0.15, 0.25  # of the causal tiles; of those that a union keeps, and of the tokens that QUOKA keeps
DEEP, HALVINGS = 8, 9  # layers, and bisection steps, for setting a threshold
LEAST, MOST = -4.0, 0.85  # range of the thresholds' exponents of 10 in the search
ATTENTION = ("_attend", "_merge")  # prefixes of names of attention kernels
RUNS = 2  # minimum number of timed runs per method, after one of the whole prompt


@dataclass(frozen=True)
class ChunkedMethod:
    """A method of the comparison; `density` is the target of its threshold, None if it has no threshold."""

    name: str
    sparse: Sparse | CountingSparse | None = None
    density: float | None = None


def methods(scene: Scene) -> list[ChunkedMethod]:
    """Return the methods: dense attention first, then ours, the union over FlashPrefill."""
    size, half = max(16, scene.unit // 8), max(16, scene.unit // 16)
    trained = seer_gate.new_gate(scene.model, half).requires_grad_(False)
    flash, gate = FlashPrefill(block=size), SeerAttention(block=half, trained=trained)
    return [
        ChunkedMethod(DENSE),
        ChunkedMethod("ours", Compact(flash), SHARE),
        ChunkedMethod("flash_prefill", flash, DENSITY),
        ChunkedMethod("ours over seer_attention", Compact(gate), SHARE),
        ChunkedMethod("seer_attention", gate, DENSITY),
        ChunkedMethod("quoka", Quoka(keep=SHARE, block=size)),
        ChunkedMethod("xattention", Xattention(block=size), DENSITY),
    ]


def chunks_of(scene: Scene, method: ChunkedMethod, until: int, layers: int | None = None) -> Iterator[int]:
    """Return a generator that prefills a prompt of `until` chunks one by one, and yields how many have started."""
    tokens = until * scene.unit
    plan = Plan(torch.arange(tokens), sparse=method.sparse, num_layers=layers)
    request = PrefillRequest(scene.ids(tokens), plan, empty(scene.model, tokens))
    return passes(scene.model, [ChunkedRequest(request, scene.unit, 1)])


def fit_threshold(scene: Scene, method: ChunkedMethod, until: int) -> ChunkedMethod:
    """Set the threshold at which a prompt of `until` chunks keeps at most the method's density.

    Untrained models spread scores widely, or hardly at all: masses are searched as 1 - 10^-t, shares of the largest as
    10^-t, and t itself by its exponent.
    """
    if method.density is None or not isinstance(method.sparse, Sparse):
        return method
    layers = min(DEEP, scene.model.config.num_hidden_layers)
    steps = method.sparse.threshold_steps[1]
    masses = steps[0] < steps[-1]  # the threshold is a share of the total weight, not of the largest
    low, high = LEAST, MOST
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        counted = CountingSparse(method.sparse.with_threshold(_threshold(middle, masses)))
        for _ in chunks_of(scene, replace(method, sparse=counted), until, layers):
            pass
        low, high = (low, middle) if counted.density > method.density else (middle, high)
    return replace(method, sparse=method.sparse.with_threshold(_threshold(low, masses)))


def _threshold(exponent: float, mass: bool) -> float:
    share = 10 ** -(10**exponent)
    return max(1e-7, 1 - share) if mass else share


def time_chunks(scene: Scene, method: ChunkedMethod, until: int, marks: tuple[int, ...] = ()) -> dict[int, float]:
    """Prefill `until` chunks; return the milliseconds until each of `marks`."""
    times, chunks = {}, chunks_of(scene, method, until)
    wait()
    begin = perf_counter()
    for number in chunks:
        if number in marks:
            wait()
            times[number] = (perf_counter() - begin) * 1e3
    return times


def densities(scene: Scene, method: ChunkedMethod, until: int, marks: tuple[int, ...]) -> dict[int, float]:
    """Prefill `until` chunks, untimed; return the share of causal tiles kept until each of `marks`.

    It is 1 for methods without a threshold.
    """
    if method.density is None:
        return dict.fromkeys(marks, 1.0)
    counted, shares = CountingSparse(method.sparse), {}
    for number in chunks_of(scene, replace(method, sparse=counted), until):
        if number in marks:
            kept, causal = torch.stack(counted.counts).sum(0).tolist()
            shares[number] = kept / causal
    return shares


def kernels(scene: Scene, method: ChunkedMethod, until: int) -> dict[str, float]:
    """Prefill `until` chunks; return the total milliseconds of each GPU kernel, by name."""
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        time_chunks(scene, method, until)
    return {each.key: each.self_device_time_total / 1e3 for each in profiled.key_averages()}


def parts(times: dict[str, float], plain: Container[str]) -> dict[str, float]:
    """Return the milliseconds of attention, and of a method's kernels that a dense prompt (`plain`) does not have."""
    attention = {name: ms for name, ms in times.items() if name.startswith(ATTENTION)}
    choice = sum(ms for name, ms in times.items() if name not in attention and name not in plain)
    return {"attention_ms": sum(attention.values()), "choice_ms": choice}


def wait() -> None:
    """Wait until the device is idle."""
    if GPU:
        torch.cuda.synchronize()


def describe_prompts(scene: Scene) -> dict[int, KernelWorkload]:
    """Describe the prompts, by length in units; FLOPs are those of the layers and of all causal pairs."""
    listed = {}
    for length in LENGTHS:
        tokens = length * scene.unit
        shape = {"tokens": tokens, "chunk": scene.unit, "batch": 1, "density": DENSITY, "union": SHARE}
        flops = scene.flops(tokens, tokens * (tokens + 1) / 2)
        listed[length] = KernelWorkload(f"{length}K in chunks of 1024", shape, flops, scene.bytes(tokens))
    return listed


def entries(scene: Scene, ceiling: Roof, only: str = "") -> Iterator[dict[str, Any]]:
    """Yield the entry of each length again after each method, so that a report holds all that was measured so far.

    Each row holds the time of dense attention in its run, so `bench_reports.merge_measured` keeps rows of methods
    cut off. Lengths go up to the longest whose name contains `only`; shorter ones are measured on the way.
    """
    listed = describe_prompts(scene)
    longest = max((length for length, work in listed.items() if only in work.name), default=0)
    lengths = tuple(length for length in LENGTHS if length <= longest)
    listed = {length: listed[length] for length in lengths}
    times: dict[int, dict[str, Time | str]] = {length: {} for length in lengths}
    facts: dict[int, dict[str, dict[str, Any]]] = {length: {} for length in lengths}
    plain = set[str]()  # kernels of the first method, dense attention
    for method in methods(scene) if lengths else ():
        for length in lengths:
            listed[length].candidates[method.name] = []
        begin = perf_counter()
        try:
            ready = fit_threshold(scene, method, lengths[-1])
            shares = densities(scene, ready, lengths[-1], lengths)
            time_chunks(scene, ready, lengths[-1])  # warm-up: builds kernels, and captures graphs
            ready_s = perf_counter() - begin
            runs = [time_chunks(scene, ready, lengths[-1], lengths) for _ in range(max(RUNS, scene.runs))]
            for length in lengths:
                times[length][method.name] = timing.summarise_ms([run[length] for run in runs])
                facts[length][method.name] = {
                    "spec": str(ready.sparse),
                    "density": shares[length],
                    "ready_s": ready_s,
                }
            if GPU:
                launched = kernels(scene, ready, lengths[-1])
                plain = plain or set(launched)
                facts[longest][method.name] |= parts(launched, plain)
        except Exception as problem:  # out of memory, or a backend that rejects the shape
            for length in lengths:
                times[length][method.name] = timing.reason(problem)
        if GPU:
            torch.cuda.empty_cache()
        for length, work in listed.items():
            entry = result(work, times[length], ceiling)
            dense = next((dense_time(row) for row in entry["contestants"] if row["who"] == DENSE and "ms" in row), None)
            for row in entry["contestants"]:
                row.update(facts[length].get(row["who"], {}) | ({"dense": dense} if dense else {}))
            yield entry

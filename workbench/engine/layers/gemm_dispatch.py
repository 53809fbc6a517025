"""GEMM dispatch for few rows and large matrices: torch's or the workbench's kernel, whichever is faster on this GPU.

The fastest depends on the shape and on library versions, so it is measured once per shape: on the model's weights, in
a captured run over all layers, so that no matrix is in the L2 cache. Results are stored in a file
(`measurements_path`), by GPU and versions. A launch that fails, or whose result differs from torch's, is skipped.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from workbench.core.utils import files
from workbench.data.assets import cache
from workbench.engine.attention_backends.choice import kernel

TORCH = "torch"
LARGE = 16 << 20  # bytes; smaller matrices use torch without measuring
PARTS_RATE = 3e9  # bytes of split-K parts that the next kernel reads per millisecond
REPEATS = 5
CLOSE = 0.02  # maximum difference of results, relative to the largest value


def measurements_path() -> Path:
    """Return the path of the measurements, in the user's cache."""
    return cache() / "products.json"


RINGS = ((64, 1, 128, 6), (128, 1, 128, 4))  # the two fastest of ten tried on an H200; each costs a compilation
GATED = ((64, 2, 128, 4), (128, 2, 128, 2))
TILES = ((128, 64, 4, 8), (128, 128, 8, 4), (256, 64, 8, 5), (64, 128, 4, 6))  # for GPUs other than Hopper


def launch_configs(
    width: int, channels: int, parts: bool, rows: int = 64, hopper: bool = False, gated: bool = False
) -> list[Any]:
    """Return the launch configurations to try for rows [R, channels] times [width, channels].

    `parts`: also split-K. `gated`: for a GEMM with both halves of a matrix, of which one gates the other.
    """
    config, ring = kernel("few_rows_linear").LinearConfig, kernel("_shared.linear_hopper").RingConfig

    def splits(tile: int, depth: int) -> list[int]:
        tiles = -(-width // tile)
        several = sorted({max(1, 132 // tiles), max(1, 264 // tiles)}) if parts else [1]
        return [n for n in several if channels // n >= 2 * depth]

    found: list[Any] = []
    if not gated and not hopper:
        for tile, depth, warps, stages in TILES:
            found += [config(tile, depth, warps, stages, n) for n in splits(tile, depth)]
    for box, boxes, depth, stages in (GATED if gated else RINGS) if hopper else ():
        new = [ring(box, boxes, depth, stages, n, gated) for n in splits(box * boxes, depth)]
        found += [way for way in new if way.fits(rows)]
    return found


@dataclass
class GemmTable:
    """The GEMM for each shape: `chosen` is its launch configuration, None for torch; `times` are all measured ms."""

    path: Path | None = None
    chosen: dict[str, Any] = field(default_factory=dict)
    times: dict[str, dict[str, float]] = field(default_factory=dict)

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None = None, parts: bool = False) -> Tensor:
        """Multiply x [R, K] by weight [N, K] -> [R, N]; with `parts`, maybe -> split-K parts [S, R, N] in fp32."""
        way = self.chosen.get(_shape(x, weight, parts)) if bias is None else None
        if way is None:
            return linear(x, weight, bias)
        found = _launched(x, weight, way)
        return found[0] if len(found) == 1 else found

    def gated_matmul(self, x: Tensor, weight: Tensor, bias: Tensor | None, gate: Callable[[Tensor], Tensor]) -> Tensor:
        """Multiply x [R, K] by the two halves of weight [2 F, K], and `gate` the products [R, 2 F] -> [R, F]."""
        way = self.chosen.get(_shape(x, weight, False, True)) if bias is None else None
        return gate(self(x, weight, bias)) if way is None else _launched(x, weight, way)[0]

    def matmul_into(self, out: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Write the product of x [R, K] and weight [N, K] to `out` [R, N]."""
        return torch.mm(x, weight.mT, out=out) if bias is None else torch.addmm(bias, x, weight.mT, out=out)

    def follow(self, parameters: Sequence[Tensor], weights: Sequence[Tensor]) -> None:
        """Do nothing; subclasses update copies of the layers' weights before a pass."""

    def prepare(
        self,
        rows: int,
        weights: Sequence[Tensor],
        parts: bool = False,
        gate: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        """Measure the fastest GEMM for `rows` rows, unless known, on `weights` of one shape, one per layer.

        With `gate`: for the gated GEMM.
        """
        module = kernel("few_rows_linear")
        x = torch.randn(rows, weights[0].shape[1], dtype=weights[0].dtype, device=weights[0].device)
        shape = _shape(x, weights[0], parts, gate is not None)
        hopper = kernel("_shared.linear_hopper").fits(x, weights[0])
        if shape in self.chosen or not x.is_cuda or weights[0].nbytes < LARGE or not module.fits(x, weights[0]):
            return
        width, channels = weights[0].shape
        tried = {str(way): way for way in launch_configs(width, channels, parts, rows, hopper, gate is not None)}
        name = _where(x.device) + ", " + shape
        times = self._read().get(name)
        if not isinstance(times, dict):
            baseline = partial(_baseline, self, x, gate)
            times = {TORCH: median_ms(baseline, weights)}
            for label, way in tried.items():
                if (ms := _time_of(x, weights, way, baseline)) is not None:
                    times[label] = ms
            self._write(name, times)
        self.times[shape] = times
        self.chosen[shape] = tried.get(min(times, key=lambda label: times[label], default=TORCH))
        if gate is not None and self.chosen[shape] is None:
            self.prepare(rows, weights)  # the GEMM before the gate

    def _read(self) -> dict[str, Any]:
        try:
            found = json.loads(self.path.read_text(encoding="utf-8")) if self.path else {}
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def _write(self, name: str, entry: Mapping[str, float]) -> None:
        if self.path is None:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            files.write_text(self.path, json.dumps(self._read() | {name: entry}, indent=1))
        except OSError:
            return  # not writable: measured again next time


def median_ms(work: Any, weights: Sequence[Tensor]) -> float:
    """Return the median milliseconds of `work(weight)`, from captured runs over all weights."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        work(weights[0])
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for weight in weights:
            work(weight)
    times = []
    for _ in range(REPEATS):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        graph.replay()
        last.record()
        last.synchronize()
        times.append(first.elapsed_time(last) / len(weights))
    return sorted(times)[len(times) // 2]


def _baseline(products: GemmTable, x: Tensor, gate: Callable[[Tensor], Tensor] | None, weight: Tensor) -> Tensor:
    """Compute the baseline: torch's GEMM, or for a gated one the fastest known GEMM, then the gate."""
    return linear(x, weight) if gate is None else gate(products(x, weight))


def _launched(x: Tensor, weight: Tensor, way: Any) -> Tensor:
    """Multiply with the workbench's kernel -> [splits, R, N]."""
    module = "few_rows_linear" if isinstance(way, kernel("few_rows_linear").LinearConfig) else "_shared.linear_hopper"
    found: Tensor = kernel(module).launch_parts(x, weight, way)
    return found


def _time_of(x: Tensor, weights: Sequence[Tensor], way: Any, baseline: Callable[[Tensor], Tensor]) -> float | None:
    """Return the milliseconds of the workbench's kernel; None if it fails or its result is wrong."""
    added = way.splits * x.shape[0] * len(weights[0]) * 4 / PARTS_RATE if way.splits > 1 else 0.0
    try:
        expected, found = baseline(weights[0]).float(), _launched(x, weights[0], way).float().sum(0)
        if not bool((found - expected).abs().max() <= CLOSE * expected.abs().max()):
            return None
        return median_ms(lambda w: _launched(x, w, way), weights) + added
    except Exception:  # compilers raise errors of many types, e.g. for too much shared memory
        return None


def _shape(x: Tensor, weight: Tensor, parts: bool, gated: bool = False) -> str:
    kind = " parts" * parts + " gated" * gated
    return f"{len(x)}x{weight.shape[1]}x{weight.shape[0]} {str(x.dtype).removeprefix('torch.')}{kind}"


def _where(device: torch.device) -> str:
    import triton

    versions = f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}, triton {triton.__version__}"
    return versions + ", overlapping" * kernel("_shared.triton_import").OVERLAP

"""A step over a `StaticBatch` that is captured once as a CUDA graph, and replayed."""

import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from workbench.engine.graphs.static_batch import StaticBatch

WARM_UP = 2  # forward passes before a capture: kernels are compiled, libraries choose theirs


@dataclass
class Captured:
    """A step, its graph (None: it runs as it is), its result, and the seconds that warming up and capturing took."""

    batch: StaticBatch
    graph: "torch.cuda.CUDAGraph | None" = None
    logits: Tensor | None = None
    warm_up: float = 0.0
    capture: float = 0.0

    def run(self) -> Tensor:
        if self.graph is None:
            return self.batch.forward()
        self.graph.replay()
        assert self.logits is not None
        return self.logits


@torch.no_grad()
def capture(batch: StaticBatch, memory: Any) -> Captured:
    """Warm up and capture on padding only: nothing is written but the scratch page.

    `memory`: the pool of graphs, `torch.cuda.graph_pool_handle()`.
    """
    begin = time.perf_counter()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UP):
            batch.forward()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    middle, graph = time.perf_counter(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=memory, capture_error_mode="thread_local"):  # other threads may load
        logits = batch.forward()
    torch.cuda.synchronize()
    return Captured(batch, graph, logits, middle - begin, time.perf_counter() - middle)

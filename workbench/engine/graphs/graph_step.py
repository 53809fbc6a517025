"""A step over a `StaticBatch` that is captured once as a CUDA graph, and replayed.

Whether the weights of a model lie where they lay: captured steps keep addresses, and fused layers keep tensors.

Torch tells whenever a module is given a parameter; only after that all parameters are looked at again.
"""

import time
from dataclasses import dataclass
from itertools import chain
from operator import is_
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.modules.module import register_module_parameter_registration_hook

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


SOME = 96  # modules, of one of which the place of its weights is looked at: `model.to` moves them all
_GIVEN = [0]  # how often any module was given a parameter


def _count(_module: Module, _name: str, _parameter: object) -> None:
    _GIVEN[0] += 1


register_module_parameter_registration_hook(_count)


class WeightWatch:
    """The parameters of a model as they are now."""

    def __init__(self, model: Module):
        self._given = _GIVEN[0]
        self._owners = [module._parameters for module in model.modules() if module._parameters]
        self._known = list(chain.from_iterable(map(dict.values, self._owners)))
        self._some = [weight for weight in self._known[::SOME] if weight is not None]
        self._places = [weight.data_ptr() for weight in self._some]

    @property
    def exchanged(self) -> bool:
        """Whether a parameter was put in the place of another, or all of them were moved (`model.to`)."""
        if self._given != _GIVEN[0]:
            self._given = _GIVEN[0]
            if not all(map(is_, chain.from_iterable(map(dict.values, self._owners)), self._known)):
                self._places = []  # it stays so
        return self._places != [weight.data_ptr() for weight in self._some]

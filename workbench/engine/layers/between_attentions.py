"""CUDA graphs of the work between two attentions, for chunked prefill: passes with equally many rows.

Attention and tile selection stay outside of the graphs, as their shapes grow from chunk to chunk. So a graph does not
depend on a cache or on positions: the graphs of one number of rows serve every chunk of every prompt under every
method, as long as the model's weights keep their addresses.

Graphs of neighbouring layers pass the residual on in shared memory, so they are replayed in the order of their capture,
by one pass at a time (`FusedLayers`).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor

from workbench.engine.layers.gemm_dispatch import Products

MOST = 2048  # rows, above which kernels run much longer than their launch takes
KEPT = 2  # graphs are kept for so many numbers of rows
Linear = tuple[Tensor, Tensor | None]  # weight [out, in], bias


class Layers(Protocol):
    """Layers as they are captured, with the computation from one attention to the next."""

    count: int
    qkv: Linear  #: of the first layer; all layers have the same shapes
    o: Linear
    products: Products

    def behind(self, number: int, x: Tensor, residual: Tensor, out: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Compute queries, keys and values of the next layer from the attention output of layer `number`."""


def captured(works: list[Callable[[Tensor], Tensor]], first: Tensor) -> tuple[Tensor, list[Callable[[], None]]]:
    """Capture functions in sequence, each applied to the result of the one before, the first to `first`.

    Returns (result of the last, one replay function for each). Results are valid after the first replay. The host does
    not wait for the device. Raises RuntimeError where a function cannot be captured.
    """
    stream, memory = torch.cuda.Stream(first.device), torch.cuda.graph_pool_handle()
    stream.wait_stream(torch.cuda.current_stream(first.device))
    replays: list[Callable[[], None]] = []
    with torch.cuda.stream(stream):
        works[0](first)  # warm-up: libraries allocate their memory outside of the graphs
        for work in works:
            graph = torch.cuda.CUDAGraph()
            graph.capture_begin(memory, capture_error_mode="thread_local")  # other threads may load meanwhile
            try:
                first = work(first)
            finally:
                graph.capture_end()
            replays.append(graph.replay)
    torch.cuda.current_stream(first.device).wait_stream(stream)
    return first, replays


class BetweenAttentions:
    """The graphs for passes of one number of rows."""

    def __init__(self, layers: Layers, rows: int):
        weight, self._products = layers.o[0], layers.products
        self._x, self._first = (weight.new_empty(rows, len(weight)) for _ in range(2))
        self._qkv = weight.new_empty(rows, len(layers.qkv[0]))

        def work(number: int) -> Callable[[Tensor], Tensor]:
            return lambda residual: layers.behind(number, self._x, residual, self._qkv)[0]

        self._residual, self._replays = captured([work(number) for number in range(layers.count - 1)], self._first)
        self._done = torch.cuda.Event() if weight.is_cuda else None

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Order passes of several streams: the device waits for the pass before, and the next one for this."""
        if self._done is not None:
            self._done.wait()
        try:
            yield
        finally:
            if self._done is not None:
                self._done.record()

    def behind(self, number: int, attended: Tensor, residual: Tensor, o: Linear) -> tuple[Tensor, Tensor]:
        """Do what `Layers.behind` does with the product of attention output [R, Hq · D] and `o`.

        The returned tensors are overwritten by the next layer.
        """
        if not number:
            self._first.copy_(residual)
        self._products.into(self._x, attended, *o)
        self._replays[number]()
        return self._residual, self._qkv

"""CUDA graphs of the work between two attentions, for chunked prefill in passes of equal size.

Attention and tile selection are not captured, as their shapes grow from chunk to chunk. So a graph does not depend on
a KV cache or on positions: graphs for one number of tokens serve any chunk, prompt and method while the model's weights
keep their addresses.

Graphs of consecutive layers share the memory of the residual, so they are replayed in capture order, by one pass at a
time (`FusedLayers`).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor

from workbench.engine.layers.gemm_dispatch import GemmTable

MOST = 2048  # rows; above, kernels run much longer than their launches take
KEPT = 2  # number of row counts whose graphs are kept
Linear = tuple[Tensor, Tensor | None]  # weight [out, in], bias


class Layers(Protocol):
    """What is captured of layers: the computation from one attention to the next."""

    count: int
    qkv: Linear  #: of the first layer; all layers have the same shapes
    o: Linear
    products: GemmTable

    def next_qkv(self, number: int, x: Tensor, residual: Tensor, out: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Compute queries, keys and values of the next layer from the attention output of layer `number`."""


def captured(works: list[Callable[[Tensor], Tensor]], first: Tensor) -> tuple[Tensor, list[Callable[[], None]]]:
    """Capture functions in sequence, the first applied to `first`, the others to the preceding result.

    Returns (result of the last, one replay function for each). Results are valid after the first replay. There is no
    synchronization. Raises RuntimeError if a function cannot be captured.
    """
    stream, memory = torch.cuda.Stream(first.device), torch.cuda.graph_pool_handle()
    stream.wait_stream(torch.cuda.current_stream(first.device))
    replays: list[Callable[[], None]] = []
    with torch.cuda.stream(stream):
        works[0](first)  # warm-up: libraries allocate their memory outside the graphs
        for work in works:
            graph = torch.cuda.CUDAGraph()
            graph.capture_begin(memory, capture_error_mode="thread_local")  # other threads may load blocks
            try:
                first = work(first)
            finally:
                graph.capture_end()
            replays.append(graph.replay)
    torch.cuda.current_stream(first.device).wait_stream(stream)
    return first, replays


class BetweenAttentions:
    """The graphs for passes of `rows` tokens."""

    def __init__(self, layers: Layers, rows: int):
        weight, self._products = layers.o[0], layers.products
        self._x, self._first = (weight.new_empty(rows, len(weight)) for _ in range(2))
        self._qkv = weight.new_empty(rows, len(layers.qkv[0]))

        def work(number: int) -> Callable[[Tensor], Tensor]:
            return lambda residual: layers.next_qkv(number, self._x, residual, self._qkv)[0]

        self._residual, self._replays = captured([work(number) for number in range(layers.count - 1)], self._first)
        self._done = torch.cuda.Event() if weight.is_cuda else None

    @contextmanager
    def in_stream_order(self) -> Iterator[None]:
        """Order passes on several streams: the device runs this pass after the one before it."""
        if self._done is not None:
            self._done.wait()
        try:
            yield
        finally:
            if self._done is not None:
                self._done.record()

    def next_qkv(self, number: int, attended: Tensor, residual: Tensor, o: Linear) -> tuple[Tensor, Tensor]:
        """Compute `Layers.next_qkv` of the product of attention output [R, Hq · D] and `o`.

        The returned tensors are overwritten by the next layer.
        """
        if not number:
            self._first.copy_(residual)
        self._products.matmul_into(self._x, attended, *o)
        self._replays[number]()
        return self._residual, self._qkv

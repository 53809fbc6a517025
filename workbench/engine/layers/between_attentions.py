"""What lies between the attention of one layer and that of the next, as CUDA graphs: for passes of equally many rows.

A prompt in chunks is the same pass again and again, over ever more keys. Attention, and what a sparse method chooses,
stay outside of the graphs, as their shapes grow. A graph therefore knows no cache and no positions: those of one number
of rows serve every chunk of every prompt under every method, as long as the weights of the model stay where they are.

Graphs of neighbouring layers hand the residual on in memory that they share. They are only ever replayed in the order
in which they were captured, by one pass at a time (`FusedLayers`).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor

from workbench.engine.layers.gemm_dispatch import Products

MOST = 2048  # rows, above which kernels run much longer than they take to start
KEPT = 2  # numbers of rows that graphs are kept for
Linear = tuple[Tensor, Tensor | None]  # weight [out, in], bias


class Layers(Protocol):
    """What is captured: the layers, and the way from one attention to the next."""

    count: int
    qkv: Linear  #: of the first layer, as all are alike
    o: Linear
    products: Products

    def behind(self, number: int, x: Tensor, residual: Tensor, out: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Go on from the attention of a layer to queries, keys and values of the next."""


def captured(works: list[Callable[[Tensor], Tensor]], first: Tensor) -> tuple[Tensor, list[Callable[[], None]]]:
    """Capture works, each given what the one before returned, the first one `first`: (what the last returns, replays).

    What they compute counts from the first replay on. The host does not wait for the device. RuntimeError where a work
    cannot be captured.
    """
    stream, memory = torch.cuda.Stream(first.device), torch.cuda.graph_pool_handle()
    stream.wait_stream(torch.cuda.current_stream(first.device))
    replays: list[Callable[[], None]] = []
    with torch.cuda.stream(stream):
        works[0](first)  # libraries take their memory outside of the graphs
        for work in works:
            graph = torch.cuda.CUDAGraph()
            graph.capture_begin(memory, capture_error_mode="thread_local")  # other threads may load
            try:
                first = work(first)
            finally:
                graph.capture_end()
            replays.append(graph.replay)
    torch.cuda.current_stream(first.device).wait_stream(stream)
    return first, replays


class BetweenAttentions:
    """The graphs of one number of rows."""

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
        """Let the device wait for the pass before, which may be on another stream, and the next for this one."""
        if self._done is not None:
            self._done.wait()
        try:
            yield
        finally:
            if self._done is not None:
                self._done.record()

    def behind(self, number: int, attended: Tensor, residual: Tensor, o: Linear) -> tuple[Tensor, Tensor]:
        """Do what `Layers.behind` does with the product of attended rows [R, Hq · D] and `o`.

        What is returned holds until the next layer goes on.
        """
        if not number:
            self._first.copy_(residual)
        self._products.into(self._x, attended, *o)
        self._replays[number]()
        return self._residual, self._qkv

"""One CUDA graph of all layers for the chunks of a long prompt, replayed with new token ids and positions.

Under a sparse method, launching a chunk's kernels takes the host longer than running them takes the GPU. A replayed
chunk attends over the whole KV of its prompt, written or not; later tokens are masked by their positions. Only token
ids and positions change from chunk to chunk, on the device. The graph contains the addresses of the KV, so it is
captured once per prompt.
"""

from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import replace
from functools import cache
from threading import Lock
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import PreTrainedModel

from workbench.core.masks import causal
from workbench.core.plan import Plan
from workbench.core.utils.wide_copies import copy_to_device
from workbench.engine.attention_backends.attention import PlannedRequest
from workbench.engine.forward import PrefillRequest, packed_logits
from workbench.engine.layers.fused_layers import packed_layers
from workbench.models.transformers_attention import StopForward, attend, registered


class ReplayedRequest(PlannedRequest):
    """A request whose `rows` [R] are overwritten on the device before each replay; it attends over its whole KV."""

    replayed = True

    def __init__(self, plan: Plan, request: PrefillRequest, device: torch.device):
        super().__init__(plan, request.kv, device)
        self.rows, self.slots = self.rows.clone(), self.rows.int()
        self._whole, self._end = False, len(request.kv)

    def place(self, layer: int) -> tuple[Tensor, Tensor]:
        """Return the keys and values of a layer, [H, T, D]; new ones are written at indices `slots`."""
        return self.kv.keys[layer], self.kv.values[layer]


class ChunkGraph:
    """The chunks of one request that have equal sizes and need no logits, except the first chunk.

    The first chunk creates the cached values derived from keys. `why_uncaptured` is why chunks are not replayed.
    """

    def __init__(self, model: PreTrainedModel, request: PrefillRequest):
        self.model, self.request = model, request
        self.layers = request.plan.num_layers or len(request.kv.keys)
        self.why_uncaptured = "" if model.device.type == "cuda" else "the model is not on a GPU"
        self.backends: dict[int, str] = {}
        self._pass: ReplayedRequest | None = None
        self._replay: Callable[[], None] | None = None

    def compute(self, rows: Tensor) -> None:
        """Compute the keys and values of all layers for the chunk of tokens `rows` [R] (on the host)."""
        ids = self.request.tokens[rows.to(self.request.tokens.device)]
        if self._pass is None:
            plan = replace(self.request.plan, rows=rows, num_layers=self.layers)
            self._pass = ReplayedRequest(plan, self.request, self.model.device)
            self._ids = copy_to_device(ids, self.model.device).clone()
        else:
            self._pass.rows.copy_(copy_to_device(rows, self.model.device))
            self._pass.slots.copy_(self._pass.rows)
            self._ids.copy_(copy_to_device(ids, self.model.device))
        known, shape = _BUILT.setdefault(self.model, set()), self._shape(len(rows))
        if shape in known and self._replay is None and not self.why_uncaptured:
            self._capture()
        (self._replay or self._run)()
        known.add(shape)
        self.backends = self._pass.backends
        for layer in range(self.layers):
            self.request.kv.derived(layer).mark_covered(int(rows[-1]) + 1)

    def _shape(self, rows: int) -> Hashable:
        """Return what kernels are specialized for; a pass whose kernels are not compiled yet cannot be captured."""
        return repr(self.request.plan.sparse), rows, len(self.request.kv), self.layers

    def _run(self) -> None:
        assert self._pass is not None
        with suppress(StopForward):
            packed_logits(self.model, self._ids, self._pass.rows, [self._pass], None)

    def _capture(self) -> None:
        try:
            self._replay = _memory(self.model.device).captured(self._run)
        except RuntimeError as problem:  # out of memory, or an operation synchronizes with the device
            self.why_uncaptured = str(problem)


class _Memory:
    """Capture stream and memory pool of one GPU's graphs. The graphs share the memory, so they run one at a time."""

    def __init__(self, device: torch.device):
        self.stream, self.pool = torch.cuda.Stream(device), torch.cuda.graph_pool_handle()
        self.last: torch.cuda.CUDAGraph | None = None  # keeps the memory pool alive
        self.done, self.turn = torch.cuda.Event(), Lock()

    def captured(self, work: Callable[[], None]) -> Callable[[], None]:
        """Capture the GPU work of a function without running it; return a function that replays it."""
        with self.turn:
            graph = self._capture(work)

        def replay() -> None:
            with self.turn:
                self.done.wait()
                graph.replay()
                self.done.record()

        return replay

    def _capture(self, work: Callable[[], None]) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        self.done.synchronize()  # a running graph must not be destroyed
        if self.last is None:  # an earlier capture failed, and no graph keeps its pool alive
            self.pool = torch.cuda.graph_pool_handle()
        self.stream.wait_stream(torch.cuda.current_stream(self.stream.device))
        with torch.cuda.stream(self.stream):
            graph.capture_begin(self.pool, capture_error_mode="thread_local")  # other threads may load blocks
            try:
                work()
            finally:
                graph.capture_end()
        self.last = graph
        return graph


_BUILT: WeakKeyDictionary[PreTrainedModel, set[Hashable]] = WeakKeyDictionary()  # shapes of passes that have run before
_memory = cache(_Memory)  # one per GPU


def replays(model: PreTrainedModel, request: PrefillRequest, chunk: int) -> bool:
    """Return whether chunks can be replayed: on a GPU with kernels, under a sparse method that allows it."""
    plan, rows = request.plan, request.plan.rows
    sparse = plan.sparse
    if model.device.type != "cuda" or not getattr(sparse, "replays", False) or request.kv.keys[0].dtype.itemsize > 2:
        return False
    plain = plan.sees is causal and plan.backend is None and plan.adjust is None and not plan.return_queries
    whole = max(int(getattr(sparse, "size", 1)), int(getattr(sparse, "rows_together", 0)), 1)
    aligned = chunk % whole == 0 and int(rows[0]) % whole == 0 and len(rows) == int(rows[-1]) - int(rows[0]) + 1
    return plain and aligned and registered() is attend and packed_layers(model) is not None

"""Parts of a `Runner`: captured steps, detection of replaced weights, and token transfers to and from the device.

Captured steps contain the addresses of weights, so replaced weights must be detected (`WeightWatch`). A torch hook
reports registered parameters; only after that are all parameters compared.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import is_
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.modules.module import register_module_parameter_registration_hook

from workbench.core.errors import BadInput, format_value
from workbench.engine.graphs.static_batch import DecodeBatch, StaticBatch
from workbench.engine.pages.paged_pool import Pool
from workbench.engine.pages.paged_prompt import PagedPrompt

WARM_UP = 2  # forward passes before a capture: kernels are compiled, libraries select theirs


@dataclass
class Captured:
    """A step: its graph (None: it runs without one), its result, and the seconds of warm-up and capture."""

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
    """Warm up and capture a step over padding only, which writes to the scratch page.

    `memory` is the memory pool of the graphs, `torch.cuda.graph_pool_handle()`.
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
    with torch.cuda.graph(graph, pool=memory, capture_error_mode="thread_local"):  # other threads may load blocks
        logits = batch.forward()
    torch.cuda.synchronize()
    return Captured(batch, graph, logits, middle - begin, time.perf_counter() - middle)


STRIDE = 96  # the address of one in so many weights is checked: `model.to` moves all of them
_REGISTERED = [0]  # number of parameter registrations on any module


def _count(_module: Module, _name: str, _parameter: object) -> None:
    _REGISTERED[0] += 1


register_module_parameter_registration_hook(_count)


class WeightWatch:
    """Record the parameters of a model to detect when they are replaced."""

    def __init__(self, model: Module):
        self._seen = _REGISTERED[0]
        self._owners = [module._parameters for module in model.modules() if module._parameters]
        self._known = list(chain.from_iterable(map(dict.values, self._owners)))
        self._sampled = [weight for weight in self._known[::STRIDE] if weight is not None]
        self._addresses = [weight.data_ptr() for weight in self._sampled]

    @property
    def replaced(self) -> bool:
        """Whether a parameter was replaced, or all were moved (`model.to`)."""
        if self._seen != _REGISTERED[0]:
            self._seen = _REGISTERED[0]
            if not all(map(is_, chain.from_iterable(map(dict.values, self._owners)), self._known)):
                self._addresses = []  # `exchanged` stays True
        return self._addresses != [weight.data_ptr() for weight in self._sampled]


INTEGERS = (torch.int32, torch.int64)
REFUSED = -1  # marks an invalid first token on the device, without a synchronization


class Fetch:
    """Copy generated tokens to the host, `host` [count, B], without stalling the device."""

    def __init__(self, batch: DecodeBatch, count: int, requests: int):
        self.events: list[torch.cuda.Event | None] = []
        self.host = torch.zeros(count, requests, dtype=torch.int32, pin_memory=batch.tokens.is_cuda)

    def start(self, tokens: Tensor) -> None:
        """Start to copy the tokens [B] of the next step."""
        self.host[len(self.events)].copy_(tokens, non_blocking=True)
        event = torch.cuda.Event() if tokens.is_cuda else None
        if event is not None:
            event.record()
        self.events.append(event)

    def wait(self, number: int, waiting: Callable[[Any], None] | None = None) -> list[int]:
        """Wait for the tokens of a step and return them."""
        event = self.events[number]
        if event is not None:
            if waiting is not None and not event.query():
                waiting(event)
            event.synchronize()
        return [int(token) for token in self.host[number].tolist()]


def token_arrays(pool: Pool, prompts: Sequence[PagedPrompt], tokens: Sequence[Tensor]) -> list["np.ndarray[Any, Any]"]:
    """Return token ids as arrays. Raises BadInput for ids out of the vocabulary and for more than a prompt has room."""
    if not prompts or len(prompts) != len(tokens):
        raise BadInput(f"{len(tokens)} lists of tokens for {len(prompts)} prompts: give one for each, at least one")
    check_prompts(pool, prompts)
    arrays = []
    for prompt, row in zip(prompts, tokens, strict=True):
        if not isinstance(row, Tensor) or row.ndim != 1 or row.dtype not in INTEGERS:
            raise BadInput(f"tokens are {format_value(row)}: a 1-D tensor of int32 or int64 token ids is needed")
        ids = row.cpu().numpy()
        arrays.append(ids)
        if not 1 <= len(ids) <= prompt.reserve:
            raise BadInput(f"{len(ids)} tokens for a prompt with room for {prompt.reserve}")
        if ids.min() < 0 or ids.max() >= pool.spec.ids:
            raise BadInput(f"token ids {ids.min()} to {ids.max()}: the vocabulary is 0 to {pool.spec.ids - 1}")
    return arrays


def check_prompts(pool: Pool, prompts: Sequence[PagedPrompt]) -> None:
    """Raise BadInput for prompts that are closed, of another pool, or given twice."""
    for prompt in prompts:
        pool.check(prompt)
    if len({id(prompt) for prompt in prompts}) < len(prompts):
        raise BadInput("a prompt is given twice: each request writes to its own pages")


def first_tokens(pool: Pool, prompts: Sequence[PagedPrompt], logits: Tensor) -> Tensor:
    """Return the first tokens [B] (int32) from `logits` [B, V] or token ids [B].

    A token is `REFUSED` if its largest logit is not finite or its id is out of the vocabulary; this is reported when
    tokens are fetched. Raises BadInput for other shapes and dtypes, and for a prompt whose question is not computed.
    """
    count, vocabulary = len(prompts), pool.spec.vocabulary
    for prompt in prompts:
        if prompt.written <= prompt.chosen and not prompt.complete:
            raise BadInput("decode before prefill: the question of this prompt is not computed yet")
    if not isinstance(logits, Tensor):
        raise BadInput(f"logits are {format_value(logits)}: a tensor is needed, [B, V], or [B] token ids")
    if logits.ndim == 2 and logits.shape == (count, vocabulary) and logits.is_floating_point():
        best, ids = logits.max(-1)
        return torch.where(best.isfinite(), ids, REFUSED).int()
    if logits.ndim == 1 and len(logits) == count and logits.dtype in INTEGERS:
        return torch.where((logits >= 0) & (logits < vocabulary), logits, REFUSED).int()
    raise BadInput(
        f"logits {list(logits.shape)} of {logits.dtype}: [{count}, {vocabulary}] floating point, or [{count}] token ids"
    )

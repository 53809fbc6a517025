"""Tokens that a `Runner` is given, checked before any work, and those of an answer, on their way to the host."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from workbench.core.errors import BadInput
from workbench.engine.graphs.static_batch import DecodeBatch
from workbench.engine.pages.paged_pool import Pool
from workbench.engine.pages.paged_prompt import PagedPrompt


class Fetch:
    """Tokens on their way to the host, without stopping the device: `host` [count, B]."""

    def __init__(self, batch: DecodeBatch, count: int, requests: int):
        self.generation = batch.generation  # of the answers that are fetched
        self.events: list[torch.cuda.Event | None] = []
        self.host = torch.zeros(count, requests, dtype=torch.int32, pin_memory=batch.tokens.is_cuda)

    def start(self, tokens: Tensor) -> None:
        """Begin to copy the tokens [B] of the next step."""
        self.host[len(self.events)].copy_(tokens, non_blocking=True)
        event = torch.cuda.Event() if tokens.is_cuda else None
        if event is not None:
            event.record()
        self.events.append(event)

    def wait(self, number: int, waiting: Callable[[Any], None] | None = None) -> list[int]:
        """The tokens of a step, once they are here."""
        event = self.events[number]
        if event is not None:
            if waiting is not None and not event.query():
                waiting(event)
            event.synchronize()
        return [int(token) for token in self.host[number].tolist()]


def check_tokens(pool: Pool, prompts: Sequence[PagedPrompt], tokens: Sequence["np.ndarray[Any, Any]"]) -> None:
    """Refuse token ids that are not of the model, or more than a prompt has room for."""
    if not prompts or len(prompts) != len(tokens):
        raise BadInput(f"{len(tokens)} lists of tokens for {len(prompts)} prompts: give one for each, at least one")
    for prompt, ids in zip(prompts, tokens, strict=True):
        if not 1 <= len(ids) <= prompt.reserve:
            raise BadInput(f"{len(ids)} tokens for a prompt with room for {prompt.reserve}")
        if ids.min() < 0 or ids.max() >= pool.spec.vocabulary:
            raise BadInput(f"token ids {ids.min()} to {ids.max()}: the vocabulary is 0 to {pool.spec.vocabulary - 1}")
    check_prompts(pool, prompts)


def check_prompts(pool: Pool, prompts: Sequence[PagedPrompt]) -> None:
    """Refuse prompts that are closed, of another pool, or given twice."""
    for prompt in prompts:
        pool.check(prompt)
    if len({id(prompt) for prompt in prompts}) < len(prompts):
        raise BadInput("a prompt is given twice: each writes to pages of its own")

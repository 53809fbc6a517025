"""A prompt on its way to an answer over pages."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from workbench.core.blocks import Prompt
from workbench.core.errors import BadInput
from workbench.engine.assembly import Positions
from workbench.engine.decoding import StopStrings, TokenChoice, eos_ids, special_ids, text_of
from workbench.engine.paged_pool import Cached, PagedPrompt
from workbench.methods import Method, ReadyRequest
from workbench.methods.answered import Generation
from workbench.methods.modes.reuse import Reuse
from workbench.methods.receipts import Receipt, timed
from workbench.models.spec import spec_for
from workbench.store import Store


@dataclass(eq=False)
class PageRequest:
    """A prompt on its way to an answer over pages.

    limit    most tokens of the answer, by its own number and by the model's context
    rows     of its own pages that are rows of the prompt; the others are the answer's
    context  blocks that it reads, pinned; `paged` its page table; `ready` as the method began it
    """

    prompt: Prompt
    method: Method
    store: Store
    limit: int
    choose: TokenChoice
    stops: StopStrings
    eos: frozenset[int]
    random: torch.Generator
    keep: bool = False
    tokens: list[int] = field(default_factory=list)
    rows: int = 0
    context: list[Cached] = field(default_factory=list)
    paged: PagedPrompt | None = None
    ready: ReadyRequest | None = None
    logits: Tensor | None = None
    receipt: Receipt | None = None
    first: float = 0.0
    ended: float | None = None

    @property
    def positions(self) -> Positions:
        """Positions of the keys of its context."""
        return self.method.positions if type(self.method) is Reuse else "re-encoded"

    def take(self, token: int) -> bool:
        """Add a token to the answer, unless it ends it; return whether it has ended."""
        over = token in self.eos
        if not over:
            self.tokens.append(token)
            over = self.stops(self.tokens) or len(self.tokens) >= self.limit
        self.ended = perf_counter() if over else None
        return over


def needed(request: PageRequest, size: int) -> int:
    """Return how many pages a request needs at most: for its blocks, and for what is computed for it."""
    prompt, method = request.prompt, request.method
    context = sum(-(-len(block) // size) for block in prompt.context)
    context += -(-getattr(method, "paths", 0) * len(prompt.question) // size)  # of superposition, which copies each
    computed = len(prompt.question) + request.limit
    if getattr(method, "select", None) is not None:
        computed += prompt.starts[-1]
    question = -(-len(prompt.question) // size)
    return context + question + -(-computed // size) + 1


def requests_of(
    model: PreTrainedModel,
    tokenizer: Any,
    prompts: Sequence[Prompt],
    method: Method,
    store: Store,
    max_new_tokens: int,
    keep: bool = False,
    temperature: float = 0.0,
    top_p: float = 1.0,
    seed: int | Sequence[int] = 0,
    stop: str | Sequence[str] = (),
) -> list[PageRequest]:
    """Make requests of prompts; the options are those of `decode`, and were checked. BadInput for a prompt that is none
    of this model."""
    spec = spec_for(model, (prompt.tokens for prompt in prompts))
    stops = (stop,) if isinstance(stop, str) else tuple(stop)
    seeds = [seed] * len(prompts) if isinstance(seed, int) else list(seed)
    if len(seeds) != len(prompts):
        raise BadInput(f"{len(seeds)} seeds for {len(prompts)} requests: give one for each")
    eos = eos_ids(model, tokenizer) | special_ids(stops, tokenizer)
    choose, watch = TokenChoice(temperature, top_p), StopStrings(stops, tokenizer)
    limits = [min(max_new_tokens, spec.context - len(p) + 1) if spec.context else max_new_tokens for p in prompts]
    return [
        PageRequest(prompt, method, store, limit, choose, watch, eos, torch.Generator().manual_seed(number), keep)
        for prompt, limit, number in zip(prompts, limits, seeds, strict=True)
    ]


def generation_of(request: PageRequest, tokenizer: Any, begin: float) -> Generation:
    """Return the answer of a request that has ended; `begin` is when it was asked for."""
    ready, receipt = request.ready, request.receipt
    assert ready is not None and receipt is not None and request.ended is not None
    decode = {"decode": request.ended - request.first}
    text = "" if tokenizer is None else text_of(tokenizer, request.tokens, request.stops.stops)
    return Generation(
        tuple(request.tokens),
        text,
        ready.computed,
        ready.reused,
        request.first - begin,
        ready.passes,
        timed(receipt, {**receipt.seconds, **decode}),
    )

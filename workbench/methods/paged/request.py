"""A prompt on its way to an answer over pages."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from workbench.core.blocks import Prompt
from workbench.engine.assembly import Positions
from workbench.engine.decoding import StopStrings, TokenChoice, eos_ids, special_ids, text_of
from workbench.engine.pages.paged_prompt import Cached, PagedPrompt
from workbench.methods import Method, ReadyRequest
from workbench.methods.answered import Generation
from workbench.methods.modes.reuse import Reuse
from workbench.methods.request_report import Receipt, timed
from workbench.methods.sampling import SamplingParams
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
    params: SamplingParams,
    keep: bool = False,
) -> list[PageRequest]:
    """Make requests of prompts; `params` were checked.

    BadInput for a prompt that is none of this model, and for another number of seeds than of prompts.
    """
    spec = spec_for(model, (prompt.tokens for prompt in prompts))
    prompts = method.wrapped(model, prompts) if isinstance(method, Reuse) else prompts
    seeds = params.seeds(len(prompts))
    eos = eos_ids(model, tokenizer) | special_ids(params.stops, tokenizer)
    choose, watch = TokenChoice(params.temperature, params.top_p), StopStrings(params.stops, tokenizer)
    most = params.max_new_tokens
    limits = [min(most, spec.context - len(p) + 1) if spec.context else most for p in prompts]
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

"""The whole flow in one call: prompts in, answers out, in full or in block mode."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from transformers import PreTrainedModel

from workbench.blocks import Prompt
from workbench.decoding import check_options, decode, text_of
from workbench.engine import Positions, Work, assemble, check_tokens, empty, prefill, prefill_many
from workbench.errors import BadInput
from workbench.kv import KV
from workbench.masks import Sees, causal
from workbench.plan import Plan
from workbench.probing import facts_of
from workbench.store import MemoryStore, Store, fetch

Mode = Literal["full", "block"]


@dataclass(frozen=True)
class Generation:
    """An answer: its token ids, its text up to the stop string, and how many prompt tokens were computed and reused."""

    tokens: tuple[int, ...]
    text: str
    rows_computed: int
    rows_reused: int


def generate(
    model: PreTrainedModel,
    tokenizer: Any,
    prompts: Sequence[Prompt],
    mode: Mode = "full",
    positions: Positions = "re-encoded",
    sees: Callable[[Prompt], Sees] | None = None,
    store: Store | None = None,
    max_new_tokens: int = 64,
    temperature: float = 0.0,
    top_p: float = 1.0,
    seed: int | Sequence[int] = 0,
    stop: str | Sequence[str] = (),
) -> list[Generation]:
    """Answers to a batch of prompts of any lengths.

    mode   "full": every token of a prompt is computed, under `sees(prompt)` where it is given (`block_attention`, say);
           "block": every context block is cached alone (in `store`, or for this call only) and reused at its new place
    The other arguments are those of `assemble` and `decode`.
    """
    if mode not in ("full", "block"):
        raise BadInput(f"mode {mode!r}: it is 'full' or 'block'")
    facts = facts_of(model)
    check_options(max_new_tokens, temperature, top_p, (stop,) if isinstance(stop, str) else stop, tokenizer)
    for prompt in prompts:
        check_tokens(facts, prompt.tokens)
    longest = max(map(len, prompts), default=0)
    room = min(max_new_tokens, facts.context - longest) if facts.context else max_new_tokens
    rules = [sees(prompt) if sees else causal for prompt in prompts]
    if mode == "full":
        kvs = [empty(model, len(prompt), room) for prompt in prompts]
        rows = [torch.arange(len(prompt)) for prompt in prompts]
    else:
        kvs = _reuse(model, prompts, positions, store, room)
        rows = [prompt.question for prompt in prompts]
    works = [Work(p.tokens, Plan(r, s), kv) for p, r, s, kv in zip(prompts, rows, rules, kvs, strict=True)]
    logits = [step.logits for step in prefill_many(model, works, logits_to_keep=1) if step.logits is not None]
    answers: list[list[int]] = [[] for _ in prompts]
    for step in decode(model, kvs, logits, max_new_tokens, temperature, top_p, seed, stop, tokenizer, rules):
        for answer, token in zip(answers, step, strict=True):
            answer += [] if token is None else [token]
    return [
        Generation(tuple(a), text_of(tokenizer, a, stop), len(r), len(p) - len(r))
        for a, r, p in zip(answers, rows, prompts, strict=True)
    ]


def first_token(model: PreTrainedModel, prompt: Prompt, cached: Sequence[KV] | None, positions: Positions) -> int:
    """The most likely first token of an answer: over `cached` KV of the context blocks, or with all of it computed.

    What a time to first token measures: from token ids (and blocks in memory) to a token id on the host.
    """
    if cached is None:
        kv, rows = empty(model, len(prompt)), torch.arange(len(prompt))
    else:
        kv, rows = assemble(model, prompt, cached, positions), prompt.question
    logits = prefill(model, prompt.tokens, Plan(rows), kv, logits_to_keep=1).logits
    assert logits is not None  # a plan without `depth` has logits
    return int(logits[-1].argmax())


def _reuse(
    model: PreTrainedModel, prompts: Sequence[Prompt], positions: Positions, store: Store | None, room: int
) -> list[KV]:
    blocks = [block for prompt in prompts for block in prompt.context]
    cached = iter(fetch(model, blocks, MemoryStore(1 << 62) if store is None else store))
    return [assemble(model, p, [next(cached) for _ in p.context], positions, room) for p in prompts]

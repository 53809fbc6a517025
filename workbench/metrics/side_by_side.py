"""Several sparse methods on the same prompt: what each keeps, loses and answers. What they share is computed once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from statistics import fmean
from typing import Any

import torch
from transformers import PreTrainedModel

from workbench.blocks import Prompt
from workbench.chunked import check_chunk, prefill_chunked_many
from workbench.decoding import decode, text_of
from workbench.engine import Step, Work, empty, prefill
from workbench.kv import KV
from workbench.metrics.sparsity import Counts, Head, compared, of_layer, scaled
from workbench.models import Loaded
from workbench.plan import Plan
from workbench.probing import facts_of
from workbench.sparse import Sparse

MEASURES = ("density", "union", "tiles", "mass", "recall", "error")  # of a head, see `sparsity.Head`
TOGETHER = 8  # methods whose passes are packed


@dataclass(frozen=True)
class Found:
    """One method on one prompt. `heads` and `seconds` are empty and None where they were not asked for."""

    kl: float  # of the next tokens over the question's rows, from dense attention's, nats
    agree: float  # share of the question's rows with the same next token
    first: bool  # the first token of the answer is that of dense attention
    text: str  # the answer, greedy
    heads: tuple[Head, ...] = ()
    seconds: float | None = None  # to choose, in all layers and chunks

    def measures(self) -> dict[str, float]:
        """The numbers; those of heads are means over layers and heads."""
        found = {"kl": self.kl, "agree": self.agree, "first": float(self.first)}
        if self.heads:
            found |= {name: fmean(getattr(head, name) for head in self.heads) for name in MEASURES}
            found |= {"lowest": min(head.lowest for head in self.heads), "seconds": self.seconds or 0.0}
        return found


def compare(
    loaded: Loaded,
    prompt: Prompt,
    methods: Mapping[str, Sparse],
    chunk: int | None = None,
    max_new_tokens: int = 24,
    heads: bool = True,
) -> dict[str, Found]:
    """Every method, `ready` for the model, on a prompt that is prefilled in chunks, and the answer that follows.

    `heads`: also what is kept by layer and head, on the states of dense attention. Layers whose sliding window is
    narrower than the prompt are left out. BadInput for a chunk smaller than a tile, before any work.
    """
    model, plan = loaded[0], Plan(torch.arange(len(prompt)))
    for method in methods.values():
        check_chunk(Plan(plan.rows, tiles=method), chunk or len(prompt) + method.size)
    kv, layers = empty(model, len(prompt)), range(facts_of(model).layers if heads else 0)
    dense = prefill(model, prompt.tokens, Plan(plan.rows, watch=tuple(layers)), kv, len(prompt.question))
    found, left = {}, iter(methods.items())
    while some := dict(islice(left, TOGETHER)):
        steps, texts = _answered(loaded, prompt, list(some.values()), chunk, max_new_tokens)
        for (name, method), step, text in zip(some.items(), steps, texts, strict=True):
            counts = _counts(model, dense, kv, method, chunk) if heads else {}
            parts = tuple(head for layer, count in counts.items() for head in count.heads(layer))
            spent = sum(count.seconds for count in counts.values()) if heads else None
            found[name] = Found(*compared(step, dense, len(prompt.question)), text, parts, spent)
    return found


def _counts(model: PreTrainedModel, dense: Step, kv: KV, method: Sparse, chunk: int | None) -> dict[int, Counts]:
    windows = facts_of(model).windows
    open_layers = [layer for layer in dense.queries if not (size := windows[layer]) or size >= len(kv)]
    return {layer: of_layer(scaled(model, layer, dense), kv, layer, method, chunk) for layer in open_layers}


def _answered(
    loaded: Loaded, prompt: Prompt, methods: Sequence[Sparse], chunk: int | None, count: int
) -> tuple[list[Step], list[str]]:
    """Logits of the question's rows, and the text of the answer, under every method."""
    model, tokenizer, layout = loaded
    context = facts_of(model).context
    room = min(count, context - len(prompt)) if context else count
    plans = [Plan(torch.arange(len(prompt)), tiles=method) for method in methods]
    works = [Work(prompt.tokens, plan, empty(model, len(prompt), room)) for plan in plans]
    longest = len(prompt) + max(method.size for method in methods)  # one chunk for all
    steps = prefill_chunked_many(model, works, chunk or longest, len(prompt.question))
    kvs: list[Any] = [work.kv for work in works]
    answers: list[list[int]] = [[] for _ in works]
    logits = [step.logits for step in steps if step.logits is not None]
    for tokens in decode(model, kvs, logits, count, stop=layout.stop, tokenizer=tokenizer):
        for answer, token in zip(answers, tokens, strict=True):
            answer += [] if token is None else [token]
    return steps, [text_of(tokenizer, answer, layout.stop).strip() for answer in answers]

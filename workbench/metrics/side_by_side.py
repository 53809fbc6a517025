"""Several sparse methods on the same prompt: what each keeps, loses and answers. What they share is computed once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from statistics import fmean
from typing import Any

import torch
from transformers import PreTrainedModel

from workbench.core.blocks import Prompt
from workbench.core.kv import KV
from workbench.core.plan import Plan
from workbench.engine.assembly import empty
from workbench.engine.chunked import check_chunk, prefill_chunked_many
from workbench.engine.decoding import decode, text_of
from workbench.engine.forward import PrefillOutput, PrefillRequest, prefill_many
from workbench.methods.sparse import Sparse
from workbench.metrics.sparsity import Counts, Head, compared, of_layer, scaled
from workbench.models.loading import Loaded
from workbench.models.spec import attach

MEASURES = ("density", "union", "tiles", "mass", "recall", "error")  # of a head, see `counts.Head`
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
    return compare_many(loaded, [prompt], methods, chunk, max_new_tokens, heads)[0]


def compare_many(
    loaded: Loaded,
    prompts: Sequence[Prompt],
    methods: Mapping[str, Sparse],
    chunk: int | None = None,
    max_new_tokens: int = 24,
    heads: bool = True,
    together: int = TOGETHER,
) -> list[dict[str, Found]]:
    """`compare` for several prompts: passes of `together` pairs of a prompt and a method are packed, so that a device
    that waits for its host more than for its numbers is kept busy."""
    model = loaded[0]
    if not prompts or not methods:
        return [{} for _ in prompts]
    largest = max(method.size for method in methods.values())
    for method in methods.values():
        check_chunk(Plan(torch.arange(1), sparse=method), chunk or largest)
    dense = _dense(model, prompts, heads)
    counts = [_counts(model, *states, methods, chunk) if heads else {} for states in dense]
    found: list[dict[str, Found]] = [{} for _ in prompts]
    left = iter([(i, name) for i in range(len(prompts)) for name in methods])
    while some := list(islice(left, together)):
        requests = [(prompts[i], methods[name]) for i, name in some]
        steps, texts = _answered(loaded, requests, chunk, max_new_tokens)
        for (i, name), step, text in zip(some, steps, texts, strict=True):
            found[i][name] = _found(dense[i][0], counts[i].get(name, {}), step, text, heads)
    return found


def _dense(model: PreTrainedModel, prompts: Sequence[Prompt], heads: bool) -> list[tuple[PrefillOutput, KV]]:
    """Dense attention: logits of the question's rows, and the states of all layers where `heads` are asked for."""
    layers = tuple(range(attach(model).layers if heads else 0))
    requests = [
        PrefillRequest(p.tokens, Plan(torch.arange(len(p)), return_queries=layers), empty(model, len(p)))
        for p in prompts
    ]
    steps = prefill_many(model, requests, max(len(p.question) for p in prompts))
    return [(_cut(step, prompt), request.kv) for step, prompt, request in zip(steps, prompts, requests, strict=True)]


def _cut(step: PrefillOutput, prompt: Prompt) -> PrefillOutput:
    """Only the logits of the question's rows."""
    return step if step.logits is None else replace(step, logits=step.logits[-len(prompt.question) :])


def _found(dense: PrefillOutput, counts: Mapping[int, Counts], step: PrefillOutput, text: str, heads: bool) -> Found:
    parts = tuple(head for layer, count in counts.items() for head in count.heads(layer))
    spent = sum(count.seconds for count in counts.values()) if heads else None
    assert dense.logits is not None
    return Found(*compared(step, dense, len(dense.logits)), text, parts, spent)


def _counts(
    model: PreTrainedModel, dense: PrefillOutput, kv: KV, methods: Mapping[str, Sparse], chunk: int | None
) -> dict[str, dict[int, Counts]]:
    """What every method keeps, by layer."""
    found: dict[str, dict[int, Counts]] = {name: {} for name in methods}
    for layer, size in enumerate(attach(model).windows):
        if not size or size >= len(kv):
            counts = of_layer(scaled(model, layer, dense), kv, layer, list(methods.values()), chunk)
            for name, count in zip(methods, counts, strict=True):
                found[name][layer] = count
    return found


def _answered(
    loaded: Loaded, asked: Sequence[tuple[Prompt, Sparse]], chunk: int | None, count: int
) -> tuple[list[PrefillOutput], list[str]]:
    """Logits of the question's rows, and the text of the answer, of each prompt under its method."""
    model, tokenizer, layout = loaded
    context, requests = attach(model).context, []
    for prompt, method in asked:
        room = min(count, context - len(prompt)) if context else count
        kv = empty(model, len(prompt), max(0, room))
        requests.append(PrefillRequest(prompt.tokens, Plan(torch.arange(len(prompt)), sparse=method), kv))
    longest = max(len(prompt) + method.size for prompt, method in asked)  # one chunk for all
    steps = prefill_chunked_many(model, requests, chunk or longest, max(len(prompt.question) for prompt, _ in asked))
    kvs: list[Any] = [request.kv for request in requests]
    answers: list[list[int]] = [[] for _ in requests]
    logits = [step.logits for step in steps if step.logits is not None]
    for tokens in decode(model, kvs, logits, count, stop=layout.stop, tokenizer=tokenizer):
        for answer, token in zip(answers, tokens, strict=True):
            answer += [] if token is None else [token]
    cut = [_cut(step, prompt) for step, (prompt, _) in zip(steps, asked, strict=True)]
    return cut, [text_of(tokenizer, answer, layout.stop).strip() for answer in answers]

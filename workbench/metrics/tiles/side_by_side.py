"""Several sparse methods on the same prompt: what each keeps, loses and answers. Shared work is done once."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from statistics import fmean
from typing import Any

import torch

from workbench.core.blocks import Prompt
from workbench.core.kv import KV
from workbench.core.plan import Plan
from workbench.engine.chunked import check_chunk, prefill_chunked_many
from workbench.engine.decoding import by_request, decode, text_of
from workbench.engine.forward import PrefillOutput, all_rows, prefill_many
from workbench.methods.sparse import Sparse
from workbench.metrics.tiles.sparsity import MEASURES, Methods, by_layer, compared
from workbench.metrics.tiles.sparsity_counts import Head
from workbench.models.loading import Loaded

TOGETHER = 8  # methods whose passes are packed


@dataclass(frozen=True)
class Comparison:
    """One method on one prompt. `heads` and `seconds` are empty and None where they were not asked for."""

    kl: float  # of the next tokens over the question's rows, from dense attention's, nats
    agree: float  # share of the question's rows with the same next token
    first: bool  # the first token of the answer is that of dense attention
    text: str  # the answer, greedy
    heads: tuple[Head, ...] = ()
    seconds: float | None = None  # to choose, in all layers and chunks

    def measures(self) -> dict[str, float]:
        """Return the numbers; those of heads are means over layers and heads."""
        values = {"kl": self.kl, "agree": self.agree, "first": float(self.first)}
        if self.heads:
            values |= {name: fmean(getattr(head, name) for head in self.heads) for name in MEASURES}
            values |= {"lowest": min(head.lowest for head in self.heads), "seconds": self.seconds or 0.0}
        return values


def compare(
    loaded: Loaded,
    prompt: Prompt,
    methods: Methods,
    chunk: int | None = None,
    max_new_tokens: int = 24,
    heads: bool = True,
) -> dict[str, Comparison]:
    """Compare every method, `ready` for the model, with dense attention on a prompt that is prefilled in chunks.

    `heads`: also count the kept pairs by layer and head, on the states of dense attention. Layers whose sliding window
    is narrower than the prompt are left out. BadInput for a chunk smaller than a tile, before any work.
    """
    return compare_many(loaded, [prompt], methods, chunk, max_new_tokens, heads)[0]


def compare_many(
    loaded: Loaded,
    prompts: Sequence[Prompt],
    methods: Methods,
    chunk: int | None = None,
    max_new_tokens: int = 24,
    heads: bool = True,
    together: int = TOGETHER,
) -> list[dict[str, Comparison]]:
    """Run `compare` for several prompts, `together` pairs of prompt and method packed to keep a device busy."""
    loaded = Loaded(*loaded)
    if not prompts or not methods:
        return [{} for _ in prompts]
    largest = max(method.size for method in methods.values())
    for method in methods.values():
        check_chunk(Plan(torch.arange(1), sparse=method), chunk or largest)
    dense = _dense(loaded, prompts, heads)
    counts = [by_layer(loaded.model, *states, list(methods.values()), chunk) if heads else {} for states in dense]
    comparisons: list[dict[str, Comparison]] = [{} for _ in prompts]
    pairs = iter([(i, name) for i in range(len(prompts)) for name in methods])
    while packed := list(islice(pairs, together)):
        outputs, texts = _answered(loaded, [(prompts[i], methods[name]) for i, name in packed], chunk, max_new_tokens)
        for (i, name), output, text in zip(packed, outputs, texts, strict=True):
            number = list(methods).index(name)
            own = {layer: of_methods[number] for layer, of_methods in counts[i].items()}
            of_heads = tuple(head for layer, count in own.items() for head in count.heads(layer))
            seconds = sum(count.seconds for count in own.values()) if heads else None
            differences = compared(output, dense[i][0], len(prompts[i].question))
            comparisons[i][name] = Comparison(*differences, text, of_heads, seconds)
    return comparisons


def _dense(loaded: Loaded, prompts: Sequence[Prompt], heads: bool) -> list[tuple[PrefillOutput, KV]]:
    """Compute dense attention: logits of the questions' rows, and the states of all layers for `heads`."""
    layers = tuple(range(loaded.spec.layers if heads else 0))
    requests = [all_rows(loaded.model, p.tokens, return_queries=layers) for p in prompts]
    outputs = prefill_many(loaded.model, requests, max(len(p.question) for p in prompts))
    return [(output, request.kv) for output, request in zip(outputs, requests, strict=True)]


def _answered(
    loaded: Loaded, pairs: Sequence[tuple[Prompt, Sparse]], chunk: int | None, count: int
) -> tuple[list[PrefillOutput], list[str]]:
    """Compute the logits of the questions' rows, and the text of the answer, of each prompt under its method."""
    model, tokenizer, layout = loaded
    context = loaded.spec.context
    requests = []
    for prompt, method in pairs:
        reserve = min(count, context - len(prompt)) if context else count
        requests.append(all_rows(model, prompt.tokens, max(0, reserve), sparse=method))
    longest = max(len(prompt) + method.size for prompt, method in pairs)  # one chunk for all
    rows = max(len(prompt.question) for prompt, _ in pairs)
    outputs = prefill_chunked_many(model, requests, chunk or longest, rows)
    kvs: list[Any] = [request.kv for request in requests]
    logits = [output.logits for output in outputs if output.logits is not None]
    steps = decode(model, kvs, logits, count, stop=layout.stop, tokenizer=tokenizer)
    answers = by_request(steps, len(requests))
    return outputs, [text_of(tokenizer, answer, layout.stop).strip() for answer in answers]

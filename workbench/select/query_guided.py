"""Tokens that the question attends to (FusionRAG, section 3.2)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from workbench.blocks import Prompt
from workbench.engine import Work, prefill_many
from workbench.errors import BadInput
from workbench.kv import KV
from workbench.plan import Pass, Plan
from workbench.probing import facts_of
from workbench.select import Select
from workbench.weights import Layers, check_layers, layers_of, logits, softmax, within_blocks


@dataclass(frozen=True)
class QueryGuided(Select):
    """The question is prefilled over the stitched cache; a token's score is the attention it gets from the question.

    layers   "last" (the paper; of a model with sliding windows the last layer without one), "all", or layer numbers
    tokens   of the question: "all" (the paper), or "last", the one that gives the first token of the answer
    softmax  within each "block" apart, so that no block competes with another (the paper), or over the whole "prompt",
             as the model itself weighs

    Summed over question tokens, heads and layers.
    """

    layers: Layers = "last"
    tokens: str = "all"
    softmax: str = "block"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_layers(self.layers, ("last", "all"))
        if self.tokens not in ("all", "last"):
            raise BadInput(f"tokens is {self.tokens!r}: 'all' or 'last' of the question")
        if self.softmax not in ("block", "prompt"):
            raise BadInput(f"softmax is {self.softmax!r}: within each 'block', or over the whole 'prompt'")

    def scores(self, model: PreTrainedModel, prompts: Sequence[Prompt], kvs: Sequence[KV]) -> list[Tensor]:
        chosen = layers_of(facts_of(model), self.layers)
        plans = [Plan(prompt.question, watch=tuple(chosen), depth=chosen[-1] + 1) for prompt in prompts]
        works = [Work(*parts) for parts in zip((prompt.tokens for prompt in prompts), plans, kvs, strict=True)]
        steps = prefill_many(model, works)
        return [
            torch.stack([self._layer(model, prompt, kv, layer, step.queries[layer]) for layer in chosen]).sum(0)
            for prompt, kv, step in zip(prompts, kvs, steps, strict=True)
        ]

    def passes(self, model: PreTrainedModel, prompt: Prompt) -> tuple[Pass, ...]:
        depth = layers_of(facts_of(model), self.layers)[-1] + 1
        return (Pass(prompt.question.tolist(), len(prompt), depth),)

    def _layer(self, model: PreTrainedModel, prompt: Prompt, kv: KV, layer: int, queries: Tensor) -> Tensor:
        """[T of the context]"""
        first = -1 if self.tokens == "last" else 0
        lengths = [len(block) for block in prompt.blocks]
        total = torch.zeros(len(prompt), device=queries.device)
        for _, found in logits(model, layer, queries[:, first:], kv.keys[layer], prompt.question[first:]):
            weights = softmax(found) if self.softmax == "prompt" else within_blocks(found, lengths)
            total += weights.sum((0, 1))
        return total[: prompt.starts[-1]]

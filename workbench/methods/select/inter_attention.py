"""Select tokens by attention across blocks, at a fixed ratio (Cache-Craft as FusionRAG compares it, section 5)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from workbench.engine.attention_maps import crossing, layers_of
from workbench.engine.full_context import context_pass
from workbench.methods.select import KV, Pass, Prompt, Select, layers, option_where


@dataclass(frozen=True)
class InterAttention(Select):
    r"""Attention that a token pays to earlier passages, or receives from later ones.

    *Follows a description: FusionRAG's, of the method that it compares with.* The public code of FusionRAG's name (see
    `query_guided`) uses the attention that a chunk pays in the last layer, system prompt included.

    layers  averaged: "all" (Cache-Craft, arXiv:2502.15734), "last" or layer numbers
    side    "pays" (Cache-Craft: tokens that depend on other chunks are invalidated by reuse) or "receives"

    Cache-Craft records these sums when a chunk is computed within a request. Blocks that are cached independently have
    none, so they are measured on the current prompt, by a prefill up to the deepest of `layers`, which is charged.

    With attention weights $a$ averaged over heads and layers, and $B(t)$ the block of token $t$:

    $$s_t = \sum_{u \notin B(t)} a_{t \to u} \quad \text{("pays")}, \qquad
    s_t = \sum_{u \notin B(t)} a_{u \to t} \quad \text{("receives")}$$
    """

    layers: str | tuple[int, ...] = layers("all", "all", "last")
    side: str = option_where("pays", "'pays' or 'receives'", ("pays", "receives").__contains__)

    @property
    def reads_cache(self) -> bool:
        return False

    def scores(self, model: PreTrainedModel, prompts: Sequence[Prompt], kvs: Sequence[KV]) -> list[Tensor]:
        attention = crossing(model, prompts, self.layers)
        return [self._scores(prompt, each.paid, each.received) for prompt, each in zip(prompts, attention, strict=True)]

    def passes(self, model: PreTrainedModel, prompt: Prompt) -> tuple[Pass, ...]:
        return context_pass(model, prompt, layers_of(model, self.layers)[-1] + 1)

    def _scores(self, prompt: Prompt, paid: Tensor, received: Tensor) -> Tensor:
        if self.side == "receives":
            return received
        of = prompt.block_of[: prompt.starts[-1]].to(paid.device)
        blocks = torch.arange(len(prompt.context), device=paid.device)
        others = (blocks >= self.system) & (blocks != of[:, None])
        return (paid * others).sum(1)

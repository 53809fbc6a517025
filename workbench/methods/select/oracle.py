"""Select tokens by their true KV deviation, which needs full attention: an upper bound for comparisons."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from workbench.engine.attention_maps import layers_of
from workbench.engine.full_context import context_pass, exact, gap
from workbench.methods.select import KV, Pass, Prompt, Select, layers, part


@dataclass(frozen=True)
class OracleTokens(Select):
    r"""Squared distance from the KV of full attention, summed over heads, channels and `layers`.

    "The most critical tokens, identified by a postmortem oracle" (FusionRAG, figure 3a).

    layers  "all", "last" or layer numbers
    part    "kv", "v" or "k", as for `kv_deviation`

    It is an oracle of deviation, not of answers: a token with a large deviation may be irrelevant to every question.

    With $k$, $v$ as cached and $\hat k$, $\hat v$ under full attention:

    $$s_t = \sum_{l \in L} \sum_h
    \left( \lVert k_{t,h}^l - \hat k_{t,h}^l \rVert^2 + \lVert v_{t,h}^l - \hat v_{t,h}^l \rVert^2 \right)$$
    """

    layers: str | tuple[int, ...] = layers("all", "all", "last")
    part: str = part()

    def scores(self, model: PreTrainedModel, prompts: Sequence[Prompt], kvs: Sequence[KV]) -> list[Tensor]:
        chosen = layers_of(model, self.layers)
        truths = exact(model, prompts, chosen[-1] + 1)
        return [
            torch.stack([gap(kv, truth, layer, self.part) for layer in chosen]).sum(0)
            for kv, truth in zip(kvs, truths, strict=True)
        ]

    def passes(self, model: PreTrainedModel, prompt: Prompt) -> tuple[Pass, ...]:
        return context_pass(model, prompt, layers_of(model, self.layers)[-1] + 1)

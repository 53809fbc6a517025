"""Tokens whose keys and values deviate most in an early layer (CacheBlend, arXiv:2405.16444)."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor
from transformers import PreTrainedModel

from workbench.methods.select import KV, Pass, Prompt, Select, context_pass, exact, gap, part, whole


@dataclass(frozen=True)
class KvDeviation(Select):
    """Squared distance from the KV of full attention at `layer`, summed over heads and channels (FusionRAG, eq. 7, 8).

    Layers 0 to `layer` are computed in full to know it; layer 0 does not deviate, so layer 1 is the first that tells.

    part    "kv": keys and values (the paper); "v": values alone (CacheBlend's released code); "k": keys after RoPE
            (LMCache)
    """

    layer: int = whole(1, "it is a layer number, 0 or more")
    part: str = part()

    def scores(self, model: PreTrainedModel, prompts: Sequence[Prompt], kvs: Sequence[KV]) -> list[Tensor]:
        truths = exact(model, prompts, self.layer + 1)
        return [gap(kv, truth, self.layer, self.part) for kv, truth in zip(kvs, truths, strict=True)]

    def passes(self, model: PreTrainedModel, prompt: Prompt) -> tuple[Pass, ...]:
        return context_pass(prompt, self.layer + 1)

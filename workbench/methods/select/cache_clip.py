"""Tokens that a small helper model attends to in its last layer, grouped by neighbourhood (CacheClip, 2510.10129)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from workbench import models
from workbench.data.token_text import retokenize, transfer_scores
from workbench.engine.attention_maps import layers_of, question_attention
from workbench.engine.encoding import even_packs
from workbench.methods.select import KV, Pass, Prompt, Select, integer_option, layers
from workbench.models.loading import Loaded, tokenizer_for


@dataclass(frozen=True)
class CacheClip(Select):
    r"""A helper reads the whole prompt; what its question attends to is recomputed in the model, with its neighbours.

    helper  a model by name or folder, of any tokenizer: scores are carried over by the characters that tokens share;
            none: the model itself, whose pass is charged like any other
    layers  of the helper: "last" (the paper), "all", or layer numbers
    window  tokens over which scores are averaged within a passage, so that neighbours are chosen together; 1: none

    group   tokens of the helper's that it reads together: passages of longer prompts are read in as few groups as fit,
            the question behind each, since its attention costs time by the square; every group has its own softmax

    Chunks are cached behind one shared prefix, whose sink is kept once: `prepare=after_system`.

    *Follows a description: the paper's abstracts, which fine-tune SmolLM2-135M to help; here it helps as it comes. No
    code of its authors was found.*

    With the helper's attention $a$ from the question $Q$, mean over heads, and $W(t)$ the window around token $t$:

    $$s_t = \frac{1}{|W(t)|} \sum_{u \in W(t)} \sum_{q \in Q} a_{q \to u}$$
    """

    helper: str | None = None
    layers: str | tuple[int, ...] = layers("last", "last", "all")
    window: int = integer_option(8, "how many neighbouring tokens share a score, 1 or more", least=1)
    group: int = integer_option(4096, "how many tokens a helper reads together, 1 or more", least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.helper is not None:
            models.check(models.folder(self.helper))

    @property
    def reads_cache(self) -> bool:
        return False

    def scores(self, model: PreTrainedModel, prompts: Sequence[Prompt], kvs: Sequence[KV]) -> list[Tensor]:
        if self.helper is None:
            found = question_attention(model, prompts, self.layers)
        else:
            helper, tokenizer = _loaded(self.helper, model.device.type), tokenizer_for(model)
            found = [self._carried(helper, tokenizer, prompt) for prompt in prompts]
        return [self._grouped(prompt, scores) for prompt, scores in zip(prompts, found, strict=True)]

    def passes(self, model: PreTrainedModel, prompt: Prompt) -> tuple[Pass, ...]:
        if self.helper is None:
            return (Pass(range(len(prompt)), len(prompt), layers_of(model, self.layers)[-1] + 1),)
        helper = _loaded(self.helper, model.device.type).model
        return (Pass(range(len(prompt)), len(prompt), weight=_size(helper) / _size(model)),)

    def _carried(self, helper: Loaded, tokenizer: Any, prompt: Prompt) -> Tensor:
        """Return the helper's scores of the context, mapped to the model's tokens block by block."""
        *context, question = (retokenize(helper.tokenizer, tokenizer, block.tokens) for block in prompt.blocks)
        most = min(self.group, (helper.spec.context or math.inf) - len(question.read))
        groups = even_packs([len(block.read) for block in context], most)
        read = [Prompt((*(context[i].read for i in group), question.read)) for group in groups]
        scores = question_attention(helper.model, read, self.layers)
        return transfer_scores(torch.cat(scores), [block.tokens for block in context])

    def _grouped(self, prompt: Prompt, scores: Tensor) -> Tensor:
        """Average scores over windows that end at block borders."""
        sums = torch.cat((scores.new_zeros(1), scores.double().cumsum(0)))
        lengths = torch.tensor([len(block) for block in prompt.context])
        ends = lengths.cumsum(0)
        at = torch.arange(len(scores))
        low = torch.maximum(at - (self.window - 1) // 2, (ends - lengths).repeat_interleave(lengths))
        high = torch.minimum(at + self.window // 2 + 1, ends.repeat_interleave(lengths))
        return ((sums[high] - sums[low]) / (high - low)).float()


@lru_cache(maxsize=2)
def _loaded(name: str, device: str) -> Loaded:
    """Return the helper, loaded once; on the GPU if `device` is "cuda", else on the CPU."""
    return models.load(name, device if device == "cuda" else "cpu")


def _size(model: PreTrainedModel) -> int:
    """Return the number of parameters of the layers, which process every token."""
    return sum(parameter.numel() for parameter in model.get_decoder().layers.parameters())

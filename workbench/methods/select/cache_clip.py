"""Tokens that a small helper model attends to in its last layer, grouped by neighbourhood (CacheClip, 2510.10129)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from workbench import models
from workbench.core.blocks import Block
from workbench.data.token_text import Shared, dealt, ends_of, shared
from workbench.engine.attention_maps import layers_of, logits
from workbench.engine.encoding import packs, watch
from workbench.methods.select import KV, Pass, Prompt, Select, layers, whole
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
    window: int = whole(8, "how many neighbouring tokens share a score, 1 or more", least=1)
    group: int = whole(4096, "how many tokens a helper reads together, 1 or more", least=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.helper is not None:
            models.check(models.folder(self.helper))

    @property
    def reads_cache(self) -> bool:
        return False

    def scores(self, model: PreTrainedModel, prompts: Sequence[Prompt], kvs: Sequence[KV]) -> list[Tensor]:
        if self.helper is None:
            found = self._attention(model, prompts)
        else:
            helper, tokenizer = _loaded(self.helper, model.device.type), tokenizer_for(model)
            found = [self._carried(helper, tokenizer, prompt) for prompt in prompts]
        return [self._grouped(prompt, scores) for prompt, scores in zip(prompts, found, strict=True)]

    def passes(self, model: PreTrainedModel, prompt: Prompt) -> tuple[Pass, ...]:
        if self.helper is None:
            return (Pass(range(len(prompt)), len(prompt), layers_of(model, self.layers)[-1] + 1),)
        helper = _loaded(self.helper, model.device.type).model
        return (Pass(range(len(prompt)), len(prompt), weight=_size(helper) / _size(model)),)

    def _attention(self, model: PreTrainedModel, prompts: Sequence[Prompt]) -> list[Tensor]:
        """Return what the question of every prompt attends to under full attention of `model`, [T of the context]."""
        lengths, totals = [len(prompt) for prompt in prompts], [torch.zeros(len(p)).to(model.device) for p in prompts]

        def see(layer: int, queries: Tensor, keys: Tensor) -> None:
            for number, (q, k) in enumerate(zip(queries.split(lengths, 1), keys.split(lengths, 1), strict=True)):
                rows = prompts[number].question
                for _, scores in logits(model, layer, q[:, rows[0] :], k, rows):
                    totals[number] += scores.softmax(-1).sum((0, 1))

        watch(model, [prompt.tokens for prompt in prompts], see, layers_of(model, self.layers))
        return [total[: prompt.starts[-1]].cpu() for total, prompt in zip(totals, prompts, strict=True)]

    def _carried(self, helper: Loaded, tokenizer: Any, prompt: Prompt) -> Tensor:
        """Return the helper's scores of the context, carried over to the tokens of the model block by block."""
        *context, question = (_turned(helper.tokenizer, tokenizer, block.tokens) for block in prompt.blocks)
        most = min(self.group, (helper.spec.context or math.inf) - len(question.read))
        groups = _even([len(block.read) for block in context], most)
        read = [Prompt((*(context[i].read for i in group), question.read)) for group in groups]
        return dealt(torch.cat(self._attention(helper.model, read)), [block.tokens for block in context])

    def _grouped(self, prompt: Prompt, scores: Tensor) -> Tensor:
        """Average scores over windows that stay within their block."""
        sums = torch.cat((scores.new_zeros(1), scores.double().cumsum(0)))
        lengths = torch.tensor([len(block) for block in prompt.context])
        ends = lengths.cumsum(0)
        at = torch.arange(len(scores))
        low = torch.maximum(at - (self.window - 1) // 2, (ends - lengths).repeat_interleave(lengths))
        high = torch.minimum(at + self.window // 2 + 1, ends.repeat_interleave(lengths))
        return ((sums[high] - sums[low]) / (high - low)).float()


def _even(lengths: Sequence[int], room: float) -> list[list[int]]:
    """Group neighbours of these lengths into as few groups as fit, none much longer than another."""
    fewest, total = packs(lengths, room), sum(lengths)
    for most in np.arange(total / len(fewest), min(room, total), total / len(lengths) / 2):
        if len(even := packs(lengths, most)) == len(fewest):
            return even
    return fewest


class Turned(NamedTuple):
    """A block in the helper's tokens, and how these share characters with the model's."""

    read: Block
    tokens: Shared


@lru_cache(maxsize=2048)
def _turned(helper: Any, tokenizer: Any, tokens: tuple[int, ...]) -> Turned:
    """Return a block as the helper's tokenizer writes it; passages that come again are not turned again."""
    text = tokenizer.decode(tokens, clean_up_tokenization_spaces=False)
    read = Block(tuple(helper(text, add_special_tokens=False)["input_ids"]) or (0,))
    return Turned(read, shared(ends_of(helper, read.tokens), ends_of(tokenizer, tokens)))


@lru_cache(maxsize=2)
def _loaded(name: str, device: str) -> Loaded:
    """Return a helper, loaded once; on the device of the model, on the CPU for a model without weights."""
    return models.load(name, device if device == "cuda" else "cpu")


def _size(model: PreTrainedModel) -> int:
    """Return the parameters of the layers, which every token passes."""
    return sum(parameter.numel() for parameter in model.get_decoder().layers.parameters())

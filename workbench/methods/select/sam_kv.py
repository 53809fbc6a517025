"""The ends of every passage, and blocks that other passages and the question ask for (SAM-KV, 2508.11661)."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain, islice

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity
from transformers import PreTrainedModel

from workbench.core.blocks import Block
from workbench.core.masks import causal
from workbench.core.plan import Pass
from workbench.engine.assembly import empty
from workbench.engine.attention_backends.listed_columns import ListedColumns
from workbench.engine.attention_maps import Layers, layers_of, mean_queries
from workbench.methods.select import KV, Prompt, Select, integer_option, layers
from workbench.store.keys import compute_missing


@dataclass(frozen=True)
class SamKv(Select):
    r"""Anchors, the first and last tokens of a passage, say how many of its blocks are read; the rest is left out.

    first, last  anchors of a passage
    block        tokens of a block
    layers       "stable": the last eighth of them, of 32 the last four (the published setting); "all", "last", numbers

    The question runs over anchors alone. For passage $i$ a query is made of its own, $g$, and of what the last tokens
    of the other passages ask, $c_j$ (found once for each, as preprocessing is, and not charged), weighed by how near
    they are to it; mean keys of blocks are held against the mean key $a_i$ of its anchors. Without a ratio these
    numbers decide; a ratio takes the highest of these tokens, anchors first, from the ends of every passage inwards.
    Together with `attend=chosen` and `correct=fuse` it is SAM-KV.

    *Follows a reimplementation: `kv_packet/cache_comb/methods/sam_kv.py` of ChuangtaoChen-TUM/KVPacket,* but that a
    block that is kept is computed in all layers, and that query heads are joined by the KV head they belong to.

    $$q_i = g + \frac{1}{D - 1} \sum_{j \ne i} |\cos(c_j, g)| \, c_j, \qquad
    p_i = \frac{\max_b q_i k_b - q_i a_i}{\max_b q_i k_b - \min_b q_i k_b}$$

    is the share of blocks kept, 0 where no block, or every block, is worth more than the anchors.
    """

    first: int = integer_option(64, "how many tokens at a passage's start, 0 or more")
    last: int = integer_option(128, "how many tokens at a passage's end, 1 or more", least=1)
    block: int = integer_option(64, "how many tokens a block has, 1 or more", least=1)
    layers: str | tuple[int, ...] = layers("stable", "stable", "all", "last")
    asked: dict[tuple[str, str], Tensor] = field(default_factory=dict, init=False, repr=False, compare=False)

    def scores(self, model: PreTrainedModel, prompts: Sequence[Prompt], kvs: Sequence[KV]) -> list[Tensor]:
        chosen, pairs = self._layers(model), [*zip(prompts, kvs, strict=True)]
        generic = mean_queries(
            model, chosen, [(p.tokens, p.question, ListedColumns(self._anchors(p)), kv) for p, kv in pairs]
        )
        passages = [prompt.context[self.system :] for prompt in prompts]

        def read(blocks: list[Block]) -> list[Tensor]:
            alone = [(block.ids, torch.arange(len(block)), causal, empty(model, len(block))) for block in blocks]
            return mean_queries(model, chosen, alone, self.last)

        asked = iter(compute_missing(self.asked, model, [*chain.from_iterable(passages)], read))
        each = zip(pairs, generic, passages, strict=True)
        return [self._scores(p, kv, query, [*islice(asked, len(own))], chosen) for (p, kv), query, own in each]

    def passes(self, model: PreTrainedModel, prompt: Prompt) -> tuple[Pass, ...]:
        return (Pass(prompt.question.tolist(), len(prompt), self._layers(model)[-1] + 1),)

    def _layers(self, model: PreTrainedModel) -> list[int]:
        count = len(layers_of(model, "all"))
        chosen: Layers = tuple(range(-max(1, count // 8), 0)) if self.layers == "stable" else self.layers
        return layers_of(model, chosen)

    def _anchors(self, prompt: Prompt) -> Tensor:
        """Return [T of the context] bool: tokens of the system blocks, and the first and last of every passage."""
        sizes, of = torch.tensor([*map(len, prompt.context)]), prompt.block_of[: prompt.starts[-1]]
        at = torch.arange(len(of)) - (sizes.cumsum(0) - sizes)[of]
        return (of < self.system) | (at < self.first) | (at >= sizes[of] - self.last)

    def _scores(self, prompt: Prompt, kv: KV, generic: Tensor, asked: list[Tensor], chosen: list[int]) -> Tensor:
        scores = torch.full((prompt.starts[-1],), -torch.inf)
        if not asked:
            return scores
        first = prompt.starts[self.system]
        anchors, of = self._anchors(prompt)[first:], prompt.block_of[first : len(scores)] - self.system
        own = torch.stack(asked)  # [P, L, Hq, D]
        own *= cosine_similarity(own, generic, dim=-1).abs()[..., None]
        worth = self._worth(kv, generic + (own.sum(0) - own) / max(1, len(own) - 1), chosen, first, of)
        sizes = torch.bincount(of)
        at = torch.arange(len(of)) - (sizes.cumsum(0) - sizes)[of]
        inwards = torch.minimum(at, sizes[of] - 1 - at)
        scores[first:][anchors] = torch.finfo(torch.float32).max / (1 + inwards[anchors])
        inner, count = (~anchors).nonzero()[:, 0], torch.bincount(of[~anchors], minlength=len(own))
        blocks = -(-count // self.block)
        at = torch.arange(len(inner)) - (count.cumsum(0) - count)[of[inner]]
        number = (blocks.cumsum(0) - blocks)[of[inner]] + at // self.block
        values, ends = _means(worth[:, inner], number), _means(worth[:, anchors], of[anchors])
        for passage, value in enumerate(values.split(blocks.tolist(), 1)):
            if not value.numel():
                continue
            high, low, end = (x.double() for x in (value.amax(1), value.amin(1), ends[:, passage]))
            share = torch.where((low < end) & (end <= high), (high - end) / (high - low), 0.0).mean()
            best = value.topk(int(value.shape[1] * share)).indices.unique()
            value[:, torch.ones(value.shape[1], dtype=torch.bool).index_fill_(0, best, False)] = -torch.inf
        scores[first:][inner] = values.amax(0)[number]
        return scores

    def _worth(self, kv: KV, queries: Tensor, chosen: Sequence[int], first: int, of: Tensor) -> Tensor:
        """Return products [L, T] of each token's key and the query ([P, L, Hq, D]) of its passage `of` [T]."""
        found, where = [], kv.keys[0].device
        for query, layer in zip(queries.to(where).unbind(1), chosen, strict=True):
            keys = kv.keys[layer][:, first : first + len(of)].float()
            joined = query.unflatten(1, (len(keys), -1)).mean(2)  # [P, H, D]
            found.append((keys * joined.transpose(0, 1)[:, of.to(where)]).sum((0, 2)))
        return torch.stack(found).cpu()  # waits for the GPU once


def _means(worth: Tensor, number: Tensor) -> Tensor:
    """Return the means [L, N] of `worth` [L, T] over tokens of equal `number` [T]."""
    count = torch.bincount(number)
    return worth.new_zeros(len(worth), len(count)).index_add_(1, number, worth) / count

"""Select tokens by the attention of a question that is computed over digests of passages (QCFuse, arXiv:2606.05875)."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from math import ceil

import torch
from torch import Tensor
from transformers import PreTrainedModel

from workbench.core.blocks import Block
from workbench.core.plan import Pass
from workbench.engine.attention_backends.listed_columns import ColumnsByLayer
from workbench.engine.attention_maps import from_question, layers_of, logits, question_pass
from workbench.engine.encoding import packs, watch
from workbench.methods import registry
from workbench.methods.select import KV, Prompt, Select, integer_option, layers, softmax
from workbench.store.keys import compute_missing


def _token_ids(value: object) -> bool:
    return isinstance(value, tuple) and all(registry.is_whole(each) for each in value)


@dataclass(frozen=True)
class QcFuse(Select):
    r"""Compute the question over digests of the passages; its queries in a few layers then score all tokens.

    A digest contains, per layer, the tokens of a passage that get the most attention when the model repeats the passage
    (KVzip). It is computed once per passage and stored in this object, as offline preprocessing.

    layers   "middle": three layers at 55% of the depth, the range of the published profiles of four models; "all",
             "last", or layer numbers of a custom profile
    digest   share of a passage that is in its digest; 1: the whole passage, 0: none of it
    sink     number of tokens at a passage's start that have priority in its digest
    ask      token ids of the instruction to repeat; none: the passage itself is used, as in KVzip
    softmax  over the whole "prompt" (the method), the "context", "documents" or each "block"

    *Follows released code: `indice_select.py` and `digest_index_manager.py` of leideng/QCFuse, whose instruction is a
    sentence and whose ranking includes the system prompt's sink.* Over pages, its question is computed on a copy.

    With queries $q$ of the question over digests, layers $L$ and all keys $P$ of the prompt:

    $$s_t = \sum_{l \in L} \sum_h \sum_{q \in Q}
    \frac{\exp(q_h^l \cdot k_t^l / \sqrt{d})}{\sum_{u \in P} \exp(q_h^l \cdot k_u^l / \sqrt{d})}$$
    """

    layers: str | tuple[int, ...] = layers("middle", "middle", "all", "last")
    digest: float = registry.share(0.1)
    sink: int = integer_option(4, "how many tokens at a passage's start, 0 or more")
    ask: tuple[int, ...] = registry.option_where((), "token ids in brackets", _token_ids)
    softmax: str = softmax("prompt")
    digests: dict[tuple[str, str], Tensor] = field(default_factory=dict, init=False, repr=False, compare=False)

    def scores(self, model: PreTrainedModel, prompts: Sequence[Prompt], kvs: Sequence[KV]) -> list[Tensor]:
        sparse = [ColumnsByLayer(self._seen(model, prompt)) for prompt in prompts]
        return from_question(model, prompts, kvs, self._layers(model), None, self.softmax, self.system, sparse)

    def passes(self, model: PreTrainedModel, prompt: Prompt) -> tuple[Pass, ...]:
        return (question_pass(model, prompt, self._layers(model)),)

    def _layers(self, model: PreTrainedModel) -> str | tuple[int, ...]:
        if self.layers != "middle":
            return self.layers
        count = len(layers_of(model, "all"))
        middle = round(0.55 * (count - 1))
        return tuple(sorted({min(max(middle + step, 0), count - 1) for step in (-1, 0, 1)}))

    def _seen(self, model: PreTrainedModel, prompt: Prompt) -> Tensor:
        """Return [L, N] bool: the tokens of a prompt that its question attends to in each layer."""
        digests = compute_missing(self.digests, model, prompt.context[self.system :], partial(self._new_digests, model))
        count, first = len(layers_of(model, "all")), prompt.starts[min(self.system, len(prompt.context))]
        front, back = (torch.ones(count, n, dtype=torch.bool).to(model.device) for n in (first, len(prompt.question)))
        return torch.cat((front, *digests, back), 1)

    def _new_digests(self, model: PreTrainedModel, blocks: Sequence[Block]) -> list[Tensor]:
        """Return the digest of every block, [L, n] bool: sinks, then the tokens its repetition attends to most."""
        groups = packs([len(block) + len(self.ask or block.tokens) for block in blocks])
        return [digest for group in groups for digest in self._packed(model, [blocks[i] for i in group])]

    def _packed(self, model: PreTrainedModel, blocks: Sequence[Block]) -> list[Tensor]:
        """Compute digests in one packed pass; each layer scores all blocks at once, aligned at their ends."""
        asks = [self.ask or block.tokens for block in blocks]
        sizes, ask_sizes = (torch.tensor([*map(len, each)])[:, None] for each in (blocks, asks))
        wide, most = int(sizes.max()), list[Tensor]()
        column = torch.arange(-wide, int(ask_sizes.max()))  # relative to the end of a block
        ends = (sizes + ask_sizes).cumsum(0) - ask_sizes
        place = (ends + column).where(inside := (column >= -sizes) & (column < ask_sizes), 0).to(model.device)
        hidden, rows = ~inside[:, None, None].to(model.device), torch.arange(wide, len(column)).to(model.device)

        def see(layer: int, queries: Tensor, keys: Tensor) -> None:
            queries, keys = (x.transpose(0, 1).flatten(0, 1) for x in (queries[:, place[:, wide:]], keys[:, place]))
            best = torch.zeros(len(blocks), wide, device=model.device)
            for part, scores in logits(model, layer, queries, keys, rows):
                weights = scores.unflatten(0, (len(blocks), -1)).masked_fill(hidden, -torch.inf).softmax(-1)
                none = hidden[..., wide:][..., part].mT
                best = best.maximum(weights[..., :wide].masked_fill_(none, 0).amax((1, 2)))
            most.append(best)

        watch(model, [torch.tensor((*block.tokens, *ask)) for block, ask in zip(blocks, asks, strict=True)], see)
        token = (sizes + column[:wide]).to(model.device)
        scores = torch.stack(most).masked_fill_(token < self.sink, torch.inf).masked_fill_(token < 0, -1)
        counts = torch.tensor([ceil(self.digest * len(block)) for block in blocks])[:, None]
        chosen = (torch.arange(wide) < counts).to(model.device).expand(scores.shape)
        kept = torch.zeros_like(chosen).scatter_(-1, scores.sort(descending=True, stable=True).indices, chosen)
        return [kept[:, i, wide - len(block) :] for i, block in enumerate(blocks)]

"""The ends of every passage, and blocks that other passages and the question ask for (SAM-KV)."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity
from transformers import PreTrainedModel

from workbench.core.blocks import Block
from workbench.core.plan import Pass, Plan
from workbench.core.tiling.tiles import means
from workbench.engine.assembly import empty
from workbench.engine.attention_maps import Layers, layers_of
from workbench.engine.forward import PrefillRequest, prefill_many
from workbench.methods.select import KV, Prompt, Select, layers, whole
from workbench.store import fingerprint


@dataclass(frozen=True)
class SamKv(Select):
    r"""Anchors, the first and last tokens of a passage, say how many of its blocks are read; the rest is left out.

    first, last  anchors of a passage
    block        tokens of a block
    layers       "stable": the last eighth of them, of 32 the last four (the published setting); "all", "last", numbers

    The question runs over anchors alone. For passage $i$ a query is made of its own, $g$, and of what the last tokens
    of the other passages ask, $c_j$, weighed by how near they are to it; mean keys of blocks are held against the mean
    key $a_i$ of its anchors. Without a ratio these numbers decide; a ratio takes the best of these tokens. Together
    with `attend=chosen` and `correct=fuse` it is SAM-KV.

    *Follows released code: `kv_packet/cache_comb/methods/sam_kv.py` of ChuangtaoChen-TUM/KVPacket,* but that a
    block that is kept is computed in all layers, and that query heads are joined by the KV head they belong to.

    $$q_i = g + \frac{1}{D - 1} \sum_{j \ne i} |\cos(c_j, g)| \, c_j, \qquad
    p_i = \frac{\max_b q_i k_b - q_i a_i}{\max_b q_i k_b - \min_b q_i k_b}$$

    is the share of blocks kept, 0 where no block, or every block, is worth more than the anchors.
    """

    first: int = whole(64, "how many tokens at a passage's start, 0 or more")
    last: int = whole(128, "how many tokens at a passage's end, 1 or more", least=1)
    block: int = whole(64, "how many tokens a block has, 1 or more", least=1)
    layers: str | tuple[int, ...] = layers("stable", "stable", "all", "last")
    asked: dict[tuple[str, str], Tensor] = field(default_factory=dict, init=False, repr=False, compare=False)

    def scores(self, model: PreTrainedModel, prompts: Sequence[Prompt], kvs: Sequence[KV]) -> list[Tensor]:
        chosen, requests = self._layers(model), []
        for prompt, kv in zip(prompts, kvs, strict=True):
            anchors = self._anchors(prompt)
            seen = torch.cat((anchors, torch.ones(len(prompt.question), dtype=torch.bool)))

            def sees(row: Tensor, col: Tensor, seen: Tensor = seen) -> Tensor:
                return (col <= row) & seen.to(col.device)[col]

            plan = Plan(prompt.question, sees, return_queries=tuple(chosen), num_layers=chosen[-1] + 1)
            requests.append(PrefillRequest(prompt.tokens, plan, kv))
        outputs = prefill_many(model, requests)
        self._ask(model, chosen, {block for prompt in prompts for block in prompt.context[self.system :]})
        found = []
        for prompt, kv, output in zip(prompts, kvs, outputs, strict=True):
            generic = torch.stack([output.queries[layer].float().mean(1) for layer in chosen])
            found.append(self._scores(model, prompt, kv, generic.cpu(), chosen))
        return found

    def passes(self, model: PreTrainedModel, prompt: Prompt) -> tuple[Pass, ...]:
        return (Pass(prompt.question.tolist(), len(prompt), self._layers(model)[-1] + 1),)

    def _layers(self, model: PreTrainedModel) -> list[int]:
        count = len(layers_of(model, "all"))
        chosen: Layers = tuple(range(-max(1, count // 8), 0)) if self.layers == "stable" else self.layers
        return layers_of(model, chosen)

    def _anchors(self, prompt: Prompt) -> Tensor:
        """Return [T of the context] bool: tokens of the system blocks, and the first and last of every passage."""
        found = torch.zeros(prompt.starts[-1], dtype=torch.bool)
        for number, (start, block) in enumerate(zip(prompt.starts, prompt.context, strict=False)):
            end = start + len(block)
            found[start : end if number < self.system else min(start + self.first, end)] = True
            found[max(start, end - self.last) : end] = True
        return found

    def _ask(self, model: PreTrainedModel, chosen: Sequence[int], blocks: set[Block]) -> None:
        """Keep the mean query of the last tokens of every passage, read by itself: [L, Hq, D]."""
        known = fingerprint(model)
        missing = [block for block in blocks if (known, block.content) not in self.asked]
        plans = [Plan(torch.arange(len(b)), return_queries=tuple(chosen), num_layers=chosen[-1] + 1) for b in missing]
        requests = [PrefillRequest(b.ids, plan, empty(model, len(b))) for b, plan in zip(missing, plans, strict=True)]
        for block, output in zip(missing, prefill_many(model, requests), strict=True):
            own = torch.stack([output.queries[layer][:, -self.last :].float().mean(1) for layer in chosen])
            self.asked[known, block.content] = own.cpu()

    def _scores(self, model: PreTrainedModel, prompt: Prompt, kv: KV, generic: Tensor, chosen: Sequence[int]) -> Tensor:
        scores, anchors = torch.full((prompt.starts[-1],), -torch.inf), self._anchors(prompt)
        known, passages = fingerprint(model), prompt.context[self.system :]
        asked = [self.asked[known, block.content] for block in passages]
        weighed = [one * cosine_similarity(one, generic, dim=-1).abs()[..., None] for one in asked]
        total = sum(weighed)
        for start, block, own in zip(prompt.starts[self.system :], passages, weighed, strict=False):
            here = torch.arange(start, start + len(block))
            scores[here[anchors[here]]] = torch.finfo(torch.float32).max
            inner = here[~anchors[here]]
            if not len(inner):
                continue
            query = generic + (total - own) / max(1, len(passages) - 1)
            values, shares = [], []
            for at, layer in enumerate(chosen):
                keys = kv.keys[layer][:, here.to(kv.keys[layer].device)].float().cpu()
                joined = query[at].unflatten(0, (len(keys), -1)).mean(1)  # [H, D]
                blocks = (means(keys[:, ~anchors[here]], self.block) * joined[:, None]).sum((0, 2))
                anchor = float((keys[:, anchors[here]].mean(1) * joined).sum())
                high, low = float(blocks.max()), float(blocks.min())
                values.append(blocks)
                shares.append((high - anchor) / (high - low) if low < anchor <= high else 0.0)
            count = int(len(values[0]) * sum(shares) / len(shares))
            kept = {int(number) for value in values for number in value.topk(count).indices}
            of = torch.arange(len(inner)) // self.block
            value = torch.stack(values).amax(0)
            for number in kept:
                scores[inner[of == number]] = value[number]
        return scores

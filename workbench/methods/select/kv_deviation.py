"""Tokens whose keys and values deviate most in an early layer (CacheBlend, arXiv:2405.16444)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from workbench.core.errors import BadInput
from workbench.core.plan import Plan
from workbench.engine.attention_maps import layers_of
from workbench.engine.forward import prefill
from workbench.engine.full_context import context_pass, exact, gap, write
from workbench.methods.registry import integer_option, is_number, option_where
from workbench.methods.select import KV, Pass, Prompt, Select, budget, choose, documents, part, without_system


@dataclass(frozen=True)
class KvDeviation(Select):
    r"""Squared distance from the KV of full attention at `layer`, summed over heads and channels (FusionRAG, eq. 7).

    *Follows the paper; its released code, `vllm_blend/vllm/attention/backends/xformers.py` of YaoJiayi/CacheBlend, is
    the options `part=v` and `fresh`.*

    Layers 0 to `layer` are computed in full to know it; layer 0 does not deviate, so layer 1 is the first that tells.

    part    "kv": keys and values (the paper); "v": values alone (CacheBlend's released code); "k": keys after RoPE
            (LMCache). FusionRAG's eq. 8 ranks by one of the two, the first by its indices, and its text by both
    fresh   the KV of layers 0 to `layer` takes the place of the cached one for all tokens, as CacheBlend's released
            code leaves it behind its check layer; without it only the chosen tokens are renewed (FusionRAG, section
            2.2.2). It writes the context rows of these layers in the request's own assembled cache, no cached block

    stages  shares of the document tokens that go on, one a layer behind `layer`: (0.4, 0.3, 0.2) computes the 40% that
            deviate most in the next layer, too, of those the 30% that deviate most there in the one after, and so on
            (the paper's gradual filtering, whose shares it does not give). Who is filtered out ranks behind those who
            are not. The chosen ones are then computed from layer 0, so what the stages compute is charged besides

    KVShare (arXiv:2503.16525) chooses by deviation as well, in the prefill and again while decoding; its exact rule is
    not public, so it has no name here.

    The released code in full: `kv_deviation(part=v, fresh=True, system=0)`; its ratio is of all context tokens.
    LMCache's, `lmcache/v1/compute/blend/blender.py` of LMCache/LMCache at b7dc975: `kv_deviation(part=k, system=0)`;
    its ratio is of all tokens that are cached.

    With $k$, $v$ as cached and $\hat k$, $\hat v$ under full attention, in layer $l$ = `layer`:

    $$s_t = \sum_h
    \left( \lVert k_{t,h}^l - \hat k_{t,h}^l \rVert^2 + \lVert v_{t,h}^l - \hat v_{t,h}^l \rVert^2 \right)$$
    """

    layer: int = integer_option(1, "it is a layer number, 0 or more")
    part: str = part()
    fresh: bool = option_where(False, "it is True or False", lambda value: type(value) is bool)
    stages: tuple[float, ...] = option_where(
        (), "shares in brackets, as (0.4, 0.3), each above 0 and at most the one before", lambda value: _falling(value)
    )

    def scores(self, model: PreTrainedModel, prompts: Sequence[Prompt], kvs: Sequence[KV]) -> list[Tensor]:
        for prompt in prompts:
            self.passes(model, prompt)  # raises BadInput
        truths = exact(model, prompts, self.layer + 1)
        scores = [gap(kv, truth, self.layer, self.part) for kv, truth in zip(kvs, truths, strict=True)]
        works = kvs if self.fresh or not self.stages else [kv.clone() for kv in kvs]
        for kv, truth in zip(works, truths, strict=True) if self.fresh or self.stages else ():
            write(kv, truth, self.layer + 1)
        if self.stages:
            each = zip(prompts, works, scores, strict=True)
            scores = [self._filtered(model, prompt, kv, score.cpu()) for prompt, kv, score in each]
        return scores

    def _filtered(self, model: PreTrainedModel, prompt: Prompt, kv: KV, scores: Tensor) -> Tensor:
        """Return scores that rank tokens by the number of stages passed, then by deviation in the last one."""
        scores = scores / (1 + scores)  # maps to below 1, keeping the order
        for number, share in enumerate(self.stages, 1):
            rows = choose(without_system(scores, prompt, self.system), prompt, share, system=self.system)
            if not len(rows):
                break
            layer, here = self.layer + number, rows.to(kv.keys[0].device)
            cached = {"k": kv.keys[layer], "v": kv.values[layer]}
            stale = {name: cached[name][:, here].float() for name in self.part}
            prefill(model, prompt.tokens, Plan(rows, num_layers=layer + 1), kv)
            gaps = [(cached[name][:, here].float() - stale[name]).square().sum((0, 2)) for name in self.part]
            moved = torch.stack(gaps).sum(0)
            scores[rows] = number + (moved / (1 + moved)).cpu()
        return scores

    def passes(self, model: PreTrainedModel, prompt: Prompt) -> tuple[Pass, ...]:
        if self.stages and self.layer + len(self.stages) >= (count := len(layers_of(model, "all"))):
            raise BadInput(f"stages {self.stages} behind layer {self.layer}: the model has layers 0 to {count - 1}")
        where, done = documents(prompt, self.system), list(context_pass(model, prompt, self.layer + 1))
        for number, share in enumerate(self.stages, 1):
            count = budget(prompt, share, self.system)  # the rows are not known yet: evenly spread ones stand in
            rows = where[torch.linspace(0, len(where) - 1, count).long()].tolist() if count else []
            done.append(Pass(rows, prompt.starts[-1], self.layer + number + 1))
        return tuple(done)


def _falling(value: object) -> bool:
    """Return whether a value is a tuple of non-increasing shares."""
    shares = value if isinstance(value, tuple) else (2.0,)
    numbers = all(is_number(share, most=1) for share in shares)
    return numbers and all(0 < share <= before for before, share in zip((1.0, *shares), shares, strict=False))

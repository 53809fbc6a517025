"""Tokens whose keys and values deviate most in an early layer (CacheBlend, arXiv:2405.16444)."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor
from transformers import PreTrainedModel

from workbench.methods.select import KV, Pass, Prompt, Select, context_pass, exact, gap, part, ruled, whole


@dataclass(frozen=True)
class KvDeviation(Select):
    r"""Squared distance from the KV of full attention at `layer`, summed over heads and channels (FusionRAG, eq. 7, 8).

    Layers 0 to `layer` are computed in full to know it; layer 0 does not deviate, so layer 1 is the first that tells.

    part    "kv": keys and values (the paper); "v": values alone (CacheBlend's released code); "k": keys after RoPE
            (LMCache)
    fresh   the KV of layers 0 to `layer` takes the place of the cached one for all tokens, as CacheBlend's released
            code leaves it behind its check layer; without it only the chosen tokens are renewed (FusionRAG, section
            2.2.2). It writes the context rows of these layers in the request's own assembled cache, no cached block

    The released code in full: `kv_deviation(part=v, fresh=True, system=0)`; its ratio is of all context tokens.

    With $k$, $v$ as cached and $\hat k$, $\hat v$ under full attention, in layer $l$ = `layer`:

    $$s_t = \sum_h
    \left( \lVert k_{t,h}^l - \hat k_{t,h}^l \rVert^2 + \lVert v_{t,h}^l - \hat v_{t,h}^l \rVert^2 \right)$$
    """

    layer: int = whole(1, "it is a layer number, 0 or more")
    part: str = part()
    fresh: bool = ruled(False, "it is True or False", lambda value: type(value) is bool)

    def scores(self, model: PreTrainedModel, prompts: Sequence[Prompt], kvs: Sequence[KV]) -> list[Tensor]:
        truths = exact(model, prompts, self.layer + 1)
        scores = [gap(kv, truth, self.layer, self.part) for kv, truth in zip(kvs, truths, strict=True)]
        for kv, truth in zip(kvs, truths, strict=True) if self.fresh else ():
            self._renew(kv, truth)
        return scores

    def _renew(self, kv: KV, truth: KV) -> None:
        """Write the layers that were computed in full."""
        for layer in range(self.layer + 1):
            kv.keys[layer][:, : len(truth)].copy_(truth.keys[layer])
            kv.values[layer][:, : len(truth)].copy_(truth.values[layer])
        kv.changed()

    def passes(self, model: PreTrainedModel, prompt: Prompt) -> tuple[Pass, ...]:
        return context_pass(prompt, self.layer + 1)

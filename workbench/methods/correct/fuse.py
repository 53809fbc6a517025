"""Interpolate between recomputed and cached keys and values (SAM-KV's fusion)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from workbench.methods import registry
from workbench.methods.correct import KV, Correct, Correction, Prompt


@dataclass(frozen=True)
class Fuse(Correct):
    r"""Mix the keys and values of every recomputed token with the cached ones; queries attend to the mixture.

    theta   weight of the recomputed values; 1: the cached ones are dropped

    *Follows a reimplementation: `kv_packet/cache_comb` of ChuangtaoChen-TUM/KVPacket, where SAM-KV fuses with 0.9.*
    Over pages, rows are computed on a contiguous copy, because cached rows are written.

    With $x$ the cached and $\hat x$ the recomputed keys or values of a token:

    $$x \leftarrow (1 - \theta) \, x + \theta \, \hat x$$
    """

    theta: float = registry.share(0.9)

    def __call__(
        self,
        model: PreTrainedModel,
        prompts: Sequence[Prompt],
        kvs: Sequence[KV],
        rows: Sequence[Tensor] | None,
        ratio: float | None,
    ) -> list[Correction]:
        chosen = rows or [torch.tensor([], dtype=torch.int64)] * len(prompts)
        return [self._one(kv, each) for kv, each in zip(kvs, chosen, strict=True)]

    def _one(self, kv: KV, rows: Tensor) -> Correction:
        if not len(rows):
            return Correction(rows)
        here = rows.to(kv.keys[0].device)
        stale = [[layer[:, here].clone() for layer in part] for part in (kv.keys, kv.values)]

        def adjust(layer: int, keys: Tensor, values: Tensor) -> None:
            for cached, before in zip((keys, values), stale, strict=True):
                cached[:, here] = torch.lerp(before[layer], cached[:, here], self.theta)

        return Correction(rows, adjust)

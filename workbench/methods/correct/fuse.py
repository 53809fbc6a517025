"""Recomputed keys and values are mixed with the cached ones (SAM-KV's fusion)."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from workbench.methods import registry
from workbench.methods.correct import KV, Correct, Correction, Prompt


@dataclass(frozen=True)
class Fuse(Correct):
    r"""Every recomputed token of a passage keeps a part of what was cached; rows attend to the mixture.

    theta   weight of what is computed now; 1: nothing of the cache stays

    *Follows a reimplementation: `kv_packet/cache_comb` of ChuangtaoChen-TUM/KVPacket, where SAM-KV fuses with 0.9.* On
    pages the rows are computed over a contiguous copy: cached rows are written.

    With $x$ the cached keys or values of a recomputed token and $\hat x$ those that are computed:

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

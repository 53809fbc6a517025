"""Passages and the rest are attended to apart and merged, at a temperature and a scale (APE, arXiv:2502.05431)."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from workbench.core.masks import Sees, visible
from workbench.methods import registry
from workbench.methods.attend import Attend, Prompt

ELEMENTS = 1 << 26  # most logits in memory at a time


@dataclass(frozen=True)
class Ape(Attend):
    r"""Parallel encoding spreads attention over many passages; a temperature below 1 sharpens it, a scale weighs it.

    temperature   of the logits over passages, T
    scale         of their log-sum-exp, S, besides the temperature; T = S = 1 is plain attention

    Rows of the question and of the answer attend so; recomputed tokens of passages attend plainly. APE itself
    recomputes nothing: `prepare=after_system, positions=shared`.

    *Follows released code: `ape/ape_llama.py` of Infini-AI-Lab/APE, whose demonstration has T = S = 0.9.* Answers come
    from contiguous caches: decoding over pages has no second softmax.

    With logits $z$, passages $D$ and all other visible tokens $O$, outputs $o_D$ (of $z / T$) and $o_O$ are merged:

    $$\ell_D = S \, T \, \log \sum_{u \in D} e^{z_u / T}, \quad \ell_O = \log \sum_{u \in O} e^{z_u}, \qquad
    o = \frac{e^{\ell_D} o_D + e^{\ell_O} o_O}{e^{\ell_D} + e^{\ell_O}}$$
    """

    answer = True

    temperature: float = registry.positive(0.9)
    scale: float = registry.positive(0.9)

    def plan(self, prompt: Prompt, rows: Tensor, scores: Tensor | None) -> dict[str, Any]:
        first = prompt.starts[min(self.system, len(prompt.context))]
        return {"backend": Merged(first, prompt.starts[-1], self.temperature, self.scale)}


@dataclass(frozen=True)
class Merged:
    """Attention of which the part over columns `first` to `end` is merged with the rest, for rows from `end` on."""

    first: int
    end: int
    temperature: float
    scale: float
    name = "ape"

    def __call__(
        self, q: Tensor, keys: Tensor, values: Tensor, rows: Tensor, sees: Sees, tiles: None, scale: float | None
    ) -> Tensor:
        grouped = q.float().unflatten(0, (len(keys), -1)) * (q.shape[-1] ** -0.5 if scale is None else scale)
        wide, high, columns = keys.float()[:, None].mT, values.float()[:, None], torch.arange(keys.shape[1]).to(rows)
        parts, step = [], max(1, ELEMENTS // (len(q) * keys.shape[1]))
        for part, at in zip(grouped.split(step, 2), rows.split(step), strict=True):
            logits = (part @ wide).masked_fill_(~visible(sees, at, columns), -torch.inf)
            parts.append(self._bent(logits, at[:, None] >= self.end).softmax(-1) @ high)
        return torch.cat(parts, 2).flatten(0, 1).to(q.dtype)

    def _bent(self, logits: Tensor, asks: Tensor) -> Tensor:
        """Return logits whose one softmax is the merge: passages gain (S T - 1) times their log-sum-exp."""
        passages = logits[..., self.first : self.end]
        cold = passages / self.temperature
        gain = (self.scale * self.temperature - 1) * cold.logsumexp(-1, keepdim=True)
        bent = torch.where(asks, cold + gain.masked_fill(gain.isinf(), 0), passages)
        return torch.cat((logits[..., : self.first], bent, logits[..., self.end :]), -1)

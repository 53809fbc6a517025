"""Separate attention to passages and to other tokens, merged with temperature and scale (APE, arXiv:2502.05431)."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from workbench.core.masks import Sees, causal, visible
from workbench.core.page_table import SeparateSoftmax
from workbench.engine.attention_backends import choice
from workbench.engine.attention_backends.attention_problem import problem_of
from workbench.methods import registry
from workbench.methods.attend import Attend, Prompt

ELEMENTS = 1 << 26  # maximum number of logits in memory at a time


@dataclass(frozen=True)
class Ape(Attend):
    r"""Parallel encoding spreads attention over many passages; a temperature below 1 sharpens it, a scale reduces it.

    temperature   T, of the logits over passages
    scale         S, of their log-sum-exp, in addition to the temperature; T = S = 1 is plain attention

    This applies to tokens of the question and the answer; recomputed tokens use plain attention. APE itself recomputes
    nothing: `prepare=after_system, positions=shared`.

    *Follows released code: `ape/ape_llama.py` of Infini-AI-Lab/APE at 52513bc, whose demonstration has T = S = 0.9 (its
    ChatRAG experiments: T = 0.9, S = 1).* Over pages, passages and other tokens are two page lists. If tokens are
    recomputed, the request runs over a contiguous copy.

    With logits $z$, passages $D$ and all other visible tokens $O$, outputs $o_D$ (of $z / T$) and $o_O$ are merged:

    $$\ell_D = S \, T \, \log \sum_{u \in D} e^{z_u / T}, \quad \ell_O = \log \sum_{u \in O} e^{z_u}, \qquad
    o = \frac{e^{\ell_D} o_D + e^{\ell_O} o_O}{e^{\ell_D} + e^{\ell_O}}$$
    """

    temperature: float = registry.positive(0.9)
    scale: float = registry.positive(0.9)

    def plan(self, prompt: Prompt, rows: Tensor, scores: Tensor | None) -> dict[str, Any]:
        first = prompt.starts[min(self.system, len(prompt.context))]
        gain = self.scale * self.temperature - 1
        return {"backend": MergedAttention(SeparateSoftmax(first, prompt.starts[-1], self.temperature, gain))}


@dataclass(frozen=True)
class MergedAttention:
    """Attention backend: rows after the positions `apart` attend to these and to all others separately, then merge.

    On a GPU both parts are computed by `question_attention`.
    """

    apart: SeparateSoftmax
    _counted: list[tuple[Tensor, int]] = field(default_factory=list, repr=False, compare=False)
    name = "ape"

    def __call__(
        self, q: Tensor, keys: Tensor, values: Tensor, rows: Tensor, sees: Sees, tiles: None, scale: float | None
    ) -> Tensor:
        problem = problem_of(q, keys, sees, None, False)
        backend: Any = choice.backend_for(problem)
        if backend is choice.TORCH:
            return self._dense(q, keys, values, rows, sees, scale)
        plain, parts = self._before(rows), []
        if plain:
            parts.append(backend(q[:, :plain], keys, values, rows[:plain], causal, None, scale))
        if plain < len(rows):
            lists = choice.split_contiguous(keys.shape[1], self.apart.first, self.apart.end, keys.device)
            options = {"scale": scale, "temperature": self.apart.temperature, "gain": self.apart.gain}
            launch = choice.kernel("_pages.apart").launch
            parts.append(launch(q[None, :, plain:], keys, values, rows[None, plain:], *lists, **options)[0])
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)

    def _before(self, rows: Tensor) -> int:
        """Return the number of rows before the end of the passages; cached for all layers, since it synchronizes."""
        if not self._counted or self._counted[0][0] is not rows:
            self._counted[:] = [(rows, int((rows < self.apart.end).sum()))]
        return self._counted[0][1]

    def _dense(self, q: Tensor, keys: Tensor, values: Tensor, rows: Tensor, sees: Sees, scale: float | None) -> Tensor:
        grouped = q.float().unflatten(0, (len(keys), -1)) * (q.shape[-1] ** -0.5 if scale is None else scale)
        wide, high, columns = keys.float()[:, None].mT, values.float()[:, None], torch.arange(keys.shape[1]).to(rows)
        parts, step = [], max(1, ELEMENTS // (len(q) * keys.shape[1]))
        for part, at in zip(grouped.split(step, 2), rows.split(step), strict=True):
            logits = (part @ wide).masked_fill_(~visible(sees, at, columns), -torch.inf)
            parts.append(self._merged_logits(logits, at[:, None] >= self.apart.end).softmax(-1) @ high)
        return torch.cat(parts, 2).flatten(0, 1).to(q.dtype)

    def _merged_logits(self, logits: Tensor, after: Tensor) -> Tensor:
        """Return logits whose plain softmax equals the merge of both parts, for rows `after` the passages."""
        first, end = self.apart.first, self.apart.end
        passages = logits[..., first:end]
        cold = passages / self.apart.temperature
        total = cold.logsumexp(-1, keepdim=True)
        gain = (self.apart.gain * total).masked_fill(total.isinf(), 0)  # (S T - 1) log-sum-exp; 0 without passages
        merged = torch.where(after, cold + gain, passages)
        return torch.cat((logits[..., :first], merged, logits[..., end:]), -1)

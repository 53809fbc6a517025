"""Prefill of rows that only the device knows: how many they are is known on the host, which ones is not.

A GPU begins such a pass before its host has seen the selection that the rows come from.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from transformers import PreTrainedModel

from workbench.core.kv import KV
from workbench.core.plan import Plan
from workbench.core.utils.wide_copies import sent
from workbench.engine.attention_backends.attention import PlannedRequest
from workbench.engine.forward import packed_logits


class DeviceRows(PlannedRequest):
    """A causal request for `count` rows of the prompt `tokens` [T] over its KV [T], which ends with the prompt.

    `wait` is that of `PlannedRequest`. The plan names the last rows of the prompt until `compute` is told which ones.
    """

    def __init__(
        self, model: PreTrainedModel, tokens: Tensor, count: int, kv: KV, wait: Callable[[int], None] | None = None
    ):
        length, device = len(kv), model.device
        super().__init__(Plan(torch.arange(length - count, length)), kv, device, kept=1, wait=wait)
        self._model, self._tokens = model, sent(tokens, device)
        self._last = torch.full((1,), count - 1, device=device)
        self._whole, self._first = False, 0

    @torch.no_grad()
    def compute(self, rows: Tensor) -> Tensor:
        """Compute `rows` [N] on the device, in rising order, and the rest of `count` from the end of the prompt.

        Their keys and values are written to the KV. Returns the last logits [V]. The host does not wait for the device.
        """
        self.rows[: len(rows)] = rows
        return packed_logits(self._model, self._tokens[self.rows], self.rows, [self], self._last)[-1]

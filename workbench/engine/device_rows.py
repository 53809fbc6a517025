"""Prefill of selected tokens whose indices are known only on the device; the host knows their number.

The pass is launched before the host has read the selection.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from transformers import PreTrainedModel

from workbench.core.kv import KV
from workbench.core.plan import Plan
from workbench.core.utils.wide_copies import copy_to_device
from workbench.engine.attention_backends.attention import PlannedRequest
from workbench.engine.forward import packed_logits


class DeviceRows(PlannedRequest):
    """A causal request to compute `count` tokens of the prompt `tokens` [T] over its KV [T].

    `wait` is that of `PlannedRequest`. The plan lists the last tokens of the prompt until `compute` sets others.
    """

    def __init__(
        self, model: PreTrainedModel, tokens: Tensor, count: int, kv: KV, wait: Callable[[int], None] | None = None
    ):
        length, device = len(kv), model.device
        super().__init__(Plan(torch.arange(length - count, length)), kv, device, kept=1, wait=wait)
        self._model, self._tokens = model, copy_to_device(tokens, device)
        self._last = torch.full((1,), count - 1, device=device)
        self._whole, self._first = False, 0

    @torch.no_grad()
    def compute(self, rows: Tensor) -> Tensor:
        """Compute the tokens at `rows` [N] (rising, on the device) and, up to `count`, the last ones of the prompt.

        Writes their keys and values to the KV and returns the last logits [V], without a synchronization.
        """
        self.rows[: len(rows)] = rows
        return packed_logits(self._model, self._tokens[self.rows], self.rows, [self], self._last)[-1]

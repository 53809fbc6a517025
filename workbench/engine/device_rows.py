"""Prefill of rows that only the device knows: how many they are is known on the host, which ones is not.

A GPU begins such a pass before its host has seen the selection that the rows come from.
"""

import torch
from torch import Tensor
from transformers import PreTrainedModel

from workbench.core.kv import KV
from workbench.core.plan import Plan
from workbench.core.utils.wide_copies import sent
from workbench.engine.attention_backends.attention import PlannedRequest
from workbench.engine.forward import packed_logits


class DeviceRows(PlannedRequest):
    """A causal request for `rows` [R] on the device, in rising order; the last one is the last token of the KV.

    Its plan names the last R tokens in their place, as a plan's rows are read on the host.
    """

    def __init__(self, rows: Tensor, kv: KV):
        length = len(kv)
        super().__init__(Plan(torch.arange(length - len(rows), length)), kv, rows.device, kept=1)
        self.rows, self._whole, self._first = rows, False, 0


@torch.no_grad()
def prefill_device_rows(model: PreTrainedModel, tokens: Tensor, rows: Tensor, kv: KV) -> Tensor:
    """Compute `rows` [R] of the prompt `tokens` [T] over its KV [T] and write theirs; return the last logits [V].

    Rows are rising positions on the model's device, of which the last is T - 1. Without checks, and the host does not
    wait for the device.
    """
    last = torch.full((1,), len(rows) - 1, device=rows.device)
    return packed_logits(model, sent(tokens, rows.device)[rows], rows, [DeviceRows(rows, kv)], last)[-1]

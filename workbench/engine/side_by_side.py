"""Requests that end in equally many rows, over parts of one KV: on a GPU one attention call a layer for all of them."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from workbench.core.masks import causal
from workbench.core.page_table import INVALID_POS, Paged
from workbench.engine.attention_backends import choice
from workbench.engine.attention_backends.attention_problem import AttentionProblem
from workbench.engine.forward import PrefillRequest, packed_logits, prefill_many
from workbench.models.spec import attach
from workbench.models.transformers_attention import LayerInput


@dataclass(eq=False)
class SideBySide:
    """B requests of R rows each as one request of a packed pass.

    keys, values  of every layer, [H, N, D]: the parts of all requests
    rows, slots   [B · R] positions, and where fresh keys and values are written
    pages         of the parts
    """

    keys: Sequence[Tensor]
    values: Sequence[Tensor]
    rows: Tensor
    slots: Tensor
    pages: Paged
    num_layers: int | None = None

    def attend(self, x: LayerInput) -> Tensor:
        """Write the fresh keys and values, then attend: [Hq, B · R, D]."""
        keys, values = self.keys[x.layer], self.values[x.layer]
        keys.index_copy_(1, self.slots, x.k)
        values.index_copy_(1, self.slots, x.v)
        at = self.rows.view(len(self.pages.table), -1)
        queries = x.q.unflatten(1, at.shape).transpose(0, 1)
        launch = choice.kernel("question_attention").launch
        out: Tensor = launch(queries, keys, values, at, self.pages, scale=x.scale)
        return out.transpose(0, 1).flatten(1, 2)


def prefill_parts(
    model: PreTrainedModel, requests: Sequence[PrefillRequest], keys: Sequence[Tensor], values: Sequence[Tensor]
) -> list[Tensor]:
    """Compute logits [R, V] of every request, whose rows are the last of its prompt, and write their keys and values.

    The KVs of `requests` are `keys` and `values` [H, N, D] of every layer, cut into parts in this order.
    """
    spec, count = attach(model), len(requests[0].plan.rows)
    lengths = torch.tensor([len(request.kv) for request in requests])
    (heads, width), longest = spec.shapes[0], int(lengths.max())
    problem = AttentionProblem(count, longest, (heads, heads), width, spec.dtype, spec.device)
    alike = all(len(request.plan.rows) == count and request.plan.sees is causal for request in requests)
    if not alike or spec.window is not None or choice.backend_for(problem) is choice.TORCH:
        return [one.logits for one in prefill_many(model, requests) if one.logits is not None]
    begins = (lengths.cumsum(0) - lengths)[:, None]
    at = torch.stack([request.plan.rows for request in requests])
    ids = torch.cat([request.tokens[request.plan.rows.to(request.tokens.device)] for request in requests])
    rows, slots = (x.flatten().to(spec.device) for x in (at, begins + at))
    one = SideBySide(keys, values, rows, slots, _pages(begins, lengths[:, None], spec.device))
    logits = packed_logits(model, ids.to(spec.device), one.rows, [one], None)
    return list(logits.split(count))


def _pages(begins: Tensor, lengths: Tensor, device: torch.device) -> Paged:
    """Return the pages of parts that begin anywhere [B, 1]; slots of neighbours are hidden."""
    page, total = choice.PAGE, int(lengths.sum())
    numbers = begins // page + torch.arange(int(lengths.max()) // page + 2)
    positions = numbers[..., None] * page + torch.arange(page) - begins[..., None]
    positions.masked_fill_((positions < 0) | (positions >= lengths[..., None]), INVALID_POS)
    return Paged.of(numbers.clamp(max=(total - 1) // page).to(device), positions.to(device))

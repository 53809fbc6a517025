"""Prefill one question over many parts of one KV; on a GPU, one attention call per layer covers all parts."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor
from transformers import PreTrainedModel

from workbench.core.kv import KV
from workbench.core.page_table import INVALID_POS, Paged
from workbench.core.plan import Plan
from workbench.core.utils.wide_copies import index_copy
from workbench.engine.attention_backends import choice
from workbench.engine.attention_backends.attention_problem import AttentionProblem
from workbench.engine.forward import packed_logits, run
from workbench.models.spec import attach
from workbench.models.transformers_attention import LayerInput


@dataclass(frozen=True, eq=False)
class Parts:
    """B parts of `lengths` tokens, concatenated in keys and values [H, N, D] of every layer."""

    keys: Sequence[Tensor]
    values: Sequence[Tensor]
    lengths: Sequence[int]

    def kv(self, number: int, reserve: int = 0) -> KV:
        """Return a part as a KV; its last `reserve` tokens become spare capacity."""
        begin = sum(self.lengths[:number])
        here = slice(begin, begin + self.lengths[number])
        keys, values = ([x[:, here] for x in part] for part in (self.keys, self.values))
        return KV.from_buffers(keys, values, self.lengths[number] - reserve)


@dataclass(eq=False)
class SideBySide:
    """B requests of R query tokens each as one request of a packed pass.

    keys, values  the parts of all requests, [H, N, D] of every layer
    rows, slots   [B · R] positions of the query tokens, and indices where their keys and values are written
    pages         page table of the parts
    """

    keys: Sequence[Tensor]
    values: Sequence[Tensor]
    rows: Tensor
    slots: Tensor
    pages: Paged
    num_layers: int | None = None

    def attend(self, x: LayerInput) -> Tensor:
        """Write the new keys and values, then attend: [Hq, B · R, D]."""
        keys, values = self.keys[x.layer], self.values[x.layer]
        index_copy(keys, self.slots, x.k)
        index_copy(values, self.slots, x.v)
        at = self.rows.view(len(self.pages.table), -1)
        queries = x.q.unflatten(1, at.shape).transpose(0, 1)
        launch = choice.kernel("question_attention").launch
        out: Tensor = launch(queries, keys, values, at, self.pages, scale=x.scale)
        return out.transpose(0, 1).flatten(1, 2)


@torch.no_grad()
def prefill_parts(model: PreTrainedModel, question: Tensor, parts: Parts) -> Tensor:
    """Compute logits [B, R, V] of the question [R], which ends every part, and write its keys and values."""
    spec, count, (heads, width) = attach(model), len(question), attach(model).shapes[0]
    problem = AttentionProblem(count, max(parts.lengths), (heads, heads), width, spec.dtype, spec.device)
    if spec.window is not None or choice.backend_for(problem) is choice.TORCH:
        plans = [Plan(torch.arange(length - count, length)) for length in parts.lengths]
        outputs = run(model, [(question, plan, parts.kv(i)) for i, plan in enumerate(plans)])
        return torch.stack([one.logits for one in outputs if one.logits is not None])
    lengths = torch.tensor(parts.lengths)[:, None]
    begins = torch.tensor([*accumulate(parts.lengths, initial=0)][:-1])[:, None]
    at = lengths - count + torch.arange(count)
    rows, slots = (x.flatten().to(spec.device) for x in (at, begins + at))
    one = SideBySide(parts.keys, parts.values, rows, slots, _pages(begins, lengths, spec.device))
    ids = question.to(spec.device).repeat(len(lengths))
    return packed_logits(model, ids, one.rows, [one], None).unflatten(0, (-1, count))


def _pages(begins: Tensor, lengths: Tensor, device: torch.device) -> Paged:
    """Return the page table of parts that begin at `begins` [B, 1], with slots of neighbouring parts masked."""
    page, total = choice.PAGE, int(lengths.sum())
    numbers = begins // page + torch.arange(int(lengths.max()) // page + 2)
    positions = numbers[..., None] * page + torch.arange(page) - begins[..., None]
    positions.masked_fill_((positions < 0) | (positions >= lengths[..., None]), INVALID_POS)
    return Paged.of(numbers.clamp(max=(total - 1) // page).to(device), positions.to(device))

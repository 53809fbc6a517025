"""What recomputing some tokens repairs, layer by layer, in themselves and in the question."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from workbench.core.blocks import Prompt
from workbench.core.kv import KV
from workbench.core.plan import Plan
from workbench.engine.forward import PrefillRequest, prefill_many
from workbench.metrics.deviation import squared


@dataclass(frozen=True)
class Repair:
    """Squared deviation from full attention [T, L] of all tokens of a prompt, after its question was computed over the
    cache alone (`before`), and after `rows` [R] were computed again with it (`after`)."""

    before: Tensor
    after: Tensor
    rows: Tensor
    question: int  # its first position

    @property
    def context(self) -> Tensor:
        """[L] share of the context's squared deviation that is left; nan in a layer that did not deviate."""
        return _left(self.before[: self.question], self.after[: self.question])

    @property
    def chosen(self) -> Tensor:
        """[L] share of the recomputed tokens' own squared deviation that is left: they, too, read stale neighbours."""
        return _left(self.before[self.rows], self.after[self.rows])

    @property
    def asked(self) -> Tensor:
        """[L] share of the question's squared deviation that is left: all that the answer can notice."""
        return _left(self.before[self.question :], self.after[self.question :])


def repair(model: PreTrainedModel, prompt: Prompt, kv: KV, choices: Sequence[Tensor], truth: KV) -> list[Repair]:
    """One `Repair` for every choice of rows [R] (without the question), from the assembled cache `kv`, left as it is.

    `truth` is the KV of the whole prompt under full attention.
    """
    plans = [Plan(torch.cat((rows, prompt.question)), num_layers=len(kv.keys)) for rows in (choices[0][:0], *choices)]
    requests = [PrefillRequest(prompt.tokens, plan, kv.clone()) for plan in plans]
    prefill_many(model, requests)
    before, *after = (squared(request.kv, truth) for request in requests)
    start = prompt.starts[-1]
    return [Repair(before, left, rows, start) for left, rows in zip(after, choices, strict=True)]


def _left(before: Tensor, after: Tensor) -> Tensor:
    total = before.sum(0)
    return torch.where(total > 0, after.sum(0) / total, torch.nan)

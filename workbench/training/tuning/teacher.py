"""Self-distillation without labels: the model's own full attention is the teacher of its block mode.

The loss of a token is KL(p || q), with p the base model under full attention and q the tuned model, over the same
tokens (knowledge distillation, Hinton et al., arXiv:1503.02531, at temperature 1). The tuned model's full mode is kept
close to the base model by the same loss.
"""

import copy
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import accumulate, product
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from transformers import PreTrainedModel

from workbench.models.weights.soft_tokens import SoftTokens
from workbench.training.common import TensorBatch
from workbench.training.tuning.attention import NAME, forward, masks_of
from workbench.training.tuning.config import TuneConfig
from workbench.training.tuning.text.examples import Example
from workbench.training.tuning.text.packing import PackedExamples, pack

ROWS = 512  # rows of logits [rows, V] in fp32 at a time


class Teacher:
    """The base model: the tuned model with its adapter disabled, itself if only soft tokens are trained, or a copy."""

    def __init__(self, bare: PreTrainedModel, adapted: Any = None, frozen: bool = False):
        """Use a PEFT model that adapts `bare`, or `bare` itself if its weights are `frozen`, else a copy of it."""
        self.adapted = adapted
        self.model = bare if frozen or adapted is not None else copy.deepcopy(bare).eval().requires_grad_(False)

    def as_base_model(self) -> Any:
        """Return a context in which `model` computes what the base model does."""
        return nullcontext() if self.adapted is None else self.adapted.disable_adapter()

    def attend(self) -> None:
        """Switch the model to the attention of training."""
        self.model.set_attn_implementation(NAME)


@dataclass(frozen=True)
class TaughtExamples(TensorBatch):
    """Examples for the student, in its modes, and for the teacher, in full mode; A rows of the student."""

    student: PackedExamples
    teacher: PackedExamples
    same: Tensor  #: [A] the teacher's row over the same tokens
    weights: Tensor  #: [A] weight of a row's divergence in the loss
    of_answers: Tensor  #: indices of the rows that predict an answer

    @property
    def weight(self) -> float:
        """Sum of all weights."""
        return float(self.weights.sum())


def pack_taught(examples: Sequence[Example], config: TuneConfig, room: int = 0) -> TaughtExamples:
    """Pack examples in the modes of `config` for the student, and in full mode for the teacher.

    room   tokens to which one copy of the examples is padded (`pack`); 0: no padding
    """
    copies = config.copies
    soft = SoftTokens.at_end_of(config.soft)
    student = pack(examples, copies, config.positions == "naive", asked=True, least=len(copies) * room, soft=soft)
    teacher = pack(examples, ("full",), asked=True, least=room)
    counts = [sum(len(qa.question) - 1 + max(1, len(qa.answer)) for qa in each.questions) for each in examples]
    starts = [0, *accumulate(counts)]
    spans = product(zip(starts, counts, strict=False), copies)
    same = torch.cat([torch.arange(begin, begin + count) for (begin, count), _ in spans])
    weights = torch.where(student.answers < 0, config.question_weight, 1.0)
    return TaughtExamples(student, teacher, same, weights, (student.answers >= 0).nonzero()[:, 0])


def logits_of(
    model: torch.nn.Module,
    teacher: Teacher,
    batch: TaughtExamples,
    windows: Sequence[int | None],
    bf16: bool,
    how: str = "parts",
) -> tuple[Tensor, Tensor]:
    """Return logits [A, V] of the student `model` and [B, V] of its teacher, the latter without gradients.

    how   masks of both: see `masks_of`
    """
    with torch.autocast(batch.same.device.type, torch.bfloat16, enabled=bf16):
        with torch.no_grad(), teacher.as_base_model():
            taught = forward(teacher.model, batch.teacher, masks_of(batch.teacher, windows, how))
        return forward(model, batch.student, masks_of(batch.student, windows, how)), taught


class _Divergence(torch.autograd.Function):
    """KL per row. The forward pass computes the gradient, so that no chunk's probabilities are stored."""

    @staticmethod
    def forward(ctx: Any, student: Tensor, teacher: Tensor, same: Tensor) -> Tensor:
        divergence = student.new_empty(len(student), dtype=torch.float32)
        gradient = torch.empty_like(student) if ctx.needs_input_grad[0] else None
        for begin in range(0, len(student), ROWS):
            part = slice(begin, begin + ROWS)
            p, q = teacher[same[part]].float().log_softmax(-1), student[part].float().log_softmax(-1)
            divergence[part] = (p.exp() * (p - q)).sum(-1)
            if gradient is not None:
                gradient[part] = q.exp() - p.exp()
        if gradient is not None:
            ctx.save_for_backward(gradient)
        return divergence

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * upstream[:, None].to(gradient.dtype), None, None


def divergence(student: Tensor, teacher: Tensor, same: Tensor) -> Tensor:
    """Return KL(teacher || student) [A] in nats, fp32, of logits [A, V] from rows `same` [A] of logits [B, V]."""
    return _Divergence.apply(student, teacher, same)

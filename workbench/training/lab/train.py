"""Training of the lab model: one process or several, resumable, the same result from the same seed.

Warm-up, a constant rate while the curriculum climbs, and a linear decay to zero over the last part of its final stage.
"""

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path
from random import Random

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, Dataset
from transformers import LlamaForCausalLM, PreTrainedTokenizerBase

from workbench.core.errors import BadInput
from workbench.data.lab_world import KINDS
from workbench.training.common import check_same, load_state, optimizers, save_state, saved_record
from workbench.training.lab.curriculum import ANSWER, NOTHING, STAGES, Batch, Stage, draw
from workbench.training.lab.recipe import PretrainConfig

READ_EVERY = 20  # steps between two looks at the accuracy (each one waits for the device)
LEAD = 64  # most batches that are drawn ahead of their use
SEEN_KINDS = (*KINDS, "recall", "years")


@dataclass
class Progress:
    """Where a training run stands; saved beside the weights."""

    step: int = 0
    entered: list[int] = field(default_factory=lambda: [0])  # step at which each stage so far began
    curve: list[dict] = field(default_factory=list)

    @property
    def stage(self) -> int:
        return len(self.entered) - 1

    @property
    def spent(self) -> int:
        """Steps on the stage so far."""
        return self.step - self.entered[-1]


class Draws(Dataset):
    """Batch (stage, index): a pure function of both and of the seed."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, seed: int, stages: tuple[Stage, ...]):
        self.tokenizer, self.seed, self.stages = tokenizer, seed, stages

    def __getitem__(self, at: tuple[int, int]) -> Batch:
        return draw(self.stages[at[0]], Random(f"lab train {self.seed} {at[1]}"), self.tokenizer)


class Order:
    """Which batch comes next. The loader asks up to LEAD steps ahead, so a batch is of the stage LEAD steps before it:
    what is drawn does not depend on how many processes draw it, nor on where a run was interrupted."""

    def __init__(self, progress: Progress, rank: int, ranks: int):
        self.progress, self.rank, self.ranks = progress, rank, ranks

    def __iter__(self) -> Iterator[tuple[int, int]]:
        for step in count(self.progress.step):
            stage = sum(begin <= step - LEAD for begin in self.progress.entered[1:])
            yield stage, step * self.ranks + self.rank


def losses(logits: torch.Tensor, batch: Batch, rest_weight: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Loss, and per answer of the batch whether all its tokens were predicted (teacher-forced).

    logits [B, T-1, V] of the next token at every position but the last.
    """
    target, role, answer = batch.tokens[:, 1:], batch.roles[:, 1:], batch.answers[:, 1:]
    loss = F.cross_entropy(logits.flatten(0, 1).float(), target.flatten(), reduction="none").view_as(target)
    asked, rest = role == ANSWER, (role != ANSWER) & (role != NOTHING)
    total = (loss * asked).sum() / asked.sum().clamp(min=1) + rest_weight * (loss * rest).sum() / rest.sum().clamp(
        min=1
    )
    wrong = (logits.argmax(-1) != target) & asked
    misses = torch.zeros(len(batch.kinds) + 1, device=logits.device)
    misses.index_add_(0, (answer + 1).flatten(), wrong.flatten().float())
    return total, misses[1:] == 0


def rate(recipe: PretrainConfig, progress: Progress, last_stage: int) -> float:
    """Share of the full learning rate at this step."""
    warm = min(1.0, (progress.step + 1) / recipe.warmup)
    if progress.stage < last_stage:
        return warm
    left = 1 - progress.spent / recipe.last
    return warm * min(1.0, max(left, 0.0) / recipe.decay)


@contextmanager
def deterministic() -> Iterator[None]:
    """Deterministic algorithms of torch inside, whatever was set before outside."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])


@deterministic()
def train(
    recipe: PretrainConfig,
    tokenizer: PreTrainedTokenizerBase,
    out: Path,
    stages: tuple[Stage, ...] = STAGES,
    report: Callable[[dict], None] = lambda row: None,
    save_every: int = 1000,
    workers: int = 0,
    minutes: float = math.inf,
) -> tuple[LlamaForCausalLM, Progress]:
    """Train until the last stage is done or `minutes` are over; `out` holds the state to resume from.

    `report` gets a row of the curve every 20 steps. The same recipe gives the same weights on the same device, however
    many `workers` draw the text and wherever the run was interrupted. Raises BadInput for a folder of another recipe.
    """
    if not 0 <= workers <= LEAD:
        raise BadInput(f"workers is {workers}: allowed are 0 to {LEAD}")
    if save_every % READ_EVERY:
        raise BadInput(f"save_every is {save_every}: a multiple of {READ_EVERY} is needed")
    accelerator, model, optims = _start(recipe, tokenizer)
    progress = _resume(accelerator, recipe, out)
    loader = DataLoader(
        Draws(tokenizer, recipe.seed, stages),
        batch_size=None,  # a draw is a whole batch
        sampler=Order(progress, accelerator.process_index, accelerator.num_processes),
        num_workers=workers,
        prefetch_factor=min(4, LEAD // workers) if workers else None,
        pin_memory=torch.cuda.is_available(),
    )
    last, end = len(stages) - 1, time.monotonic() + 60 * minutes
    right = torch.zeros(2, len(SEEN_KINDS), device=accelerator.device)
    for batch in loader:
        if finished(recipe, progress, last) or (progress.step % READ_EVERY == 0 and time.monotonic() > end):
            break
        share = rate(recipe, progress, last)
        loss = _step(accelerator, model, optims, batch.to(accelerator.device), recipe, share, right)
        progress.step += 1
        if progress.step % READ_EVERY == 0:
            report(_read(accelerator, right, loss, progress, stages))
        if progress.step % save_every == 0:
            _save(accelerator, recipe, progress, out)
    _save(accelerator, recipe, progress, out)
    return accelerator.unwrap_model(model), progress


def _start(recipe: PretrainConfig, tokenizer: PreTrainedTokenizerBase) -> tuple[Accelerator, torch.nn.Module, list]:
    set_seed(recipe.seed)
    accelerator = Accelerator(mixed_precision="bf16" if torch.cuda.is_available() else "no")
    bare = LlamaForCausalLM(recipe.config(len(tokenizer))).train()
    model, *optims = accelerator.prepare(bare, *optimizers(bare.to(accelerator.device), recipe))
    return accelerator, model, optims


def _step(
    accelerator: Accelerator,
    model: torch.nn.Module,
    optims: Sequence[torch.optim.Optimizer],
    batch: Batch,
    recipe: PretrainConfig,
    share: float,
    right: torch.Tensor,
) -> torch.Tensor:
    """One step at `share` of the full rate; adds to `right` [2, kinds] the answers that were right and those seen."""
    for optim in optims:
        for group in optim.param_groups:
            group["lr"] = recipe.lr * share
    loss, hit = losses(model(input_ids=batch.tokens[:, :-1], use_cache=False).logits, batch, recipe.rest_weight)
    accelerator.backward(loss)
    accelerator.clip_grad_norm_(model.parameters(), recipe.clip)
    for optim in optims:
        optim.step()
        optim.zero_grad(set_to_none=True)
    kind = torch.tensor([SEEN_KINDS.index(k) for k in batch.kinds], device=hit.device)
    right[0].index_add_(0, kind, hit.float())
    right[1].index_add_(0, kind, torch.ones_like(hit, dtype=right.dtype))
    return loss.detach()


def finished(recipe: PretrainConfig, progress: Progress, last_stage: int = len(STAGES) - 1) -> bool:
    """Whether the last stage has had all its steps."""
    return progress.stage == last_stage and progress.spent >= recipe.last


def _read(
    accelerator: Accelerator, right: torch.Tensor, loss: torch.Tensor, progress: Progress, stages: tuple[Stage, ...]
) -> dict:
    """A row of the curve; moves on to the next stage when the answers of this one are right."""
    hits, seen = accelerator.reduce(right, "sum").tolist()
    by_kind = {k: round(h / s, 4) for k, h, s in zip(SEEN_KINDS, hits, seen, strict=True) if s}
    share = sum(hits[: len(KINDS)]) / max(sum(seen[: len(KINDS)]), 1)
    right.zero_()
    row = {
        "step": progress.step,
        "stage": progress.stage,
        "loss": round(loss.item(), 4),
        "answers_right": round(share, 4),
    } | by_kind
    progress.curve.append(row)
    stage = stages[progress.stage]
    recent = [r["answers_right"] for r in progress.curve[-2:] if r["stage"] == progress.stage]
    learned = progress.spent >= 5 * READ_EVERY and sum(recent) / len(recent) >= stage.until
    if progress.stage < len(stages) - 1 and (learned or progress.spent >= stage.most):
        progress.entered.append(progress.step)
    return row


def _save(accelerator: Accelerator, recipe: PretrainConfig, progress: Progress, out: Path) -> None:
    save_state(accelerator, out, {"recipe": asdict(recipe), "progress": asdict(progress)})


def _resume(accelerator: Accelerator, recipe: PretrainConfig, out: Path) -> Progress:
    saved = saved_record(out)
    if saved is None:
        return Progress()
    check_same(out, saved["recipe"], asdict(recipe))
    load_state(accelerator, out)
    return Progress(**saved["progress"])

"""Training of the lab model: one process or several, resumable, the same result from the same seed.

Warm-up, a constant rate while the curriculum climbs, and a linear decay to zero over the last part of its final stage.

The lab model's tokenizer: byte-level BPE trained on the lab corpus.

Any text round-trips, and every word of the lab world is a single token.
"""

import math
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.utils.data import DataLoader
from transformers import LlamaForCausalLM, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from workbench.core.errors import BadInput
from workbench.core.utils.annotations import check_processes
from workbench.core.utils.determinism import deterministic
from workbench.data import segment
from workbench.data.lab_corpus.questions import KINDS
from workbench.data.lab_corpus.world import World, passages_of
from workbench.data.layouts import LAB, Layout
from workbench.training.common import READ_EVERY, Drawn, Progress, Tally, Training, optimizers
from workbench.training.lab.config import PretrainConfig
from workbench.training.lab.curriculum import ANSWER, NOTHING, Batch, Stage, draw
from workbench.training.run_folder import check_run_folder, check_same

LEAD = 64  # most batches that are drawn ahead of their use
SEEN_KINDS = (*KINDS, "recall", "years")


@dataclass
class PretrainProgress(Progress):
    """Where the training of a lab model stands."""

    entered: list[int] = field(default_factory=lambda: [0])  # step at which each stage so far began

    @property
    def stage(self) -> int:
        """Index of the stage that is trained."""
        return len(self.entered) - 1

    @property
    def spent(self) -> int:
        """Steps on the stage so far."""
        return self.step - self.entered[-1]


class Order:
    """The order of batches: (stage, index) of each step's.

    The loader draws up to LEAD steps ahead, so a batch is of the stage that was trained LEAD steps before it. The order
    therefore depends neither on how many processes draw nor on where a run was interrupted.
    """

    def __init__(self, progress: PretrainProgress, rank: int, ranks: int):
        self.progress, self.rank, self.ranks = progress, rank, ranks

    def __iter__(self) -> Iterator[tuple[int, int]]:
        for step in count(self.progress.step):
            stage = sum(begin <= step - LEAD for begin in self.progress.entered[1:])
            yield stage, step * self.ranks + self.rank


def loss_of(logits: torch.Tensor, batch: Batch, rest_weight: float) -> torch.Tensor:
    """Return the loss from logits [B, T-1, V] of the next token at every position but the last."""
    target, role = batch.tokens[:, 1:], batch.roles[:, 1:]
    loss = F.cross_entropy(logits.flatten(0, 1).float(), target.flatten(), reduction="none").view_as(target)
    asked, rest = role == ANSWER, (role != ANSWER) & (role != NOTHING)
    of_answers = (loss * asked).sum() / asked.sum().clamp(min=1)
    return of_answers + rest_weight * (loss * rest).sum() / rest.sum().clamp(min=1)


def rate(config: PretrainConfig, progress: PretrainProgress, last_stage: int) -> float:
    """Return the share of the full learning rate at this step."""
    warm = min(1.0, (progress.step + 1) / config.warmup)
    if progress.stage < last_stage:
        return warm
    left = 1 - progress.spent / config.last
    return warm * min(1.0, max(left, 0.0) / config.decay)


@deterministic()
def train(
    config: PretrainConfig,
    tokenizer: PreTrainedTokenizerBase,
    out: Path,
    stages: tuple[Stage, ...],
    report: Callable[[dict[str, Any]], None] = lambda row: None,
    save_every: int = 1000,
    workers: int = 0,
    minutes: float = math.inf,
) -> tuple[LlamaForCausalLM, PretrainProgress]:
    """Train until the last stage is done or `minutes` are over; `out` holds the state to resume from.

    `report` gets a row of the curve every 20 steps. The same config gives the same weights on the same device, however
    many `workers` draw the text and wherever the run was interrupted. Raises BadInput for a folder of another config.
    """
    check(config, out, workers)
    if save_every % READ_EVERY:
        raise BadInput(f"save_every is {save_every}: a multiple of {READ_EVERY} is needed")
    run = _start(config, tokenizer, out)
    progress, device, last = run.resume(PretrainProgress()), run.accelerator.device, len(stages) - 1
    tally = Tally(SEEN_KINDS, device)
    loader = DataLoader(
        Drawn(partial(_draw, config.seed, tokenizer, stages)),
        batch_size=None,  # a draw is a whole batch
        sampler=Order(progress, run.accelerator.process_index, run.accelerator.num_processes),
        num_workers=workers,
        prefetch_factor=max(1, min(4, LEAD // workers)) if workers else None,
        pin_memory=torch.cuda.is_available(),
    )
    batches = iter(loader)

    def step() -> torch.Tensor:
        batch = next(batches).to(device)
        logits = run.model(input_ids=batch.tokens[:, :-1], use_cache=False).logits
        loss = loss_of(logits, batch, config.rest_weight)
        run.accelerator.backward(loss)
        run.update(config.lr * rate(config, progress, last))
        kinds = torch.tensor([SEEN_KINDS.index(kind) for kind in batch.kinds], device=device)
        tally.add(kinds, logits, batch.tokens[:, 1:], batch.answers[:, 1:])
        return loss.detach()

    ended = partial(finished, config, progress, last)
    for loss, reading, saving in run.steps(progress, step, ended, save_every, minutes):
        if reading:
            report(_read(run, tally, loss, progress, stages))
        if saving:
            run.save(progress)
    return run.accelerator.unwrap_model(run.model), progress


def check(config: PretrainConfig, out: Path, workers: int) -> None:
    """Raise BadInput for a number of processes that is not allowed, and for a folder of another config."""
    check_processes("workers", workers, 0)
    check_run_folder(out)
    check_same(out, asdict(config))


def _start(config: PretrainConfig, tokenizer: PreTrainedTokenizerBase, out: Path) -> Training:
    identity = {"recipe": asdict(config)}
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # makes cuBLAS deterministic
    set_seed(config.seed)
    accelerator = Accelerator(mixed_precision="bf16" if torch.cuda.is_available() else "no")
    bare = LlamaForCausalLM(config.model_config(len(tokenizer))).train()
    model, *optims = accelerator.prepare(bare, *optimizers(bare.to(accelerator.device), config))
    return Training(accelerator, model, optims, config, identity, out)


def _draw(seed: int, tokenizer: PreTrainedTokenizerBase, stages: tuple[Stage, ...], at: tuple[int, int]) -> Batch:
    """Draw batch (stage, index)."""
    return draw(stages[at[0]], Random(f"lab train {seed} {at[1]}"), tokenizer)


def finished(config: PretrainConfig, progress: PretrainProgress, last_stage: int) -> bool:
    """Return whether the last stage has had all its steps."""
    return progress.stage == last_stage and progress.spent >= config.last


def _read(
    run: Training, tally: Tally, loss: torch.Tensor, progress: PretrainProgress, stages: tuple[Stage, ...]
) -> dict[str, Any]:
    """Add a row to the curve and return it; enter the next stage when the answers of this one are right."""
    answers = tally.take(run.accelerator)
    right, seen = (sum(answers[kind][i] for kind in KINDS if kind in answers) for i in (0, 1))
    row = {
        "step": progress.step,
        "stage": progress.stage,
        "loss": round(loss.item(), 4),
        "answers_right": round(right / max(seen, 1), 4),
    } | {kind: round(right / seen, 4) for kind, (right, seen) in answers.items()}
    progress.curve.append(row)
    stage = stages[progress.stage]
    recent = [r["answers_right"] for r in progress.curve[-2:] if r["stage"] == progress.stage]
    learned = progress.spent >= 5 * READ_EVERY and sum(recent) / len(recent) >= stage.until
    if progress.stage < len(stages) - 1 and (learned or progress.spent >= stage.most):
        progress.entered.append(progress.step)
    return row


SPECIALS = ("<pad>", "<s>", "</s>")


def _texts(worlds: int, layout: Layout) -> Iterator[str]:
    for index in range(worlds):
        world = World(Random(f"lab tokenizer {index}"), 10)
        context = world.context(10)
        yield layout.system
        yield from segment.passages(passages_of(context), layout.passage)
        for kind, subjects in world.questions(context).items():
            for about in world.rng.sample(subjects, min(len(subjects), 8)):
                question = world.ask(kind, about)
                yield layout.question.format(question=question.text) + layout.answer.format(answer=question.answers[0])


def train_tokenizer(vocab_size: int = 2048, worlds: int = 4000, layout: Layout = LAB) -> PreTrainedTokenizerFast:
    """Train a tokenizer of at most `vocab_size` tokens on so many worlds.

    The same arguments give the same tokenizer.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIALS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(worlds, layout), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        model_max_length=2560,
        clean_up_tokenization_spaces=False,
    )

"""Train the lab model: in one process or several, resumable, deterministic for a seed.

The learning rate warms up, is constant during the curriculum, and decays linearly to zero over the last part of the
final stage. The tokenizer is byte-level BPE trained on the lab corpus: any text round-trips, and every word of the lab
world is a single token.

The curriculum teaches fact lookup on a small task, which then grows. Each stage changes little, and the next one begins
once this stage's answers are correct. Every stage uses the whole vocabulary.
"""

import math
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
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
from workbench.core.utils.compiled import stoppable_call
from workbench.core.utils.determinism import deterministic
from workbench.data import segment
from workbench.data.lab_corpus.words import LISTS
from workbench.data.lab_corpus.world import KINDS, Style, World, passages_of
from workbench.data.layouts import LAB, Layout
from workbench.training.common import (
    READ_EVERY,
    DrawnBatches,
    Progress,
    Tally,
    TensorBatch,
    Training,
    ignore_signals,
    interruptible,
    optimizers,
)
from workbench.training.lab.config import PretrainConfig
from workbench.training.run_folder import check_run_folder, check_same

ANSWER, REST, NOTHING = 1, 2, 0  # roles of a token: part of an answer, other text, padding


@dataclass(frozen=True)
class Stage:
    """One step of the curriculum."""

    passages: tuple[int, int]  #: minimum and maximum number of passages in a context
    style: Style
    kinds: dict[str, float]  #: weights of the kinds of question
    batch: int = 64  #: contexts per step
    questions: int = 8  #: questions over each context, one after another
    recalls: float = 0.0  #: share of them replaced by restating a fact ("Recall: Ada Kelric works for …")
    years: float = 0.0  #: share of them that ask which of two years is first, without a passage
    until: float = 0.9  #: the next stage begins at this share of fully correct answers
    most: int = 1000  #: or after this number of steps


_EASY = {"single-hop": 1.0}
_CONTINUED = {"single-hop": 0.6, "continuation": 0.4}
_TWO_HOP = {"single-hop": 0.25, "continuation": 0.25, "two-hop": 0.35, "order": 0.15}
_ALL = {"single-hop": 0.15, "continuation": 0.2, "two-hop": 0.3, "comparison": 0.2, "order": 0.15}

_PLAIN = Style(pronouns=0.0, continued=0.0, aliases=0.0, asides=0.0, alike=1.0)
_UNHINTED = Style(hints=0.0, alike=0.3)
STAGES = (
    Stage((2, 4), replace(_PLAIN, facts=1), _EASY, 256, 4, 0.5, 0.0, 0.90, 3000),
    Stage((2, 4), replace(_PLAIN, facts=2), _EASY, 128, 6, 0.4, 0.1, 0.90, 3000),
    Stage((2, 4), replace(_PLAIN, facts=3, pronouns=0.2, asides=0.3, alike=0.7), _EASY, 128, 8, 0.3, 0.1, 0.90),
    Stage((2, 5), replace(_PLAIN, facts=4, pronouns=0.5, asides=1.0, alike=0.5), _EASY, 96, 8, 0.2, 0.1, 0.90),
    Stage((2, 6), _UNHINTED, _CONTINUED, 96, 8, 0.2, 0.1, 0.90),
    Stage((2, 8), _UNHINTED, _TWO_HOP, 96, 12, 0.1, 0.1, 0.80),
    Stage((2, 12), _UNHINTED, _ALL, 64, 16, 0.1, 0.1, 0.80),
    Stage((1, 40), Style(hints=0.5), _ALL, 64, 16, 0.05, 0.1),
)


@dataclass(frozen=True)
class Batch(TensorBatch):
    """Questions and answers over contexts, one row per context; answers are numbered over the whole batch."""

    tokens: torch.Tensor  #: [B, T] token ids
    roles: torch.Tensor  #: [B, T]
    answers: torch.Tensor  #: [B, T] index of the answer that a token belongs to, -1: none
    kinds: list[str]  #: kind of each answer


def draw(stage: Stage, rng: Random, tokenizer: PreTrainedTokenizerBase, layout: Layout = LAB) -> Batch:
    """Draw a batch of a stage: contexts of one number of passages, each with several questions and their answers."""
    low, high = stage.passages
    count = round(low * (high / low) ** rng.random())  # log-uniform: 1 to 2 passages are as frequent as 20 to 40
    rows = max(8, stage.batch * 8 // max(8, count))
    pieces = [list(_pieces(stage, World(rng, count, stage.style), count, layout)) for _ in range(rows)]
    texts = [text for row in pieces for text, _, _ in row]
    encoded = iter(tokenizer.backend_tokenizer.encode_batch(texts, add_special_tokens=False))
    kinds: list[str] = []
    columns = []  # per row: (token, role, answer) of every token
    for row in pieces:
        columns.append([(tokenizer.bos_token_id, REST, -1)])
        for _, role, kind in row:
            answer = len(kinds) if kind else -1
            kinds += [kind] if kind else []
            columns[-1] += [(token, role, answer) for token in next(encoded).ids]
    width = -(-max(map(len, columns)) // 64) * 64
    tokens, roles, answers = (torch.full((rows, width), fill) for fill in (tokenizer.pad_token_id, NOTHING, -1))
    for r, column in enumerate(columns):
        for tensor, values in zip((tokens, roles, answers), zip(*column, strict=True), strict=True):
            tensor[r, : len(column)] = torch.tensor(values)
    return Batch(tokens, roles, answers, kinds)


def _pieces(stage: Stage, world: World, count: int, layout: Layout) -> Iterator[tuple[str, int, str]]:
    """Yield text, role and kind of question of each piece of a training sequence."""
    rng, context = world.rng, world.context(count)
    yield layout.system, REST, ""
    for passage in passages_of(context):
        yield layout.passage.format(title=passage.title, text=passage.text), REST, ""
    subjects = {kind: about for kind, about in world.questions(context).items() if about and stage.kinds.get(kind)}
    used: set[Any] = set()  # questions are not repeated, or an answer could be copied from an earlier one
    for _ in range(stage.questions if subjects else 0):
        kind = rng.choices(list(subjects), [stage.kinds[kind] for kind in subjects])[0]
        about = rng.choice(subjects[kind])
        question = world.ask(kind, about)
        if (key := (kind, *sorted(question.titles)) if kind == "comparison" else id(about)) in used:
            continue
        used.add(key)
        if rng.random() < stage.years:
            first, second = sorted(rng.sample(LISTS["year"], 2))
            years = " or ".join(rng.sample((first, second), 2))
            yield layout.question.format(question=f"Which year is first, {years}?"), REST, ""
            yield layout.answer.format(answer=first), ANSWER, "years"
        elif rng.random() < stage.recalls and kind in ("single-hop", "continuation"):
            entity, fact = about
            before, after = rng.choice((fact.said, *fact.relation.says)).split("{o}")
            yield f"Recall: {before.format(s=entity.name).rstrip()}", REST, ""
            yield f" {fact.object}", ANSWER, "recall"
            yield f"{after}\n", REST, ""
        else:
            yield layout.question.format(question=question.text), REST, ""
            yield layout.answer.format(answer=question.answers[0]), ANSWER, kind


LEAD = 64  # maximum number of batches drawn ahead
SEEN_KINDS = (*KINDS, "recall", "years")


@dataclass
class PretrainProgress(Progress):
    """Progress of the training of a lab model."""

    entered: list[int] = field(default_factory=lambda: [0])  #: first step of each stage so far
    counted: list[list[float]] = field(default_factory=list)  #: answers since the last row, for resuming

    @property
    def stage(self) -> int:
        """Index of the current stage."""
        return len(self.entered) - 1

    @property
    def spent(self) -> int:
        """Steps in the current stage so far."""
        return self.step - self.entered[-1]


class StageSampler:
    """Sampler that yields (stage, index) of each step's batch.

    The loader draws up to LEAD steps ahead, so a batch is of the stage that was current LEAD steps before it. The order
    is therefore independent of the number of loader processes and of interruptions.
    """

    def __init__(self, progress: PretrainProgress, rank: int, ranks: int):
        self.progress, self.rank, self.ranks = progress, rank, ranks

    def __iter__(self) -> Iterator[tuple[int, int]]:
        for step in count(self.progress.step):
            stage = sum(begin <= step - LEAD for begin in self.progress.entered[1:])
            yield stage, step * self.ranks + self.rank


def loss_of(logits: torch.Tensor, batch: Batch, rest_weight: float) -> torch.Tensor:
    """Return the next-token loss from logits [B, T-1, V] at all positions but the last."""
    target, role = batch.tokens[:, 1:], batch.roles[:, 1:]
    loss = F.cross_entropy(logits.flatten(0, 1).float(), target.flatten(), reduction="none").view_as(target)
    in_answer, rest = role == ANSWER, (role != ANSWER) & (role != NOTHING)
    of_answers = (loss * in_answer).sum() / in_answer.sum().clamp(min=1)
    return of_answers + rest_weight * (loss * rest).sum() / rest.sum().clamp(min=1)


def rate(config: PretrainConfig, progress: PretrainProgress, last_stage: int) -> float:
    """Return this step's learning rate relative to the peak."""
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
    """Train until the last stage is done or `minutes` have passed; `out` holds the state to resume from.

    `report` gets a row of the curve every 20 steps. The same config gives the same weights on the same device,
    independently of the number of `workers` that draw text and of interruptions. Raises BadInput for a folder of
    another config.
    """
    check(config, out, workers)
    if save_every % READ_EVERY:
        raise BadInput(f"save_every is {save_every}: a multiple of {READ_EVERY} is needed")
    run = _start(config, tokenizer, out)
    progress, device, last = run.resume(PretrainProgress()), run.accelerator.device, len(stages) - 1
    tally = Tally(SEEN_KINDS, device)
    if progress.counted:
        tally.counts += torch.tensor(progress.counted, device=device)
    loader = DataLoader(
        DrawnBatches(partial(_draw, config.seed, tokenizer, stages)),
        batch_size=None,  # an item is a whole batch
        sampler=StageSampler(progress, run.accelerator.process_index, run.accelerator.num_processes),
        num_workers=workers,
        prefetch_factor=max(1, min(4, LEAD // workers)) if workers else None,
        pin_memory=torch.cuda.is_available(),
        worker_init_fn=ignore_signals,
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

    ended = partial(is_finished, config, progress, last)
    with interruptible(run.accelerator.num_processes == 1) as stopped:
        for loss, reading, saving in run.steps(progress, step, ended, save_every, minutes, stopped):
            if reading and not (stopped() and progress.step % READ_EVERY):
                report(_read(run, tally, loss, progress, stages))
            if saving:
                progress.counted = tally.counts.tolist()
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
    """Draw the batch at (stage, index)."""
    return draw(stages[at[0]], Random(f"lab train {seed} {at[1]}"), tokenizer)


def is_finished(config: PretrainConfig, progress: PretrainProgress, last_stage: int) -> bool:
    """Return whether the last stage is complete."""
    return progress.stage == last_stage and progress.spent >= config.last


def _read(
    run: Training, tally: Tally, loss: torch.Tensor, progress: PretrainProgress, stages: tuple[Stage, ...]
) -> dict[str, Any]:
    """Add a row to the curve and return it; enter the next stage if enough answers are correct."""
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
    """Train a tokenizer of at most `vocab_size` tokens on text of `worlds` worlds.

    The same arguments give the same tokenizer. Ctrl-C ends the call, but leaves a thread running.
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
    stoppable_call(lambda: tokenizer.train_from_iterator(_texts(worlds, layout), trainer))
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        model_max_length=2560,
        clean_up_tokenization_spaces=False,
    )

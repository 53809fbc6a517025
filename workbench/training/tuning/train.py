"""The training loop of block fine-tuning, on one process or on several under `accelerate launch`.

Resumable: a run that is killed and started again with the same settings gives the same weights as one that was not.
"""

import json
import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader

from workbench.core.errors import BadInput
from workbench.core.files import write_text
from workbench.models.loading import Loaded
from workbench.training.common import Drawn, Progress, Tally, Training, saved_record
from workbench.training.tuning.attention import NAME, TILE, forward, masks_of
from workbench.training.tuning.config import TuneConfig
from workbench.training.tuning.examples import Example, Source
from workbench.training.tuning.held_out import fidelity
from workbench.training.tuning.packing import PackedExamples, pack
from workbench.training.tuning.scores import NEVER, Evaluation, scores
from workbench.training.tuning.teacher import TaughtExamples, Teacher, divergence, logits_of, pack_taught, usual_length

Batch = PackedExamples | TaughtExamples
PROBED = 32  # batches that are looked at before training, for the length to which all are filled


class Clock:
    """Seconds of a run, those before an interruption included."""

    def __init__(self) -> None:
        self.begin = time.monotonic()

    def set(self, seconds: float) -> None:
        """Go on from `seconds`."""
        self.begin = time.monotonic() - seconds

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.begin


@dataclass
class TuneProgress(Progress):
    """Where a block fine-tuning stands."""

    seconds: float = 0.0
    scores: list[dict] = field(default_factory=list)  # on held-out samples: exact match, or nearness to the teacher


@dataclass(frozen=True)
class TuneRun(Training):
    """A block fine-tuning that is ready for its next step."""

    config: TuneConfig
    loaded: Loaded  # the bare model, its tokenizer and layout
    windows: tuple[int | None, ...]  # sliding windows of the model's layers
    tally: Tally  # answers since the last row of the curve, by mode
    teacher: Teacher | None = None  # of a run with teacher "self"
    held_out: tuple[Example, ...] = ()  # with a teacher: what both modes are compared with it on
    divergences: Tally | None = None  # with a teacher: from it, by mode, over answer tokens since the last row
    clock: Clock = field(default_factory=Clock)
    usual: dict[str, int] = field(default_factory=lambda: {"length": 0})  # of a batch in one mode, on a GPU

    @property
    def base(self) -> dict[str, str]:
        """Name and fingerprint of the model that is tuned."""
        return self.identity["base"]

    @property
    def bf16(self) -> bool:
        return self.config.precision == "bf16" or (self.config.precision == "auto" and self.on_gpu)

    @property
    def multiple(self) -> int:
        """Tokens of which the length of a packed sequence is a multiple."""
        return TILE if self.on_gpu else 1

    @property
    def on_gpu(self) -> bool:
        return self.accelerator.device.type == "cuda"


def train(
    run: TuneRun,
    source: Source,
    evaluation: Evaluation = NEVER,
    report: Callable[[dict], None] = lambda row: None,
    save_every: int = 500,
    workers: int = 0,
    minutes: float = math.inf,
) -> TuneProgress:
    """Train until all steps are done or `minutes` are over; `run.out` holds the state to resume from.

    `report` gets every row of the curve. Raises BadInput for a loss that is no number and for a device that is out of
    memory; the last state that was saved stays.
    """
    progress, config = run.resume(TuneProgress()), run.config
    run.clock.set(progress.seconds)
    if run.on_gpu and run.teacher is not None:
        run.usual["length"] = usual_length((_examples(source, config, i) for i in range(PROBED)), TILE)
    batches = iter(_loader(run, source, progress.step, workers))
    run.loaded.model.train()
    if not progress.scores:
        _evaluate(run, evaluation, progress, report)

    def take_step() -> torch.Tensor:
        try:
            loss = step(run, [next(batches) for _ in range(config.accumulate)], progress.step)
            progress.seconds = run.clock.seconds
            return loss
        except torch.OutOfMemoryError as problem:
            raise BadInput(
                f"out of memory with batch {config.batch} and max_length {config.max_length}: lower --batch (and raise "
                "--accumulate by as much) or --max-length, or use --gradient-checkpointing or --lora-rank; "
                + _kept(run)
            ) from problem

    def finished() -> bool:
        return config.finished(progress.step, progress.seconds)

    steps = run.steps(progress, take_step, finished, save_every, minutes)
    for loss, reading, saving in steps:
        if reading:
            report(_read(run, loss, progress))
        _evaluate(run, evaluation, progress, report)
        if saving:
            save(run, progress)
    return progress


def step(run: TuneRun, batches: list[Batch], number: int) -> torch.Tensor:
    """Take an optimizer step; return its loss, the mean over all weighted tokens of all processes, on the device."""
    accelerator, device = run.accelerator, run.accelerator.device
    ranks = accelerator.num_processes
    count = torch.tensor(sum(batch.weight for batch in batches))
    if ranks > 1:
        count = accelerator.reduce(count.to(device), "sum")
    share = count.to(device, non_blocking=True) / ranks  # gradients are averaged over processes
    total = torch.zeros((), device=device)
    for i, batch in enumerate(batches):
        batch = batch.to(device)
        with nullcontext() if i == len(batches) - 1 else accelerator.no_sync(run.model):
            loss = (_taught(run, batch) if isinstance(batch, TaughtExamples) else _gold(run, batch)) / share
            accelerator.backward(loss)
        total += loss.detach()
    run.update(run.config.rate(number, run.clock.seconds))
    return total


def _gold(run: TuneRun, batch: PackedExamples) -> torch.Tensor:
    """Compute the sum of the cross-entropies of all answer tokens; counts the answers that are right."""
    with torch.autocast(batch.tokens.device.type, torch.bfloat16, enabled=run.bf16):
        logits = forward(run.model, batch, masks_of(batch, run.windows))
    run.tally.add(batch.modes, logits, batch.targets, batch.answers)
    return F.cross_entropy(logits.float(), batch.targets, reduction="sum")


def _taught(run: TuneRun, batch: TaughtExamples) -> torch.Tensor:
    """Compute the weighted sum of all divergences from the teacher; counts the answers that it would give too."""
    assert run.teacher is not None and run.divergences is not None
    logits, taught = logits_of(run.model, run.teacher, batch, run.windows, run.bf16)
    each, student, rows = divergence(logits, taught, batch.same), batch.student, batch.of_answers
    run.tally.add(student.modes, logits, taught.argmax(-1)[batch.same], student.answers)
    run.divergences.add_values(student.modes[student.answers[rows]], each.detach()[rows])
    return (each * batch.weights).sum()


def _loader(run: TuneRun, source: Source, begin: int, workers: int) -> DataLoader:
    """Return batches from step `begin` on; drawing them leaves torch's random numbers alone."""
    ranks, rank = run.accelerator.num_processes, run.accelerator.process_index
    accumulate = run.config.accumulate
    return DataLoader(
        Drawn(partial(_draw, source, run.config, run.multiple, run.usual["length"])),
        batch_size=None,  # an item is a whole batch
        sampler=range(begin * accumulate * ranks + rank, run.config.steps * accumulate * ranks, ranks),
        num_workers=workers,
        pin_memory=run.on_gpu,
        generator=torch.Generator(),
    )


def _examples(source: Source, config: TuneConfig, i: int) -> list[Example]:
    """Return micro-batch `i` of all processes: the samples i · batch … of the source."""
    return [source[i * config.batch + j] for j in range(config.batch)]


def _draw(source: Source, config: TuneConfig, multiple: int, least: int, i: int) -> Batch:
    """Return micro-batch `i`, packed."""
    examples = _examples(source, config, i)
    if config.teacher == "self":
        return pack_taught(examples, config, multiple, least)
    return pack(examples, config.copies, config.positions == "naive", multiple)


def _read(run: TuneRun, loss: torch.Tensor, progress: TuneProgress) -> dict:
    """Add a row to the curve and return it."""
    answers = run.tally.take(run.accelerator)
    total = float(run.accelerator.reduce(loss, "mean"))
    if not math.isfinite(total):
        raise BadInput(f"the loss is {total} at step {progress.step}: lower --lr; {_kept(run)}")
    lr = run.optims[0].param_groups[0]["lr"]
    row = {"step": progress.step, "loss": round(total, 5), "lr": lr}
    if run.divergences is not None:
        summed = run.divergences.take(run.accelerator)
        row |= {f"kl_{mode}": round(kl / seen, 5) for mode, (kl, seen) in summed.items()}
    row |= {mode: round(right / seen, 4) for mode, (right, seen) in answers.items()}
    progress.curve.append(row)
    return row


def _evaluate(run: TuneRun, evaluation: Evaluation, progress: TuneProgress, report: Callable[[dict], None]) -> None:
    """Score both modes where it is due, on the first process; the others wait.

    By exact match; of a run with a teacher by how near they are to it.
    """
    finished = run.config.finished(progress.step, progress.seconds)
    if not evaluation.due(progress.step, progress.step if finished else run.config.steps):
        return
    if run.accelerator.is_main_process:
        row = {"step": progress.step} | _scores(run, evaluation)
        progress.scores.append(row)
        report(row)
    run.accelerator.wait_for_everyone()


def _scores(run: TuneRun, evaluation: Evaluation) -> dict:
    if run.teacher is not None:
        how = (run.windows, run.bf16, run.multiple, run.usual["length"])
        return fidelity(run.loaded.model, run.teacher, run.held_out, run.config, *how)
    row = scores(evaluation, run.loaded, run.base["name"], run.config.positions)
    run.loaded.model.set_attn_implementation(NAME)
    return row


def save(run: TuneRun, progress: TuneProgress) -> None:
    """Write the state to resume from, in place of the one before, and the curve so far for people to look at."""
    run.save(progress)
    if run.accelerator.is_main_process:
        curve = {"train": progress.curve, "scores": progress.scores, "seconds": progress.seconds}
        write_text(run.out / "curve.json", json.dumps(curve) + "\n")


def _kept(run: TuneRun) -> str:
    saved = saved_record(run.out)
    return f"the state of step {saved['progress']['step']} is kept in {run.out}" if saved else "nothing was saved yet"

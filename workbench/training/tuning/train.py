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
from workbench.training.tuning.attention import NAME, TILE, Masks, masks_of
from workbench.training.tuning.config import TuneConfig
from workbench.training.tuning.examples import Source
from workbench.training.tuning.packing import PackedExamples, pack
from workbench.training.tuning.scores import NEVER, Evaluation, scores


@dataclass
class TuneProgress(Progress):
    """Where a block fine-tuning stands."""

    seconds: float = 0.0
    scores: list[dict] = field(default_factory=list)  # exact match on held-out samples


@dataclass(frozen=True)
class TuneRun(Training):
    """A block fine-tuning that is ready for its next step."""

    config: TuneConfig
    loaded: Loaded  # the bare model, its tokenizer and layout
    windows: tuple[int | None, ...]  # sliding windows of the model's layers
    tally: Tally  # answers since the last row of the curve, by mode

    @property
    def base(self) -> dict[str, str]:
        """Name and fingerprint of the model that is tuned."""
        return self.identity["base"]

    @property
    def bf16(self) -> bool:
        return self.config.precision == "bf16" or (self.config.precision == "auto" and self.on_gpu)

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
    begin = time.monotonic() - progress.seconds
    batches = iter(_loader(run, source, progress.step, workers))
    run.loaded.model.train()
    if not progress.scores:
        _evaluate(run, evaluation, progress, report)

    def take_step() -> torch.Tensor:
        try:
            return step(run, [next(batches) for _ in range(config.accumulate)], progress.step)
        except torch.OutOfMemoryError as problem:
            raise BadInput(
                f"out of memory with batch {config.batch} and max_length {config.max_length}: lower --batch (and raise "
                "--accumulate by as much) or --max-length, or use --gradient-checkpointing or --lora-rank; "
                + _kept(run)
            ) from problem

    steps = run.steps(progress, take_step, lambda: progress.step >= config.steps, save_every, minutes)
    for loss, reading, saving in steps:
        if reading:
            report(_read(run, loss, progress))
        _evaluate(run, evaluation, progress, report)
        if saving:
            progress.seconds = time.monotonic() - begin
            save(run, progress)
    return progress


def step(run: TuneRun, batches: list[PackedExamples], number: int) -> torch.Tensor:
    """Take an optimizer step; return its loss, the mean over all answer tokens of all processes, on the device."""
    accelerator, device = run.accelerator, run.accelerator.device
    ranks = accelerator.num_processes
    count = torch.tensor(float(sum(len(batch.rows) for batch in batches)))
    if ranks > 1:
        count = accelerator.reduce(count.to(device), "sum")
    share = count.to(device, non_blocking=True) / ranks  # gradients are averaged over processes
    total = torch.zeros((), device=device)
    for i, batch in enumerate(batches):
        batch = batch.to(device)
        with nullcontext() if i == len(batches) - 1 else accelerator.no_sync(run.model):
            with torch.autocast(device.type, torch.bfloat16, enabled=run.bf16):
                logits = forward(run.model, batch, masks_of(batch, run.windows))
            loss = F.cross_entropy(logits.float(), batch.targets, reduction="sum") / share
            accelerator.backward(loss)
        total += loss.detach()
        run.tally.add(batch.modes, logits, batch.targets, batch.answers)
    run.update(run.config.rate(number))
    return total


def forward(model: torch.nn.Module, batch: PackedExamples, masks: Masks) -> torch.Tensor:
    """Compute logits [A, V] of the rows that predict answer tokens, and of no others."""
    ids, positions = batch.tokens[None], batch.positions[None]
    return model(input_ids=ids, position_ids=positions, use_cache=False, logits_to_keep=batch.rows, masks=masks).logits[
        0
    ]


def _loader(run: TuneRun, source: Source, begin: int, workers: int) -> DataLoader:
    """Return batches from step `begin` on; drawing them leaves torch's random numbers alone."""
    ranks, rank = run.accelerator.num_processes, run.accelerator.process_index
    accumulate = run.config.accumulate
    return DataLoader(
        Drawn(partial(_draw, source, run.config, TILE if run.on_gpu else 1)),
        batch_size=None,  # an item is a whole batch
        sampler=range(begin * accumulate * ranks + rank, run.config.steps * accumulate * ranks, ranks),
        num_workers=workers,
        pin_memory=run.on_gpu,
        generator=torch.Generator(),
    )


def _draw(source: Source, config: TuneConfig, multiple: int, i: int) -> PackedExamples:
    """Micro-batch `i` of all processes: the samples i · batch … of the source, packed."""
    examples = [source[i * config.batch + j] for j in range(config.batch)]
    return pack(examples, config.copies, config.positions == "naive", multiple)


def _read(run: TuneRun, loss: torch.Tensor, progress: TuneProgress) -> dict:
    """Add a row to the curve and return it."""
    answers = run.tally.take(run.accelerator)
    total = float(run.accelerator.reduce(loss, "mean"))
    if not math.isfinite(total):
        raise BadInput(f"the loss is {total} at step {progress.step}: lower --lr; {_kept(run)}")
    row = {"step": progress.step, "loss": round(total, 5), "lr": run.config.rate(progress.step - 1)}
    row |= {mode: round(right / seen, 4) for mode, (right, seen) in answers.items()}
    progress.curve.append(row)
    return row


def _evaluate(run: TuneRun, evaluation: Evaluation, progress: TuneProgress, report: Callable[[dict], None]) -> None:
    """Score both modes by exact match where it is due, on the first process; the others wait."""
    if not evaluation.due(progress.step, run.config.steps):
        return
    if run.accelerator.is_main_process:
        row = {"step": progress.step} | scores(evaluation, run.loaded, run.base["name"], run.config.positions)
        run.loaded.model.set_attn_implementation(NAME)
        progress.scores.append(row)
        report(row)
    run.accelerator.wait_for_everyone()


def save(run: TuneRun, progress: TuneProgress) -> None:
    """Write the state to resume from, in place of the one before, and the curve so far for people to look at."""
    run.save(progress)
    if run.accelerator.is_main_process:
        curve = {"train": progress.curve, "scores": progress.scores, "seconds": progress.seconds}
        write_text(run.out / "curve.json", json.dumps(curve) + "\n")


def _kept(run: TuneRun) -> str:
    saved = saved_record(run.out)
    return f"the state of step {saved['progress']['step']} is kept in {run.out}" if saved else "nothing was saved yet"

"""Training loop of block fine-tuning, in one process or several under `accelerate launch`.

Resumable: a run that is killed and restarted with the same settings gives the same weights as an uninterrupted one.
"""

import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from itertools import accumulate, islice
from typing import Any

import torch
import torch.nn.functional as F

from workbench.core.errors import BadInput
from workbench.core.utils.files import write_text
from workbench.training.common import interruptible, phase
from workbench.training.run_folder import saved_state_message
from workbench.training.tuning.attention import NAME, TILE, forward, masks_of
from workbench.training.tuning.scores import NEVER, Evaluation, fidelity, scores
from workbench.training.tuning.start import TuneProgress, TuneRun
from workbench.training.tuning.teacher import TaughtExamples, divergence, logits_of
from workbench.training.tuning.text.batches import Batch, draw_batch, loader, room_of
from workbench.training.tuning.text.examples import Example, Source
from workbench.training.tuning.text.packing import PackedExamples

FIRST_SECONDS = 120.0  # limit of the evaluation before the first step; if reached, later ones use as few questions


def train(
    run: TuneRun,
    source: Source,
    evaluation: Evaluation = NEVER,
    report: Callable[[dict[str, Any]], None] = lambda row: None,
    save_every: int = 500,
    workers: int = 0,
    minutes: float = math.inf,
    saved: Callable[[TuneProgress], None] = lambda progress: None,
) -> TuneProgress:
    """Train until all steps are done or `minutes` have passed; `run.out` holds the state to resume from.

    Minutes, and the budget of the recipe, count from the first step on, without compilation, drawing and evaluation
    before it. `report` gets each row of the curve; `saved` is called after each saved state. Raises BadInput for a loss
    that is not finite and if the device is out of memory; the last saved state stays.
    """
    progress, config = run.resume(TuneProgress()), run.config
    run.loaded.model.train()
    if run.tiles:
        _settle(run, source, evaluation, progress.step)
    if run.should_end():
        return progress
    batches = iter(_loader(run, source, progress.step, workers))
    run.clock.set(progress.seconds)
    if not progress.scores:
        _evaluate(run, evaluation, progress, report)
        run.clock.set(progress.seconds)

    def take_step() -> torch.Tensor:
        with _enough_memory(run):
            loss = step(run, list(islice(batches, config.accumulate)), progress.step)
        progress.seconds = run.clock.seconds
        return loss

    def finished() -> bool:
        return config.finished(progress.step, progress.seconds)

    if run.should_end():
        return progress
    with interruptible(run.accelerator.num_processes == 1) as stopped:
        steps = run.steps(progress, take_step, finished, save_every, minutes, lambda: run.stop() or stopped())
        for loss, reading, saving in steps:
            if reading:
                report(_read(run, loss, progress))
            if not (run.should_end() or stopped()):
                _evaluate(run, evaluation, progress, report)
            if saving:
                save(run, progress)
                saved(progress)
    return progress


def _settle(run: TuneRun, source: Source, evaluation: Evaluation, begin: int) -> None:
    """Choose the length of all batches, and compile for it by a forward and backward pass without an update."""
    with phase(run.say, "length of batches") as facts:
        run.room["tokens"], share = room_of(source, run.config, TILE)
        facts.append(f"{run.room['tokens']:,} tokens a mode, {share:.0%} of them filled")
    place = begin * run.config.accumulate * run.accelerator.num_processes + run.accelerator.process_index
    batch = draw_batch(source, run.config, run.room["tokens"], place)
    with _enough_memory(run), phase(run.say, "compiled"):
        if evaluation.every and isinstance(batch, TaughtExamples) and run.accelerator.is_main_process:
            _announce(run, batch)
            assert run.teacher is not None
            on_device = batch.to(run.accelerator.device)
            with torch.no_grad():
                logits_of(run.loaded.model, run.teacher, on_device, run.windows, run.bf16, run.mask_kind)
        _announce(run, batch)
        run.accelerator.backward(_sum_of_losses(run, batch.to(run.accelerator.device)))
        if run.on_gpu:
            torch.cuda.synchronize()
    for optim in run.optims:
        optim.zero_grad(set_to_none=True)
    for tally in (run.tally, run.divergences):
        if tally is not None:
            tally.counts.zero_()


def _announce(run: TuneRun, batch: Batch) -> None:
    """Report the lengths for which kernels are about to be compiled."""
    packed = (batch.teacher, batch.student) if isinstance(batch, TaughtExamples) else (batch,)
    if run.tiles and (new := {len(each.tokens) for each in packed} - run.compiled):
        run.say(f"compiling for {' and '.join(f'{length:,}' for length in sorted(new))} tokens …")
        run.compiled.update(new)


@contextmanager
def _enough_memory(run: TuneRun) -> Iterator[None]:
    """Add a hint on what to lower to an out-of-memory error."""
    try:
        yield
    except torch.OutOfMemoryError as problem:
        raise BadInput(
            f"out of memory with batch {run.config.batch} and max_length {run.config.max_length}: lower --batch (and "
            "raise --accumulate by as much) or --max-length, or use --gradient-checkpointing or --lora-rank; "
            + saved_state_message(run.out)
        ) from problem


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
        _announce(run, batch)
        batch = batch.to(device)
        with nullcontext() if i == len(batches) - 1 else accelerator.no_sync(run.model):
            loss = _sum_of_losses(run, batch) / share
            accelerator.backward(loss)
        total += loss.detach()
    run.update(run.config.rate(number, run.clock.seconds))
    return total


def _sum_of_losses(run: TuneRun, batch: Batch) -> torch.Tensor:
    """Return the loss of a batch, summed over its weighted tokens."""
    return _taught(run, batch) if isinstance(batch, TaughtExamples) else _gold(run, batch)


def _gold(run: TuneRun, batch: PackedExamples) -> torch.Tensor:
    """Return the sum of cross-entropies of all answer tokens, and count correct answers."""
    with torch.autocast(batch.tokens.device.type, torch.bfloat16, enabled=run.bf16):
        logits = forward(run.model, batch, masks_of(batch, run.windows, run.mask_kind))
    run.tally.add(batch.modes, logits, batch.targets, batch.answers)
    return F.cross_entropy(logits.float(), batch.targets, reduction="sum")


def _taught(run: TuneRun, batch: TaughtExamples) -> torch.Tensor:
    """Return the weighted sum of divergences from the teacher, and count answers that agree with it."""
    assert run.teacher is not None and run.divergences is not None
    logits, taught = logits_of(run.model, run.teacher, batch, run.windows, run.bf16, run.mask_kind)
    each, student, rows = divergence(logits, taught, batch.same), batch.student, batch.of_answers
    run.tally.add(student.modes, logits, taught.argmax(-1)[batch.same], student.answers)
    run.divergences.add_values(student.modes[student.answers[rows]], each.detach()[rows])
    return (each * batch.weights).sum()


def _loader(run: TuneRun, source: Source, begin: int, workers: int) -> Any:
    """Return the batches of this process from step `begin` on."""
    ranks, rank = run.accelerator.num_processes, run.accelerator.process_index
    each = run.config.accumulate * ranks
    places = range(begin * each + rank, run.config.steps * each, ranks)
    return loader(source, run.config, run.room["tokens"], places, workers, run.on_gpu)


def _read(run: TuneRun, loss: torch.Tensor, progress: TuneProgress) -> dict[str, Any]:
    """Add a row to the curve and return it."""
    answers = run.tally.take(run.accelerator)
    total = float(run.accelerator.reduce(loss, "mean"))
    if not math.isfinite(total):
        raise BadInput(f"the loss is {total} at step {progress.step}: lower --lr; {saved_state_message(run.out)}")
    lr = run.optims[0].param_groups[0]["lr"]
    row = {"step": progress.step, "loss": round(total, 5), "lr": lr}
    if run.divergences is not None:
        summed = run.divergences.take(run.accelerator)
        row |= {f"kl_{mode}": round(kl / seen, 5) for mode, (kl, seen) in summed.items()}
    row |= {mode: round(right / seen, 4) for mode, (right, seen) in answers.items()}
    progress.curve.append(row)
    return row


def _evaluate(
    run: TuneRun, evaluation: Evaluation, progress: TuneProgress, report: Callable[[dict[str, Any]], None]
) -> None:
    """Evaluate both modes if due, in the first process; the others wait.

    Scores are exact match or, with a teacher, divergences from it.
    """
    finished = run.config.finished(progress.step, progress.seconds)
    if not evaluation.due(progress.step, progress.step if finished else run.config.steps):
        return
    if run.accelerator.is_main_process:
        with phase(run.say, "evaluation"):
            row = {"step": progress.step} | _scores(run, evaluation, progress)
        if not run.should_end():  # otherwise it may have fewer questions
            progress.scores.append(row)
            report(row)
    run.accelerator.wait_for_everyone()


def _scores(run: TuneRun, evaluation: Evaluation, progress: TuneProgress) -> dict[str, Any]:
    if run.teacher is not None:
        begin, held_out = time.monotonic(), run.held_out
        if progress.scores:
            held_out = _first_questions(held_out, progress.scores[0]["n"])

        def enough() -> bool:
            return run.should_end() or (not progress.scores and time.monotonic() - begin > FIRST_SECONDS)

        how = (run.windows, run.bf16, run.mask_kind, run.room["tokens"], enough)
        return fidelity(run.loaded.model, run.teacher, held_out, run.config, *how)
    row = scores(evaluation, run.loaded, run.base["name"], run.config.positions)
    run.loaded.model.set_attn_implementation(NAME)
    return row


def _first_questions(examples: tuple[Example, ...], count: int) -> tuple[Example, ...]:
    """Return the first examples, up to `count` questions."""
    ends = accumulate(len(example.questions) for example in examples)
    return tuple(example for example, end in zip(examples, ends, strict=True) if end <= count)


def save(run: TuneRun, progress: TuneProgress) -> None:
    """Write the state to resume from, replacing the previous one, and the curve so far for inspection."""
    run.save(progress)
    if run.accelerator.is_main_process:
        curve = {"train": progress.curve, "scores": progress.scores, "seconds": progress.seconds}
        write_text(run.out / "curve.json", json.dumps(curve) + "\n")

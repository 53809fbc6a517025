"""The training loop of block fine-tuning, on one process or on several under `accelerate launch`.

Resumable: a run that is killed and started again with the same settings gives the same weights as one that was not.
"""

import json
import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch.utils.data import DataLoader, Dataset

from workbench.core.errors import BadInput
from workbench.experiments.record import write
from workbench.models.loading import Loaded
from workbench.training.common import load_state, save_state, saved_record
from workbench.training.tuning.attention import NAME, TILE, Masks, masks_of
from workbench.training.tuning.examples import Source
from workbench.training.tuning.packing import BLOCK, FULL, Packed, pack
from workbench.training.tuning.recipe import TuneConfig
from workbench.training.tuning.scores import NEVER, Evaluation, scores

READ_EVERY = 20  # steps between two rows of the curve (each one waits for the device)


@dataclass
class Progress:
    """Where a run stands; saved beside the weights."""

    step: int = 0
    seconds: float = 0.0
    curve: list[dict] = field(default_factory=list)  # loss and teacher-forced accuracy on the training stream
    scores: list[dict] = field(default_factory=list)  # exact match on held-out samples


@dataclass(frozen=True)
class Run:
    """What a step needs."""

    accelerator: Accelerator
    model: torch.nn.Module  # as accelerate prepared it
    optims: list[torch.optim.Optimizer]
    loaded: Loaded  # the bare model, its tokenizer and layout
    windows: tuple[int | None, ...]  # sliding windows of the model's layers
    recipe: TuneConfig
    identity: dict[str, Any]  # what a resumed run must have in common
    out: Path
    right: torch.Tensor  # [2, 2] by mode: answers wholly right and answers seen, since the last row of the curve

    @property
    def base(self) -> dict[str, str]:
        """Name and fingerprint of the model that is tuned."""
        return self.identity["base"]

    @property
    def bf16(self) -> bool:
        return self.recipe.precision == "bf16" or (
            self.recipe.precision == "auto" and self.accelerator.device.type == "cuda"
        )


class Batches(Dataset):
    """Micro-batch `i` of all processes: the samples i · batch … of a source, packed."""

    def __init__(self, source: Source, recipe: TuneConfig, multiple: int):
        self.source, self.recipe, self.multiple = source, recipe, multiple

    def __getitem__(self, i: int) -> Packed:
        first = i * self.recipe.batch
        examples = [self.source[first + j] for j in range(self.recipe.batch)]
        return pack(examples, self.recipe.copies, self.recipe.positions == "naive", self.multiple)


def train(
    run: Run,
    source: Source,
    evaluation: Evaluation = NEVER,
    report: Callable[[dict], None] = lambda row: None,
    save_every: int = 500,
    workers: int = 0,
    minutes: float = math.inf,
) -> Progress:
    """Train until all steps are done or `minutes` are over; `run.out` holds the state to resume from.

    `report` gets every row of the curve. Raises BadInput for a loss that is no number and for a device that is out of
    memory; the last state that was saved stays.
    """
    progress, recipe = resume(run), run.recipe
    begin = time.monotonic() - progress.seconds
    end = time.monotonic() + 60 * minutes
    batches = iter(_loader(run, source, progress.step, workers))
    run.loaded[0].train()
    if not progress.scores:
        _evaluate(run, evaluation, progress, report)
    stopped = False
    while progress.step < recipe.steps and not stopped:
        try:
            loss = step(run, [next(batches) for _ in range(recipe.accumulate)], progress.step)
        except torch.OutOfMemoryError as problem:
            raise BadInput(_out_of_memory(run)) from problem
        progress.step += 1
        done, reading = progress.step == recipe.steps, progress.step % READ_EVERY == 0
        stopped = reading and _is_over(run, end)
        saving = done or stopped or progress.step % save_every == 0
        if reading or saving:
            report(_read(run, loss, progress))
        _evaluate(run, evaluation, progress, report)
        if saving:
            progress.seconds = time.monotonic() - begin
            save(run, progress)
    return progress


def step(run: Run, batches: list[Packed], number: int) -> torch.Tensor:
    """One optimizer step; the loss is the mean over all answer tokens of all processes. Returns it, on the device."""
    accelerator, recipe, device = run.accelerator, run.recipe, run.accelerator.device
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
        _count(run.right, logits, batch)
    accelerator.clip_grad_norm_(run.model.parameters(), recipe.clip)
    for optim in run.optims:
        for group in optim.param_groups:
            group["lr"] = recipe.rate(number)
        optim.step()
        optim.zero_grad(set_to_none=True)
    return total


def forward(model: torch.nn.Module, batch: Packed, masks: Masks) -> torch.Tensor:
    """[A, V] logits of the rows that predict answer tokens; no others are computed."""
    out = model(
        input_ids=batch.tokens[None],
        position_ids=batch.positions[None],
        use_cache=False,
        logits_to_keep=batch.rows,
        masks=masks,
    )
    return out.logits[0]


def _count(right: torch.Tensor, logits: torch.Tensor, batch: Packed) -> None:
    """Add the answers of a batch to `right`: an answer is right when all its tokens are predicted."""
    wrong = (logits.detach().argmax(-1) != batch.targets).float()
    misses = torch.zeros(len(batch.modes), device=wrong.device).index_add_(0, batch.answers, wrong)
    right[0].index_add_(0, batch.modes, (misses == 0).float())
    right[1].index_add_(0, batch.modes, torch.ones_like(misses))


def _loader(run: Run, source: Source, begin: int, workers: int) -> DataLoader:
    """Batches from step `begin` on; drawing them takes nothing from torch's random numbers."""
    ranks, rank = run.accelerator.num_processes, run.accelerator.process_index
    on_gpu = run.accelerator.device.type == "cuda"
    accumulate = run.recipe.accumulate
    return DataLoader(
        Batches(source, run.recipe, TILE if on_gpu else 1),
        batch_size=None,  # an item is a whole batch
        sampler=range(begin * accumulate * ranks + rank, run.recipe.steps * accumulate * ranks, ranks),
        num_workers=workers,
        pin_memory=on_gpu,
        generator=torch.Generator(),
    )


def _read(run: Run, loss: torch.Tensor, progress: Progress) -> dict:
    """A row of the curve, added to it."""
    hits, seen = run.accelerator.reduce(run.right, "sum").tolist()
    total = float(run.accelerator.reduce(loss, "mean"))
    run.right.zero_()
    if not math.isfinite(total):
        raise BadInput(f"the loss is {total} at step {progress.step}: lower --lr; {_kept(run)}")
    row = {"step": progress.step, "loss": round(total, 5), "lr": run.recipe.rate(progress.step - 1)}
    for mode, number in (("full", FULL), ("block", BLOCK)):
        if seen[number]:
            row[mode] = round(hits[number] / seen[number], 4)
    progress.curve.append(row)
    return row


def _evaluate(run: Run, evaluation: Evaluation, progress: Progress, report: Callable[[dict], None]) -> None:
    """Exact match of both modes, on the first process; the others wait."""
    if not evaluation.due(progress.step, run.recipe.steps):
        return
    if run.accelerator.is_main_process:
        row = {"step": progress.step} | scores(evaluation, run.loaded, run.base["name"], run.recipe.positions)
        run.loaded[0].set_attn_implementation(NAME)
        progress.scores.append(row)
        report(row)
    run.accelerator.wait_for_everyone()


def save(run: Run, progress: Progress) -> None:
    """Write the state to resume from, in place of the one before, and the curve so far for people to look at."""
    save_state(run.accelerator, run.out, run.identity | {"progress": asdict(progress)})
    if run.accelerator.is_main_process:
        curve = {"train": progress.curve, "scores": progress.scores, "seconds": progress.seconds}
        write(json.dumps(curve) + "\n", run.out / "curve.json")


def resume(run: Run) -> Progress:
    """Where the run in `run.out` stands, its state loaded; the beginning where there is none."""
    saved = saved_record(run.out)
    if saved is None:
        return Progress()
    load_state(run.accelerator, run.out)
    return Progress(**saved["progress"])


def _is_over(run: Run, end: float) -> bool:
    """Whether the time of any process is over: all stop at the same step."""
    late = torch.tensor(float(time.monotonic() > end), device=run.accelerator.device)
    return bool(run.accelerator.reduce(late, "sum") > 0)


def _kept(run: Run) -> str:
    saved = saved_record(run.out)
    return f"the state of step {saved['progress']['step']} is kept in {run.out}" if saved else "nothing was saved yet"


def _out_of_memory(run: Run) -> str:
    return (
        f"out of memory with batch {run.recipe.batch} and max_length {run.recipe.max_length}: lower --batch (and raise "
        f"--accumulate by as much) or --max-length, or use --gradient-checkpointing or --lora-rank; {_kept(run)}"
    )

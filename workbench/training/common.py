"""Parts that all trainings share: batches, optimizers, the training loop, and progress output."""

import json
import math
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from threading import current_thread, main_thread
from typing import Any, Self, TypeVar

import torch
from accelerate import Accelerator
from torch import Tensor
from torch.utils.data import Dataset
from tqdm import tqdm

from workbench.core.utils.files import replace_folder
from workbench.core.utils.stages import stage, stages_reported_to
from workbench.training.lab.config import PretrainConfig
from workbench.training.run_folder import RECORD, saved_record, state_folder
from workbench.training.tuning.config import TuneConfig

LINE_SECONDS = 20.0  # maximum seconds between lines of the curve in a log
SOON = (1.0, 8.0, 30.0, 60.0)  # seconds after which the first lines are logged
STEP = "step "  # prefix of a step's stage name
READ_EVERY = 20  # steps between rows of the curve, each of which synchronizes with the device


@dataclass
class Progress:
    """Progress of a training; saved as JSON with the weights."""

    step: int = 0
    curve: list[dict[str, Any]] = field(default_factory=list)  #: loss and teacher-forced accuracy while training


SomeProgress = TypeVar("SomeProgress", bound=Progress)


@dataclass(frozen=True)
class Training:
    """A model under training; `out` holds the state to resume from."""

    accelerator: Accelerator
    model: torch.nn.Module  #: wrapped by accelerate
    optims: list[torch.optim.Optimizer]
    config: PretrainConfig | TuneConfig
    identity: dict[str, Any]  #: JSON values that must be equal when training is resumed
    out: Path

    def update(self, lr: float) -> None:
        """Clip the gradients, take an optimizer step at learning rate `lr`, and clear the gradients."""
        self.accelerator.clip_grad_norm_(self.model.parameters(), self.config.clip)
        for optim in self.optims:
            for group in optim.param_groups:
                group["lr"] = lr
            optim.step()
            optim.zero_grad(set_to_none=True)

    def steps(
        self,
        progress: Progress,
        take_step: Callable[[], Tensor],
        finished: Callable[[], bool],
        save_every: int,
        minutes: float,
        asked: Callable[[], bool] = lambda: False,
    ) -> Iterator[tuple[Tensor, bool, bool]]:
        """Take steps until `finished()` or `asked()`, or until `minutes` have passed at a row of the curve.

        Yields after each step (loss, whether a row of the curve is due, whether a state is to be saved).
        """
        end = time.monotonic() + 60 * minutes
        stopped = False
        while not (stopped or finished()):
            loss = take_step()
            progress.step += 1
            stage(f"{STEP}{progress.step}")
            reading = progress.step % READ_EVERY == 0
            if reading:  # processes stop at the same step, once any of them is out of time
                late = torch.tensor(float(time.monotonic() > end or asked()), device=self.accelerator.device)
                stopped = bool(self.accelerator.reduce(late, "sum") > 0)
            elif self.accelerator.num_processes == 1:
                stopped = asked()
            saving = stopped or finished() or progress.step % save_every == 0
            yield loss, reading or saving, saving

    def save(self, progress: Progress) -> None:
        """Write weights, optimizers, random states and progress to `out`/state, replacing the previous state."""
        partial = self.out / "state.new"
        set_apart(self.model)
        try:
            self.accelerator.save_state(str(partial))
            self.accelerator.wait_for_everyone()
            if self.accelerator.is_main_process:
                (partial / RECORD).write_text(json.dumps(self.identity | {"progress": asdict(progress)}))
                replace_folder(partial, self.out / "state")
            self.accelerator.wait_for_everyone()
        finally:
            if self.accelerator.is_main_process:
                shutil.rmtree(partial, ignore_errors=True)

    def resume(self, begin: SomeProgress) -> SomeProgress:
        """Restore the state in `out` and return its progress; return `begin` if there is none."""
        saved = saved_record(self.out)
        if saved is None:
            return begin
        self.accelerator.load_state(str(state_folder(self.out)))
        return type(begin)(**saved["progress"])


@torch.no_grad()
def set_apart(model: torch.nn.Module) -> None:
    """Copy weights that share memory to separate tensors, because safetensors saves only one of them.

    Weights share memory after the engine has answered with the model (`engine.layers.fused_layers`).
    """
    for weight in model.parameters():
        if weight.untyped_storage().nbytes() > weight.nbytes:
            weight.data = weight.data.clone()


class DrawnBatches(Dataset[Any]):
    """Dataset of batches that are a pure function of their index, so that any process can draw them."""

    def __init__(self, draw: Callable[[Any], Any]):
        self.draw = draw

    def __getitem__(self, index: Any) -> Any:
        return self.draw(index)


def ignore_signals(worker: int) -> None:
    """Ignore signals in a data worker; the training process ends its workers after saving."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)


@dataclass(frozen=True)
class TensorBatch:
    """A dataclass of tensors, and of such dataclasses, that are moved together."""

    def to(self, device: torch.device) -> Self:
        """Return the batch on `device`."""
        return self._changed(lambda x: x.to(device, non_blocking=True))

    def pin_memory(self) -> Self:
        """Return the batch in page-locked memory."""
        return self._changed(Tensor.pin_memory)

    def _changed(self, change: Callable[[Tensor], Tensor]) -> Self:
        changed: dict[str, Any] = {name: change(x) for name, x in vars(self).items() if isinstance(x, Tensor)}
        changed |= {name: x._changed(change) for name, x in vars(self).items() if isinstance(x, TensorBatch)}
        return replace(self, **changed)


class Tally:
    """Counts correct answers (or sums values) by kind, and their number, since the last `take`."""

    def __init__(self, kinds: Sequence[str], device: torch.device):
        self.kinds = kinds
        self.counts = torch.zeros(2, len(kinds), device=device)

    def add(self, kinds: Tensor, logits: Tensor, targets: Tensor, answers: Tensor) -> None:
        """Count N answers: an answer is correct if all its tokens are predicted (teacher-forced).

        kinds [N]: index of an answer's kind; logits [..., V]; targets and answers [...]: token ids, and the answer that
        each belongs to (-1: none).
        """
        wrong = (logits.detach().argmax(-1) != targets).float()
        misses = torch.zeros(len(kinds) + 1, device=wrong.device)
        right = misses.index_add_(0, (answers + 1).flatten(), wrong.flatten())[1:] == 0
        self.add_values(kinds, right.float())

    def add_values(self, kinds: Tensor, values: Tensor) -> None:
        """Add N values: kinds [N] (index of each value's kind), values [N]."""
        self.counts[0].index_add_(0, kinds, values)
        self.counts[1].index_add_(0, kinds, torch.ones_like(values))

    def take(self, accelerator: Accelerator) -> dict[str, tuple[float, float]]:
        """Return (sum, count) of each kind, over all processes, and reset the counts."""
        right, seen = accelerator.reduce(self.counts, "sum").tolist()
        self.counts.zero_()
        return {kind: (r, s) for kind, r, s in zip(self.kinds, right, seen, strict=True) if s}


def optimizers(model: torch.nn.Module, settings: PretrainConfig | TuneConfig) -> list[torch.optim.Optimizer]:
    """Return AdamW for all trained weights, or Muon for the matrices of the layers and AdamW for the others."""
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    matrices = [p for name, p in trained if p.ndim == 2 and "embed" not in name and "lm_head" not in name]
    others = [p for _, p in trained if all(p is not m for m in matrices)]
    adamw = partial(torch.optim.AdamW, lr=settings.lr, betas=settings.betas, fused=trained[0][1].is_cuda)
    decay = settings.weight_decay
    if settings.optimizer == "adamw":
        groups = [{"params": matrices, "weight_decay": decay}, {"params": others, "weight_decay": 0.0}]
        return [adamw([group for group in groups if group["params"]])]
    muon = torch.optim.Muon(matrices, lr=settings.lr, weight_decay=decay, adjust_lr_fn="match_rms_adamw")
    return [muon, adamw(others, weight_decay=0.0)]


@contextmanager
def stoppable(number: signal.Signals = signal.SIGTERM, said: str = "") -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether a signal has arrived; a second signal has its default effect.

    `said` is printed when the signal arrives.
    """
    received = list[int]()

    def take(number: int, _: Any) -> None:
        received.append(number)
        signal.signal(number, before)
        if said:
            print(said, file=sys.stderr, flush=True)

    before = signal.signal(number, take)
    try:
        yield lambda: bool(received)
    finally:
        signal.signal(number, before)


LAST_STEP = "stopping: this step is finished and its state saved (Ctrl-C again stops at once)"


@contextmanager
def interruptible(alone: bool) -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether Ctrl-C was pressed; KeyboardInterrupt follows at the end of the block.

    A state has then been saved. This needs a process that trains `alone`, in its main thread; otherwise Ctrl-C
    interrupts immediately.
    """
    if not alone or current_thread() is not main_thread():
        yield lambda: False
        return
    with stoppable(signal.SIGINT, LAST_STEP) as asked:
        yield asked
    if asked():
        raise KeyboardInterrupt


@contextmanager
def phase(say: Callable[[str], None], name: str) -> Iterator[list[str]]:
    """Report through `say` how long the block took, with the facts that it appends to the yielded list."""
    begin, facts = time.monotonic(), list[str]()
    yield facts
    say(f"{name}: {time.monotonic() - begin:.1f} s" + (f" ({', '.join(facts)})" if facts else ""))


@contextmanager
def show_curve(
    main: bool,
    line_every: int,
    postfix: Callable[[dict[str, Any]], dict[str, Any]],
    total: int | None = None,
    minutes: float = math.inf,
) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Yield a function that shows a row of the curve, in the `main` process only.

    Interactive sessions show a bar with the `postfix` of the row. Others print a line every `line_every` steps, after
    LINE_SECONDS without a line, and after the seconds in SOON. The remaining time is shown if the `total` of steps or
    the `minutes` are known.
    """
    start = last = time.monotonic()
    soon, steps = list(SOON), list[int]()

    def on_stage(name: str) -> None:
        if not name.startswith(STEP):
            return
        steps.append(int(name.removeprefix(STEP)))
        bar.update(steps[-1] - bar.n)
        spent = time.monotonic() - start
        until = max(60 * minutes - spent, 0.0)
        if math.isfinite(until):
            bar.set_description_str(f"{until / 60:.0f} min left" if until >= 90 else f"{until:.0f} s left")
        if bar.disable and main and soon and spent >= soon[0]:
            del soon[: sum(spent >= at for at in soon)]
            left = min(until, spent / len(steps) * (total - steps[-1]) if total else math.inf)
            known = f", {left:.0f} s left" if math.isfinite(left) else ""
            print(f"step {steps[-1]:,}, after {spent:.0f} s{known}", file=sys.stderr, flush=True)

    with (
        tqdm(total=total, unit="step", disable=not (main and sys.stderr.isatty())) as bar,
        stages_reported_to(on_stage),
    ):

        def show(row: dict[str, Any]) -> None:
            nonlocal last
            if not bar.disable:
                bar.update(row["step"] - bar.n)
                bar.set_postfix(postfix(row))
            elif main and (row["step"] % line_every == 0 or time.monotonic() - last > LINE_SECONDS):
                print(json.dumps(row), flush=True)
                last = time.monotonic()

        yield show

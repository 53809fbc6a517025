"""A block fine-tuning that is ready for its next step, and where it stands.

The model's own greedy answers, under full attention: drawn once before training and kept beside the run.
"""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workbench.core.utils.files import write_text
from workbench.methods.generation import generate
from workbench.models.loading import Loaded
from workbench.training.common import Progress, Tally, Training, phase
from workbench.training.tuning.config import TuneConfig
from workbench.training.tuning.teacher import Teacher
from workbench.training.tuning.text.examples import Example, Files, Source


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
    # Of held-out samples: exact match, or nearness to the teacher.
    scores: list[dict[str, Any]] = field(default_factory=list)


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
    clock: Clock = field(default_factory=Clock)  # of the steps, and of the evaluations between them
    attention: str = "auto"  # tiles (FlexAttention) or parts; auto: tiles on a GPU
    say: Callable[[str], None] = lambda text: None  # gets a line for every phase
    stop: Callable[[], bool] = lambda: False  # whether this process is asked to end
    room: dict[str, int] = field(default_factory=lambda: {"tokens": 0})  # of one copy of a batch; 0: as it needs
    compiled: set[int] = field(default_factory=set)  # lengths that kernels are there for

    def asked(self) -> bool:
        """Return whether the run is to end now; several processes end together, at a row of the curve."""
        return self.accelerator.num_processes == 1 and self.stop()

    @property
    def base(self) -> dict[str, str]:
        """Name and fingerprint of the model that is tuned."""
        return self.identity["base"]

    @property
    def bf16(self) -> bool:
        return self.config.precision == "bf16" or (self.config.precision == "auto" and self.on_gpu)

    @property
    def tiles(self) -> bool:
        """Whether kernels are compiled, for every length of a batch."""
        return self.attention == "tiles" or (self.attention == "auto" and self.on_gpu)

    @property
    def how(self) -> str:
        """The masks of a step, a name of `masks_of`."""
        return "tiles" if self.tiles else "parts"

    @property
    def on_gpu(self) -> bool:
        return self.accelerator.device.type == "cuda"


CACHE = "own_answers.json"
BATCH = 64  # questions answered together


def draw_own_answers(run: TuneRun, source: Source) -> None:
    """Let the base model answer what the source leaves to it, or read what it answered before, from `run.out`."""
    if not isinstance(source, Files) or source.own is None or not source.unanswered():
        return
    path, own = run.out / CACHE, source.own
    settings = {"base": run.base["fingerprint"], "data": source.identity, "which": own.which, "tokens": own.tokens}
    if run.accelerator.is_main_process and _read(path, settings) is None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with phase(run.say, "own answers") as facts:
            facts.append(f"{len(source.unanswered()):,} of {len(source.samples):,} samples")
            answers = _answers(run, source, own.tokens)
        write_text(path, json.dumps(settings | {"answers": answers}) + "\n")
    run.accelerator.wait_for_everyone()
    said = _read(path, settings) or {}
    source.answered([tuple(said.get(str(i), ())) for i in range(len(source.samples))])


def _read(path: Path, settings: dict[str, Any]) -> dict[str, list[int]] | None:
    saved = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return saved["answers"] if saved and all(saved.get(name) == settings[name] for name in settings) else None


def _answers(run: TuneRun, source: Files, tokens: int) -> dict[str, list[int]]:
    """Return {number of a sample: token ids}."""
    assert run.teacher is not None
    model: Any = run.teacher.model
    waiting, answers, training = source.unanswered(), dict[str, list[int]](), model.training
    prompts = source.layout.prompts([source.alone(i) for i in waiting], source.tokenizer)
    model.eval()
    with run.teacher.off():
        for begin in range(0, len(waiting), BATCH):
            part = slice(begin, begin + BATCH)
            said = generate(model, source.tokenizer, prompts[part], max_new_tokens=tokens, stop=source.layout.stop)
            answers |= {str(i): list(each.tokens) for i, each in zip(waiting[part], said, strict=True)}
    model.train(training)
    run.teacher.attend()
    return answers

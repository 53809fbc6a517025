"""A block fine-tuning that is ready for its next step, and where it stands."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from workbench.models.loading import Loaded
from workbench.training.common import Progress, Tally, Training
from workbench.training.tuning.config import TuneConfig
from workbench.training.tuning.teacher import Teacher
from workbench.training.tuning.text.examples import Example


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

"""Exact match of both modes on held-out samples while a model is tuned (Block-Attention, figure 4)."""

from dataclasses import dataclass, replace
from typing import Any

from workbench.core.errors import BadInput
from workbench.core.utils.annotations import check_fields
from workbench.experiments.trials.trial import Trial
from workbench.models.loading import Loaded

SEED = 40_000  # of the held-out worlds; training worlds have names that no seed can spell


@dataclass(frozen=True)
class Evaluation:
    """Questions that are answered every so many steps. `every` 0: never.

    data       `lab` (held-out worlds), or a file, which should share no question with the training data
    passages   of a question; None: as the data has them
    """

    every: int = 0
    samples: int = 200
    data: str = "lab"
    passages: int | None = None
    batch: int = 64

    def __post_init__(self) -> None:
        check_fields(self)
        if self.every < 0:
            raise BadInput(f"evaluate_every is {self.every}: 0 (never) or more is needed")
        if self.samples < 1:
            raise BadInput(f"evaluate_samples is {self.samples}: at least 1 is needed")

    def due(self, step: int, last: int) -> bool:
        """Return whether `step` is 0, every, 2 · every …, or the last."""
        return bool(self.every) and (step % self.every == 0 or step == last)

    def trials(self, model: str, positions: str) -> dict[str, Trial]:
        """Return a trial for each mode; block mode has the positions it is trained with."""
        full = Trial(
            model, data=self.data, samples=self.samples, seed=SEED, passages=self.passages, batch=self.batch, timed=1
        )
        return {"full": full, "block": replace(full, mode="block", positions=positions)}


NEVER = Evaluation()


def scores(evaluation: Evaluation, loaded: Loaded, name: str, positions: str) -> dict[str, Any]:
    """Score the model as it is now: {"full": {em, em_low, em_high, n}, "block": {…}}; it is left in training mode."""
    loaded.model.eval()
    by_mode = {}
    for mode, trial in evaluation.trials(name, positions).items():
        record = trial.run(loaded=loaded)
        by_mode[mode] = {key: getattr(record, key) for key in ("em", "em_low", "em_high", "n")}
    loaded.model.train()
    return by_mode

"""Evaluate a model during tuning, on held-out samples.

Exact match of both modes (Block-Attention, figure 4), or fidelity to its teacher: divergence, and likelihood of the
gold answers.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from workbench import data as samples_of
from workbench.core.errors import BadInput
from workbench.core.utils.annotations import check_fields
from workbench.data.lab_corpus.style import is_lab
from workbench.data.layouts import Layout
from workbench.experiments.trials.trial import Trial
from workbench.metrics.answers import bootstrap
from workbench.models.loading import Loaded
from workbench.training.tuning.config import TuneConfig
from workbench.training.tuning.teacher import ROWS, Teacher, divergence, logits_of, pack_taught
from workbench.training.tuning.text.batches import chunks
from workbench.training.tuning.text.examples import Data, Example, Limits, Mixed, OwnAnswers, example

SEED = 40_000  # of the held-out worlds; training worlds have non-numeric seeds


@dataclass(frozen=True)
class Evaluation:
    """Evaluation settings.

    every      steps between evaluations; 0: none
    samples    number of questions
    data       `lab` (held-out worlds), or a file, which should share no question with the training data
    passages   passages per question; None: as in the data
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
        """Return a trial for each mode; block mode uses the positions it is trained with."""
        full = Trial(
            model, data=self.data, samples=self.samples, seed=SEED, passages=self.passages, batch=self.batch, timed=1
        )
        return {"full": full, "block": replace(full, mode="block", positions=positions)}


NEVER = Evaluation()


def scores(evaluation: Evaluation, loaded: Loaded, name: str, positions: str) -> dict[str, Any]:
    """Score the current model: {"full": {em, em_low, em_high, n}, "block": {…}}. It is left in training mode."""
    loaded.model.eval()
    by_mode = {}
    for mode, trial in evaluation.trials(name, positions).items():
        record = trial.run(loaded=loaded)
        by_mode[mode] = {key: getattr(record, key) for key in ("em", "em_low", "em_high", "n")}
    loaded.model.train()
    return by_mode


BOTH = ("full", "block")


def examples_of(evaluation: Evaluation, data: Data, layout: Layout, tokenizer: Any, limits: Limits) -> list[Example]:
    """Return held-out examples with the requested number of questions, mixed into contexts as the training data are.

    Raises BadInput for a sample that does not fit the limits.
    """
    drawn = samples_of.load(evaluation.data, evaluation.samples, SEED, evaluation.passages, answered=False)
    if data.mix is None or is_lab(evaluation.data):
        return [limits.check(example([sample], layout, tokenizer, [()])) for sample in drawn]
    asked = {} if data.questions is None else {"questions": data.questions}
    own = OwnAnswers("missing", 1)
    source = Mixed(drawn, layout, tokenizer, limits, SEED, own, passages=data.mix, **asked)
    found: list[Example] = []
    while (spare := evaluation.samples - sum(len(each.questions) for each in found)) > 0:
        more = source[len(found)]
        found.append(replace(more, questions=more.questions[:spare]))
    return found


@torch.no_grad()
def fidelity(
    model: torch.nn.Module,
    teacher: Teacher,
    examples: Sequence[Example],
    config: TuneConfig,
    windows: Sequence[int | None],
    bf16: bool = False,
    how: str = "parts",
    room: int = 0,
    enough: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """Compare both modes of the current `model` with its teacher, over the answers of `examples`.

    Returns {"n": questions, "nll": of the teacher, "full": {kl, agree, nll_gap and bounds}, "block": {…}}, each a mean
    over questions of means over their answer tokens, in nats. `agree` is the share of tokens with the same most likely
    token. Questions without a gold answer contribute only their first token, and no likelihood.

    how, room   masks, and tokens to which a batch is padded (`pack_taught`)
    enough      called after each batch: if true, the remaining examples are left out
    """
    config, rows, seen = replace(config, mode="mixed"), [], list[Example]()
    device = next(model.parameters()).device
    for chunk in chunks(examples, config.batch, room):
        batch = pack_taught(chunk, config, room).to(device)
        student, taught = logits_of(model, teacher, batch, windows, bf16, how)
        targets, same = batch.student.targets, batch.same
        teacher_nll = _nll(taught, targets, same)
        columns = [
            divergence(student, taught, same),
            (student.argmax(-1) == taught.argmax(-1)[same]).float(),
            _nll(student, targets, torch.arange(len(targets), device=device)) - teacher_nll,
            teacher_nll,
        ]
        rows.append(_by_answer(torch.stack(columns, 1), batch.student.answers, len(batch.student.modes)))
        seen += chunk
        if enough():
            break
    return _summary(np.concatenate(rows), seen)


def _nll(logits: Tensor, targets: Tensor, rows: Tensor) -> Tensor:
    """Return the negative log-likelihood [A] in nats of targets [A] in rows [A] of logits."""
    parts = zip(rows.split(ROWS), targets.split(ROWS), strict=True)
    return torch.cat([F.cross_entropy(logits[part].float(), target, reduction="none") for part, target in parts])


def _by_answer(values: Tensor, answers: Tensor, count: int) -> np.ndarray:
    """Return the mean of values [A, C] over the rows of each of `count` answers; rows of answer -1 are left out."""
    total = values.new_zeros(count + 1, values.shape[1] + 1)
    total.index_add_(0, answers + 1, F.pad(values, (0, 1), value=1.0))
    return (total[1:, :-1] / total[1:, -1:]).double().cpu().numpy()


def _summary(values: np.ndarray, examples: Sequence[Example]) -> dict[str, Any]:
    """Return means and 95% bootstrap intervals by mode of values [N, 4], ordered by example, mode and question."""
    flags = [(mode == "block", bool(qa.answer)) for each, mode in product(examples, BOTH) for qa in each.questions]
    block, known = (np.array(column) for column in zip(*flags, strict=True))
    summary: dict[str, Any] = {"n": int(block.sum())}
    if known.any():
        summary["nll"] = round(float(values[known & ~block, 3].mean()), 5)
    for mode, of_mode in (("full", ~block), ("block", block)):
        summary[mode] = _with_interval("kl", values[of_mode, 0]) | {"agree": round(float(values[of_mode, 1].mean()), 4)}
        if known.any():
            summary[mode] |= _with_interval("nll_gap", values[of_mode & known, 2])
    return summary


def _with_interval(name: str, values: np.ndarray) -> dict[str, float]:
    low, high = bootstrap(values.tolist())
    return {name: round(float(values.mean()), 5), f"{name}_low": round(low, 5), f"{name}_high": round(high, 5)}

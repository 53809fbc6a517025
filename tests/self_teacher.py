"""A tiny model to tune towards itself, its data, and a run of a few steps."""

import json
from dataclasses import replace
from pathlib import Path

import tiny
import torch

from workbench import data
from workbench.training.tuning.config import TuneConfig
from workbench.training.tuning.scores import Evaluation
from workbench.training.tuning.start import draw_own_answers, start
from workbench.training.tuning.text.examples import Data
from workbench.training.tuning.train import train

CONFIG = TuneConfig(teacher="self", steps=6, batch=2, lr=5e-3, warmup=2, max_length=2000, own_tokens=4)
LORA = replace(CONFIG, lora_rank=4)


class Killed(Exception):
    """Stand-in for the end of a process."""


def kill_at_step_4(row):
    if row["step"] == 4:
        raise Killed


def write(path: Path, samples, **changes) -> str:
    """Write samples as JSON lines, with `changes` to each; return the path."""
    path.write_text("".join(json.dumps(sample.to_json() | changes) + "\n" for sample in samples))
    return str(path)


def sharp_model(folder: Path) -> str:
    """Make a tiny model whose attention is sharp enough that block mode differs from full attention."""
    return str(tiny.checkpoint(folder / "tiny", initializer_range=0.1))


def question_files(folder: Path) -> dict[str, str]:
    """Write questions to train on, some of them without labels, and others to score on."""
    return {
        "train": write(folder / "train.jsonl", data.load("lab", samples=8, seed=5, passages=2)),
        "unlabelled": write(folder / "unlabelled.jsonl", data.load("lab", samples=4, seed=5, passages=2), answers=[]),
        "held": write(folder / "held.jsonl", data.load("lab", samples=6, seed=6, passages=2)),
    }


def tuned(config, base, name, out, evaluation=None, **options):
    """Tune on the file `name`; return the run and its progress."""
    run, source = start(config, base, Data(name), out, **({"evaluation": evaluation} if evaluation else {}))
    draw_own_answers(run, source)
    return run, train(run, source, evaluation or Evaluation(), **options)


def weights(run):
    """A copy of the weights of a run, by name."""
    return {name: x.detach().clone() for name, x in run.loaded.model.state_dict().items()}


def same(one, other):
    """Whether two sets of weights are equal to the last bit."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)

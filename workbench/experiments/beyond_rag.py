"""Answers over blocks that are no passages, as data/benchmarks/beyond_rag.py leaves them for every model."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from workbench.experiments import results
from workbench.metrics.answers import Records
from workbench.metrics.paired import Difference, difference
from workbench.metrics.seeds import OverSeeds, crossed

START = "beyond-"
LEAST = 0.1  # of the questions that full attention has to answer, for a comparison of answers to say anything
TASKS = {"demonstrations": "in-context learning", "game": "states of a game"}
Kept = Mapping[str, Any]


def kept() -> list[Kept]:
    """Read the results of every model that there are."""
    names = (name.removeprefix(START) for name in results.names() if name.startswith(START))
    return [results.read(f"beyond-{name}") for name in names]


def digits(one: Kept, task: str, what: str) -> list[float]:
    """Return 1 for every question that is right in a mode, `full` or `block`, or answered alike in both, `equal`."""
    return [float(digit) for digit in one["tasks"][task][what]]


def gap(one: Kept, task: str) -> Difference:
    """Return the right answers over cached blocks less those of full attention, question by question."""
    return difference(digits(one, task, "block"), digits(one, task, "full"))


def tells(one: Kept, task: str) -> bool:
    """Return whether full attention answers enough of a task for a comparison to say anything."""
    right = digits(one, task, "full")
    return sum(right) >= LEAST * len(right)


def by_training(task: str) -> dict[str, list[Kept]]:
    """Return the models that were asked, those that differ by training seed alone ("lab-game-0") under one name."""
    listed: dict[str, list[Kept]] = {}
    for one in kept():
        if task in one["tasks"]:
            listed.setdefault(re.sub(r"-\d+$", "", one["model"]), []).append(one)
    return listed


def gap_over_seeds(models: Sequence[Kept], task: str) -> OverSeeds:
    """Return the right answers over cached blocks less those of full attention, over training seeds."""
    return crossed([np.subtract(digits(one, task, "block"), digits(one, task, "full")).tolist() for one in models])


def of_kind(models: Sequence[Kept], task: str, kind: str) -> tuple[int, float, float]:
    """Return how many questions of a kind each was asked, and the shares right under full attention and over blocks."""
    asked = [np.array([digit == "1" for digit in one["tasks"][task]["kinds"][kind]]) for one in models]
    shares = [
        float(
            np.mean([np.array(digits(one, task, mode))[mine].mean() for one, mine in zip(models, asked, strict=True)])
        )
        for mode in ("full", "block")
    ]
    return int(asked[0].sum()), shares[0], shares[1]


def rows(task: str) -> Records:
    """Return {model, n, full, block, equal (shares), gap, low, high, tells, tuned} of every model that was asked.

    tuned   what it was tuned on, {base, data, steps, mode, seed}, where that is kept
    """
    listed = []
    for one in kept():
        if task in one["tasks"]:
            means = {name: digits(one, task, name) for name in ("full", "block", "equal")}
            shares = {name: sum(values) / len(values) for name, values in means.items()}
            found = gap(one, task)
            about = {
                "model": one["model"],
                "n": found.n,
                "tells": tells(one, task),
                **shares,
                "tuned": one.get("tuned"),
            }
            listed.append({**about, "gap": found.mean, "low": found.low, "high": found.high})
    return listed

"""Answers over blocks that are no passages, as data/benchmarks/beyond_rag.py leaves them for every model."""

from collections.abc import Mapping
from typing import Any

from workbench.experiments import results
from workbench.metrics.answers import Records
from workbench.metrics.paired import Difference, difference

START = "beyond-"
LEAST = 0.1  # of the questions that full attention has to answer, for a comparison of answers to say anything
TASKS = {"demonstrations": "in-context learning", "game": "states of a game", "frames": "states of a world"}
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


def rows(task: str) -> Records:
    """Return {model, n, full, block, equal (shares), gap, low, high, tells} of every model that was asked."""
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

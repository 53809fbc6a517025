"""What methods choose: how far they agree, and where in the prompt their tokens stand."""

from collections.abc import Mapping, Sequence

import numpy as np
from torch import Tensor

from workbench.blocks import Prompt
from workbench.errors import BadInput

MEASURES = ("jaccard", "smaller")


def agreement(rows: Mapping[str, Sequence[Tensor]], measure: str = "jaccard") -> np.ndarray:
    """[M, M] overlap of the rows that M methods choose, mean over the prompts in which either chooses any.

    measure  "jaccard": tokens that both choose, of those that either does; "smaller": of those of the smaller choice
    """
    if measure not in MEASURES:
        raise BadInput(f"measure {measure!r}: allowed are {', '.join(MEASURES)}")
    if len({len(choices) for choices in rows.values()}) > 1:
        raise BadInput("every method must choose for the same prompts: one list of rows a prompt")
    sets = [[set(choice.tolist()) for choice in choices] for choices in rows.values()]
    return np.array([[_mean(a, b, measure) for b in sets] for a in sets])


def _mean(a: list[set[int]], b: list[set[int]], measure: str) -> float:
    shares = [len(x & y) / size for x, y in zip(a, b, strict=True) if (size := _size(x, y, measure))]
    return float(np.mean(shares)) if shares else float("nan")


def _size(x: set[int], y: set[int], measure: str) -> int:
    return len(x | y) if measure == "jaccard" else min(len(x), len(y))


def by_offset(rows: Sequence[Tensor], prompts: Sequence[Prompt], bins: int = 10, system: int = 1) -> np.ndarray:
    """[bins] share of the document tokens that are chosen, by where they stand in their block, from start to end."""
    chosen, there = np.zeros(bins), np.zeros(bins)
    for choice, prompt in zip(rows, prompts, strict=True):
        for start, block in zip(prompt.starts[system:-1], prompt.blocks[system:-1], strict=True):
            bin_of = np.arange(len(block)) * bins // len(block)
            here = choice[(choice >= start) & (choice < start + len(block))].numpy() - start
            there += np.bincount(bin_of, minlength=bins)
            chosen += np.bincount(bin_of[here], minlength=bins)
    return np.divide(chosen, there, out=np.full(bins, np.nan), where=there > 0)


def by_block(rows: Sequence[Tensor], prompts: Sequence[Prompt], system: int = 1) -> np.ndarray:
    """[B] share of the tokens of the first, second, … document block that are chosen, over prompts of any length."""
    most = max(len(prompt.context) - system for prompt in prompts)
    chosen, there = np.zeros(most), np.zeros(most)
    for choice, prompt in zip(rows, prompts, strict=True):
        lengths = np.array([len(block) for block in prompt.blocks[system:-1]])
        there[: len(lengths)] += lengths
        rank = prompt.block_of[choice].numpy() - system
        chosen += np.bincount(rank[rank >= 0], minlength=most)
    return np.divide(chosen, there, out=np.full(most, np.nan), where=there > 0)

"""How far methods agree in the tokens that they choose."""

from collections.abc import Mapping, Sequence

import numpy as np
from torch import Tensor

from workbench.core.errors import BadInput

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

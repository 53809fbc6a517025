"""Which tokens methods choose and how far they agree; which neighbours a passage is prepared with."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from workbench.core.blocks import Block, Prompt
from workbench.core.errors import BadInput, not_allowed
from workbench.data.sample import Sample, document_starts
from workbench.metrics.answers import bootstrap

MEASURES = ("jaccard", "smaller")


def agreement(rows: Mapping[str, Sequence[Tensor]], measure: str = "jaccard") -> np.ndarray:
    """Return [M, M] overlap of the rows that M methods choose, mean over the prompts in which either chooses any.

    measure  "jaccard": tokens that both choose, of those that either does; "smaller": of those of the smaller choice
    """
    if measure not in MEASURES:
        raise not_allowed("measure", measure, MEASURES)
    if len({len(choices) for choices in rows.values()}) > 1:
        raise BadInput("every method must choose for the same prompts: one list of rows a prompt")
    sets = [[set(choice.tolist()) for choice in choices] for choices in rows.values()]
    return np.array([[_mean_overlap(a, b, measure) for b in sets] for a in sets])


def _mean_overlap(a: list[set[int]], b: list[set[int]], measure: str) -> float:
    shares = []
    for x, y in zip(a, b, strict=True):
        size = len(x | y) if measure == "jaccard" else min(len(x), len(y))
        if size:
            shares.append(len(x & y) / size)
    return float(np.mean(shares)) if shares else float("nan")


def chosen(rows: Tensor, prompt: Prompt) -> Tensor:
    """Return [T of the context] 1 where a token is among `rows`, else 0."""
    return torch.zeros(prompt.starts[-1]).index_fill_(0, rows, 1.0)


def by_offset(values: Sequence[Tensor], prompts: Sequence[Prompt], bins: int = 10, system: int = 1) -> np.ndarray:
    """Return [P, bins]: the mean of `values` [T of the context] by place in the block, start to end.

    Over document tokens of P prompts; nan where no token stands. The first `system` blocks of a prompt are no
    documents.

    nan where no token stands. The first `system` blocks of a prompt are no documents.
    """
    places = [[np.arange(len(block)) * bins // len(block) for block in prompt.blocks[system:-1]] for prompt in prompts]
    return _means(values, prompts, [np.concatenate([[], *place]).astype(int) for place in places], bins, system)


def by_block(values: Sequence[Tensor], prompts: Sequence[Prompt], system: int = 1) -> np.ndarray:
    """Return [P, B] the same by rank of the block: first, second, … document block of up to B."""
    ranks = [prompt.block_of[prompt.starts[system] : prompt.starts[-1]].numpy() - system for prompt in prompts]
    return _means(values, prompts, ranks, max(len(prompt.context) - system for prompt in prompts), system)


def _means(
    values: Sequence[Tensor], prompts: Sequence[Prompt], places: Sequence[np.ndarray], count: int, system: int
) -> np.ndarray:
    means = np.full((len(prompts), count), np.nan)
    for row, value, prompt, place in zip(means, values, prompts, places, strict=True):
        tokens = np.bincount(place, minlength=count)
        total = np.bincount(place, value[prompt.starts[system] :].double().cpu().numpy(), count)
        np.divide(total, tokens, out=row, where=tokens > 0)
    return means


def summary(means: np.ndarray, name: str, at: Sequence[float], seed: int = 0) -> list[dict[str, Any]]:
    """Return a record for every column of `means` [P, K]: {name, at, mean, low, high, n}.

    Means over prompts, with bootstrap intervals.
    """
    records = []
    for x, column in zip(at, means.T, strict=True):
        present = column[~np.isnan(column)]
        low, high = bootstrap(present, seed, 500)
        mean = float(present.mean()) if len(present) else float("nan")
        records.append({"name": name, "at": x, "mean": mean, "low": low, "high": high, "n": len(present)})
    return records


def antecedents(
    samples: Iterable[Sample], prompts: Iterable[Prompt], neighbours: Callable[[Block], Sequence[Block]]
) -> tuple[int, int]:
    """Count the continued passages of a lab corpus whose antecedent is among their `neighbours`: (those, all).

    A continued passage says "She …" of somebody whom only the first passage of its document names, its antecedent.
    Preparation can give a passage what it lacks only where the antecedent is a neighbour. Each passage counts once.
    """
    before: dict[Block, Block] = {}
    for sample, prompt in zip(samples, prompts, strict=True):
        documents = prompt.context[len(prompt.context) - len(sample.ctxs) :]
        for i, first in enumerate(document_starts(sample.ctxs)):
            if first < i:
                before.setdefault(documents[i], documents[first])
    return sum(antecedent in neighbours(block) for block, antecedent in before.items()), len(before)


def places(values: Sequence[Tensor], prompts: Sequence[Prompt], name: str, bins: int = 10) -> list[dict[str, Any]]:
    """Return where document tokens have more of `values` [T of the context]: {by, name, at, mean, low, high, n}.

    By "offset": `at` is the middle of one of `bins` stretches of a block, from 0 to 1. By "rank": it counts blocks.
    """
    offsets, ranks = by_offset(values, prompts, bins), by_block(values, prompts)
    middles = [(i + 0.5) / bins for i in range(bins)]
    by_offsets = [{"by": "offset", **record} for record in summary(offsets, name, middles)]
    return by_offsets + [{"by": "rank", **r} for r in summary(ranks, name, range(1, ranks.shape[1] + 1))]

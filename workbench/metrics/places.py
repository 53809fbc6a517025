"""Where in their block, and in which block, tokens have more of something: deviation, or being chosen."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from workbench.core.blocks import Prompt
from workbench.metrics.answers import bootstrap


def chosen(rows: Tensor, prompt: Prompt) -> Tensor:
    """[T of the context] 1 where a token is among `rows`, else 0."""
    return torch.zeros(prompt.starts[-1]).index_fill_(0, rows, 1.0)


def by_offset(values: Sequence[Tensor], prompts: Sequence[Prompt], bins: int = 10, system: int = 1) -> np.ndarray:
    """[P, bins] mean of `values` [T of the context] over the document tokens of each of P prompts, by where they stand
    in their block, from its start to its end; nan where no token stands."""
    places = [[np.arange(len(block)) * bins // len(block) for block in prompt.blocks[system:-1]] for prompt in prompts]
    return _means(values, prompts, [np.concatenate([[], *place]).astype(int) for place in places], bins, system)


def by_block(values: Sequence[Tensor], prompts: Sequence[Prompt], system: int = 1) -> np.ndarray:
    """[P, B] the same by rank of the block: first, second, … document block of up to B."""
    ranks = [prompt.block_of[prompt.starts[system] : prompt.starts[-1]].numpy() - system for prompt in prompts]
    return _means(values, prompts, ranks, max(len(prompt.context) - system for prompt in prompts), system)


def summary(means: np.ndarray, name: str, at: Sequence[float], seed: int = 0) -> list[dict]:
    """Records {name, at, mean, low, high, n} per column of `means` [P, K]: mean over prompts, bootstrap interval."""
    records = []
    for x, column in zip(at, means.T, strict=True):
        there = column[~np.isnan(column)]
        low, high = bootstrap(there, seed, 500)
        mean = float(there.mean()) if len(there) else float("nan")
        records.append({"name": name, "at": x, "mean": mean, "low": low, "high": high, "n": len(there)})
    return records


def _means(
    values: Sequence[Tensor], prompts: Sequence[Prompt], places: Sequence[np.ndarray], count: int, system: int
) -> np.ndarray:
    found = np.full((len(prompts), count), np.nan)
    for row, value, prompt, place in zip(found, values, prompts, places, strict=True):
        here = np.bincount(place, minlength=count)
        total = np.bincount(place, value[prompt.starts[system] :].double().cpu().numpy(), count)
        np.divide(total, here, out=row, where=here > 0)
    return found

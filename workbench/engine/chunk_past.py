"""The context that a chunk was cached in, its attention to it, and its overlap with a new context (Cache-Craft)."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import torch

from workbench.core.blocks import Prompt
from workbench.engine.attention_maps import Crossing


@dataclass(frozen=True)
class ChunkContext:
    """The context of a chunk at caching time: preceding chunks, its attention to each, and its CCI (Cache-Craft)."""

    prefix: tuple[tuple[str, float], ...]  #: (Block.key, inter-attention)
    cci: float


def pasts(prompt: Prompt, attention: Crossing, system: int = 1) -> list[ChunkContext]:
    """Return the `ChunkContext` of each document block of a computed prompt; the first `system` blocks have none."""
    lengths = torch.tensor([float(len(block)) for block in prompt.context])
    of = prompt.block_of[: prompt.starts[-1]]
    sums = torch.zeros(len(lengths), len(lengths)).index_add_(0, of, attention.paid.cpu())  # [B, B] from row to column
    means = sums / (lengths[:, None] * lengths)
    past = []
    for i in range(system, len(lengths)):
        prefix = tuple((prompt.blocks[j].key, float(sums[i, j])) for j in range(system, i))
        past.append(ChunkContext(prefix, float(torch.sigmoid(means[i, system:i].sum() / means[i, i]))))
    return past


def prefix_fit(old: Sequence[tuple[str, float]], new: Sequence[str]) -> float:
    """Return β' = β (1 - γ): how well a chunk's prefix matches its prefix at caching time; 1 if both are empty.

    β is the share of the old inter-attention to chunks that are in the new prefix; γ is the share of pairs of these
    whose order has changed (Kendall).
    """
    if not old:
        return 0.0 if new else 1.0
    place = {key: i for i, key in enumerate(new)}
    kept = [(place[key], value) for key, value in old if key in place]
    total = sum(value for _, value in old)
    pairs = list(combinations([position for position, _ in kept], 2))
    reordered = sum(a > b for a, b in pairs) / len(pairs) if pairs else 0.0
    return sum(value for _, value in kept) / total * (1 - reordered) if total else 1.0
